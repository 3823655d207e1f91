"""What shards say to each other, byte by byte: every frame comes back as it was, and nothing else is one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import message
from headrace.core.records.message import Given, copy_of
from headrace.core.shards.peer import (
    Announced,
    Confirmed,
    Copied,
    Durable,
    Filled,
    Follow,
    Frame,
    Granted,
    Hello,
    Kept,
    Looked,
    Passed,
    Started,
    Unwanted,
    Wanted,
)
from headrace.core.shards.peer_codec import decode
from headrace.errors import CorruptRecord

LARGEST = (1 << 63) - 1
FROM_CLIENT = (
    "0000000064656661756c74636c69656e74612f6278"  # the last reserved bytes, tenant, client id, topic, payload
)


def copied() -> Copied:
    published = message(qos=2)
    return Copied(copy_of(published, 3, 42))


def passed() -> Passed:
    published = message(qos=0)
    return Passed(published.of_nobody(published.topic, published.flags))


FRAMES: list[tuple[Frame, str]] = [
    (Hello(2, 7, LARGEST), "01020000000700000000000000ffffffffffffff7f"),
    (Announced([]), "02"),
    (Announced([("t", "a/+"), ("", "ü")]), "0201030074612f2b000200c3bc"),
    (Follow(5, 6), "0305000000000000000600000000000000" + "00" * 16),
    (Follow(5, 6, (3, 9)), "030500000000000000060000000000000003000000000000000900000000000000"),
    (Wanted(9, "t", "#"), "04090000000000000001010074" + "23"),
    (Unwanted("t", "#"), "0501010074" + "23"),
    (Granted(1), "060100000000000000"),
    (Durable(2), "070200000000000000"),
    (Looked(3), "080300000000000000"),
    (Kept(), "0e"),
    (Filled(True), "0f0100000000000000"),
    (Filled(False), "0f0000000000000000"),
    (Confirmed(4), "090400000000000000"),
    (Started(3, 9), "0c03000000000000000900000000000000"),
    (
        copied(),
        "0a350000000512030000e025dafe5b06002a00000000000000ffffffff0700060003000000" + FROM_CLIENT,
    ),
    (
        Copied(copied().copy, begins=True),
        "0d350000000512030000e025dafe5b06002a00000000000000ffffffff0700060003000000" + FROM_CLIENT,
    ),
    (
        Copied(copied().copy, begins=True, user="größe"),
        "100700"
        + "größe".encode().hex()
        + "350000000512030000e025dafe5b06002a00000000000000ffffffff0700060003000000"
        + FROM_CLIENT,
    ),
    (
        passed(),
        "0b350000000110000000e025dafe5b06000000000000000000ffffffff0700060003000000" + FROM_CLIENT,
    ),
]


@pytest.mark.parametrize(("frame", "expected"), FRAMES, ids=lambda value: type(value).__name__)
def test_a_frame_comes_back_as_it_was(frame: Frame, expected: str) -> None:
    data = frame.encode()
    assert data.hex() == expected
    found = decode(data)
    assert type(found) is type(frame)
    assert found.encode() == data


@pytest.mark.parametrize(("frame", "expected"), FRAMES, ids=lambda value: type(value).__name__)
def test_a_frame_that_is_cut_or_too_long_is_refused(frame: Frame, expected: str) -> None:
    data = bytes.fromhex(expected)
    whole = {Announced([]).encode(), Announced([("t", "a/+")]).encode()}  # these begin one that is longer
    for size in range(len(data)):
        if data[:size] not in whole:
            with pytest.raises(CorruptRecord):
                decode(data[:size])
    with pytest.raises(CorruptRecord):
        decode(data + b"\xff")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" + bytes(8),
        b"\x0c" + bytes(8),
        b"\x0f\x02" + bytes(7),
        b"\x06" + b"\xff" * 8,  # no offset is as large
        b"\x05" + bytes(3) + bytes(3),  # two filters where one is meant
        b"\x05\x01\x00\x00\xff",  # no UTF-8
        b"\x0a" + passed().encode()[1:],
        b"\x0b" + copied().encode()[1:],
        Copied(Given(copied().copy)).encode(),
        b"\x10\x00\x00" + copied().encode()[1:],  # of nobody
        copied().encode()[:16] + b"\xff" + copied().encode()[17:],  # the time is below 0
        copied().encode()[:24] + b"\xff" + copied().encode()[25:],  # the offset is
    ],
)
def test_what_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode(data)


@given(st.sampled_from(FRAMES), st.data())
def test_flipped_bytes_are_refused_or_another_frame(row: tuple[Frame, str], draw: st.DataObject) -> None:
    data = bytearray.fromhex(row[1])
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    try:
        found = decode(bytes(data))
    except CorruptRecord:
        return
    assert type(decode(found.encode())) is type(found)
