"""SUBSCRIBE: what a subscription asks for, and where in the stream of messages it begins."""

from __future__ import annotations

import pytest

from harness import Client, Harness

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
    harness.broker.end_tick()
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
