"""What a store keeps of an entry, and what of a queue is asked for by its policy."""

from __future__ import annotations

import pytest

from harness import Harness, message
from headrace.core.outbound.journal_queues import JournalQueues
from headrace.core.outbound.stored_session import StoredSession, entry_of, message_of
from headrace.core.ports.journal import DAMAGED, GONE, NOT_NOW
from headrace.core.ports.queue_store import IN_JOURNAL, NOTHING, QueueName
from headrace.core.records.message import Message, copy_of
from headrace.core.records.record import ACKED, Progress
from headrace.core.state.queue import reference
from headrace.core.storing.notes import StoreNotes, StoringSettings
from headrace.core.storing.storing import Storing
from headrace.stores.memory import MemoryStore

FAR = 1000


def queue_of(harness: Harness, long: int = FAR) -> StoredSession:
    session = harness.broker.fold.tenant("default").sessions["sub"]
    storing = Storing(MemoryStore(), StoreNotes(), harness.clock, StoringSettings("5f" * 16, 0))
    return StoredSession(session, storing, JournalQueues(harness.journal), long)


def waiting(*payloads: bytes) -> Harness:
    """A broker with a client that is away and has so many messages waiting."""
    harness = Harness()
    client = harness.client("sub")
    client.subscribe("t")
    client.lose()
    publisher = harness.client("pub", clean=True)
    for payload in payloads:
        publisher.publish("t", payload)
    return harness


def test_an_entry_says_what_its_message_is_and_where_it_stood() -> None:
    one = message(b"a/b", b"payload", b"\x03\x00\x01x", 60, 2)
    for each in (one, copy_of(one, 3, 77)):
        each.offset = 41
        entry = entry_of(reference(41, 5, True, 2), each)
        assert int.from_bytes(entry[:8], "little") == reference(41, 5, True, 2)
        found = message_of(entry)
        assert isinstance(found, Message)
        assert type(found) is type(each)
        assert (found.offset, found.topic, found.payload) == (41, b"a/b", b"payload")
        assert (found.properties, found.message_expiry_s) == (one.properties, 60)
        assert entry_of(reference(41, 5, True, 2), found) == entry


@pytest.mark.parametrize("entry", [NOTHING, IN_JOURNAL])
def test_an_entry_that_stands_for_nothing_is_none(entry: bytes) -> None:
    assert message_of(entry) is GONE


@pytest.mark.parametrize("cut", [5, 8, 9, 20, 50])
def test_an_entry_that_is_damaged_is_none_and_raises_nothing(cut: int) -> None:
    whole = entry_of(reference(1, 0, False, 1), message())
    assert message_of(whole[:cut]) is DAMAGED


def test_entries_are_those_that_wait_as_many_as_fit() -> None:
    queue = queue_of(waiting(b"one", b"two", b"three"))
    found = queue.entries(1, 10, 1 << 20)
    assert [message_of(entry).payload for entry in found] == [b"one", b"two", b"three"]  # type: ignore[union-attr]
    assert queue.newest() == 3
    assert len(queue.entries(2, 10, 1)) == 1, "one, however large"
    assert len(queue.entries(1, 10, len(found[0]) + len(found[1]))) == 2


def test_nothing_is_put_for_a_client_that_is_connected_and_near() -> None:
    harness = waiting(b"one", b"two")
    queue = queue_of(harness)
    assert queue.wants_put()
    client = harness.client("sub", sync=False)
    session = harness.broker.fold.tenant("default").sessions["sub"]
    assert session.link is client.link
    assert not queue.wants_put()
    assert queue.entries(1, 2, 1 << 20) == []
    assert queue_of(harness, 1).wants_put() or session.queue is None or session.queue.backlog.count == 0


def test_what_is_in_flight_is_put_and_what_is_finished_stands_for_nothing() -> None:
    harness = waiting()
    client = harness.client("sub")
    harness.client("pub2", clean=True).feed(b"")
    publisher = harness.client("pub", clean=True)
    for payload in (b"one", b"two", b"three"):
        publisher.publish("t", payload)
    came = [packet_id for packet_id, _, _, _ in client.publishes()]
    client.ack(came[1])
    client.lose()
    publisher.publish("t", b"four")
    found = queue_of(harness).entries(1, 10, 1 << 20)
    assert [message_of(entry) is GONE for entry in found] == [False, True, False, False]


def test_the_first_large_entry_is_found() -> None:
    harness = waiting(b"x", b"y" * 200_000, b"z", b"y" * 300_000)
    queue = queue_of(harness)
    assert queue.large_between(1, 4, 1 << 20) == 0
    assert queue.large_between(1, 4, 250_000) == 4
    assert queue.large_between(1, 4, 100_000) == 2
    assert queue.large_between(3, 4, 100_000) == 4
    harness.journal.reads_fail = True
    assert queue.large_between(1, 4, 250_000) == 2, "it may be, as long as it cannot be read"
    assert queue.entries(1, 4, 1 << 20) == []


def test_the_context_says_how_far_a_client_is() -> None:
    harness = waiting(b"one", b"two")
    context = queue_of(harness).context()
    assert (context.last_packet_id, context.last_serial) == (0, 2)
    assert context.updated_us > 0


def test_a_read_asks_for_as_much_as_a_megabyte_and_one_entry_at_least() -> None:
    asked: list[tuple[int, int]] = []

    class Asked(MemoryStore):
        def read(self, number: int, name: QueueName, first: int, count: int) -> None:
            asked.append((first, count))

    large = b"y" * 400_000
    harness = waiting(*[b"x"] * 200, large, large, large, large)
    session = harness.broker.fold.tenant("default").sessions["sub"]
    storing = Storing(Asked(), StoreNotes(), harness.clock, StoringSettings("5f" * 16, 0))
    queue = StoredSession(session, storing, JournalQueues(harness.journal), FAR)
    queue.queue.rows.stored(1, 1, 204)
    queue.queue.rows.note_let_go(204)
    queue.queue.adopt(0)
    for offset in range(len(harness.journal.records)):
        harness.journal.records[offset] = Progress(ACKED, 0, b"")
    for serial in (1, 199, 201):
        assert queue.fetch(serial, reference(serial, 0, False, 1)) is NOT_NOW
        queue.queue.reading = 0
    assert asked == [(1, 128), (199, 4), (201, 2)]
