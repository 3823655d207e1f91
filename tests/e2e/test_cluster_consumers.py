"""Registered consumers of a cluster's journal in a real Kafka: what they have not read stays, and commands show them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess, headrace, wait_until
from e2e.raw import RawClient
from headrace.storage.kafka.cluster_url import ClusterUrl
from headrace.storage.kafka.consumer_topic import ConsumerTopic, consumed_up_to
from headrace.storage.kafka.journal_reader import KafkaJournalReader
from headrace.storage.kafka.partition_reader import shard_reader
from kafka_server import WITHIN_S, KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.time_limit(300)]
SNAPSHOTS_OFTEN: dict[str, object] = {
    "journal.snapshot_interval_bytes": 4096,
    "journal.snapshot_interval_s": 1,
}


class Node:
    """A cluster of one shard with a node, its consumers, and a reader of its journal."""

    def __init__(self, kafka: KafkaServer, folder: Path) -> None:
        self.url = kafka.make_cluster(1)
        self.place = ClusterUrl.parse(self.url)
        self.topic_id = kafka.state_of(self.url).topic_id
        self.consumers = ConsumerTopic(self.place, self.topic_id)
        self.broker = BrokerProcess(folder, SNAPSHOTS_OFTEN, ["--cluster", self.url, "--node", "n0"])

    def reader(self) -> KafkaJournalReader:
        return shard_reader(self.place, self.topic_id, 0)

    def publish(self, count: int) -> None:
        with RawClient(self.broker.address, "publisher") as client:
            client.connect(deadline_s=WITHIN_S)
            for _ in range(count):
                client.deliver("t", bytes(5000))

    def publish_until_deleted_up_to(self, offset: int) -> None:
        """Publish until nothing below a record offset is left."""
        reader = self.reader()

        def is_gone() -> bool:
            self.publish(4)
            return reader.start_offset() >= offset

        wait_until(is_gone, f"the records below {offset} are deleted", WITHIN_S)


@pytest.fixture
def node(kafka: KafkaServer, tmp_path: Path) -> Iterator[Node]:
    found = Node(kafka, tmp_path / "n0")
    found.broker.start(WITHIN_S)
    yield found
    found.consumers.close()
    found.broker.end()


def test_what_a_consumer_has_not_read_stays_until_it_is_removed(node: Node) -> None:
    assert consumed_up_to(node.place, node.topic_id, 0) is None
    node.publish_until_deleted_up_to(5)
    begin = node.reader().start_offset()
    node.consumers.register(0, "archive", begin, "here")
    assert consumed_up_to(node.place, node.topic_id, 0) == begin
    snapshots = shard_reader(node.place, node.topic_id, 0)._snapshots
    before = snapshots.bounds()[0]

    def are_snapshots_deleted() -> bool:
        node.publish(4)
        return snapshots.bounds()[0] > before + 10

    wait_until(are_snapshots_deleted, "snapshots are let go, and the journal is not", WITHIN_S)
    reader = node.reader()
    assert reader.start_offset() <= begin
    held = [batch.base_offset for batch in reader.scan(begin)]
    assert held[0] <= begin
    node.broker.kill()  # whoever has the shard then knows it, too
    node.broker.start(WITHIN_S)
    node.publish(20)
    assert [batch.base_offset for batch in node.reader().scan(begin)][: len(held)] == held

    end = held[-1]
    node.consumers.commit(0, "archive", end, "here")
    node.publish_until_deleted_up_to(begin + 1)
    assert node.reader().start_offset() <= end
    assert headrace("consumer", "remove", "archive", "--cluster", node.url).returncode == 0
    node.publish_until_deleted_up_to(end + 1)


def test_consumers_are_listed_handed_over_and_removed_by_commands(node: Node) -> None:
    node.consumers.register(0, "archive", 0, "here")
    shown = headrace("consumer", "list", "--cluster", node.url)
    assert shown.stdout.startswith("archive  offset 0  moved ")
    assert shown.stdout.endswith("  here\n")
    assert headrace("consumer", "hand-over", "archive", "--cluster", node.url).returncode == 0
    node.consumers.register(0, "archive", 0, "there")
    removed = headrace("consumer", "remove", "archive", "--cluster", node.url)
    assert removed.stdout == "archive was at offset 0; nobody waits for it any more\n"
    assert headrace("consumer", "list", "--cluster", node.url).stdout == ""
    again = headrace("consumer", "remove", "archive", "--cluster", node.url)
    assert (again.returncode, "no consumer 'archive' is registered" in again.stderr) == (1, True)
    assert headrace("consumer", "list", "--cluster", "kafka://nowhere").returncode == 2
