"""What a session keeps while its client is away, and for how long."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from broker_process import BrokerProcess
from e2e.raw import RawClient
from e2e.wire import (
    DISCONNECT,
    NEVER,
    SESSION_EXPIRY,
    SUBSCRIPTION_ID,
)

Clients = Callable[..., RawClient]
VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])


def keep(version: int, expiry_s: int = 600) -> dict[str, object]:
    return {"clean": False} | ({"properties": {SESSION_EXPIRY: expiry_s}} if version == 5 else {})


@VERSIONS
def test_only_qos_1_and_2_wait_for_who_is_away(
    broker: BrokerProcess, clients: Clients, name: str, version: int
) -> None:
    """O1: published or subscribed at QoS 0 is tried once and never stored."""
    subscriber, publisher = clients(broker, name, version, **keep(version)), clients(broker)
    subscriber.subscribe((f"{name}/q2", 2), (f"{name}/q0", 0))
    subscriber.disconnect()
    for number, (topic, qos) in enumerate([("q2", 0), ("q2", 1), ("q0", 1), ("q2", 2), ("q0", 2), ("q2", 1)]):
        publisher.deliver(f"{name}/{topic}", str(number), qos)
    subscriber = clients(broker, name, version, **keep(version))
    subscriber.deliver(f"{name}/q2", b"live", 1)
    found = [subscriber.receive() for _ in range(4)]
    assert [(one.payload, one.qos, one.dup) for one in found] == [
        (b"1", 1, False),
        (b"3", 2, False),
        (b"5", 1, False),
        (b"live", 1, False),
    ]
    assert subscriber.ping() == []


@VERSIONS
def test_a_clean_session_gets_nothing_from_before(
    broker: BrokerProcess, clients: Clients, name: str, version: int
) -> None:
    subscriber, publisher = clients(broker, name, version, **keep(version)), clients(broker)
    subscriber.subscribe(name, qos=1)
    subscriber.disconnect()
    publisher.deliver(name, b"for the old session")
    fresh = clients(broker, name, version, **(keep(version) | {"clean": True}))
    fresh.deliver(name, b"no subscription any more")
    fresh.subscribe(name, qos=1)
    fresh.deliver(name, b"new")
    assert fresh.receive().payload == b"new"
    assert fresh.ping() == []


def test_disconnect_may_not_revive_a_session_that_ends(
    broker: BrokerProcess, clients: Clients, name: str
) -> None:
    client = clients(broker, name, 5)
    client.send(b"\xe0\x07\x00\x05\x11\x00\x00\x00\x0a")  # DISCONNECT, Session Expiry Interval 10 after 0
    last = client.read_to_end()
    assert [(one.kind, one.reason) for one in last] == [(DISCONNECT, 0x82)]  # [MQTT-3.14.2.2.2]


def test_expiry_may_be_for_ever(broker: BrokerProcess, clients: Clients, name: str) -> None:
    clients(broker, name, 5, **keep(5, NEVER)).disconnect()
    assert clients(broker, name, 5, **keep(5, NEVER)).connack.session_present


def test_versions_share_a_session(broker: BrokerProcess, clients: Clients, name: str) -> None:
    """A device whose firmware is updated speaks version 5 one day: its messages are still there."""
    old = clients(broker, name, 4, clean=False)
    old.subscribe(name, qos=1)
    old.disconnect()
    clients(broker).deliver(name, b"x")
    new = clients(broker, name, 5, **keep(5))
    assert new.connack.session_present
    assert new.receive().payload == b"x"


@VERSIONS
def test_subscriptions_survive(broker: BrokerProcess, clients: Clients, name: str, version: int) -> None:
    client = clients(broker, name, version, **keep(version))
    client.subscribe((f"{name}/a/#", 1), (f"{name}/b/+", 2), (f"{name}/c", 0))
    client.unsubscribe(f"{name}/b/+")
    client.disconnect()
    client = clients(broker, name, version, **keep(version))
    publisher = clients(broker)
    for topic in ("b/x", "c", "a/x/y"):
        publisher.deliver(f"{name}/{topic}", topic, 2)
    found = [client.receive() for _ in range(2)]
    assert {(one.payload, one.qos) for one in found} == {(b"c", 0), (b"a/x/y", 1)}


def test_subscription_options_survive(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker, name, 5, **keep(5))
    client.subscribe((f"{name}/a", 1 | 4 | 8), properties={SUBSCRIPTION_ID: 77})  # no local, as published
    client.disconnect()
    client, publisher = clients(broker, name, 5, **keep(5)), clients(broker)
    client.deliver(f"{name}/a", b"own")
    publisher.deliver(f"{name}/a", b"x", retain=True)
    found = client.receive()
    assert (found.payload, found.retain, found.properties[SUBSCRIPTION_ID]) == (b"x", True, [77])


@pytest.mark.slow
def test_who_is_away_is_not_forgotten_under_load(broker: BrokerProcess, clients: Clients, name: str) -> None:
    """Twenty sessions away, each with its own backlog from one stream."""
    away = [f"{name}-{number}" for number in range(20)]
    for number, client_id in enumerate(away):
        client = clients(broker, client_id, 4, clean=False)
        client.subscribe(f"{name}/{number}", f"{name}/all", qos=1)
        client.disconnect()
    publisher = clients(broker)
    for number in range(400):
        publisher.publish(f"{name}/{number % 20}", str(number), 1)
        publisher.publish(f"{name}/all", str(number), 1)
    for _ in range(800):
        publisher.expect(4)
    began = time.monotonic()
    for number, client_id in enumerate(away):
        client = clients(broker, client_id, 4, clean=False)
        found = [client.receive() for _ in range(420)]
        assert [int(one.payload) for one in found if one.topic.endswith("all")] == list(range(400))
        own = [int(one.payload) for one in found if not one.topic.endswith("all")]
        assert own == list(range(number, 400, 20))
    assert time.monotonic() - began < 30
