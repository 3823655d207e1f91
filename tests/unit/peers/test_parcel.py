"""Parcels: what was put in comes out, however large; what is none is refused before anything is kept for it."""

from __future__ import annotations

import struct

import pytest

from headrace.peers.parcel import (
    DATAGRAM_BYTES,
    FORMAT,
    MAGIC,
    SENT_BYTES_MAX,
    Assembly,
    BadParcel,
    Parcel,
    decode,
)

PLAIN = Parcel("tcp://127.0.0.1:1883", "127.0.0.1:50123", "", b"\x10\x0c\x00\x04MQTT")


def assembled(datagrams: list[bytes]) -> Parcel:
    assembly = Assembly(datagrams[0])
    for part in datagrams[1:]:
        assert not assembly.whole
        assembly.add(part)
    assert assembly.whole
    return assembly.parcel()


@pytest.mark.parametrize("name", ["", "plant-7", "Zürich", None])
@pytest.mark.parametrize("size", [0, 1, DATAGRAM_BYTES, 3 * DATAGRAM_BYTES + 1, SENT_BYTES_MAX])
def test_a_parcel_arrives_as_it_left(name: str | None, size: int) -> None:
    parcel = Parcel(
        "tls://[::1]:8883?identity=cn", "[2001:db8::1]:50123", name, bytes(range(256)) * (size // 256 + 1)
    )
    parcel = Parcel(parcel.listener, parcel.source, parcel.name, parcel.sent[:size], 1 << 40)
    datagrams = parcel.datagrams()
    assert all(0 < len(one) <= DATAGRAM_BYTES for one in datagrams)
    assert assembled(datagrams) == parcel
    if len(datagrams) == 1:
        assert decode(datagrams[0]) == parcel


def test_the_bytes_of_a_parcel_are_these() -> None:
    head = struct.pack("<8sHBBHHHHIQ", MAGIC, FORMAT, 1, 0, 4, 3, 2, 0, 5, 7)
    assert Parcel("unix", "abc", "me", b"12345", 7).encode() == head + b"unixabcme12345"


@pytest.mark.parametrize(
    "parcel",
    [
        Parcel("tcp://a", "b", "", bytes(SENT_BYTES_MAX + 1)),
        Parcel("tcp://" + "a" * 5000, "b", "", b""),
        Parcel("tcp://a", "b", "é" * 3000, b""),
    ],
    ids=["bytes of the client", "listener", "name"],
)
def test_what_is_too_long_does_not_leave(parcel: Parcel) -> None:
    with pytest.raises(BadParcel):
        parcel.datagrams()


def _head(magic: bytes = MAGIC, level: int = FORMAT, text: int = 3, sent: int = 0) -> bytes:
    return struct.pack("<8sHBBHHHHIQ", magic, level, 1, 0, text, 0, 0, 0, sent, 0)


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"x",
        PLAIN.encode()[:20],
        _head(b"HRPEER\r\n") + b"tcp",
        _head(level=FORMAT + 1) + b"tcp",
        _head(text=5000),
        _head(sent=SENT_BYTES_MAX + 1) + b"tcp",
        _head() + b"tcp and more",
        b"\xff" * 1000,
    ],
    ids=["nothing", "a byte", "half a head", "magic", "format", "text", "sent", "more", "garbage"],
)
def test_what_begins_no_parcel_is_refused_at_once(first: bytes) -> None:
    with pytest.raises(BadParcel):
        Assembly(first)


def test_more_than_belongs_to_a_parcel_is_refused() -> None:
    assembly = Assembly(Parcel("a", "b", "", bytes(100)).encode()[:60])
    with pytest.raises(BadParcel):
        assembly.add(bytes(1000))
    assembly = Assembly(Parcel("a", "b", "", bytes(100)).encode()[:60])
    with pytest.raises(BadParcel):
        assembly.add(b"")


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(BadParcel):
        decode(_head() + b"\xff\xfe\xfd")


def test_a_parcel_that_is_cut_off_is_refused() -> None:
    with pytest.raises(BadParcel):
        decode(PLAIN.encode()[:-1])
