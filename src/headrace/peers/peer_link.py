"""The connection between two workers: greeting, heartbeats, and the channels on it. Compiled: messages pass here.

Runs on the loop. What is sent in a pass of the loop leaves in one write behind it. Silence is counted in our own ticks,
so a worker that stood still (SIGSTOP, a machine that was taken away) does not take that for the silence of the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter
from mypy_extensions import i64, mypyc_attr

from headrace.core.ports.link import WorkerPort
from headrace.core.records.message import Message
from headrace.core.shards.peer import COPIED
from headrace.peers.channel import Carrier, Channel
from headrace.peers.peer_frames import (
    BEAT,
    CLOSE,
    CREDIT,
    DATA,
    FOLLOW,
    HELLO,
    HELLO_BYTES,
    LEAVING,
    OPEN,
    SAY,
    BrokenLink,
    Greeting,
    decode_greeting,
    decode_number,
    decode_pair,
    encode_pair,
    write_frame,
    write_header,
)
from headrace.peers.wires import LinkWire, Wires

if TYPE_CHECKING:
    import asyncio

TICK_S: Final = 0.1
BEAT_TICKS: Final = 10  # `clock.SIGN_MS`
QUIET_TICKS: Final = 25  # nothing is begun with a worker that has missed two heartbeats
# Then the link ends: later than a supervisor ends a worker that hangs (`member.HUNG_S`), since with it the connections of
# all clients end whose sockets are at the other side.
SILENT_TICKS: Final = 350
GREETING_TICKS: Final = 50
HIGH_BYTES: Final = (
    8 << 20
)  # waiting to be written: channels of bytes pause. Streams have credits of their own.
PILED_BYTES: Final = (
    64 << 20
)  # then streams wait too: their credits are of each pair of shards, a message has 256 MiB
BUFFERED_BYTES_MAX: Final = 512 << 20  # one message may have half of it
_FLUSH_BYTES: Final = 256 << 10
_KEPT_BYTES_MAX: Final = 1 << 20
_NUMBER_MAX: Final = (1 << 31) - 3

# Why a link has ended. closed: the other worker has closed it, or died; truncated: it did so within a frame; garbage:
# what came is no frame; oversized; format: of another version; cluster: of another node; worker: it is not the one that
# belongs there; user: it runs as somebody else; greeting: it did not say in time who it is; silent: no heartbeats; slow:
# more waits for it than may; replaced: it has dialled again; stopped: by us; error: of ours.
REASONS: Final = (
    "closed",
    "truncated",
    "garbage",
    "oversized",
    "format",
    "cluster",
    "worker",
    "user",
    "greeting",
    "silent",
    "slow",
    "replaced",
    "stopped",
    "error",
)
# An MQTT packet has 2^28 bytes at most; what a record adds to one, and a thousand filters, are less than the rest.
FRAME_BYTES_MAX: Final = (256 + 80) << 20


@mypyc_attr(allow_interpreted_subclasses=True)
class LinkOwner(Wires):
    """Whoever the links of a worker belong to, and the wires on them."""

    def admit(self, link: PeerLink, transport: asyncio.Transport) -> None:
        """Let a connection say who it is. Raises BrokenLink."""
        raise NotImplementedError

    def check(self, link: PeerLink, theirs: Greeting) -> int:
        """Check who is at the other side, and return by which number it is known. Raises BrokenLink."""
        raise NotImplementedError

    def opened(self, link: PeerLink) -> None:
        """Note that the other side is who it should be: the link can be used."""
        raise NotImplementedError

    def follow(self, link: PeerLink, number: int, follower: int, source: int) -> LinkWire | None:
        """Return our side of a wire on which a shard of the other worker follows one of ours; None: it may not now.

        Raises BrokenLink.
        """
        raise NotImplementedError

    def take_channel(self, channel: Channel, opening: bytes) -> None:
        """Take a channel of bytes that the other worker has opened, or close it."""
        raise NotImplementedError

    def leaving(self, link: PeerLink, channels: list[Channel]) -> None:
        """Note that the node at the other side stops, and that these channels end with it."""
        raise NotImplementedError

    def ended(self, link: PeerLink, reason: str, why: str) -> None:
        """Note that a link has ended, for one of REASONS."""
        raise NotImplementedError


class PeerLink(Carrier):
    """One connection to another worker, `peer`, which is -1 until it has said who it is."""

    def __init__(
        self,
        owner: LinkOwner,
        greeting: Greeting,
        dialled: int,
        frame_bytes_max: int,
        worker: WorkerPort,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """Begin as the one who has dialled the worker `dialled`, or, if that is -1, who was dialled."""
        super().__init__(HELLO_BYTES)
        self.peer = -1
        self.dialled = dialled
        self.up = False
        self.ended = False
        self.sent_bytes: i64 = 0
        self.received_bytes: i64 = 0
        self._owner = owner
        self._greeting = greeting
        self._frame_bytes_max: i64 = frame_bytes_max
        self._worker = worker
        self._call_soon = call_soon
        self._transport: asyncio.Transport | None = None
        self._out = BytesWriter()
        self._flushing = False
        self._next = 1 if dialled >= 0 else 2
        self._wires: dict[int, LinkWire] = {}
        self._channels: dict[int, Channel] = {}
        self._until_writable: dict[int, Channel] = {}
        self._ticks: i64 = 0
        self._heard: i64 = 0  # the tick in which something came last

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:
        if self.ended:  # it took long to get here: whoever it belongs to has closed all links meanwhile
            transport.abort()
            return
        self._transport = transport
        transport.set_write_buffer_limits(high=HIGH_BYTES)
        try:
            self._owner.admit(self, transport)
        except BrokenLink as error:
            self.end(error.reason, str(error))
        self.send(HELLO, 0, self._greeting.encode())

    def data_received(self, data: bytes) -> None:
        self._heard = self._ticks
        self.received_bytes += len(data)
        self._refresh()
        self.hearing.heard(self._worker.clock.mono_ms)
        try:
            self.split(data)
        except BrokenLink as broken:
            self.end(broken.reason, str(broken))
        except Exception as error:  # noqa: BLE001  it must not cost the others
            self._owner.failed(error)
            self.end("error", repr(error))

    def _refresh(self) -> None:
        """Set the clock, as every connection does that is the first to read in a pass of the loop."""
        clock = self._worker.clock
        if clock.stale:
            clock.stale = False
            self._worker.request_tick()
            clock.now_us = time.time_ns() // 1000
            clock.mono_ms = time.monotonic_ns() // 1_000_000

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        if self.piled:
            self.piled = False
            self._worker.request_tick()
        waiting, self._until_writable = self._until_writable, {}
        for channel in waiting.values():
            channel.writable()

    def connection_lost(self, error: Exception | None) -> None:
        self.end("truncated" if self.partial else "closed", "" if error is None else str(error))

    # Time

    def tick(self) -> None:
        """Note that TICK_S have passed: send a heartbeat, end what has been silent for too long."""
        if self.ended:
            return
        self._ticks += 1
        silent: i64 = self._ticks - self._heard
        if not self.up and self._ticks > GREETING_TICKS:
            self.end("greeting", "it has not said who it is")
        elif silent > SILENT_TICKS:
            self.end("silent", f"nothing was heard for {TICK_S * SILENT_TICKS:.0f} s")
        elif self.up and self._ticks % BEAT_TICKS == 0:
            self.send(BEAT, 0, b"")

    def say_leaving(self) -> None:
        """Tell the other side that this node stops."""
        if self.up:
            self.send(BEAT, 0, LEAVING)

    @property
    def quiet(self) -> bool:
        """Return whether the other side has missed heartbeats: then nothing is begun with it."""
        return self._ticks - self._heard > QUIET_TICKS

    # What is sent

    def send(self, kind: int, channel: int, body: bytes) -> None:
        if self.ended:
            return
        out = self._out
        start = len(out)
        try:
            write_frame(out, kind, channel, body)
        except BaseException:  # whoever has asked for it hears it; the other frames keep their places
            out.truncate(start)
            raise
        self._written()

    def send_copied(self, channel: int, message: Message, source: int) -> None:
        if self.ended:
            return
        out = self._out
        start = len(out)
        try:
            write_header(out, SAY, channel, 1 + message.record_size)
            out.append(COPIED)
            message.copy_into(out, source)
        except BaseException:  # whoever has asked for it hears it; the other frames keep their places
            out.truncate(start)
            raise
        self._written()

    def _written(self) -> None:
        """Let what was written leave: behind this pass of the loop, or now if it is much."""
        if len(self._out) > _FLUSH_BYTES:
            self._write()
        elif not self._flushing:
            self._call_soon(self._flush)
            self._flushing = True

    def _flush(self) -> None:
        self._flushing = False
        self._write()

    def _write(self) -> None:
        transport, out = self._transport, self._out
        size = len(out)
        if self.ended or transport is None or size == 0:
            return
        data = out.getvalue()
        if size > _KEPT_BYTES_MAX:
            self._out = BytesWriter()
        else:
            out.truncate(0)
        self.sent_bytes += size
        try:
            transport.write(data)
        except Exception as error:  # noqa: BLE001  part of it may have left: nothing fits behind that
            self._owner.failed(error)
            self._transport = None
            transport.abort()  # the end comes with `connection_lost`
            return
        waits: i64 = transport.get_write_buffer_size()
        if waits > PILED_BYTES:
            self.piled = True
        if waits > BUFFERED_BYTES_MAX:
            self._call_soon(self._end_slow)

    def _end_slow(self) -> None:
        self.end("slow", f"more than {BUFFERED_BYTES_MAX} bytes wait for it")

    def later(self, call: Callable[[], None]) -> None:
        self._call_soon(call)

    def wait_for(self, channel: Channel) -> None:
        self._until_writable[channel.number] = channel

    def forget(self, number: int) -> None:
        self._wires.pop(number, None)
        self._channels.pop(number, None)
        self._until_writable.pop(number, None)

    def failed(self, error: Exception) -> None:
        self._owner.failed(error)

    @property
    def used_up(self) -> bool:
        """Return whether this side has no number left for another channel."""
        return self._next > _NUMBER_MAX

    def number(self) -> int:
        """Return a number for a channel that this side opens. Raises BrokenLink when all have been used."""
        if self.used_up:
            raise BrokenLink("stopped", "all numbers of channels were used")
        number = self._next
        self._next = number + 2
        return number

    def open_wire(self, wire: LinkWire) -> None:
        """Begin a conversation in which a shard of this worker follows one of the other's."""
        self._wires[wire.number] = wire
        self.send(FOLLOW, wire.number, encode_pair(wire.near.shard, wire.far))

    def end_wires_of(self, shard: int) -> None:
        """End the conversations with a shard that the other side owns no more, whoever follows."""
        for wire in list(self._wires.values()):
            if wire.far == shard:
                wire.end()

    def open_channel(self, opening: bytes) -> Channel:
        """Open a channel of bytes to the other worker. Raises BrokenLink when all numbers have been used."""
        channel = Channel(self, self.number(), self.peer)
        self._channels[channel.number] = channel
        self.send(OPEN, channel.number, opening)
        return channel

    # What comes

    def on_frame(self, kind: int, channel: int, body: bytes) -> None:
        if kind == SAY and self.up:
            wire = self._wires.get(channel)
            if wire is not None:
                wire.take(body)
        elif kind == HELLO and not self.up:
            self._greeted(body)
        elif not self.up:
            raise BrokenLink("garbage", f"a frame of kind {kind} before the greeting")
        elif kind == FOLLOW:
            self._followed(channel, body)
        elif kind == OPEN:
            opened = Channel(self, self._theirs(channel), self.peer)
            self._channels[channel] = opened
            self._owner.take_channel(opened, body)
        elif kind == BEAT:
            self._beat(channel, body)
        else:
            self._of_channel(kind, channel, body)

    def _beat(self, number: int, body: bytes) -> None:
        """Take a heartbeat, which may say more."""
        if number == 0:
            if body == LEAVING:
                channels = list(self._channels.values())
                for one in channels:
                    one.leaves = True
                self._owner.leaving(self, channels)
            return
        found = self._channels.get(number)
        if found is not None and len(body) == 1:
            found.leaving(body[0], "drained where its socket is")

    def _greeted(self, body: bytes) -> None:
        theirs = decode_greeting(body)
        self.peer = self._owner.check(self, theirs)
        self.up = True
        self.bytes_max = self._frame_bytes_max
        self._owner.opened(self)

    def _theirs(self, number: int) -> int:
        """Return the number of a channel that the other side opens. Raises BrokenLink if it is none of its own."""
        if number % 2 == self._next % 2 or number == 0 or number in self._wires or number in self._channels:
            raise BrokenLink("garbage", f"channel {number} cannot be opened")
        return number

    def _followed(self, number: int, body: bytes) -> None:
        follower, source = decode_pair(body)
        wire = self._owner.follow(self, self._theirs(number), follower, source)
        if wire is None:
            self.send(CLOSE, number, b"")
        else:
            self._wires[number] = wire

    def _of_channel(self, kind: int, number: int, body: bytes) -> None:
        """Handle a frame of a channel; one that was closed here may still get some."""
        found = self._channels.get(number)
        if kind == DATA:
            if found is not None:
                found.came(body)
        elif kind == CREDIT:
            credit = decode_number(body)
            if found is not None:
                found.credited(credit)
        elif kind == CLOSE:
            wire = self._wires.get(number)
            if wire is not None:
                wire.lose()
            elif found is not None:
                found.ended()
        else:
            raise BrokenLink("garbage", f"a frame of unknown kind {kind}")

    # The end

    def end(self, reason: str, why: str = "") -> None:
        """End the link, for one of REASONS: wires break, channels close."""
        if self.ended:
            return
        if self._transport is not None and reason == "stopped":
            self._write()
        self.ended = self.stopped = True
        self.up = False
        transport, self._transport = self._transport, None
        if transport is not None:
            if reason == "stopped":
                transport.close()
            else:
                transport.abort()
        self._out = BytesWriter()
        wires, self._wires = self._wires, {}
        channels, self._channels = self._channels, {}
        self._until_writable = {}
        for wire in wires.values():
            wire.lose()
        for channel in channels.values():
            channel.lost()
        self._owner.ended(self, reason, why)
