"""Every offset that somebody refers to, whoever it is and however the reference moved."""

from __future__ import annotations

from harness import Harness
from headrace.core.message import Message
from headrace.services.references import References


def referenced(harness: Harness) -> set[bytes]:
    """The payloads of the messages that are referred to."""
    records = harness.journal.records
    references = References(harness.broker.fold, 0, len(records))
    for _ in references.slices():
        pass
    found = {records[offset] for offset in references.between(0, len(records))}
    assert all(isinstance(record, Message) for record in found)
    return {record.payload for record in found if isinstance(record, Message)}


def test_in_flight_waiting_shared_and_retained() -> None:
    harness = Harness()
    publisher = harness.client("p", clean=True)
    away = harness.client("away")
    away.subscribe("t")
    away.feed(b"\xe0\x00")
    slow = harness.client("slow", version=5, receive_maximum=1)
    slow.subscribe("s")
    member = harness.client("member", version=5, receive_maximum=1)
    member.subscribe("$share/g/x")
    publisher.publish("t", b"waits")
    publisher.publish("nobody", b"for nobody")
    publisher.publish("s", b"in flight")
    publisher.publish("s", b"behind it")
    publisher.publish("x", b"drawn")
    publisher.publish("x", b"not drawn")
    publisher.publish("r", b"replaced", retain=True)
    publisher.publish("r", b"retained", retain=True)
    expected = {b"waits", b"in flight", b"behind it", b"drawn", b"not drawn", b"retained"}
    assert referenced(harness) == expected
    member.feed(b"\xe0\x00")  # what it had goes back to the group
    assert referenced(harness) == expected
    slow.feed(b"\x40\x02\x00\x01")
    assert referenced(harness) == expected - {b"in flight"}


def test_only_the_stretch_that_is_asked_for() -> None:
    harness = Harness()
    away = harness.client("away")
    away.subscribe("t")
    away.feed(b"\xe0\x00")
    publisher = harness.client("p", clean=True)
    for number in range(10):
        publisher.publish("t", b"%d" % number)
    offsets = [r.offset for r in harness.journal.records if isinstance(r, Message)]
    references = References(harness.broker.fold, offsets[2], offsets[7])
    for _ in references.slices():
        pass
    assert references.between(offsets[2], offsets[7]) == set(offsets[2:7])
    assert references.between(offsets[3], offsets[4]) == {offsets[3]}
