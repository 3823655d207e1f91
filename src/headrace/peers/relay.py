"""A connection whose socket cannot pass between workers, TLS and WebSocket above all: its bytes go over a channel.

Where it came in, `Onward` takes the place of its parser and `Relay` that of its broker; at home the channel is the
transport of a connection like others. Nobody buffers without bounds: who takes no more has the other side read no more,
down to the client's socket. Bytes are counted where the client's socket is. Runs on the loop; compiled, as messages pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.core.ports.link import BrokerPort, Link, WorkerPort
from headrace.core.ports.timers import Alarm, Timer
from headrace.mqtt import reason_codes as rc
from headrace.net.connection import Connection
from headrace.peers.channel import Channel
from headrace.stream import WHOLE, ByteStream

if TYPE_CHECKING:
    import asyncio

    from headrace.errors import ProtocolError

_LOOK_MS: Final = 5000
_GOODBYE_MS: Final = 2000
_GOODBYES: Final = (rc.USE_ANOTHER_SERVER, rc.SERVER_SHUTTING_DOWN)
_GRACE_S: Final = 3.0  # longer than a worker that stops waits for the others


class Onward(ByteStream):
    """Sends what a client says on to the worker where it is at home."""

    def __init__(self, link: Connection, channel: Channel, version: int) -> None:
        super().__init__()
        self.version = version
        self._link: Connection | None = link
        self._channel = channel

    def receive_data(self, data: bytes) -> None:
        link = self._link
        self.outcome = WHOLE
        if link is not None and data and not self._channel.send(data):
            link.pause_reading()

    def stop(self) -> None:
        """Ignore whatever comes, and let go of the connection: the two would keep each other alive."""
        super().stop()
        self._link = None

    def parse_on(self) -> None:
        """Do nothing: nothing waits here."""


class Relay(BrokerPort):
    """The worker where a client came in, between its socket and the channel to the worker where it is at home."""

    def __init__(self, link: Connection, channel: Channel) -> None:
        self._link = link
        self._channel = channel
        self._timer: Timer | None = None
        self._parting: Timer | None = None  # its home was asked to say goodbye
        channel.on_bytes = self._came
        channel.on_writable = link.resume_reading
        channel.on_closed = link.close

    def begin(self) -> None:
        """Send what the client has said so far, and go on with what it says."""
        link, channel = self._link, self._channel
        sent = link.unparsed()
        link.relay(Onward(link, channel, link.stream_version()), self)
        if not sent or channel.send(sent):
            link.resume_reading()

    def _came(self, data: bytes) -> None:
        """Send the client what its home says; take no more of that while it does not read."""
        link = self._link
        link.send(data)
        if link.paused:
            self._channel.pause_reading()
            self._look_later()

    def _look_later(self) -> None:
        if self._timer is None:
            worker = self._link.worker
            self._timer = Alarm(self.look)
            worker.timers.schedule(worker.clock.mono_ms + _LOOK_MS, self._timer)

    def look(self) -> None:
        """Cut off a client that does not read, and whose home has nothing more to say to it."""
        self._timer = None
        if self._link.paused:
            if self._channel.over:
                self._link.abort()
            else:
                self._look_later()

    # What the connection calls

    def on_writable(self, link: Link) -> None:
        link.hungry = False
        self._channel.resume_reading()

    def on_connection_lost(self, link: Link) -> None:
        """End the channel behind what was sent, and the parts of the relay, which know each other."""
        for timer in (self._timer, self._parting):
            if timer is not None:
                timer.cancel()
        self._timer = self._parting = None
        _let_go(self._channel)
        self._channel.close()
        link.broker = link.worker.reception

    def on_protocol_error(self, link: Link, error: ProtocolError) -> None:
        link.close()

    def put_out(self, link: Link, code: int, why: str) -> None:
        """End the connection, at once unless its client has done nothing wrong: then its home says goodbye first, and has
        a moment for that."""
        if code not in _GOODBYES or self._channel.over:
            link.close()
        elif self._parting is None:
            worker = self._link.worker
            self._parting = Alarm(link.close)
            worker.timers.schedule(worker.clock.mono_ms + _GOODBYE_MS, self._parting)
            self._channel.say_leaving(code)


class ChannelTransport:
    """The transport of a connection at home whose socket is another worker's: what asyncio's transports promise, as far
    as it is used."""

    def __init__(self, channel: Channel, link: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self._channel = channel
        self._link: Connection | None = link
        self._worker: WorkerPort = link.worker
        self._loop = loop
        self._full = False
        channel.on_bytes = self._came
        channel.on_writable = self._writable
        channel.on_closed = self._ended
        channel.on_leaving = self._leave
        channel.says_goodbye = True

    # What the channel calls

    def _leave(self, code: int, why: str) -> None:
        """Say goodbye to a client whose socket is at a node that stops, or is drained: it is to come again, by another
        one."""
        link = self._link
        if link is not None:
            link.broker.put_out(link, code if code in _GOODBYES else rc.SERVER_SHUTTING_DOWN, why)

    def _came(self, data: bytes) -> None:
        link = self._link
        if link is not None:
            self._worker.bytes_received -= len(data)
            link.data_received(data)

    def _writable(self) -> None:
        link = self._link
        if self._full and link is not None:
            self._full = False
            link.resume_writing()

    def _ended(self) -> None:
        """End the connection. Where the link has gone with it, all workers may be about to stop: then this one says so
        to its sessions, and no will is due."""
        if self._channel.broken:
            self._loop.call_later(_GRACE_S, self._lose)
        else:
            self._lose()

    def _lose(self) -> None:
        """Tell the connection that it has ended, once."""
        link, self._link = self._link, None
        if link is not None:
            _let_go(self._channel)
            link.connection_lost(None)

    # What the connection calls

    def write(self, data: bytes) -> None:
        link = self._link
        if link is None:
            return
        self._worker.bytes_sent -= len(data)
        if not self._channel.send(data) and not self._full:
            self._full = True
            link.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self._channel.buffered

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the window of the channel is the limit."""

    def pause_reading(self) -> None:
        self._channel.pause_reading()

    def resume_reading(self) -> None:
        self._channel.resume_reading()

    def close(self) -> None:
        """Read no more, send what waits, then end; a client that does not read has the time that all have to linger."""
        self._channel.close()
        if self._channel.closed:
            self._loop.call_soon(self._lose)

    def abort(self) -> None:
        self._channel.abort()
        self._loop.call_soon(self._lose)

    def is_closing(self) -> bool:
        return self._link is None or self._channel.closed

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return `default`: whoever asks for the socket or its address asks the worker that has it."""
        return default


def _let_go(channel: Channel) -> None:
    """Have a channel refer to nobody any more: the two would keep each other alive."""
    channel.on_bytes = _no_bytes
    channel.on_writable = _nothing
    channel.on_closed = _nothing
    channel.on_leaving = _not_leaving
    channel.says_goodbye = False


def _nothing() -> None:
    """Do nothing."""


def _not_leaving(code: int, why: str) -> None:
    """Say goodbye to nobody."""


def _no_bytes(data: bytes) -> None:
    """Drop what comes for a client that has gone."""
