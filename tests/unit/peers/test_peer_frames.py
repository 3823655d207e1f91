"""Frames between workers: the same however the stream is cut, and what is refused."""

from __future__ import annotations

import struct

import pytest
from librt.strings import BytesWriter

from headrace.peers.peer_frames import (
    FORMAT,
    HELLO_BYTES,
    BrokenLink,
    Greeting,
    Splitter,
    decode_greeting,
    decode_number,
    decode_pair,
    encode_number,
    encode_pair,
    write_frame,
)

FRAMES = [(2, 0, b""), (4, 7, b"x" * 300), (6, 2**31 - 1, b"\xff"), (8, 1, b"")]


class Kept(Splitter):
    """Keeps the frames; `stop_at` makes it stop within one of them."""

    def __init__(self, bytes_max: int = 1000, stop_at: int = -1) -> None:
        super().__init__(bytes_max)
        self.frames: list[tuple[int, int, bytes]] = []
        self.stop_at = stop_at

    def on_frame(self, kind: int, channel: int, body: bytes) -> None:
        self.frames.append((kind, channel, body))
        self.stopped = len(self.frames) == self.stop_at


def encoded(frames: list[tuple[int, int, bytes]]) -> bytes:
    out = BytesWriter()
    for kind, channel, body in frames:
        write_frame(out, kind, channel, body)
    return out.getvalue()


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 9, 100, 10_000])
def test_frames_are_the_same_however_the_stream_is_cut(piece: int) -> None:
    data, splitter = encoded(FRAMES), Kept()
    for at in range(0, len(data), piece):
        splitter.split(data[at : at + piece])
    assert splitter.frames == FRAMES
    assert not splitter.partial


def test_the_bytes_of_a_frame_are_those_that_the_module_tells() -> None:
    assert encoded([(4, 258, b"ab")]) == b"\x07\0\0\0\x04\x02\x01\0\0ab"


def test_what_ends_within_a_frame_is_told() -> None:
    splitter = Kept()
    splitter.split(encoded(FRAMES)[:-1])
    assert splitter.partial
    assert splitter.frames == FRAMES[:-1]


@pytest.mark.parametrize("length", [0, 4, 1001, 0xFFFF_FFFF])
def test_a_length_out_of_bounds_is_refused_before_the_frame_is_there(length: int) -> None:
    with pytest.raises(BrokenLink) as raised:
        Kept().split(struct.pack("<I", length))
    assert raised.value.reason == "oversized"


def test_nothing_is_handled_behind_the_frame_that_stops() -> None:
    splitter = Kept(stop_at=2)
    splitter.split(encoded(FRAMES))
    assert splitter.frames == FRAMES[:2]


def test_a_greeting_comes_back_as_it_was() -> None:
    body = Greeting(3, 4, 16, 77, b"0123456789abcdef").encode()
    assert len(body) + 5 == HELLO_BYTES
    found = decode_greeting(body)
    assert (found.worker, found.workers, found.shards, found.run) == (3, 4, 16, 77)
    assert found.node == b"0123456789abcdef"


def test_a_greeting_of_another_format_is_told_apart_from_garbage() -> None:
    body = Greeting(0, 2, 2, 1, bytes(16)).encode()
    with pytest.raises(BrokenLink, match=f"format {FORMAT + 1}") as raised:
        decode_greeting(body[:8] + (FORMAT + 1).to_bytes(2, "little") + body[10:])
    assert raised.value.reason == "format"
    for bad in (b"", body[:-1], b"x" + body[1:]):
        with pytest.raises(BrokenLink) as raised:
            decode_greeting(bad)
        assert raised.value.reason == "garbage"


def test_small_bodies_have_their_size() -> None:
    assert decode_pair(encode_pair(1, 2)) == (1, 2)
    assert decode_number(encode_number(70_000)) == 70_000
    with pytest.raises(BrokenLink):
        decode_pair(b"1234")
    with pytest.raises(BrokenLink):
        decode_number(b"12345")
