"""Topics of clusters and the clients of a partition, with a real Kafka."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from broker_process import free_port, headrace, wait_until
from headrace.storage.kafka.claims import Claims, HandOver, Stage
from headrace.storage.kafka.cluster_url import ClusterUrl, client_at
from headrace.storage.kafka.log_fold import MissingRecords
from headrace.storage.kafka.owner import TOO_LARGE
from headrace.storage.kafka.partition_reader import PartitionReader
from headrace.storage.kafka.topics import KafkaUnusable
from kafka_server import WITHIN_S, KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture
def cluster(kafka: KafkaServer) -> str:
    """The address of a cluster of one shard."""
    return kafka.make_cluster(1)


# The commands


def test_a_cluster_is_made_once_and_says_how_it_is(kafka: KafkaServer) -> None:
    url = kafka.new_url()
    made = headrace("cluster", "create", url, "--shards", "3", deadline_s=WITHIN_S)
    assert (made.returncode, "replication 1" in made.stderr) == (0, True), made.stderr
    again = headrace("cluster", "create", url, "--shards", "3", deadline_s=WITHIN_S)
    assert (again.returncode, "already" in again.stderr) == (1, True)
    found = headrace("cluster", "status", "--cluster", url, deadline_s=WITHIN_S)
    assert found.returncode == 0, found.stderr
    assert [line.partition(":")[0] for line in found.stdout.splitlines()[1:]] == [
        "shard 0",
        "shard 1",
        "shard 2",
    ]
    state = json.loads(headrace("cluster", "status", "--cluster", url, "--json", deadline_s=WITHIN_S).stdout)
    assert (state["problems"], len(state["shards"]), state["shards"][2]["end"]) == ([], 3, 0)


def test_what_one_broker_cannot_give_is_refused(kafka: KafkaServer) -> None:
    url = f"kafka://{kafka.address}/none"
    found = headrace("cluster", "create", url, "--shards", "1", "--replication", "3", deadline_s=WITHIN_S)
    assert found.returncode == 2
    assert "--replication" in found.stderr
    missing = headrace("cluster", "status", "--cluster", url, deadline_s=WITHIN_S)
    assert missing.returncode == 1
    assert "headrace cluster create" in missing.stderr


def test_a_setting_by_which_messages_would_be_lost_is_named(kafka: KafkaServer, cluster: str) -> None:
    kafka.set_on_topic(f"{cluster.rpartition('/')[2]}.journal", "retention.ms", "3600000")
    found = headrace("cluster", "status", "--cluster", cluster, deadline_s=WITHIN_S)
    assert found.returncode == 1
    assert "retention.ms is 3600000, and must be -1" in found.stdout


def test_partitions_that_somebody_has_added_are_no_shards(kafka: KafkaServer, cluster: str) -> None:
    topic = f"{cluster.rpartition('/')[2]}.journal"
    kafka.add_partitions(topic, 3)
    wanted = [f"{topic}: 3 partitions, and there are 1 shards, for good: the others are not used"]
    deadline = time.monotonic() + WITHIN_S
    while (state := kafka.state_of(cluster)).problems != wanted:
        assert time.monotonic() < deadline, state
        time.sleep(0.1)
    assert ([one.shard for one in state.shards], state.unsafe) == ([0], [])


# The group that shares the shards


class Member:
    """One worker's membership, polled by a thread as a loop would."""

    def __init__(self, cluster: str, shards: int) -> None:
        from headrace.storage.kafka.cluster_url import ClusterUrl
        from headrace.storage.kafka.group import Group

        url = ClusterUrl.parse(cluster)
        self.claims = Claims(shards, lambda: 0.5, time.monotonic())
        self.group = Group(url.client, url.shards, "w", self.claims)
        self._is_over = threading.Event()
        self._stands_still = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def _poll(self) -> None:
        while not self._is_over.wait(0.05):
            if self._stands_still.is_set():
                continue
            self.group.poll()
            self.claims.on_time(time.monotonic())
            for action in self.claims.take_actions():
                if isinstance(action, HandOver):
                    self.claims.on_ended(action.shard, time.monotonic())
            for shard in range(4):
                if self.claims.stage(shard) is Stage.TAKING:
                    self.group.ask(shard, partial(self._take, shard))

    def _take(self, shard: int) -> None:
        if self.claims.stage(shard) is Stage.TAKING:
            assert self.claims.is_advised(shard, time.monotonic())
            self.claims.on_owned(shard, time.monotonic())

    @property
    def owned(self) -> list[int]:
        return [shard for shard in range(4) if self.claims.stage(shard) is Stage.OWNED]

    def stand_still(self) -> None:
        self._stands_still.set()

    def leave(self) -> None:
        """Leave in good order, or end what has stood still."""
        self._is_over.set()
        self._thread.join()
        self.group.close()


