"""Replay: batches lead where their records one by one do, and only what is behind a position counts."""

from __future__ import annotations

import pytest
from librt.strings import BytesWriter

from harness import START_US, Harness, message, state
from headrace.core.records.event import (
    Event,
    SessionEnded,
    SessionName,
    SessionOpened,
    Subscribed,
    SubscriptionRow,
)
from headrace.core.records.message import decode_batch
from headrace.core.records.record import Record
from headrace.core.state.replay import Replay
from headrace.core.state.state import Fold
from headrace.errors import CorruptRecord
from headrace.storage.memory import MemoryJournal

NEVER = 0xFFFFFFFF


def body_of(*records: Record) -> bytes:
    out = BytesWriter()
    for record in records:
        record.encode_into(out)
    return out.getvalue()


def opened(topic_filter: str = "a/+") -> list[Record]:
    """A session that subscribes; its incarnation is 0."""
    row = SubscriptionRow(topic_filter, 1, False, False, 0, 0)
    session = SessionOpened.at(START_US, "default", "s", 0, NEVER, 5, None, 64, "ada")
    return [session, Subscribed.at(START_US, SessionName(0), [row], [])]


def waiting(fold: Fold) -> int:
    """Messages in the queue of that session."""
    return int(fold.by_incarnation[0].outbound().unfinished())


def test_batches_lead_where_their_records_lead() -> None:
    """The usual message is applied without an object made of it; it must not show."""
    harness = Harness()
    plain, sharing = harness.client("plain"), harness.client("sharing", version=5)
    publisher = harness.client("p", version=5)
    plain.subscribe("a/+", 1)
    for number in range(30):
        publisher.publish(f"a/{number % 3}", b"%d" % number, number % 3, retain=number % 7 == 0)
    sharing.subscribe("$share/g/a/#", 2)
    for number in range(30):
        publisher.publish("a/1", b"%d" % number, number % 3)
    bodies = harness.journal.bodies
    by_batch, by_record = Fold(harness.journal), Fold(harness.journal)
    batches, records = Replay(by_batch), Replay(by_record)
    offset = 0
    for body in bodies:
        found = decode_batch(body, offset)
        batches.batch(body, offset, 0)
        for record in found:
            records.record(record)
        offset += len(found)
    assert state(by_batch) == state(by_record)
    assert batches.count == records.count == offset


def test_a_batch_that_a_snapshot_has_in_part_is_applied_from_there_on() -> None:
    fold = Fold(MemoryJournal())
    replay = Replay(fold)
    replay.batch(body_of(*opened()), 0, 0)
    replay.batch(body_of(*[message(b"a/b") for _ in range(5)]), 2, 4)
    assert (waiting(fold), replay.count) == (3, 5)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_sessions_snapshot_has_changes_nothing(qos: int) -> None:
    """The usual message, and one that is made an object of."""
    fold = Fold(MemoryJournal())
    replay = Replay(fold)
    replay.batch(body_of(*opened()), 0, 0)
    fold.by_incarnation[0].applied = 3
    replay.batch(body_of(*[message(b"a/b", qos=qos) for _ in range(5)]), 2, 0)
    assert waiting(fold) == 3


def test_the_session_is_as_its_events_say() -> None:
    fold = Fold(MemoryJournal())
    replay = Replay(fold)
    replay.batch(body_of(*opened()), 0, 0)
    session = fold.tenant("default").sessions["s"]
    assert (session.incarnation, session.owner, session.opened_limit) == (0, "ada", 64)
    assert list(session.subscriptions or {}) == ["a/+"]
    replay.batch(body_of(SessionEnded.at(START_US, SessionName(0), 0, "expired", -1)), 2, 0)
    assert session.ended
    assert not fold.by_incarnation


def test_an_event_of_a_later_version_is_passed_over() -> None:
    fold = Fold(MemoryJournal())
    replay = Replay(fold)
    replay.batch(body_of(*opened(), Event(99, START_US, {"inc": 0}), message(b"a/b")), 0, 0)
    assert (waiting(fold), replay.count) == (1, 4)


def test_a_topic_that_runs_past_its_record_is_refused() -> None:
    body = bytearray(body_of(message(b"a/b")))
    body[32:34] = b"\xff\xff"
    with pytest.raises(CorruptRecord):
        Replay(Fold(MemoryJournal())).batch(bytes(body), 0, 0)
