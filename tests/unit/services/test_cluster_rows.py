"""What is told of topic queues and clusters, page by page, while they come and go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.core.outbound.cluster_readers import Guest
from headrace.core.ports.clock import Clock
from headrace.core.ports.settings import BrokerSettings
from headrace.core.ports.voice import Draught, Voice
from headrace.core.records.message import FrameMessage
from headrace.core.worker import Worker
from headrace.services import cluster_rows
from headrace.services.cluster_rows import ClusterRows, RowChoice
from headrace.services.paging import Place
from headrace.storage.memory import ManualScheduler, MemoryJournal, MemoryLink

NOW_US = 1_700_000_000_000_000


class Silent(Voice):
    """Keeps what was pulled."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[Draught] = []

    def joined(self, sn: bytes, code: int) -> None:
        assert code == 0

    def notify(self, sn: bytes, topic: bytes, cluster: bytes, available: int) -> None:
        pass

    def acknowledged(self, sn: bytes, code: int) -> None:
        assert code == 0

    def pulled(self, sn: bytes, messages: list[Draught]) -> None:
        self.got += messages


class Queues:
    """A broker with topic queues, on a journal in memory."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.clock.now_us = NOW_US
        self.journal = MemoryJournal()
        self.broker = Worker(ManualScheduler(), self.clock, BrokerSettings()).own(0, self.journal)
        self.consuming = self.broker.devices.consuming
        self.rows = ClusterRows(self.broker.fold, self.consuming.clusters, self.clock)

    def open(self, topic: bytes, tenant: str = "default") -> None:
        assert self.consuming.open(self.broker.fold.make(tenant), topic) == 0
        self.journal.sync(self.broker)

    def join(self, topic: bytes, *names: bytes) -> Guest:
        guest = Guest(MemoryLink(self.broker.worker), Silent())
        for name in names:
            self.consuming.join(guest, b"s", topic, name)
        self.journal.sync(self.broker)
        return guest

    def publish(self, topic: bytes, count: int) -> None:
        for number in range(count):
            message = FrameMessage(self.clock.now_us, number, "default", b"defaultd", 7, topic, -1, b"12")
            self.broker.commit.append(message)
        self.journal.sync(self.broker)

    def pull(self, guest: Guest, topic: bytes, name: bytes, most: int) -> list[bytes]:
        self.consuming.pull(guest, b"s", topic, name, most, 0)
        self.journal.sync(self.broker)
        assert isinstance(guest.voice, Silent)
        return [draught.message_id for draught in guest.voice.got]

    def all(self, limit: int = 1000, **wanted: Any) -> list[dict[str, Any]]:
        return asyncio.run(self.pages(limit, **wanted))

    async def pages(self, limit: int, **wanted: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        place: Place | None = Place()
        while place is not None:
            rows, place = await self.rows.page(RowChoice(**wanted), limit, place)
            assert len(rows) <= limit
            found += rows
        return found


@pytest.fixture
def queues() -> Queues:
    return Queues()


def names(rows: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
    return [(row["topic"], row["cluster"]) for row in rows]


def test_nothing(queues: Queues) -> None:
    assert queues.all() == []


def test_what_a_row_says(queues: Queues) -> None:
    queues.open(b"locks")
    guest = queues.join(b"locks", b"store")
    queues.publish(b"locks", 5)
    got = queues.pull(guest, b"locks", b"store", 3)
    queues.consuming.ack(guest, b"s", b"locks", b"store", got[1:2])
    queues.journal.sync(queues.broker)
    queues.clock.now_us += 2_500_000
    [row] = queues.all()
    assert row == {
        "tenant": "default",
        "topic": "locks",
        "messages": 5,
        "bytes": 5 * 7,
        "cluster": "store",
        "lag": 4,
        "in_flight": 2,
        "consumers": 1,
        "waiting": 0,
        "acked_per_s": 0.1,
        "oldest_s": 2.5,
    }


def test_the_rate_is_the_mean_of_the_last_seconds(queues: Queues) -> None:
    queues.open(b"locks")
    guest = queues.join(b"locks", b"store")
    for _ in range(600):
        queues.clock.mono_ms += 100
        queues.publish(b"locks", 2)
        ids = queues.pull(guest, b"locks", b"store", 2)
        queues.consuming.ack(guest, b"s", b"locks", b"store", ids[-2:])
    queues.journal.sync(queues.broker)
    assert queues.all()[0]["acked_per_s"] == pytest.approx(20, rel=0.02)
    assert queues.all()[0]["oldest_s"] is None
    queues.clock.mono_ms += 60_000
    assert queues.all()[0]["acked_per_s"] < 0.1


def test_a_queue_that_nobody_reads_has_a_row(queues: Queues) -> None:
    queues.open(b"quiet")
    queues.publish(b"quiet", 2)
    queues.clock.now_us += 1_000_000
    [row] = queues.all()
    assert (row["cluster"], row["messages"], row["lag"], row["oldest_s"]) == (None, 2, 0, 1.0)
    assert queues.all(cluster="store") == []


def test_rows_are_chosen_by_tenant_topic_and_cluster(queues: Queues) -> None:
    for topic in (b"a/1", b"a/2", b"b/1"):
        queues.open(topic)
        queues.join(topic, b"x", b"y")
    queues.open(b"a/1", "other")
    assert names(queues.all(topics="a/#", cluster="y")) == [("a/1", "y"), ("a/2", "y")]
    assert names(queues.all(topics="b/1")) == [("b/1", "x"), ("b/1", "y")]
    assert names(queues.all(tenant="other")) == [("a/1", None)]
    assert len(queues.all(tenant="default")) == 6


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 1000])
def test_pages_have_each_queue_and_cluster_once(
    queues: Queues, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_rows, "LOOKED_AT_MAX", 5)
    expected: list[tuple[str, str | None]] = []
    for number in range(8):
        topic = b"t%d" % number
        queues.open(topic)
        made = [b"c%d" % at for at in range(number % 4)]
        queues.join(topic, *made)
        expected += [(topic.decode(), name.decode()) for name in made] or [(topic.decode(), None)]
    assert names(queues.all(limit)) == expected


def test_queues_come_and_go_between_two_passes(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_rows, "WORK", 1)
    for number in range(6):
        queues.open(b"t%d" % number)
        queues.join(b"t%d" % number, b"c")

    async def while_others_work() -> list[dict[str, Any]]:
        looking = asyncio.create_task(queues.pages(2))
        await asyncio.sleep(0)
        for topic in (b"t0", b"t4"):
            fold = queues.broker.fold
            fold.queues.closed(fold.tenant("default").queues[topic])
        queues.open(b"t6")
        return await looking

    found = [row["topic"] for row in asyncio.run(while_others_work())]
    assert found == ["t0", "t1", "t2", "t3", "t5", "t6"], "t0 was seen before it went"
