"""Every (state, packet) pair of both sides, against what the specification's tables say in words."""

from __future__ import annotations

import pytest

from headrace import stream
from headrace.mqtt import packets, states
from headrace.mqtt.packets import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
)
from unit.mqtt.wire import Client, Server

FLOWS = {PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP}
FROM_CLIENT = FLOWS | {SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT}
FROM_SERVER = FLOWS | {SUBACK, UNSUBACK, PINGRESP, DISCONNECT}
ALLOWED_BY_SERVER = {
    states.AWAITING_CONNECT: {CONNECT},
    states.AUTHENTICATING: {AUTH, DISCONNECT},
    states.CONNECTED: FROM_CLIENT,
    states.CONNECTED_WITH_METHOD: FROM_CLIENT | {AUTH},
}
ALLOWED_BY_CLIENT = {
    states.AWAITING_CONNECT: {CONNACK},
    states.AUTHENTICATING: {CONNACK, AUTH},  # [MQTT-3.14.0-1]
    states.CONNECTED: FROM_SERVER,
    states.CONNECTED_WITH_METHOD: FROM_SERVER | {AUTH},
}
BODY = {
    CONNECT: "10 0e 0004 4d515454 05 02 003c 00 0001 61",
    CONNACK: "20 03 00 00 00",
    PUBLISH: "30 04 0001 61 00",
    PUBACK: "40 02 0001",
    PUBREC: "50 02 0001",
    PUBREL: "62 02 0001",
    PUBCOMP: "70 02 0001",
    SUBSCRIBE: "82 07 0001 00 0001 61 00",
    SUBACK: "90 04 0001 00 00",
    UNSUBSCRIBE: "a2 06 0001 00 0001 61",
    UNSUBACK: "b0 04 0001 00 00",
    PINGREQ: "c0 00",
    PINGRESP: "d0 00",
    DISCONNECT: "e0 00",
    AUTH: "f0 06 18 04 15 0001 6d",
    0: "00 00",
}
PAIRS = [(state, packet_type) for state in range(4) for packet_type in range(16)]


def id_of(pair: tuple[int, int]) -> str:
    return f"{states.STATE_NAMES[pair[0]]}-{packets.NAMES[pair[1]]}"


def server_in(state: int) -> Server:
    side = Server(
        5 if state else 0, "m" if state in (states.AUTHENTICATING, states.CONNECTED_WITH_METHOD) else None
    )
    if state == states.AUTHENTICATING:
        side.protocol.state = states.AUTHENTICATING
    assert side.protocol.state == state
    return side


def client_in(state: int) -> Client:
    with_method = state in (states.AUTHENTICATING, states.CONNECTED_WITH_METHOD)
    side = Client(5, state >= states.CONNECTED, "m" if with_method else None)
    assert side.protocol.state == state
    return side


@pytest.mark.parametrize("pair", PAIRS, ids=id_of)
def test_server(pair: tuple[int, int]) -> None:
    state, packet_type = pair
    side = server_in(state)
    side.protocol.receive_data(bytes.fromhex(BODY[packet_type]))
    if packet_type in ALLOWED_BY_SERVER[state]:
        assert side.handler.errors == []
        assert len(side.handler.events) == 1
        assert side.protocol.state == states.after(states.SERVER, state, packet_type)
    else:
        assert side.code == 0x82
        assert side.handler.events == []
        assert side.protocol.state == states.CLOSED


@pytest.mark.parametrize("pair", PAIRS, ids=id_of)
def test_client(pair: tuple[int, int]) -> None:
    state, packet_type = pair
    side = client_in(state)
    side.protocol.receive_data(bytes.fromhex(BODY[packet_type]))
    if packet_type in ALLOWED_BY_CLIENT[state]:
        assert side.handler.errors == []
        assert len(side.handler.events) == 1
        assert side.protocol.state == states.after(states.CLIENT, state, packet_type)
    else:
        assert [error.reason_code for error in side.handler.errors] == [0x82]
        assert side.protocol.state == states.CLOSED


@pytest.mark.parametrize("packet_type", range(16))
def test_a_closed_connection_hears_nothing(packet_type: int) -> None:
    for side in (server_in(states.CONNECTED), client_in(states.CONNECTED)):
        side.protocol.stop()
        side.protocol.receive_data(bytes.fromhex(BODY[packet_type]))
        assert side.handler.events == []
        assert side.handler.errors == []
        assert states.after(states.SERVER, states.CLOSED, packet_type) == states.CLOSED


def test_tables_have_a_cell_for_every_pair() -> None:
    assert len(states.SERVER) == len(states.CLIENT) == 16 * (states.CLOSED + 1)
    assert len(states.STATE_NAMES) == states.REFUSED + 1


def test_a_stream_that_is_stopped_is_closed_for_mqtt() -> None:
    """`ByteStream.stop` sets a number that the tables of MQTT know by another name."""
    assert stream.CLOSED == states.CLOSED
