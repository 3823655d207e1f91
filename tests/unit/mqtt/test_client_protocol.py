"""The client's side: CONNACK decides, and a server that breaks the rules is refused."""

from __future__ import annotations

import pytest

from headrace.errors import ProtocolError
from headrace.mqtt import codec, states
from headrace.mqtt.client_protocol import ClientHandler, ClientProtocol
from headrace.mqtt.data_types import shown_name
from headrace.mqtt.packets import Connect
from unit.mqtt.wire import Client, ClientRecorder, method

BAD = [
    (4, False, "30 03 0001 61", 0x82),
    (4, False, "20 02 02 00", 0x81),
    (4, False, "20 02 01 05", 0x82),
    (4, False, "20 01 00", 0x81),
    (4, False, "20 03 00 00 00", 0x81),
    (5, False, "20 04 00 00 01 21", 0x81),
    (5, False, "20 06 00 00 03 23 0001", 0x82),
    (4, True, "20 02 00 00", 0x82),
    (4, True, "e0 00", 0x82),
    (4, True, "c0 00", 0x82),
    (4, True, "82 06 0001 0001 61 00", 0x82),
    (4, True, "90 02 0001", 0x81),
    (4, True, "90 03 0000 00", 0x81),
    (4, True, "b0 03 0001 00", 0x81),
    (5, True, "b0 03 0001 00", 0x81),
    (5, True, "90 03 0001 00", 0x81),
    (5, True, "d0 01 00", 0x81),
    (5, True, "f0 00", 0x82),
    (5, True, "30 06 0001 61 02 0b 00", 0x82),
    (5, True, "30 07 0001 61 03 23 000b", 0x94),
    (5, True, "e0 03 00 01 11", 0x81),
]


@pytest.mark.parametrize(("version", "accepted", "raw", "code"), BAD)
def test_refused(version: int, accepted: bool, raw: str, code: int) -> None:
    side = Client(version, accepted)
    side.protocol.receive_data(bytes.fromhex(raw))
    assert [error.reason_code for error in side.handler.errors] == [code]
    assert side.protocol.state == states.CLOSED


def test_a_clean_start_has_no_session() -> None:
    handler = ClientRecorder()
    protocol = ClientProtocol(handler, 1 << 20, 0)
    assert protocol.connect(Connect(4, "a")) == codec.encode_connect(Connect(4, "a"))
    protocol.receive_data(codec.encode_connack(4, True, 0))
    assert handler.errors[0].reason_code == 0x82


def test_nothing_follows_a_refusing_connack() -> None:
    side = Client(5, False)
    side.protocol.receive_data(codec.encode_connack(5, False, 0x87) + b"\xd0\x00")
    assert len(side.handler.events) == 1
    assert side.protocol.state == states.CLOSED


def test_authentication() -> None:
    handler = ClientRecorder()
    protocol = ClientProtocol(handler, 1 << 20, 0)
    protocol.connect(Connect(5, "a", properties=method(5, "m")))
    protocol.receive_data(codec.encode_auth(0x18, method(5, "m")) + codec.encode_connack(5, False, 0))
    protocol.receive_data(codec.encode_auth(0x18, method(5, "m")))
    assert protocol.state == states.CONNECTED_WITH_METHOD
    assert len(handler.events) == 3


def test_refusal() -> None:
    assert Client(5).protocol.refusal(ProtocolError(0x81, "")) == b"\xe0\x01\x81"
    assert Client(4).protocol.refusal(ProtocolError(0x81, "")) == b""
    assert Client(5).protocol.refusal(ProtocolError(0x81, "", silent=True)) == b""


def test_a_handler_needs_only_the_methods_it_uses() -> None:
    protocol = ClientProtocol(ClientHandler(), 1 << 20, 0)
    protocol.connect(Connect(5, "a", properties=method(5, "m")))
    protocol.receive_data(codec.encode_connack(5, False, 0) + codec.encode_auth(0x18, method(5, "m")))
    protocol.receive_data(bytes.fromhex("d00090040001 0000b004000100 00e000".replace(" ", "")))
    assert protocol.state == states.CLOSED


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    "topic", [b"a/\x01", b"a/\xef\xbf\xbe", b"a/+", b"#", b"a\0", b"a/\xff", b"a/\x01" * 5000]
)
def test_a_topic_that_is_refused_is_named_as_a_log_may_hold_it(topic: bytes, version: int) -> None:
    """By whoever does not settle odd topics, which is nearly everybody, and the wrong ones by all."""
    side = Client(version, True)
    side.protocol.receive_data(codec.encode_publish(version, topic, b"x", 1, False, False, 7))
    (error,) = side.handler.errors
    assert error.reason_code == 0x81
    assert shown_name(topic) in str(error)
    assert str(error).isprintable()
    assert str(error).isascii()
    assert len(str(error)) < 1000


@pytest.mark.parametrize("raw", ["30 00", "30 01 00", "30 03 0005 61", "32 04 0002 6162", "30 04 0003 6101"])
def test_a_packet_that_ends_within_its_topic_is_refused(raw: str) -> None:
    side = Client(4, True)
    side.protocol.receive_data(bytes.fromhex(raw))
    assert [error.reason_code for error in side.handler.errors] == [0x81]
