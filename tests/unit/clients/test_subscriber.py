"""What a subscriber of `headrace bench` makes of the messages that come: before it measures anybody it must be right."""

from __future__ import annotations

import struct

import pytest

from headrace.clients.load import Turn
from headrace.clients.subscriber import Subscriber
from headrace.clients.tally import Tally
from headrace.mqtt import codec
from headrace.mqtt.packets import Connack, Connect, Suback
from headrace.mqtt.properties import Properties
from unit.clients.load_peers import Later, connected


def subscriber_of(tally: Tally, qos: int = 1, version: int = 4, clean: bool = True) -> Subscriber:
    return Subscriber(tally, Turn(Later().call_soon), Connect(version, "s", clean), "t", qos)


def message(
    publisher: int, sequence: int, dup: bool = False, qos: int = 1, version: int = 4, sent_ns: int = 0
) -> bytes:
    payload = struct.pack(">QII", sent_ns, publisher, sequence) + b"xxxx"
    properties = b"\x26\x00\x01a\x00\x01b" if version == 5 else b""
    return codec.encode_publish(version, b"t", payload, qos, False, dup, 7 if qos else 0, properties)


def test_repeats_are_told_from_disorder() -> None:
    tally = Tally(2)
    subscriber = subscriber_of(tally)
    connected(subscriber)
    for publisher, sequence in ((0, 0), (1, 0), (0, 1), (1, 1), (0, 3), (70_000, 0xFFFF_FFFE)):
        subscriber.data_received(message(publisher, sequence))
    assert (tally.repeats, tally.reordered) == (0, 0)
    subscriber.data_received(message(0, 3, dup=True) + message(0, 2))
    assert (tally.received, tally.repeats, tally.reordered) == (8, 1, 1)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_is_answered_as_its_qos_wants(qos: int, version: int) -> None:
    tally = Tally(1)
    subscriber = subscriber_of(tally, qos, version)
    connected(subscriber)
    subscriber.out.truncate(0)
    subscriber.data_received(message(0, 0, qos=qos, version=version))
    answer = (b"", codec.encode_puback(version, 7), codec.encode_pubrec(version, 7))[qos]
    assert (subscriber.out.getvalue(), tally.received, tally.refused) == (answer, 1, 0)


def test_latency_counts_from_sending_but_for_what_waited_from_the_return() -> None:
    tally = Tally(1)
    subscriber = subscriber_of(tally)
    connected(subscriber)
    tally.measuring = True
    subscriber.clock = lambda: subscriber.opened_ns + 3_000_000
    subscriber.data_received(message(0, 0, sent_ns=int(subscriber.opened_ns) + 2_000_000))
    subscriber.data_received(message(0, 1, sent_ns=0))
    assert (tally.delivery.total, tally.delivery.longest) == (2, 3000)
    assert [count for _, count in tally.delivery.buckets()] == [1, 1]


def test_what_is_no_message_of_a_run_counts_as_a_refusal() -> None:
    tally = Tally(1)
    subscriber = subscriber_of(tally)
    connected(subscriber)
    subscriber.data_received(codec.encode_publish(4, b"t", b"hello", 1, False, False, 7))
    assert (tally.received, tally.refused) == (0, 1)


def test_who_comes_back_must_find_the_session() -> None:
    tally = Tally(1)
    subscriber = subscriber_of(tally, clean=False)
    for present, ready, refused in ((False, 0, 0), (True, 2, 0), (False, 3, 1)):
        subscriber.again()
        subscriber.on_connack(Connack(present, 0, Properties()))
        if not tally.ready:
            subscriber.on_suback(Suback(1, b"\x01", Properties()))
        assert (tally.ready, tally.refused) == (max(ready, 1), refused)
