"""The transport of plain TCP and Unix sockets: reads and writes the socket itself.

Gives what asyncio's transports promise, as far as it is used here: `write` never blocks and keeps what the system does
not take, `pause_writing` and `resume_writing` follow its size, `connection_lost` comes once and never from within another
call. Runs on the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64, trait

from headrace.sockets.poller import READABLE, WRITABLE, Watched

if TYPE_CHECKING:
    import asyncio
    import socket

    from headrace.sockets.poller import Poller


@trait
class Receiver:
    """Stands above a transport: an asyncio protocol. Compiled ones that are read from all the time are called without
    a look-up by name when they say that they are one."""

    def connection_made(self, transport: PlainTransport | asyncio.Transport) -> None:
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        raise NotImplementedError

    def eof_received(self) -> bool:
        raise NotImplementedError

    def pause_writing(self) -> None:
        raise NotImplementedError

    def resume_writing(self) -> None:
        raise NotImplementedError

    def connection_lost(self, error: Exception | None) -> None:
        raise NotImplementedError


class PlainTransport(Watched):
    """The transport of one non-blocking socket. `open` begins; from then on it belongs to the transport, which closes
    it at the end."""

    def __init__(self, poller: Poller, sock: socket.socket, receiver: Receiver | asyncio.Protocol) -> None:
        self._poller = poller
        self._socket = sock
        self._fd: int = sock.fileno()
        self._receiver = receiver
        self._watched: i64 = 0  # the events that the poller watches for
        self._waiting: bytearray | None = None  # written, and not taken by the system yet
        self._high: i64 = 64 << 10
        self._low: i64 = 16 << 10
        self._above_high = False
        self._reading = True
        self._closing = False
        self._ended = False
        self._error: Exception | None = None

    def open(self) -> None:
        """Begin to watch the socket. Raises OSError if the system will not watch the socket, which stays the caller's
        then."""
        self._poller.watch(self._fd, 0, READABLE, self)
        self._watched = READABLE
        self._receiver.connection_made(self)  # type: ignore[arg-type]  # as much of one as is used

    # What the poller calls

    def on_ready(self, events: i64) -> None:
        if self._waiting is not None and events & ~READABLE:
            self._drain()
        if events & ~WRITABLE:
            if self._reading:
                self._read()
            else:
                self._watch()

    def _watch(self) -> None:
        """Have the poller watch for what is wanted now. A pause comes here with the first event that it does not want."""
        wanted: i64 = 0
        if not self._ended:
            if self._reading:
                wanted |= READABLE
            if self._waiting is not None:
                wanted |= WRITABLE
        before = self._watched
        if wanted != before:
            self._watched = wanted
            try:
                self._poller.watch(self._fd, before, wanted, self)
            except OSError as error:
                self._unwatchable(before, error)

    def _unwatchable(self, before: i64, error: OSError) -> None:
        """End this connection, which cannot go on: the system watches what it watched before, and the other connections
        can."""
        if not self._ended:
            self._watched = before
            self._end(error)

    def _read(self) -> None:
        try:
            data = self._poller.read(self._fd)
        except OSError as error:
            self._end(error)
            return
        if data:
            self._receiver.data_received(data)
        elif data is not None:
            self._receiver.eof_received()
            self.close()

    # What the receiver calls

    def write(self, data: bytes) -> None:
        if self._ended:
            return
        waiting = self._waiting
        if waiting is not None:
            waiting += data
        else:
            sent = self._send(data)
            if sent == len(data) or self._ended:
                return
            waiting = bytearray(data[sent:])
            self._waiting = waiting
            self._watch()
        if len(waiting) > self._high and not self._above_high:
            self._above_high = True
            self._receiver.pause_writing()

    def _send(self, data: bytes | bytearray) -> int:
        """Send, and return how many bytes the system took. Ends the connection where it refuses them."""
        try:
            return self._poller.write(self._fd, data)
        except OSError as error:
            self._end(error)
            return 0

    def _drain(self) -> None:
        waiting = self._waiting
        if waiting is None:
            return
        del waiting[: self._send(waiting)]
        if self._ended:
            return
        if not waiting:
            self._waiting = None
            self._watch()
        if self._above_high and len(waiting) <= self._low:
            self._above_high = False
            self._receiver.resume_writing()
        if self._closing and self._waiting is None:
            self._end(None)

    def get_write_buffer_size(self) -> int:
        """Return how many bytes were written that the system has not taken yet."""
        waiting = self._waiting
        return 0 if waiting is None else len(waiting)

    def set_write_buffer_limits(self, high: int) -> None:
        """Set the marks: above `high` bytes the receiver is told to pause, at a quarter of it to go on."""
        self._high = high
        self._low = high // 4

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._closing and not self._ended:
            self._reading = True
            self._watch()

    def close(self) -> None:
        """Read no more, send what waits, then end."""
        self._closing = True
        self._reading = False
        if self._waiting is None:
            self._end(None)

    def abort(self) -> None:
        """End the connection now; what waits is lost."""
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._ended:
            return
        self._ended = True
        self._reading = False
        self._waiting = None
        self._error = error
        self._watch()
        self._poller.loop.call_soon(self._lose)

    def _lose(self) -> None:
        error = self._error
        self._error = None  # it was raised by a call of ours, and would keep us in memory
        try:
            self._receiver.connection_lost(error)
        finally:
            self._socket.close()

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return `peername` and `socket`, of asyncio's names."""
        if name == "socket":
            return self._socket
        if name != "peername":
            return default
        try:
            return self._socket.getpeername()
        except OSError:
            return default
