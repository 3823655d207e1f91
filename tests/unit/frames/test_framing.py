"""The parse loop of frames: any cut of the stream, bounds before anything is stored, shares of a pass."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ProtocolError
from headrace.frames.frame import checksum, encode_frame
from headrace.frames.server import ServerFrames
from headrace.stream import MORE, PARTIAL, WHOLE
from unit.frames.wire import Asked, frame, text

serials = st.binary(min_size=1, max_size=255)
topics = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def publish(seq: int, payload: bytes, sn: bytes = b"d") -> bytes:
    return frame(2, 2, sn, seq.to_bytes(4, "big") + text("t") + payload)


@given(st.lists(st.tuples(serials, topics, st.binary(max_size=300)), max_size=8), st.data())
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(
    sent: list[tuple[bytes, str, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(
        frame(2, 2, sn, at.to_bytes(4, "big") + text(topic) + payload)
        for at, (sn, topic, payload) in enumerate(sent)
    )
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    handler = Asked()
    protocol = ServerFrames(handler, 1 << 16)
    edges = sorted({0, *cuts, len(stream)})
    for start, end in itertools.pairwise(edges):
        protocol.receive_data(stream[start:end])
    assert handler.errors == []
    assert handler.events == [
        ["PUBLISH", sn.hex(), at, topic, payload.hex()] for at, (sn, topic, payload) in enumerate(sent)
    ]


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_reason_code_or_wait_for_more(noise: bytes) -> None:
    handler = Asked()
    protocol = ServerFrames(handler, 1 << 16)
    protocol.receive_data(noise)
    assert len(handler.errors) <= 1
    assert all(code in (0x81, 0x82, 0x84, 0x85, 0x95) for code in handler.errors)
    assert protocol.buffered <= len(noise)


@given(st.integers(1, 2), serials, st.integers(0, 0xFFFF), st.binary(max_size=100))
def test_the_encoder_makes_what_the_table_says(version: int, sn: bytes, opcode: int, body: bytes) -> None:
    named = sn[:1] if version == 1 else sn
    assert encode_frame(version, opcode, named, body) == frame(version, opcode, named, body)


def test_a_length_above_the_limit_is_refused_before_its_bytes_come() -> None:
    handler = Asked()
    protocol = ServerFrames(handler, 1000)
    protocol.receive_data(b"\x02" + (1001).to_bytes(4, "big"))
    assert handler.errors == [0x95]
    assert protocol.buffered == 0


def test_a_frame_of_the_largest_size_is_taken() -> None:
    data = publish(1, bytes(100))
    handler = Asked()
    ServerFrames(handler, len(data)).receive_data(data)
    assert len(handler.events) == 1


def test_the_version_of_a_connection_is_that_of_its_first_frame() -> None:
    handler = Asked()
    protocol = ServerFrames(handler, 1000)
    protocol.receive_data(frame(1, 8, b"\x07", b"") + frame(2, 8, b"d", b""))
    assert (handler.events, handler.errors) == ([["PING", "07"]], [0x84])


def test_what_is_behind_the_share_of_a_call_waits_in_its_place() -> None:
    handler = Asked()
    protocol = ServerFrames(handler, 1000)
    protocol.packets_at_once = 2
    protocol.receive_data(b"".join(publish(seq, b"") for seq in range(5)))
    seen = [len(handler.events)]
    while protocol.outcome == MORE:
        protocol.parse_on()
        seen.append(len(handler.events))
    assert seen == [2, 4, 5]
    assert [event[2] for event in handler.events] == [0, 1, 2, 3, 4]


def test_a_handler_that_holds_gets_nothing_more_until_it_releases() -> None:
    class Holding(Asked):
        def ping(self, sn: bytes) -> None:
            super().ping(sn)
            protocol.hold()

    handler = Holding()
    protocol = ServerFrames(handler, 1000)
    ping = frame(2, 8, b"d", b"")
    protocol.receive_data(ping + ping[:5])
    protocol.receive_data(ping[5:])
    assert len(handler.events) == 1
    protocol.release()
    assert len(handler.events) == 2


@pytest.mark.parametrize(
    ("piece", "outcome"), [(publish(1, b""), WHOLE), (publish(1, b"")[:-1], PARTIAL), (b"\x02", PARTIAL)]
)
def test_the_outcome_says_whether_a_frame_was_finished(piece: bytes, outcome: int) -> None:
    protocol = ServerFrames(Asked(), 1000)
    protocol.receive_data(piece)
    assert protocol.outcome == outcome


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_error_is_said_in_the_version_and_under_the_sn_of_who_caused_it(version: int) -> None:
    handler = Asked()
    protocol = ServerFrames(handler, 1000)
    sn = {0: b"\0", 1: b"\x07", 2: b"door"}[version]
    if version:
        protocol.receive_data(frame(version, 8, sn, b""))
    said = protocol.refusal(ProtocolError(0x87, "no"))
    assert said == frame(version or 2, 0x80FF, sn, b"\x87" + text("no"))


@given(st.integers(1, 2), st.binary(max_size=300), st.integers(0, 20))
def test_the_checksum_is_that_of_one_byte_at_a_time(version: int, data: bytes, start: int) -> None:
    expected = 0
    for byte in data[start:]:
        expected ^= byte
        for _ in range(8 if version == 2 else 0):
            expected = expected << 1 ^ (0x107 if expected & 0x80 else 0)
    assert checksum(version, data, min(start, len(data)), len(data)) == expected
