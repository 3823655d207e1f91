"""The link between two workers over a transport in memory: greeting, heartbeats, garbage, and every end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import pytest
from librt.strings import BytesWriter

from harness import Harness, message
from headrace.core.records.message import FrameMessage, copy_of
from headrace.core.shards.peer import Confirmed, Copied
from headrace.peers.channel import Channel
from headrace.peers.peer_frames import (
    BEAT,
    CLOSE,
    CREDIT,
    DATA,
    FOLLOW,
    HELLO,
    LEAVING,
    OPEN,
    SAY,
    BrokenLink,
    Greeting,
    encode_pair,
    write_frame,
)
from headrace.peers.peer_link import (
    BEAT_TICKS,
    GREETING_TICKS,
    PILED_BYTES,
    QUIET_TICKS,
    REASONS,
    SILENT_TICKS,
    LinkOwner,
    PeerLink,
)
from headrace.peers.wires import LinkWire, ShardWire
from shard_wires import WiredShards

MINE = Greeting(0, 2, 2, 1, bytes(16))
THEIRS = Greeting(1, 2, 2, 1, bytes(16))


class Owner(LinkOwner):
    def __init__(self) -> None:
        self.opens = 0
        self.ends: list[str] = []
        self.channels: list[Channel] = []
        self.errors: list[Exception] = []
        self.pairs: list[tuple[int, int]] = []

    def admit(self, link: PeerLink, transport: object) -> None:
        pass

    def check(self, link: PeerLink, theirs: Greeting) -> int:
        if theirs.worker != 1:
            raise BrokenLink("worker", "not you")
        return theirs.worker

    def opened(self, link: PeerLink) -> None:
        self.opens += 1

    def follow(self, link: PeerLink, number: int, follower: int, source: int) -> LinkWire | None:
        self.pairs.append((follower, source))
        return None

    def take_channel(self, channel: Channel, opening: bytes) -> None:
        self.channels.append(channel)

    def leaving(self, link: PeerLink, channels: list[Channel]) -> None:
        for channel in channels:
            channel.leaving(0x8B, "stops")

    def ended(self, link: PeerLink, reason: str, why: str) -> None:
        self.ends.append(reason)

    def wire_ended(self, wire: ShardWire) -> None:
        pass

    def failed(self, error: Exception) -> None:
        self.errors.append(error)


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.state = "open"
        self.waits = 0

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        assert self.state == "open"
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.waits

    def close(self) -> None:
        self.state = "closed"

    def abort(self) -> None:
        self.state = "aborted"


class Line:
    """A link, and what is at its other side."""

    def __init__(self, greeted: bool = True) -> None:
        self.owner, self.transport = Owner(), Transport()
        self.calls: list[Callable[[], None]] = []
        self.wanting: list[Exception] = []  # what is raised instead of asking for a later pass
        self.worker = worker = Harness().worker
        self.link = PeerLink(self.owner, MINE, 1, 1000, worker, self._later)
        self.link.connection_made(cast("object", self.transport))  # type: ignore[arg-type]
        if greeted:
            self.say(HELLO, 0, THEIRS.encode())

    def _later(self, call: Callable[[], None]) -> None:
        if self.wanting:
            raise self.wanting.pop()
        self.calls.append(call)

    def say(self, kind: int, channel: int, body: bytes) -> None:
        out = BytesWriter()
        write_frame(out, kind, channel, body)
        self.link.data_received(out.getvalue())

    def turn(self) -> bytes:
        """One pass of the loop; returns what was written in it."""
        calls, self.calls[:] = list(self.calls), []
        for call in calls:
            call()
        written, self.transport.written = self.transport.written, b""
        return written

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.link.tick()


def frame(kind: int, channel: int, body: bytes) -> bytes:
    out = BytesWriter()
    write_frame(out, kind, channel, body)
    return out.getvalue()


def test_both_say_who_they_are_before_anything_else() -> None:
    line = Line(greeted=False)
    assert not line.link.up
    assert line.turn() == frame(HELLO, 0, MINE.encode())
    line.say(HELLO, 0, THEIRS.encode())
    assert (line.link.up, line.link.peer, line.owner.opens) == (True, 1, 1)


def test_what_is_sent_in_a_pass_leaves_in_one_write() -> None:
    line = Line()
    line.turn()
    line.link.send(SAY, 1, b"a")
    line.link.send(SAY, 1, b"b")
    assert len(line.calls) == 1
    assert line.transport.written == b""
    assert line.turn() == frame(SAY, 1, b"a") + frame(SAY, 1, b"b")


def test_what_is_sent_leaves_although_a_pass_could_not_be_asked_for() -> None:
    """For want of memory; the next frame, a heartbeat at the latest, asks again."""
    line = Line()
    line.turn()
    line.wanting.append(MemoryError())
    with pytest.raises(MemoryError):
        line.link.send(SAY, 1, b"a")
    assert line.turn() == b""
    line.ticks(BEAT_TICKS)
    assert line.turn() == frame(SAY, 1, b"a") + frame(BEAT, 0, b"")


def test_a_copy_is_written_as_the_frame_of_one_is() -> None:
    line = Line()
    line.turn()
    published = message(qos=2)
    published.offset = 42
    device = FrameMessage(1, (5 << 16) + 6, "default", b"defaultd", 7, b"a", 60, b"x")
    device.offset = 43
    expected = b""
    for one in (published, device):
        line.link.send_copied(3, one, 1)
        expected += frame(SAY, 3, Copied(copy_of(one, 1, one.offset)).encode())
    assert line.turn() == expected


def test_a_copy_that_cannot_be_written_leaves_the_frames_before_it() -> None:
    line = Line()
    line.turn()
    line.link.send(SAY, 1, b"a")
    with pytest.raises(ValueError, match="a topic of"):
        line.link.send_copied(1, message(topic=b"x" * (1 << 16)), 1)
    line.link.send(SAY, 1, b"b")
    assert line.turn() == frame(SAY, 1, b"a") + frame(SAY, 1, b"b")


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (frame(BEAT, 0, b""), "garbage"),  # before the greeting
        (b"GET / HTTP/1.1\r\n\r\n", "oversized"),
        (frame(HELLO, 0, b"x" * 44), "garbage"),
        (frame(HELLO, 0, b"x" * 100), "oversized"),
        (frame(HELLO, 0, Greeting(3, 4, 4, 1, bytes(16)).encode()), "worker"),
    ],
)
def test_who_does_not_greet_properly_is_cut_off(sent: bytes, reason: str) -> None:
    line = Line(greeted=False)
    line.link.data_received(sent)
    assert line.owner.ends == [reason]
    assert line.transport.state == "aborted"
    assert line.owner.opens == 0


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (frame(9, 1, b""), "garbage"),
        (frame(HELLO, 0, THEIRS.encode()), "garbage"),  # a second time
        (frame(SAY, 1, b"x" * 1000), "oversized"),
        (frame(FOLLOW, 2, b"x"), "garbage"),
        (frame(FOLLOW, 1, encode_pair(1, 0)), "garbage"),  # a number of this side
        (frame(OPEN, 0, b""), "garbage"),
        (frame(OPEN, 2, b"") + frame(OPEN, 2, b""), "garbage"),
        (frame(CREDIT, 2, b"123"), "garbage"),
    ],
)
def test_what_is_no_frame_ends_the_link_once(sent: bytes, reason: str) -> None:
    line = Line()
    line.link.data_received(sent + frame(OPEN, 4, b""))
    assert line.owner.ends == [reason]
    assert len(line.owner.channels) <= 1, "nothing behind it is looked at"
    line.link.connection_lost(None)
    assert line.owner.ends == [reason]
    assert set(line.owner.ends) <= set(REASONS)


def test_frames_of_channels_that_were_closed_here_mean_nothing() -> None:
    line = Line()
    for kind, body in ((SAY, Confirmed(1).encode()), (DATA, b"x"), (CREDIT, b"\1\0\0\0"), (CLOSE, b"")):
        line.say(kind, 40, body)
    assert line.owner.ends == []


def test_who_may_not_follow_now_is_told() -> None:
    line = Line()
    line.turn()
    line.say(FOLLOW, 2, encode_pair(1, 0))
    assert line.owner.pairs == [(1, 0)]
    assert line.turn() == frame(CLOSE, 2, b"")


def test_heartbeats_are_sent_and_silence_is_counted_in_our_own_ticks() -> None:
    line = Line()
    line.turn()
    line.ticks(BEAT_TICKS)
    assert line.turn() == frame(BEAT, 0, b"")
    line.ticks(QUIET_TICKS - BEAT_TICKS)
    quiet = [line.link.quiet]
    line.ticks(1)
    quiet.append(line.link.quiet)
    line.say(BEAT, 0, b"")
    assert [*quiet, line.link.quiet] == [False, True, False]
    line.ticks(SILENT_TICKS)
    assert line.owner.ends == []
    line.ticks(1)
    assert line.owner.ends == ["silent"]


def test_who_does_not_say_in_time_who_it_is_is_cut_off() -> None:
    line = Line(greeted=False)
    line.ticks(GREETING_TICKS + 1)
    assert line.owner.ends == ["greeting"]


def test_a_link_that_has_ended_before_it_was_connected_closes_the_connection() -> None:
    owner, transport = Owner(), Transport()
    calls: list[Callable[[], None]] = []
    link = PeerLink(owner, MINE, 1, 1000, Harness().worker, calls.append)
    link.end("stopped")
    link.connection_made(cast("object", transport))  # type: ignore[arg-type]
    assert (transport.state, transport.written, owner.ends) == ("aborted", b"", ["stopped"])


def test_a_node_that_stops_says_so_to_whoever_has_taken_its_channels() -> None:
    line = Line()
    line.turn()
    line.link.say_leaving()
    assert line.turn() == frame(BEAT, 0, LEAVING)
    line.say(OPEN, 2, b"a")
    line.say(OPEN, 4, b"b")
    told: list[tuple[int, int]] = []
    for channel in line.owner.channels:
        channel.on_leaving = partial(_note_leaving, told, channel.number)
    line.owner.channels[1].close()
    line.say(BEAT, 0, b"")
    assert told == []
    line.say(BEAT, 0, LEAVING)
    assert (told, line.owner.ends) == ([(2, 0x8B)], [])


def test_a_channel_asks_for_a_goodbye_by_a_reason_code() -> None:
    line = Line()
    line.turn()
    line.say(OPEN, 2, b"a")
    line.say(OPEN, 4, b"b")
    told: list[tuple[int, int]] = []
    for channel in line.owner.channels:
        channel.on_leaving = partial(_note_leaving, told, channel.number)
    for number, body in ((4, b"\x9c"), (6, b"\x9c"), (2, b""), (2, b"\x9c\x9c")):
        line.say(BEAT, number, body)
    assert (told, line.owner.ends) == ([(4, 0x9C)], [])
    line.turn()
    line.owner.channels[0].say_leaving(0x8B)
    assert line.turn() == frame(BEAT, 2, b"\x8b")
    line.owner.channels[0].close()
    line.turn()
    line.owner.channels[0].say_leaving(0x8B)
    assert line.turn() == b""


def _note_leaving(told: list[tuple[int, int]], number: int, code: int, why: str) -> None:
    told.append((number, code))


def test_an_end_within_a_frame_is_told_apart() -> None:
    for sent, reason in ((frame(BEAT, 0, b""), "closed"), (frame(BEAT, 0, b"")[:-1], "truncated")):
        line = Line()
        line.link.data_received(sent)
        line.link.connection_lost(None)
        assert line.owner.ends == [reason]


def test_a_link_that_takes_nothing_ends_before_memory_does() -> None:
    line = Line()
    line.turn()
    line.transport.waits = 1 << 40
    line.link.send(SAY, 1, b"x")
    line.turn()
    assert line.owner.ends == []
    line.turn()
    assert line.owner.ends == ["slow"]


def test_streams_wait_while_far_more_waits_than_should_and_go_on_with_a_tick() -> None:
    line = Line()
    wire = LinkWire(line.owner, WiredShards(2)[0].neighbours, 1, True, line.link, 1)
    found = []
    for waits in (PILED_BYTES, PILED_BYTES + 1, 1):
        line.transport.waits = waits
        line.link.send(SAY, 1, b"x")
        line.turn()
        found.append(wire.full)
    line.worker.end_tick()
    line.link.resume_writing()
    found.append(wire.full)
    assert found == [False, True, True, False]
    assert line.worker._tick_requested
    assert line.owner.ends == []


def test_channels_wait_while_the_link_is_full_and_close_with_it() -> None:
    line = Line()
    channel = line.link.open_channel(b"hello")
    events: list[str] = []
    channel.on_writable = lambda: events.append("writable")
    channel.on_closed = lambda: events.append("closed")
    assert channel.send(b"a")
    line.link.pause_writing()
    assert not channel.send(b"b")
    line.link.resume_writing()
    assert events == ["writable"]
    assert line.turn().endswith(frame(OPEN, 1, b"hello") + frame(DATA, 1, b"a") + frame(DATA, 1, b"b"))
    line.link.end("stopped")
    assert events == ["writable", "closed"]
    assert line.transport.state == "closed"


def test_what_is_raised_here_ends_the_link_and_is_told() -> None:
    line = Line()
    line.owner.take_channel = None  # type: ignore[assignment]
    line.say(OPEN, 2, b"")
    assert line.owner.ends == ["error"]
    assert len(line.owner.errors) == 1


@pytest.mark.parametrize("kind", [SAY, DATA])
def test_of_a_frame_that_cannot_be_written_nothing_leaves(kind: int) -> None:
    """Its header alone would have taken the frames behind it for its body: a client's bytes, on a channel that relays."""
    line = Line()
    line.turn()
    line.link.send(kind, 3, b"one")
    with pytest.raises(TypeError):
        line.link.send(kind, 3, cast("bytes", "no bytes"))
    line.link.send(kind, 3, b"two")
    assert line.turn() == frame(kind, 3, b"one") + frame(kind, 3, b"two")


def test_a_write_that_fails_ends_the_link() -> None:
    """Part of it may have left: whatever came behind it would not be what was said."""
    line = Line()
    line.turn()

    def write(data: bytes) -> None:
        raise MemoryError

    line.transport.write = write  # type: ignore[method-assign]
    line.link.send(SAY, 3, b"one")
    assert line.turn() == b""
    assert (line.transport.state, [type(error) for error in line.owner.errors]) == ("aborted", [MemoryError])
    line.link.send(SAY, 3, b"two")
    line.turn()
    line.link.connection_lost(None)
    assert line.owner.ends == ["closed"]
