"""Released frames, fed whole, byte by byte and with more behind them: every row is decoded, encoded or refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from headrace.frames import bodies
from headrace.frames.client import ClientFrames
from headrace.frames.frame import VERSION_2, checksum, encode_frame
from headrace.frames.server import ServerFrames
from unit.frames.wire import Asked, Heard

VECTORS = json.loads((Path(__file__).parents[2] / "vectors/frames/frames.json").read_text("utf-8"))
OPCODES = {"HELLO": 1, "PUBLISH": 2, "JOIN": 3, "LEAVE": 4, "NOTIFY": 5, "PULL": 6, "ACK": 7, "PING": 8}
REQUESTS = [(bytes.fromhex(data), event) for data, event in VECTORS["requests"]]
RESPONSES = [(bytes.fromhex(data), event) for data, event in VECTORS["responses"]]
REFUSED = [pytest.param(bytes.fromhex(data), code, id=name) for name, data, code in VECTORS["refused"]]
STEPS = pytest.mark.parametrize("step", [1 << 20, 1, 3], ids=["whole", "byte by byte", "by three"])


def feed(protocol: ServerFrames | ClientFrames, data: bytes, step: int) -> None:
    for at in range(0, len(data), step):
        protocol.receive_data(data[at : at + step])


def request_body(event: list[Any]) -> bytes:
    kind, _, *rest = event
    if kind == "HELLO":
        return bodies.hello_body(rest[0], rest[1].encode())
    if kind == "PUBLISH":
        return bodies.publish_body(rest[0], rest[1].encode(), bytes.fromhex(rest[2]))
    if kind == "PULL":
        return bodies.pull_body(rest[0].encode(), rest[1].encode(), rest[2], rest[3])
    if kind == "ACK":
        return bodies.ack_body(rest[0].encode(), rest[1].encode(), [bytes.fromhex(one) for one in rest[2]])
    return bodies.cluster_body(rest[0].encode(), rest[1].encode()) if rest else b""


def response_body(event: list[Any]) -> bytes:
    kind, sn, *rest = event
    if kind == "PUBLISH":
        return bodies.published_body(rest[0], rest[1], bytes.fromhex(rest[2]))
    if kind == "NOTIFY":
        return bodies.notify_body(rest[0].encode(), rest[1].encode(), rest[2])
    if kind == "ERROR":
        return bodies.error_body(sn, rest[0])
    if kind == "PULL":
        rows = [
            bodies.Pulled(bytes.fromhex(row[0]), row[1], row[2].encode(), row[3], bytes.fromhex(row[4]))
            for row in rest[0]
        ]
        return bodies.pulled_body(rows)
    return b"" if kind == 8 else bodies.code_body(rest[0])


def parts(data: bytes) -> tuple[int, int, bytes]:
    """(version, opcode, SN) of a frame."""
    sn = data[7:8] if data[0] == 1 else data[8 : 8 + data[7]]
    return data[0], struct.unpack_from(">H", data, 5)[0], sn


@STEPS
@pytest.mark.parametrize(("data", "event"), REQUESTS)
def test_a_request_is_decoded(data: bytes, event: list[Any], step: int) -> None:
    handler = Asked()
    protocol = ServerFrames(handler, 1 << 16)
    feed(protocol, data + data, step)
    assert (handler.events, handler.errors) == ([event, event], [])
    assert protocol.buffered == 0


@STEPS
@pytest.mark.parametrize(("data", "event"), RESPONSES)
def test_a_response_is_decoded(data: bytes, event: list[Any], step: int) -> None:
    handler = Heard()
    protocol = ClientFrames(handler)
    feed(protocol, data + data, step)
    assert (handler.events, handler.errors) == ([event, event], [])


@pytest.mark.parametrize(("data", "event"), REQUESTS)
def test_a_request_is_encoded(data: bytes, event: list[Any]) -> None:
    version, opcode, sn = parts(data)
    assert encode_frame(version, opcode, sn, request_body(event)) == data


@pytest.mark.parametrize(("data", "event"), RESPONSES)
def test_a_response_is_encoded(data: bytes, event: list[Any]) -> None:
    version, opcode, sn = parts(data)
    assert encode_frame(version, opcode, sn, response_body(event)) == data


@STEPS
@pytest.mark.parametrize(("data", "code"), REFUSED)
def test_what_is_no_request_is_refused_once(data: bytes, code: int, step: int) -> None:
    handler = Asked()
    protocol = ServerFrames(handler, 1 << 16)
    feed(protocol, data, step)
    protocol.receive_data(REQUESTS[0][0])
    assert (handler.events, handler.errors) == ([], [code])
    assert protocol.buffered == 0


@pytest.mark.parametrize(("data", "event"), REQUESTS)
def test_a_request_is_no_response_and_the_other_way_round(data: bytes, event: list[Any]) -> None:
    heard = Heard()
    ClientFrames(heard).receive_data(data)
    assert (heard.events, heard.errors) == ([], [0x82])


def test_the_checksum_is_crc_8_of_the_catalogue() -> None:
    assert checksum(VERSION_2, b"123456789", 0, 9) == 0xF4


@pytest.mark.parametrize(
    ("version", "sn"),
    [(1, b""), (1, b"ab"), (2, b""), (2, bytes(256))],
    ids=["v1-0", "v1-2", "v2-0", "v2-256"],
)
def test_an_sn_that_has_no_room_is_not_encoded(version: int, sn: bytes) -> None:
    with pytest.raises(ValueError, match="an SN of"):
        encode_frame(version, 8, sn, b"")


def test_a_string_is_not_longer_than_its_length_can_say() -> None:
    with pytest.raises(ValueError, match="65536 bytes"):
        bodies.cluster_body(bytes(65536), b"c")


def test_a_response_that_promises_more_messages_than_it_has_bytes_is_refused() -> None:
    heard = Heard()
    ClientFrames(heard).receive_data(encode_frame(2, 0x8006, b"d", b"\xff\xff" + bytes(40)))
    assert heard.errors == [0x81]
