"""How far ahead a session may send: never beyond what its packet ids can tell apart."""

from __future__ import annotations

from harness import Client, Harness
from headrace.core.inflight import DIRECT_IDS, WINDOW_SERIALS_MAX, OutboundQueue


def far_ahead() -> tuple[Harness, Client, Client]:
    """A subscriber that never acknowledged its first entry and is 100 entries short of the end of the id range."""
    harness = Harness()
    subscriber, publisher = Client(harness, "sub"), Client(harness, "pub", clean=True)
    subscriber.subscribe("t")
    publisher.publish("t", b"first")
    subscriber.take()
    queue = queue_of(harness)
    queue.next_serial = WINDOW_SERIALS_MAX - 100
    queue.sent_limit = queue.reserving = queue.next_serial - 1
    return harness, subscriber, publisher


def queue_of(harness: Harness) -> OutboundQueue:
    session = harness.broker.fold.tenant("default").sessions["sub"]
    assert session.queue is not None
    return session.queue


def publish_and_acknowledge(subscriber: Client, publisher: Client, count: int) -> list[int]:
    """Returns the packet ids that came."""
    came = []
    for number in range(count):
        publisher.publish("t", b"%d" % number)
        for packet_id, _, _, _ in subscriber.publishes():
            came.append(packet_id)
            subscriber.ack(packet_id)
    return came


def test_nothing_is_sent_or_reserved_beyond_the_range_of_packet_ids() -> None:
    harness, subscriber, publisher = far_ahead()
    came = publish_and_acknowledge(subscriber, publisher, 300)
    queue = queue_of(harness)
    assert max(came) <= WINDOW_SERIALS_MAX
    assert queue.sent_limit - queue.durable_floor < DIRECT_IDS
    assert queue.backlog.count > 0


def test_the_rest_follows_when_the_oldest_entry_is_acknowledged() -> None:
    harness, subscriber, publisher = far_ahead()
    publish_and_acknowledge(subscriber, publisher, 300)
    waiting = queue_of(harness).backlog.count
    subscriber.ack(1)
    came = len(subscriber.publishes())
    assert 0 < came <= waiting
