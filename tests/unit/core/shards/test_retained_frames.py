"""What shards say to each other about retained messages, byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import START_US
from headrace.core.records.message import Copy, Given
from headrace.core.shards.peer import Frame
from headrace.core.shards.peer_codec import decode
from headrace.core.shards.retained_frames import (
    DECODERS,
    LIVE,
    STORED,
    Answered,
    Asked,
    Forgotten,
    More,
    RetainedFrame,
    Sought,
)
from headrace.errors import CorruptRecord


def retained(payload: bytes = b"x", flags: int = 5) -> Copy:
    return Copy(3, 42, START_US, flags, "default", b"defaultc", 7, b"t", b"", -1, payload)


FRAMES: list[tuple[Frame, str]] = [
    (
        Asked(9, STORED, [(1, 7)], "ten", [(1, "a/+"), (2, "ü")]),
        "200900000000000000" + "01" + "0100" + "01000000" + "0700000000000000" + "0374656e"
        "010300612f2b" + "020200c3bc",
    ),
    (Asked(1, LIVE, [], "", []), "200100000000000000" + "02" + "0000" + "00"),
    (
        More(9, [(0, 1), (2, 3)]),
        "210900000000000000" + "0200" + "000000000100000000000000020000000300000000000000",
    ),
    (Forgotten(9), "220900000000000000"),
    (Sought(), "23"),
    (Answered(9, True, []), "240900000000000000" + "01"),
    (
        Answered(9, False, [(1, retained())]),
        "240900000000000000" + "00" + "01000000"
        "2e0000000505030000e025dafe5b06002a00000000000000ffffffff07000100010000000000000064656661756c7463"
        "7478",
    ),
]


@pytest.mark.parametrize(("frame", "data"), FRAMES)
def test_a_frame_has_these_bytes_and_comes_back(frame: Frame, data: str) -> None:
    assert frame.encode().hex() == data
    found = decode(bytes.fromhex(data))
    assert type(found) is type(frame)
    assert found.encode().hex() == data


@pytest.mark.parametrize(("frame", "data"), FRAMES)
def test_a_cut_frame_or_one_with_more_is_refused_or_another_whole_one(frame: Frame, data: str) -> None:
    """A list of filters or of messages may end earlier, at the end of one of them."""
    whole = bytes.fromhex(data)
    for size in range(len(whole)):
        try:
            assert decode(whole[:size]).encode() == whole[:size]
        except CorruptRecord:
            continue
    with pytest.raises(CorruptRecord):
        decode(whole + b"\0")


@pytest.mark.parametrize(
    "data",
    [
        "20090000000000000003000000",  # a part that is none
        "2009000000000000000100000003" + "0100" + "61",  # QoS 3
        "22ffffffffffffffff",  # a number that is too large
        "210900000000000000" + "0100" + "00000000ffffffffffffffff",
        "240900000000000000" + "00" + "01000000" + "14000000020100000000000000000000" + "80",  # an event
    ],
)
def test_what_is_none_of_them_is_refused(data: str) -> None:
    with pytest.raises(CorruptRecord):
        decode(bytes.fromhex(data))


def test_an_answer_holds_what_is_retained_alone() -> None:
    with pytest.raises(CorruptRecord):
        decode(Answered(1, True, [(0, retained(flags=1))]).encode())
    with pytest.raises(CorruptRecord):
        decode(Answered(1, True, [(0, Given(retained()))]).encode())


@pytest.mark.parametrize(("offset", "timestamp_us"), [(-1, START_US), (42, -1), (-1, -1)])
def test_an_answer_has_no_offset_or_time_below_0(offset: int, timestamp_us: int) -> None:
    copy = Copy(3, offset, timestamp_us, 5, "default", b"defaultc", 7, b"t", b"", -1, b"x")
    with pytest.raises(CorruptRecord):
        decode(Answered(1, True, [(0, copy)]).encode())


@given(st.binary(max_size=60), st.sampled_from(sorted(DECODERS)))
def test_anything_else_is_refused_as_damage(rest: bytes, kind: int) -> None:
    try:
        frame = decode(bytes([kind]) + rest)
    except CorruptRecord:
        return
    assert isinstance(frame, (RetainedFrame, Sought))