def test_two_workers_share_the_shards_and_one_that_stands_still_is_replaced(kafka: KafkaServer) -> None:
    cluster = kafka.make_cluster(4)
    members = [Member(cluster, 4)]
    try:
        wait_until(lambda: members[0].owned == [0, 1, 2, 3], "the first has all", WITHIN_S)
        members.append(Member(cluster, 4))
        wait_until(lambda: [len(one.owned) for one in members] == [2, 2], "each has its share", WITHIN_S)
        assert sorted(members[0].owned + members[1].owned) == [0, 1, 2, 3]
        members[0].stand_still()
        wait_until(lambda: members[1].owned == [0, 1, 2, 3], "the second has all", WITHIN_S)
    finally:
        for one in members:
            one.leave()


# The clients of a partition


class Heard:
    """What clients have told, in its order."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.client: Any = None
        self._changed = threading.Condition()

    def _note(self, *event: Any) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def on_report(self, token: int, offset: int | None, error: str) -> None:
        self._note("report", token, offset, error)

    def on_records(self, reading: int, records: list[tuple[int, bytes | None]]) -> None:
        for offset, value in records:
            self._note("record", reading, offset, value)
        self.client.taken()

    def on_end(self, reading: int, end: int) -> None:
        self._note("end", reading, end)

    def on_missing(self, reading: int, start: int) -> None:
        self._note("missing", reading, start)

    def on_trouble(self, what: str) -> None:
        self._note("trouble", what)

    def reads(self, reading: int) -> tuple[Any, ...]:
        """Read from the beginning; returns how that ends."""
        self.client.read(reading, 0)
        with self._changed:
            ended = [("missing", reading), ("end", reading)]
            assert self._changed.wait_for(lambda: self.events and self.events[-1][:2] in ended, WITHIN_S)
            return self.events[-1]

    def until(self, *wanted: Any) -> tuple[Any, ...]:
        """Wait for an event that begins so, and return the first one."""

        def found() -> tuple[Any, ...] | None:
            return next((event for event in self.events if event[: len(wanted)] == wanted), None)

        with self._changed:
            assert self._changed.wait_for(lambda: found() is not None, WITHIN_S), (wanted, self.events[-5:])
            event = found()
            assert event is not None
            return event


@pytest.fixture
def heard(cluster: str) -> Iterator[Heard]:
    """The clients of a partition, and what they tell."""
    from headrace.storage.kafka.cluster_url import ClusterUrl
    from headrace.storage.kafka.partition_client import PartitionClient

    url = ClusterUrl.parse(cluster)
    heard = Heard()
    heard.client = PartitionClient(url.client, url.journal, 0, heard)
    yield heard
    heard.client.close()


def records_of(heard: Heard, reading: int) -> list[tuple[int, bytes]]:
    return [(event[2], event[3]) for event in heard.events if event[:2] == ("record", reading)]


def test_what_is_appended_is_reported_with_its_offset_and_read(heard: Heard) -> None:
    heard.client.read(1, 0)
    assert heard.until("end", 1) == ("end", 1, 0)
    for number in range(3):
        heard.client.append(number, b"record %d" % number)
        assert heard.until("report", number) == ("report", number, number, "")
    heard.client.read(2, 1)
    heard.until("end", 2, 3)
    assert records_of(heard, 2) == [(1, b"record 1"), (2, b"record 2")]
    heard.client.read(3, 9)  # behind the end, as of a partition that was cut
    heard.until("end", 3, 3)


def test_many_records_come_in_their_order_and_none_twice(heard: Heard) -> None:
    for number in range(500):
        heard.client.append(number, b"%d" % number)
    for number in range(500):
        heard.until("report", number, number, "")
    heard.client.read(1, 0)
    heard.until("end", 1, 500)
    assert records_of(heard, 1) == [(number, b"%d" % number) for number in range(500)]


def test_what_was_deleted_is_said_to_be_missing(heard: Heard) -> None:
    for number in range(5):
        heard.client.append(number, b"x")
        heard.until("report", number)
    heard.client.delete(3)
    deadline = time.monotonic() + WITHIN_S
    reading = 1
    while heard.reads(reading) != ("missing", reading, 3):
        assert time.monotonic() < deadline
        reading += 1
    heard.client.read(reading + 1, 3)
    heard.until("end", reading + 1, 5)
    assert [offset for offset, _ in records_of(heard, reading + 1)] == [3, 4]


def test_a_producer_that_is_given_up_leaves_the_way_free(heard: Heard) -> None:
    heard.client.append(1, b"one")
    heard.until("report", 1)
    heard.client.purge()
    heard.client.append(2, b"two")
    assert heard.until("report", 2)[3] == ""


def test_a_record_that_is_too_large_is_refused_as_that(heard: Heard) -> None:
    heard.client.append(1, bytes(17 << 20))
    assert heard.until("report", 1) == ("report", 1, None, TOO_LARGE)
    heard.client.append(2, bytes((16 << 20) - (64 << 10)))
    assert heard.until("report", 2)[2:] == (0, "")


# A partition, read


@pytest.fixture
def partition(heard: Heard, cluster: str) -> Iterator[PartitionReader]:
    """A reader of the partition that `heard` writes."""
    url = ClusterUrl.parse(cluster)
    reader = PartitionReader(url.client, url.journal, 0)
    yield reader
    reader.close()


def test_ranges_of_a_partition_are_read_one_within_another(heard: Heard, partition: PartitionReader) -> None:
    assert partition.bounds() == (0, 0)
    for number in range(600):
        heard.client.append(number, b"%d" % number)
    for number in range(600):
        heard.until("report", number, number, "")
    assert partition.bounds() == (0, 600)
    outer = partition.records(1, 599)
    assert [next(outer), next(outer)] == [(1, b"1"), (2, b"2")]
    assert list(partition.records(598, 600)) == [(598, b"598"), (599, b"599")]
    assert [offset for offset, _ in outer] == list(range(3, 599))
    assert list(partition.records(5, 5)) == []


def test_a_range_that_was_deleted_is_missing(heard: Heard, partition: PartitionReader) -> None:
    for number in range(5):
        heard.client.append(number, b"x")
        heard.until("report", number)
    heard.client.delete(3)
    deadline = time.monotonic() + WITHIN_S
    while partition.bounds() != (3, 5):
        assert time.monotonic() < deadline
    with pytest.raises(MissingRecords, match="Kafka offset 1"):
        next(partition.records(1, 5))
    assert [offset for offset, _ in partition.records(3, 5)] == [3, 4]


def test_a_partition_that_is_not_there_and_a_kafka_that_is_away_are_waited_for(kafka: KafkaServer) -> None:
    for address in (kafka.address, f"127.0.0.1:{free_port()}"):
        reader = PartitionReader(client_at(address), "nothing", 0, 1.0)
        with pytest.raises(KafkaUnusable) as found:
            reader.bounds()
        assert not found.value.is_missing
        reader.close()
