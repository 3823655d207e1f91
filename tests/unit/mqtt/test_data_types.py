"""Integers, strings and binary data of section 1.5."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import MalformedPacket
from headrace.mqtt import data_types
from headrace.mqtt.data_types import (
    binary,
    decode_name,
    decode_text,
    name_is_clean,
    read_binary,
    read_u16,
    read_u32,
    read_varint,
    skip_text,
    stands_at,
    text,
    u16,
    u32,
    varint,
    varint_size,
)

# Table 1-1 of the specification
VARINTS = {
    "00": 0,
    "7f": 127,
    "8001": 128,
    "ff7f": 16_383,
    "808001": 16_384,
    "ffff7f": 2_097_151,
    "80808001": 2_097_152,
    "ffffff7f": 268_435_455,
}


@pytest.mark.parametrize(("raw", "value"), VARINTS.items())
def test_varint(raw: str, value: int) -> None:
    data = bytes.fromhex(raw)
    assert varint(value) == data
    assert read_varint(data, 0, len(data)) == value
    assert varint_size(value) == len(data)


@pytest.mark.parametrize(
    "raw", ["", "80", "8080", "80808080", "8080808001", "ffffffff7f", "8000", "808000", "ff00"]
)
def test_varint_refused(raw: str) -> None:
    with pytest.raises(MalformedPacket):
        read_varint(bytes.fromhex(raw) + b"", 0, len(raw) // 2)


def test_varint_too_large_to_write() -> None:
    with pytest.raises(ValueError, match="268435456"):
        varint(data_types.VARINT_MAX + 1)


@given(st.integers(0, 65_535), st.integers(0, 4_294_967_295))
def test_integers(small: int, large: int) -> None:
    data = u16(small) + u32(large)
    assert read_u16(data, 0, 6) == small
    assert read_u32(data, 2, 6) == large


@pytest.mark.parametrize("end", [0, 1])
def test_integers_cut(end: int) -> None:
    with pytest.raises(MalformedPacket):
        read_u16(b"\0\0\0\0", 0, end)
    with pytest.raises(MalformedPacket):
        read_u32(b"\0\0\0\0", 0, end + 2)


@given(st.binary(max_size=300))
def test_binary(raw: bytes) -> None:
    data = b"?" + binary(raw) + b"!"
    assert read_binary(data, 1, len(data)) == raw


def test_nothing_is_read_behind_the_end() -> None:
    with pytest.raises(MalformedPacket):
        read_binary(b"\0\x05hello", 0, 6)


def test_longest_string() -> None:
    assert binary(b"x" * 65_535)[:2] == b"\xff\xff"
    with pytest.raises(ValueError, match="65536"):
        text("x" * 65_536)


def test_text_keeps_the_byte_order_mark() -> None:
    assert decode_text(b"\xef\xbb\xbfa") == "\ufeffa"  # [MQTT-1.5.4-3]


@pytest.mark.parametrize(
    "raw",
    [b"\0", b"a\0", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xc0\x80", b"\xff", b"\xc3", b"\xf5\x80\x80\x80"],
)
def test_text_refused(raw: bytes) -> None:
    with pytest.raises(MalformedPacket):
        decode_text(raw)
    with pytest.raises(MalformedPacket):
        skip_text(binary(raw), 0, len(raw) + 2)


@pytest.mark.parametrize(
    "char", ["\x01", "\n", "\x1f", "\x7f", "\x80", "\x9f", "\ufdd0", "\ufffe", "\uffff", "\U0010ffff"]
)
def test_names_are_stricter_than_text(char: str) -> None:
    assert decode_text(char.encode()) == char
    assert not name_is_clean(char)
    with pytest.raises(MalformedPacket):
        decode_name(char.encode())


@pytest.mark.parametrize("name", ["", "a b", "é", "\u00a0", "\ufffd", "\U0002a6d4", "\ufeff"])
def test_names(name: str) -> None:
    assert decode_name(name.encode()) == name
    assert name_is_clean(name)


def test_a_name_has_no_surrogates() -> None:
    assert not name_is_clean("\ud800")


@pytest.mark.parametrize("size", [1, 7, 8, 9, 16, 17])
def test_what_stands_at_a_position_differs_by_any_byte(size: int) -> None:
    wanted = bytes(range(200, 200 + size))
    assert stands_at(b"??" + wanted + b"?", 2, wanted)
    for at in range(size):
        other = wanted[:at] + b"\0" + wanted[at + 1 :]
        assert not stands_at(b"??" + other + b"?", 2, wanted)
