"""CONNECT and its answers: who is let in, as whom, with which session, and for how long."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_process import BrokerProcess
from e2e.raw import ClosedError, RawClient
from e2e.wire import (
    ASSIGNED_CLIENT_ID,
    CONNACK,
    CONNECT,
    DISCONNECT,
    NEVER,
    PINGREQ,
    PUBLISH,
    RECEIVE_MAXIMUM,
    SERVER_KEEP_ALIVE,
    SESSION_EXPIRY,
    TOPIC_ALIAS_MAXIMUM,
    connect_packet,
    packet,
    text,
)

Clients = Callable[..., RawClient]
VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])


def closes(client: RawClient, deadline_s: float = 5.0) -> list[int]:
    """The kinds of packet that came before the broker closed; it must close."""
    return [found.kind for found in client.read_to_end(deadline_s)]


def first_answer(client: RawClient) -> int | None:
    """The kind of the first packet, None if the broker closed without one."""
    try:
        return client.read().kind
    except ClosedError:
        return None


@VERSIONS
def test_clean_connect_has_no_session(
    broker: BrokerProcess, clients: Clients, name: str, version: int
) -> None:
    client = clients(broker, name[:23], version)
    assert client.connack.session_present is False
    assert client.ping() == []


@VERSIONS
def test_session_present_tells_the_truth(broker: BrokerProcess, clients: Clients, version: int) -> None:
    keep = {"clean": False} | ({"properties": {SESSION_EXPIRY: 60}} if version == 5 else {})
    first = clients(broker, f"present-{version}", version, **keep)
    assert first.connack.session_present is False
    first.disconnect()
    again = clients(broker, f"present-{version}", version, **keep)
    assert again.connack.session_present is (version != 3)  # version 3 has a reserved byte there
    again.disconnect()
    cleaned = clients(broker, f"present-{version}", version, **(keep | {"clean": True}))
    assert cleaned.connack.session_present is False  # [MQTT-3.2.2-2]


def test_clean_session_is_gone_after_the_connection(
    broker: BrokerProcess, clients: Clients, name: str
) -> None:
    clients(broker, name, 4, clean=True).disconnect()
    assert clients(broker, name, 4, clean=False).connack.session_present is False


def test_session_without_expiry_ends_with_the_connection_v5(
    broker: BrokerProcess, clients: Clients, name: str
) -> None:
    clients(broker, name, 5, clean=False).disconnect()
    assert clients(broker, name, 5, clean=False).connack.session_present is False


@VERSIONS
def test_takeover_closes_the_older_connection(broker: BrokerProcess, clients: Clients, version: int) -> None:
    keep = {"clean": False} | ({"properties": {SESSION_EXPIRY: 60}} if version == 5 else {})
    older = clients(broker, f"takeover-{version}", version, **keep)
    older.subscribe(f"takeover/{version}", qos=1)
    newer = clients(broker, f"takeover-{version}", version, **keep)
    last = older.read_to_end()
    assert [found.kind for found in last] == ([DISCONNECT] if version == 5 else [])
    assert version != 5 or last[0].reason == 0x8E  # Session taken over [MQTT-3.1.4-3]
    newer.deliver(f"takeover/{version}", b"to the new connection")
    assert newer.receive().payload == b"to the new connection"


def test_takeover_ten_times_over_leaves_one(broker: BrokerProcess, clients: Clients, name: str) -> None:
    """A device with a bad link reconnects in a hurry: each connection ends the older one."""
    line = [clients(broker, name, 4, clean=False)]
    line[0].subscribe(name, qos=1)
    for _ in range(10):
        line.append(clients(broker, name, 4, clean=False))
        assert line[-1].connack.session_present is True
    for older in line[:-1]:
        assert closes(older) == []
    line[-1].deliver(name, b"still here")
    assert line[-1].receive().payload == b"still here"


@pytest.mark.parametrize("version", [4, 5])
def test_takeover_before_connack(broker: BrokerProcess, clients: Clients, version: int) -> None:
    """Two CONNECTs at once: whichever loses hears nothing before its CONNACK [MQTT-3.2.0-1, MQTT-3.14.0-1]."""
    properties = {SESSION_EXPIRY: 60} if version == 5 else None
    for turn in range(20):
        client_id = f"race-{version}-{turn}"
        pair = [clients(broker, client_id, version, connect=False) for _ in range(2)]
        for client in pair:
            client.send(connect_packet(client_id, version=version, clean=False, properties=properties))
        one, two = (first_answer(client) for client in pair)
        assert one in (CONNACK, None)
        assert two in (CONNACK, None)
        assert one or two, "neither came in"


def test_assigned_client_id(broker: BrokerProcess, clients: Clients) -> None:
    connacks = [clients(broker, "", 5).connack for _ in range(3)]
    ids = {str(one.properties[ASSIGNED_CLIENT_ID]) for one in connacks}
    assert len(ids) == 3
    assert all(ids)


def test_assigned_client_id_can_be_used_again(broker: BrokerProcess, clients: Clients) -> None:
    first = clients(broker, "", 5, clean=False, properties={SESSION_EXPIRY: 60})
    assigned = str(first.connack.properties[ASSIGNED_CLIENT_ID])
    first.disconnect()
    again = clients(broker, assigned, 5, clean=False, properties={SESSION_EXPIRY: 60})
    assert again.connack.session_present is True
    assert ASSIGNED_CLIENT_ID not in again.connack.properties


def test_zero_length_id_with_clean_session_v311(broker: BrokerProcess, clients: Clients, name: str) -> None:
    one, two = clients(broker, "", 4), clients(broker, "", 4)
    one.subscribe(name)
    two.subscribe(name)
    two.deliver(name, b"x", 0)
    assert one.receive().payload == two.receive().payload == b"x"  # two clients, no takeover


def test_zero_length_id_without_clean_session_is_refused_v311(
    broker: BrokerProcess, clients: Clients
) -> None:
    client = clients(broker, "", 4, connect=False)
    client.connect(clean=False, expect=2)  # [MQTT-3.1.3-8]
    assert closes(client) == []


def test_long_and_non_ascii_client_ids(broker: BrokerProcess, clients: Clients) -> None:
    for client_id in ("x" * 1000, "thermometer-grün-温度", "a/b+c#d $e"):
        assert clients(broker, client_id, 4, clean=False).connack.session_present is False
        assert clients(broker, client_id, 4, clean=False).connack.session_present is True


def test_unsupported_level_is_answered(broker: BrokerProcess, clients: Clients) -> None:
    client = clients(broker, "", 5, connect=False)  # reads the CONNACK of either version
    client.send(packet(CONNECT << 4, text("MQTT") + b"\x07\x02\x00\x3c" + text("x")))
    answers = client.read_to_end()
    assert len(answers) <= 1
    if answers:  # [MQTT-3.1.2-2]: the code of the version it speaks, then closed
        assert answers[0].kind == CONNACK
        assert answers[0].reason in (0x01, 0x84)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(
            packet(CONNECT << 4, text("HTTP") + b"\x04\x02\x00\x3c" + text("x")), id="protocol name"
        ),
        pytest.param(
            packet(CONNECT << 4, text("MQTT") + b"\x04\x03\x00\x3c" + text("x")), id="reserved flag"
        ),
        pytest.param(packet(CONNECT << 4, text("MQTT") + b"\x04\x1a\x00\x3c" + text("x")), id="will qos 3"),
        pytest.param(packet(PINGREQ << 4, b""), id="no CONNECT first"),
        pytest.param(packet(PUBLISH << 4, text("t") + b"x"), id="PUBLISH first"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="HTTP"),
    ],
)
def test_not_a_connect(broker: BrokerProcess, clients: Clients, sent: bytes) -> None:
    client = clients(broker, connect=False)
    client.send(sent)
    answers = client.read_to_end()
    assert all(one.kind == CONNACK and one.reason for one in answers)  # never accepted


@pytest.mark.parametrize("version", [4, 5])
def test_second_connect_is_a_protocol_error(broker: BrokerProcess, clients: Clients, version: int) -> None:
    client = clients(broker, f"twice-{version}", version)
    client.send(connect_packet(f"twice-{version}", version=version))
    last = client.read_to_end()
    assert [one.kind for one in last] == ([DISCONNECT] if version == 5 else [])
    assert version != 5 or last[0].reason == 0x82  # [MQTT-3.1.0-2]


def test_connack_says_the_limits_v5(broker: BrokerProcess, clients: Clients, name: str) -> None:
    """What a client may not do it must be able to read; what it is told has a legal value."""
    found = clients(broker, name, 5, properties={SESSION_EXPIRY: NEVER}).connack.properties
    assert found.get(RECEIVE_MAXIMUM, 65535) > 0
    assert 0 <= found.get(TOPIC_ALIAS_MAXIMUM, 0) <= 65535
    assert found.get(SERVER_KEEP_ALIVE, 60) > 0


def test_user_name_without_tenants_is_just_a_name(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker, name, 4, user_name="factory/device-7", password=b"\x00\xffsecret")
    assert client.ping() == []


def test_disconnect_closes(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker, name, 4)
    client.send(packet(DISCONNECT << 4, b"") + packet(PINGREQ << 4, b""))
    assert closes(client) == []  # nothing after DISCONNECT is answered
    with pytest.raises(ClosedError):
        client.read(1)
