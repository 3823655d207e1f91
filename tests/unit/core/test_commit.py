"""What the journal was offered to keep in memory: in the end, what somebody waits for."""

from __future__ import annotations

from functools import partial

import pytest

import headrace.core.commit
from harness import Client, Harness
from headrace.core.commit import ENTRY_BYTES, Deferred
from headrace.core.ports.clock import Clock
from headrace.core.ports.journal import Absent, JournalPort
from headrace.core.records.message import Message
from headrace.core.records.record import ACKED, Progress
from headrace.core.worker import Worker
from headrace.storage.memory import ManualScheduler, MemoryJournal

INTERPRETED = str(headrace.core.commit.__file__).endswith(".py")


class Offered(JournalPort):
    """Passes on to `MemoryJournal`, and keeps the records."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryJournal()
        self.batches: list[list[object]] = []
        self.times: list[tuple[int, int, list[int]]] = []

    def next_offset(self) -> int:
        return self.memory.next_offset()

    def append(
        self, body: bytes, records: list[object], first_timestamp_us: int, max_timestamp_us: int
    ) -> None:
        self.batches.append(records)
        stamps = [record.timestamp_us for record in records if isinstance(record, Message)]
        self.times.append((first_timestamp_us, max_timestamp_us, stamps))
        self.memory.append(body, records, first_timestamp_us, max_timestamp_us)

    def fetch(self, offset: int) -> Message | Absent:
        return self.memory.fetch(offset)

    def payloads(self) -> list[bytes]:
        """Those that are kept."""
        return [record.payload for batch in self.batches for record in batch if isinstance(record, Message)]


def test_the_times_of_a_batch_hold_those_of_its_records_when_the_clock_is_set_back() -> None:
    harness = Harness()
    offered = Offered()
    harness.worker = Worker(ManualScheduler(), harness.clock, harness.settings)
    harness.broker = harness.worker.own(0, offered)
    harness.journal = offered.memory
    harness.broker.sessions.absences.start()
    harness.sync()
    publisher = harness.client("p")
    harness.sync()
    begun = harness.clock.now_us
    for set_by_us in (0, 1000, 9000, -5000):
        harness.set_by_us = set_by_us
        publisher.publish("t", b"x", sync=False)
    harness.sync()
    first, last, stamps = max(offered.times, key=lambda found: len(found[2]))
    assert stamps[-3:] == [begun + 1000, begun + 9000, begun - 5000]
    assert min(first, last) <= min(stamps)
    assert max(first, last) >= max(stamps)


def test_a_message_is_let_go_when_it_has_left_to_all_who_get_it() -> None:
    harness = Harness()
    offered = Offered()
    harness.journal = offered.memory
    harness.worker = Worker(ManualScheduler(), harness.clock, harness.settings)
    harness.broker = harness.worker.own(0, offered)
    harness.broker.sessions.absences.start()
    harness.sync()
    here, away = harness.client("here"), harness.client("away")
    here.subscribe("t/#")
    away.subscribe("t/away")
    group = harness.client("member")
    group.subscribe("$share/g/t/group")
    group.link.window = 0
    away.lose_unsynced()
    publisher: Client = harness.client("p", clean=True)
    publisher.publish("t/warm", b"first", sync=False)  # the limit of a new session is on its way
    harness.sync()
    offered.batches.clear()
    for topic in ("here", "away", "group"):
        publisher.publish(f"t/{topic}", topic.encode(), sync=False)
    harness.worker.end_tick()
    assert offered.payloads() == [b"here", b"away", b"group"]
    harness.sync()
    assert offered.payloads() == [b"away", b"group"]
    assert [payload for _, payload, _, _ in here.publishes()] == [b"first", b"here", b"away", b"group"]


@pytest.mark.parametrize("is_contested", [False, True])
def test_where_another_may_own_the_journal_an_answer_waits_for_a_record_behind_the_packet(
    is_contested: bool,
) -> None:
    harness = Harness()
    offered = Offered()
    offered.is_contested = is_contested
    harness.journal = offered.memory
    harness.worker = Worker(ManualScheduler(), harness.clock, harness.settings)
    harness.broker = harness.worker.own(0, offered)
    harness.broker.sessions.absences.start()
    harness.sync()
    client = harness.client("c")
    client.take()
    offered.batches.clear()
    client.feed(b"\x62\x02\x00\x07", sync=False)  # PUBREL of an exchange that nobody knows
    for _ in range(3):
        harness.worker.end_tick()
    complete = [(0x70, b"\x00\x07")]
    assert client.take() == ([] if is_contested else complete)
    assert len(offered.batches) == is_contested
    harness.sync()
    assert client.take() == (complete if is_contested else [])
    client.feed(b"\xc0\x00")
    assert client.take() == [(0xD0, b"")]
    assert len(offered.batches) == is_contested  # nobody forgets anything by a PINGRESP


def test_a_call_waits_until_what_was_appended_before_it_is_durable_and_counts_against_its_payer() -> None:
    harness = Harness()
    client = harness.client("c")
    link, commit, said = client.link, harness.broker.commit, list[str]()
    before = link.deferred
    commit.append(Progress(ACKED, 1, b""))
    commit.then(link, partial(said.append, "durable"))
    commit.then(None, partial(said.append, "for nobody"))
    assert (said, link.deferred - before) == ([], ENTRY_BYTES)
    harness.sync()
    assert (said, link.deferred - before) == (["durable", "for nobody"], 0)


@pytest.mark.skipif(not INTERPRETED, reason="compiled, nothing can be made to fail there")
def test_acknowledgements_are_noted_until_their_record_is_there() -> None:

    class NoMemory(Clock):
        """Its time is asked for where a record of what became of messages is made."""

        def __getattribute__(self, name: str) -> object:
            if name == "now_us":
                raise MemoryError
            return object.__getattribute__(self, name)

    harness = Harness()
    client, publisher = harness.client("c"), harness.client("p")
    client.subscribe("t")
    publisher.publish("t", b"one")
    ((packet_id, _, _, _),) = client.publishes()
    client.ack(packet_id, sync=False)
    commit = harness.broker.commit
    clock, commit._clock = commit._clock, NoMemory()
    harness.worker.end_tick()
    assert harness.worker.failures.counts["journal"] == 1
    commit._clock = clock
    harness.sync()
    harness.crash()
    assert harness.client("c").publishes() == []


@pytest.mark.skipif(not INTERPRETED, reason="compiled, nothing can be made to fail there")
def test_a_batch_that_cannot_be_put_together_now_is_put_together_later() -> None:

    class Reluctant(Deferred):
        """Fails when a batch is put together, once."""

        armed = False

        def __getattribute__(self, name: str) -> object:
            if name == "kind" and Reluctant.armed:
                Reluctant.armed = False
                raise MemoryError
            return object.__getattribute__(self, name)

        def run(self) -> None:
            """Nothing is to be done."""

    harness = Harness()
    client, publisher = harness.client("c"), harness.client("p")
    client.subscribe("t")
    publisher.take()
    publisher.publish("t", b"one", sync=False)
    harness.broker.commit.defer(Reluctant())
    Reluctant.armed = True
    harness.worker.end_tick()
    assert harness.worker.failures.counts["journal"] == 1
    publisher.publish("t", b"two")
    assert [first for first, _ in publisher.take()] == [0x40, 0x40]
    client.lose()
    harness.crash()
    assert [payload for _, payload, _, _ in harness.client("c").publishes()] == [b"one", b"two"]
