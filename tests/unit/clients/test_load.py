"""The generator's own figures: what it counts must be right before it measures anybody else."""

from __future__ import annotations

from headrace.clients.load import HEAD, Publisher, Subscriber
from headrace.clients.tally import Tally
from headrace.mqtt.packets import Connack, Connect, Publish, Suback
from headrace.mqtt.properties import Properties


def received(subscriber: Subscriber, publisher: int, sequence: int, dup: bool = False) -> None:
    payload = HEAD.pack(0, publisher, sequence)
    subscriber.on_publish(Publish(b"t", 1, False, dup, 7, b"", -1, payload))


def test_a_subscriber_tells_repeats_from_disorder() -> None:
    tally = Tally(2)
    subscriber = Subscriber(tally, Connect(4, "s"), "t", 1)
    for publisher, sequence in ((0, 0), (1, 0), (0, 1), (1, 1), (0, 3)):
        received(subscriber, publisher, sequence)
    assert (tally.repeats, tally.reordered) == (0, 0)
    received(subscriber, 0, 3, dup=True)
    received(subscriber, 0, 2)
    assert (tally.received, tally.repeats, tally.reordered) == (7, 1, 1)
    assert subscriber.out[0] == b"\x40\x02\x00\x07"


def test_a_publisher_keeps_its_window_full_and_stops_when_told() -> None:
    tally = Tally(1)
    publisher = Publisher(tally, Connect(4, "p"), "t", 1, 0, 3, b"")
    publisher.fill()
    assert (tally.sent, len(publisher.out)) == (3, 3)
    publisher.on_puback(2, 0)
    assert (tally.sent, tally.acked) == (4, 1)
    tally.stopping = True
    publisher.on_puback(1, 0)
    assert tally.sent == 4


def test_a_publisher_with_a_budget_stops_at_it() -> None:
    tally = Tally(1)
    publisher = Publisher(tally, Connect(4, "p"), "t", 1, 0, 3, b"")
    publisher.left = 4
    publisher.fill()
    publisher.on_puback(1, 0)
    publisher.on_puback(2, 0)
    assert (tally.sent, tally.acked, len(publisher.unacked)) == (4, 2, 2)


def test_who_comes_back_must_find_the_session() -> None:
    tally = Tally(1)
    subscriber = Subscriber(tally, Connect(4, "s", False), "t", 1)
    for present, ready, refused in ((False, 0, 0), (True, 2, 0), (False, 3, 1)):
        subscriber.again()
        subscriber.on_connack(Connack(present, 0, Properties()))
        if not tally.ready:
            subscriber.on_suback(Suback(1, b"\x01", Properties()))
        assert (tally.ready, tally.refused) == (max(ready, 1), refused)
