"""The parse loop: pieces, limits, what is kept, and what is refused before it is complete."""

from __future__ import annotations

import pytest

from headrace.errors import ProtocolError
from headrace.mqtt import codec, states
from headrace.mqtt.framing import PacketStream, PeerHandler
from headrace.mqtt.packets import Publish
from headrace.mqtt.protocol import ServerProtocol
from headrace.stream import MORE, PARTIAL, WHOLE
from unit.mqtt.wire import Server, ServerRecorder, feed

MEBIBYTE = 1 << 20


def big_publish(size: int) -> bytes:
    return codec.encode_publish(4, b"a/b", b"x" * size)


def test_several_packets_in_one_piece() -> None:
    side = Server(4)
    side.protocol.receive_data(b"\x40\x02\x00\x01" * 500 + b"\xc0\x00")
    assert side.handler.events == [(4, 1, 0)] * 500 + [(12, 0, 0)]


@pytest.mark.parametrize("step", [1, 1000, 65_536])
def test_a_large_packet_in_pieces(step: int) -> None:
    side = Server(4)
    raw = big_publish(200_000)
    feed(side.protocol, raw + b"\xc0\x00", step)
    assert len(side.handler.events) == 2
    assert side.protocol.buffered == 0


def test_only_the_incomplete_rest_is_kept() -> None:
    side = Server(4)
    raw = big_publish(1000)
    side.protocol.receive_data(raw * 3 + raw[:10])
    assert len(side.handler.events) == 3
    assert side.protocol.buffered == 10


@pytest.mark.parametrize("extra", [0, 1])
def test_the_limit_counts_the_whole_packet(extra: int) -> None:
    raw = big_publish(100)
    side = Server(4, limit=len(raw) - extra)
    side.protocol.receive_data(raw)
    assert side.code == (0x95 if extra else 0)


def test_a_packet_too_large_is_refused_with_its_fixed_header() -> None:
    side = Server(5, limit=1024)
    side.protocol.receive_data(b"\x30\xff\xff\x03")
    assert side.code == 0x95
    assert side.answer == b"\xe0\x01\x95"
    assert side.protocol.buffered == 0


def test_the_first_byte_may_be_enough_to_refuse() -> None:
    side = Server(0)
    side.protocol.receive_data(b"\x30")
    assert side.code == 0x82
    side = Server(5)
    side.protocol.receive_data(b"\x81")
    assert side.code == 0x81


def test_no_bytes_are_nothing() -> None:
    side = Server(4)
    side.protocol.receive_data(b"")
    side.protocol.receive_data(b"\xc0")
    side.protocol.receive_data(b"")
    side.protocol.receive_data(b"\x00")
    assert side.handler.events == [(12, 0, 0)]


def test_stop_from_a_handler_ignores_the_rest_of_the_buffer() -> None:
    class Stopping(ServerRecorder):
        def on_publish(self, packet: Publish) -> None:
            super().on_publish(packet)
            protocol.stop()

    handler = Stopping()
    protocol = ServerProtocol(handler, MEBIBYTE, 0)
    protocol.receive_data(bytes.fromhex("100d00044d51545404020000000161"))
    protocol.receive_data(big_publish(3) * 3 + b"\x40")
    assert len(handler.events) == 2
    assert protocol.buffered == 0
    assert protocol.state == states.CLOSED


def test_a_handler_may_refuse() -> None:
    class Refusing(ServerRecorder):
        def on_puback(self, packet_id: int, reason_code: int) -> None:
            raise ProtocolError(0x82, f"{packet_id} was never sent")

    handler = Refusing()
    protocol = ServerProtocol(handler, MEBIBYTE, 0)
    protocol.receive_data(bytes.fromhex("100d00044d51545404020000000161") + b"\x40\x02\x00\x07\xc0\x00")
    assert [error.message for error in handler.errors] == ["7 was never sent"]
    assert len(handler.events) == 1


def test_a_stream_of_no_side_reads_the_flows_only() -> None:
    stream = PacketStream(PeerHandler(), states.SERVER_MAY, MEBIBYTE, 0, False)
    stream.state = states.CONNECTED
    stream.version = 4
    stream.receive_data(big_publish(1) + bytes.fromhex("40020001 50020001 62020001 70020001"))
    with pytest.raises(NotImplementedError):
        stream.receive_data(b"\xc0\x00")


@pytest.mark.parametrize(
    ("pieces", "outcomes"),
    [
        ([b"\xc0\x00"], [WHOLE]),
        ([b"\xc0", b"\x00"], [PARTIAL, WHOLE]),
        ([b"\xc0\x00\xc0"], [WHOLE]),  # one is finished, another begun
        (
            [b"\x30\x05\x00", b"\x01", b"t", b"x", b"x", b"\xc0"],
            [PARTIAL, PARTIAL, PARTIAL, PARTIAL, WHOLE, PARTIAL],
        ),
        ([b"\x30\x84", b"\x01\x00\x01t", bytes(128), b"x"], [PARTIAL, PARTIAL, PARTIAL, WHOLE]),
    ],
)
def test_the_outcome_says_whether_a_packet_was_finished(pieces: list[bytes], outcomes: list[int]) -> None:
    side = Server(4)
    found = []
    for piece in pieces:
        side.protocol.receive_data(piece)
        found.append(side.protocol.outcome)
    assert found == outcomes


@pytest.mark.parametrize("at_once", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("step", [1, 3, 5, 1000])
def test_a_call_handles_so_many_packets_and_no_more(at_once: int, step: int) -> None:
    """Whatever the pieces, the rest waits in its place, and what comes meanwhile behind it."""
    stream = b"".join(b"\x40\x02" + number.to_bytes(2, "big") for number in range(1, 31)) + b"\xc0\x00"
    side = Server(4)
    side.protocol.packets_at_once = at_once
    handled = 0
    for at in range(0, len(stream), step):
        side.protocol.receive_data(stream[at : at + step])
        assert len(side.handler.events) - handled <= at_once
        handled = len(side.handler.events)
    while side.protocol.outcome == MORE:
        side.protocol.parse_on()
        assert len(side.handler.events) - handled <= at_once
        handled = len(side.handler.events)
    assert side.handler.events == [(4, number, 0) for number in range(1, 31)] + [(12, 0, 0)]


def test_nothing_waits_behind_an_end() -> None:
    side = Server(4)
    side.protocol.packets_at_once = 2
    side.protocol.receive_data(b"\xc0\x00" * 3 + b"\xe0\x00" + b"\xc0\x00" * 5)
    side.protocol.parse_on()
    assert len(side.handler.events) == 4
    side.protocol.parse_on()
    assert side.protocol.outcome == WHOLE
    assert len(side.handler.events) == 4
