"""SUBSCRIBE: what a subscription asks for, and where in the stream of messages it begins."""

from __future__ import annotations

import pytest

from harness import Client, Harness
from headrace.core.records.record import KIND_EVENT
from headrace.mqtt import codec
from headrace.mqtt.packets import SubscriptionRequest
from headrace.stream import MORE

SUBACK, UNSUBACK = 0x90, 0xB0


def payloads(client: Client) -> list[bytes]:
    return [payload for _, payload, _, _ in client.publishes()]


def test_no_local_and_overlapping_subscriptions() -> None:
    harness = Harness()
    client = harness.client("s", version=5)
    client.subscribe("t", 1, no_local=1)
    client.publish("t", b"mine")
    assert payloads(client) == []
    client.subscribe("#", 2)
    client.publish("t", b"again", 2)
    assert [(payload, qos) for _, payload, _, qos in client.publishes()] == [(b"again", 2)]


def test_a_retained_message_in_the_same_batch_as_a_subscription_behind_it_is_not_missed() -> None:
    """It took effect first, so it does not come to the subscription on its own."""
    for persistent in (True, False):
        harness = Harness()
        publisher = harness.client("p", clean=True)
        for payload in (b"old", b"new"):
            subscriber = harness.client(f"s-{payload.decode()}", clean=not persistent)
            publisher.publish("t", payload, retain=True, sync=False)
            subscriber.feed(b"\x82\x06\x00\x01\x00\x01t\x01", sync=False)
            harness.sync()
            assert [found for _, found, _, _ in subscriber.publishes()][-1:] == [payload]


@pytest.mark.parametrize(
    ("handling", "there_before", "comes"),
    [(0, True, True), (1, True, False), (1, False, True), (2, False, False)],
)
def test_retain_handling(handling: int, there_before: bool, comes: bool) -> None:
    """Section 3.8.3.1: always, only for a new subscription, never."""
    harness = Harness()
    harness.client("p", clean=True).publish("t", b"kept", retain=True)
    client = harness.client("s", version=5)
    if there_before:
        client.subscribe("t")
        client.take()
    client.subscribe("t", retain_handling=handling)
    assert payloads(client) == [b"kept"] * comes


def test_suback_comes_before_what_is_retained_and_behind_what_is_not_durable() -> None:
    harness = Harness()
    harness.client("p", clean=True).publish("t", b"kept", retain=True)
    client = harness.client("s")
    client.take()
    client.feed(b"\x82\x06\x00\x01\x00\x01t\x01", sync=False)
    harness.worker.end_tick()
    assert client.take() == []
    harness.sync()
    assert [first >> 4 for first, _ in client.take()] == [SUBACK >> 4, 3]


def test_after_unsuback_nothing_comes() -> None:
    harness = Harness()
    client = harness.client("s")
    client.subscribe("t")
    client.feed(b"\xa2\x05\x00\x09\x00\x01t")
    assert client.take()[-1] == (UNSUBACK, b"\x00\x09")
    harness.client("p", clean=True).publish("t", b"x")
    harness.crash()
    assert payloads(harness.client("s")) == []


def parts_of(client: Client, packet: bytes) -> int:
    """Have it handled as far as a small share goes in each pass; returns in how many it was."""
    client.protocol.packets_at_once = 64
    client.take()
    client.feed(packet)
    parts = 1
    while client.protocol.outcome == MORE:
        assert all(first >> 4 == 3 for first, _ in client.drain())  # what is retained may come first (3.8.4)
        client.protocol.parse_on()
        client.harness.sync()
        parts += 1
    return parts


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("clean", [False, True])
def test_a_packet_with_many_filters_is_answered_once_and_journaled_in_parts(
    version: int, clean: bool
) -> None:
    harness = Harness()
    keeper = harness.client("keeper", clean=True)
    for number in range(0, 100, 10):
        keeper.publish(f"f/{number}", b"%d" % number, retain=True)
    client = harness.client("s", version=version, clean=clean, receive_maximum=100)
    before = len(harness.journal.records)
    names = [f"f/{number}" for number in range(100)]
    asked = [SubscriptionRequest(name, 1) for name in names]
    assert parts_of(client, codec.encode_subscribe(version, 9, asked)) == 4
    packets = client.take()
    answers = [body for first, body in packets if first == SUBACK]
    assert answers == [b"\x00\x09" + b"\x00" * (version == 5) + b"\x01" * 100]
    assert sum(first >> 4 == 3 for first, _ in packets) == 10
    events = [record for record in harness.journal.records[before:] if record.kind == KIND_EVENT]
    assert len(events) == 4
    session = harness.broker.fold.tenant("default").sessions["s"]
    assert list(session.subscriptions or {}) == names
    assert (
        parts_of(client, codec.encode_unsubscribe(version, 10, [*names[50:], "never", *names[:50], names[0]]))
        == 4
    )
    (answer,) = [body for first, body in client.take() if first == UNSUBACK]
    if version == 5:
        assert answer == b"\x00\x0a\x00" + bytes(50) + b"\x11" + bytes(50) + b"\x11"
    assert not session.subscriptions
    assert client.link.deferred == 0


def test_a_client_that_leaves_between_two_parts_has_what_took_effect() -> None:
    harness = Harness()
    client = harness.client("s")
    client.protocol.packets_at_once = 64
    client.feed(
        codec.encode_subscribe(4, 9, [SubscriptionRequest(f"f/{number}", 1) for number in range(100)])
    )
    client.lose()
    session = harness.broker.fold.tenant("default").sessions["s"]
    assert len(session.subscriptions or {}) == 32
    client.protocol.parse_on()
    harness.sync()
    assert len(session.subscriptions or {}) == 32


def test_suback_waits_for_the_retained_messages_of_all_parts() -> None:
    """Those of a persistent session go through its queue: the first part has several pages of them."""
    harness = Harness()
    keeper = harness.client("keeper", clean=True)
    for number in range(600):
        keeper.publish(f"f/{number}", b"x", retain=True, sync=number % 100 == 99)
    client = harness.client("s")
    client.take()
    client.protocol.packets_at_once = 64
    asked = [SubscriptionRequest("f/#", 1), *[SubscriptionRequest(f"g/{number}", 1) for number in range(50)]]
    client.feed(codec.encode_subscribe(4, 9, asked), sync=False)
    client.protocol.parse_on()
    assert client.protocol.outcome != MORE
    session = harness.broker.fold.tenant("default").sessions["s"]
    while not any(first == SUBACK for first, _ in client.drain()):
        assert session.queue is None or session.queue.unfinished() <= 600
        harness.worker.end_tick()
        harness.journal.durable = len(harness.journal.records)
        harness.broker.commit.on_high_watermark(harness.journal.durable)
    assert session.queue is not None
    assert session.queue.next_serial == 601
