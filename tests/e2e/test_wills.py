"""Wills: what a client that dies leaves behind, and what one that says goodbye takes with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_process import BrokerProcess
from e2e.raw import RawClient
from e2e.wire import (
    CONTENT_TYPE,
    MESSAGE_EXPIRY,
    PINGREQ,
    SESSION_EXPIRY,
    USER_PROPERTY,
    WILL_DELAY,
    packet,
)

Clients = Callable[..., RawClient]


class Heirs:
    """A subscriber to the wills of one test; a marker after the event under test tells that no will came."""

    def __init__(self, clients: Clients, broker: BrokerProcess, name: str) -> None:
        self.topic = f"{name}/will"
        self.subscriber = clients(broker, f"{name}-heir", 5)
        self.subscriber.subscribe(f"{name}/#", qos=2)
        self.marker = f"{name}/marker"

    def none_so_far(self) -> None:
        self.subscriber.deliver(self.marker, b"", 1)
        assert self.subscriber.receive().topic == self.marker


@pytest.fixture
def heirs(clients: Clients, broker: BrokerProcess, name: str) -> Heirs:
    return Heirs(clients, broker, name)


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_lost_connection_fires_the_will(
    broker: BrokerProcess, clients: Clients, heirs: Heirs, name: str, version: int, qos: int
) -> None:
    clients(broker, name, version, will=(heirs.topic, b"gone"), will_qos=qos).abort()
    found = heirs.subscriber.receive()
    assert (found.topic, found.payload, found.qos, found.retain) == (heirs.topic, b"gone", qos, False)


@pytest.mark.parametrize("version", [4, 5])
def test_a_goodbye_clears_the_will(
    broker: BrokerProcess, clients: Clients, heirs: Heirs, name: str, version: int
) -> None:
    clients(broker, name, version, will=(heirs.topic, b"gone")).disconnect()
    heirs.none_so_far()


def test_end_of_stream_without_disconnect_fires(
    broker: BrokerProcess, clients: Clients, heirs: Heirs, name: str
) -> None:
    clients(broker, name, 4, will=(heirs.topic, b"gone")).leave()
    assert heirs.subscriber.receive().payload == b"gone"


def test_disconnect_with_will_v5(broker: BrokerProcess, clients: Clients, heirs: Heirs, name: str) -> None:
    clients(broker, name, 5, will=(heirs.topic, b"gone")).disconnect(0x04)
    assert heirs.subscriber.receive().payload == b"gone"


def test_protocol_error_fires(broker: BrokerProcess, clients: Clients, heirs: Heirs, name: str) -> None:
    client = clients(broker, name, 4, will=(heirs.topic, b"gone"))
    client.send(packet(PINGREQ << 4 | 5, b""))
    assert heirs.subscriber.receive().payload == b"gone"


@pytest.mark.parametrize("version", [4, 5])
def test_takeover_fires_the_will_of_the_older_connection(
    broker: BrokerProcess, clients: Clients, heirs: Heirs, name: str, version: int
) -> None:
    clients(broker, name, version, will=(heirs.topic, b"older"))
    newer = clients(broker, name, version, will=(heirs.topic, b"newer"))
    assert heirs.subscriber.receive().payload == b"older"
    newer.disconnect()
    heirs.none_so_far()


def test_retained_will(broker: BrokerProcess, clients: Clients, heirs: Heirs, name: str) -> None:
    clients(broker, name, 4, will=(heirs.topic, b"gone"), will_retain=True).abort()
    assert heirs.subscriber.receive().retain is False
    late = clients(broker)
    late.subscribe(heirs.topic)
    assert late.receive().retain is True


def test_empty_retained_will_deletes(
    broker: BrokerProcess, clients: Clients, heirs: Heirs, name: str
) -> None:
    client = clients(broker, name, 4, will=(heirs.topic, b""), will_retain=True)
    client.deliver(heirs.topic, b"online", retain=True)
    assert heirs.subscriber.receive().payload == b"online"
    client.abort()
    assert heirs.subscriber.receive().payload == b""
    late = clients(broker)
    late.subscribe(heirs.topic, qos=1)
    late.deliver(heirs.topic, b"live")
    assert late.receive().payload == b"live"


def test_will_properties(broker: BrokerProcess, clients: Clients, heirs: Heirs, name: str) -> None:
    properties = {CONTENT_TYPE: "text/plain", USER_PROPERTY: [("why", "battery")], MESSAGE_EXPIRY: 100}
    clients(
        broker, name, 5, will=(heirs.topic, b"gone"), will_properties=properties | {WILL_DELAY: 0}
    ).abort()
    found = heirs.subscriber.receive().properties
    assert 95 <= found.pop(MESSAGE_EXPIRY) <= 100
    assert found == {CONTENT_TYPE: "text/plain", USER_PROPERTY: [("why", "battery")]}


def delayed(
    broker: BrokerProcess, clients: Clients, heirs: Heirs, name: str, delay_s: int, expiry_s: int
) -> RawClient:
    return clients(
        broker,
        name,
        5,
        clean=False,
        will=(heirs.topic, b"gone"),
        will_properties={WILL_DELAY: delay_s},
        properties={SESSION_EXPIRY: expiry_s},
    )


def test_a_clean_start_ends_the_session_and_fires_the_delayed_will(
    broker: BrokerProcess, clients: Clients, heirs: Heirs, name: str
) -> None:
    delayed(broker, clients, heirs, name, 600, 600).abort()
    clients(broker, name, 5, clean=True)
    assert heirs.subscriber.receive().payload == b"gone"


def test_wills_reach_those_who_are_away(broker: BrokerProcess, clients: Clients, name: str) -> None:
    heir = clients(broker, f"{name}-heir", 4, clean=False)
    heir.subscribe(f"{name}/will", qos=1)
    heir.disconnect()
    clients(broker, name, 4, will=(f"{name}/will", b"gone"), will_qos=1).abort()
    heir = clients(broker, f"{name}-heir", 4, clean=False)
    assert heir.receive().payload == b"gone"
