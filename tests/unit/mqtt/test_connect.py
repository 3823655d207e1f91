"""CONNECT: what the three versions share and where they part."""

from __future__ import annotations

import pytest

from headrace.errors import MalformedPacket, ProtocolError
from headrace.mqtt.connect import decode_connect, protocol_level

LEVELS = [
    ("0004 4d515454 04", 4),
    ("0004 4d515454 84", 4),
    ("0004 4d515454 05", 5),
    ("0006 4d5149736470 03", 3),
    ("0006 4d5149736470 83", 3),
]
REFUSED = [
    ("0004 4d515454 85", 1),
    ("0004 4d515454 07", 0),
    ("0004 4d515454 03", 1),
    ("0006 4d5149736470 05", 1),
]


@pytest.mark.parametrize(("raw", "version"), LEVELS)
def test_level(raw: str, version: int) -> None:
    data = bytes.fromhex(raw)
    assert protocol_level(data, 0, len(data)) == version


@pytest.mark.parametrize(("raw", "connack_code"), REFUSED)
def test_level_refused(raw: str, connack_code: int) -> None:
    data = bytes.fromhex(raw)
    with pytest.raises(ProtocolError) as caught:
        protocol_level(data, 0, len(data))
    assert (caught.value.reason_code, caught.value.connack_code) == (0x84, connack_code)


def test_what_the_handler_decides_is_handed_on() -> None:
    raw = bytes.fromhex("0004 4d515454 04 00 0000 0000")
    packet = decode_connect(raw, 0, len(raw), 4)
    assert packet.client_id == ""
    assert not packet.clean_start
    assert packet.keep_alive_s == 0


def test_credentials_are_refused_without_a_word() -> None:
    raw = bytes.fromhex("0004 4d515454 05 82 003c 00 0001 61 0001 01")
    with pytest.raises(MalformedPacket) as caught:
        decode_connect(raw, 0, len(raw), 5)
    assert caught.value.silent


def test_nothing_is_read_behind_the_packet() -> None:
    raw = bytes.fromhex("0004 4d515454 05 82 003c 00 0001 61 0001 75")
    for end in range(8, len(raw)):
        with pytest.raises(ProtocolError):
            decode_connect(raw, 0, end, 5)
