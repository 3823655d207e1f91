"""Every offset that somebody refers to, whoever it is and however the reference moves meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import Client, Harness
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.message import Message
from headrace.errors import NotReadableNow
from headrace.storage.embedded.references import References

PAGE = 4


def walk(harness: Harness, at_once: int = 2000, between: Callable[[], object] = int) -> set[int]:
    """What a walk finds while `between` is called after each slice."""
    end = len(harness.journal.records)
    references = References(harness.broker.fold, 0, end, at_once)
    for _ in references.retained():
        between()
    harness.sync()
    for _ in references.owners():
        between()
    return references.between(0, end)


def payloads(harness: Harness, offsets: set[int]) -> set[bytes]:
    found = [harness.journal.records[offset] for offset in offsets]
    return {record.payload for record in found if isinstance(record, Message)}


def referenced(harness: Harness) -> set[bytes]:
    """The payloads of the messages that are referred to."""
    return payloads(harness, walk(harness))


def small_pages() -> Harness:
    settings = BrokerSettings()
    settings.backlog_page = PAGE
    return Harness(settings)


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
    for _ in references.owners():
        pass
    assert references.between(offsets[2], offsets[7]) == set(offsets[2:7])
    assert references.between(offsets[3], offsets[4]) == {offsets[3]}


def drain_a_little(client: Client, count: int) -> None:
    """Acknowledge the oldest few of what came."""
    waiting = client.packets
    for _ in range(min(count, len(waiting))):
        first, body = waiting.pop(0)
        if first >> 4 == 3:
            at = 2 + int.from_bytes(body[:2], "big")
            client.ack(int.from_bytes(body[at : at + 2], "big"))


@pytest.mark.parametrize("at_once", [1, 3, 7, 50])
@pytest.mark.parametrize("shared", [False, True])
def test_while_clients_drain_nothing_is_left_out(at_once: int, shared: bool) -> None:
    """References move from pages to the backlog to what is in flight, and of a group back, at every slice."""
    harness = small_pages()
    for number in range(5):
        client = harness.client(f"c{number}")
        client.subscribe(f"$share/g/{number // 2}/#" if shared else f"{number}/#")
        client.disconnect()
    publisher = harness.client("p", clean=True)
    for number in range(200):
        publisher.publish(f"{number % 5}/t", b"%d" % number)
    clients = [harness.client(f"c{n}", version=5, receive_maximum=3) for n in range(5)]
    turn = 0

    def move() -> None:
        nonlocal turn
        turn += 1
        if turn % (12 // min(at_once, 6)):
            return  # so that they do not finish before the walk does
        for number, client in enumerate(clients):
            if (turn + number) % 7 == 0:
                client.lose()
                clients[number] = harness.client(f"c{number}", version=5, receive_maximum=3)
            else:
                drain_a_little(client, 1 + turn % 3)

    found = payloads(harness, walk(harness, at_once, move))
    assert referenced(harness) <= found
    assert referenced(harness), "not all of it is gone already"


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_retained_message_that_a_new_subscription_listed_before_it_was_replaced(at_once: int) -> None:
    """The walk comes by when it is replaced already, and by the session when its record still waits for the journal."""
    harness = Harness()
    publisher = harness.client("p", clean=True)
    for number in range(6):
        publisher.publish(f"r/{number}", b"old %d" % number, retain=True)
    subscriber = harness.client("s", version=5, receive_maximum=1)
    end = len(harness.journal.records)
    references = References(harness.broker.fold, 0, end, at_once)
    steps = references.retained()
    next(steps)
    subscriber.harness = NoSync(harness)  # type: ignore[assignment]
    subscriber.subscribe("r/#")  # lists the old ones, which nobody has replaced yet
    for number in range(6):
        publisher.publish(f"r/{number}", b"new", retain=True, sync=False)
    harness.worker.end_tick()
    harness.journal.durable = len(harness.journal.records)
    harness.broker.commit.on_high_watermark(harness.journal.durable)  # now they are replaced
    for _ in steps:
        pass
    harness.sync()  # what `durable` waits for
    for _ in references.owners():
        pass
    found = payloads(harness, references.between(0, end))
    queue = harness.broker.fold.tenant("default").sessions["s"].outbound()
    waiting = [*queue.inflight.refs(), *queue.backlog.in_memory()]
    needed = {ref >> 20 for ref in waiting if ref >> 20 < end}
    assert needed
    assert payloads(harness, needed) <= found


class NoSync:
    """A harness that leaves what was sent unsynced."""

    def __init__(self, harness: Harness) -> None:
        self.now_us = harness.now_us
        self.set_by_us = harness.set_by_us

    def sync(self) -> None:
        """Not yet."""


def test_what_a_member_has_stays_when_the_group_is_gone() -> None:
    harness = Harness()
    member = harness.client("m", version=5)
    member.subscribe("$share/g/t", qos=2)
    harness.client("p", clean=True).publish("t", b"drawn", qos=2)
    session = harness.broker.fold.tenant("default").sessions["m"]
    harness.broker.fold.unsubscribe(session, "$share/g/t", 1 << 60)
    assert harness.broker.fold.tenant("default").groups == {}
    assert referenced(harness) == {b"drawn"}


def test_a_page_that_cannot_be_read_now_is_not_taken_for_an_empty_one() -> None:
    harness = small_pages()
    away = harness.client("away")
    away.subscribe("t")
    away.disconnect()
    publisher = harness.client("p", clean=True)
    for number in range(60):
        publisher.publish("t", b"%d" % number)
    harness.journal.reads_fail = True
    with pytest.raises(NotReadableNow):
        walk(harness)
    harness.journal.reads_fail = False
    assert len(referenced(harness)) == 60


def test_a_window_full_of_references_is_marked_in_slices() -> None:
    harness = small_pages()
    away = harness.client("away")
    away.subscribe("t")
    away.disconnect()
    publisher = harness.client("p", clean=True)
    for number in range(200):
        publisher.publish("t", b"%d" % number)
    slices = 0

    def count() -> None:
        nonlocal slices
        slices += 1

    assert len(payloads(harness, walk(harness, 10, count))) == 200
    assert slices >= 200 // 10
