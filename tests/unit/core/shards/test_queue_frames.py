"""Frames about topic queues: what is written is read, and what is cut off or too long is refused."""

from __future__ import annotations

import pytest

from headrace.core.ports.voice import Draught
from headrace.core.records.message import FrameMessage, copy_of
from headrace.core.shards import queue_frames as frames
from headrace.core.shards.peer_codec import decode
from headrace.errors import CorruptRecord

IDS = [bytes([n]) * 16 for n in range(3)]


def message(payload: bytes) -> FrameMessage:
    return FrameMessage(1_700_000_000_000_000, 70_000, "default", b"defaultdoor", 7, b"locks", 9, payload)


FRAMES: list[frames.QueueFrame] = [
    frames.Requested(1, frames.JOINS, "default", b"\xff", "sälle/1".encode(), b"store"),
    frames.Requested(2, frames.PULLS, "", b"s", b"t", b"c", 65_535, 65_535),
    frames.Requested((1 << 63) - 1, frames.ACKS, "t", b"s", b"t", b"c", ids=IDS),
    frames.Departed(3),
    frames.Arrived(1 << 40),
    frames.Answered(4, frames.ACKS, 0x92),
    frames.Poured(5, []),
    frames.Notified(6, b"s", b"t", b"c", 1 << 33),
    frames.Refused(7, 0x82, "PULL without JOIN"),
    frames.Claimed(8, "default", "sälle", "ada"),
    frames.Claimed(9, "", "door", None),
    frames.Decided(8, 0x87),
    frames.Told("default", "door", "ada"),
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_what_is_said_is_heard(frame: frames.QueueFrame) -> None:
    found = decode(frame.encode())
    assert type(found) is type(frame)
    assert found.encode() == frame.encode()


def test_a_request_is_what_it_was() -> None:
    found = decode(frames.Requested(9, frames.ACKS, "ten", b"\xffs", b"t/1", b"c", 3, 4, IDS).encode())
    assert isinstance(found, frames.Requested)
    assert (found.connection, found.verb, found.tenant, found.sn, found.topic) == (
        9,
        4,
        "ten",
        b"\xffs",
        b"t/1",
    )
    assert (found.cluster, found.most, found.wait_ms, found.ids) == (b"c", 3, 4, IDS)


def test_messages_keep_what_a_consumer_is_told() -> None:
    first, second = message(b"1"), copy_of(message(b"2"), 2, 77)
    poured = frames.Poured(5, [Draught(IDS[0], False, first), Draught(IDS[1], True, second)])
    found = decode(poured.encode())
    assert isinstance(found, frames.Poured)
    told = [
        (one.message_id, one.redelivered, one.message.client_id, one.message.payload)
        for one in found.messages
    ]
    assert told == [(IDS[0], False, "door", b"1"), (IDS[1], True, "door", b"2")]
    assert {one.message.timestamp_us for one in found.messages} == {first.timestamp_us}
    assert frames.weight_of_all(found.messages) == frames.weight_of_all(poured.messages)


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_what_is_cut_off_is_refused_or_another_frame(frame: frames.QueueFrame) -> None:
    whole = frame.encode()
    for end in range(1, len(whole)):
        try:
            assert decode(whole[:end]).encode() == whole[:end]
        except CorruptRecord:
            continue


@pytest.mark.parametrize(
    "data",
    [
        frames.Requested(1, 9, "t", b"s", b"t", b"c").encode(),
        frames.Requested(1, frames.JOINS, "t", b"s", b"t", b"c", ids=IDS).encode(),
        frames.Answered(1, 0, 0).encode(),
        frames.Departed((1 << 64) - 1).encode(),
        frames.Notified(1, b"s", b"t", b"c", 1).encode() + b"x",
        frames.Poured(1, []).encode() + b"x" * 20,
        frames.Poured(1, [Draught(IDS[0], False, message(b""))]).encode()[:-1],
        frames.Refused(1, 1, "").encode() + b"\xff",
    ],
)
def test_what_is_none_of_them_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode(data)
