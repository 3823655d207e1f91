"""What a server's and a client's WebSocket have in common: a byte stream above, frames on a socket below.

`net` accepts, `clients` and `bridge` connect; they differ in the upgrade and in what they make of errors. Frames are
made and parsed by `websockets`, which does no I/O of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final
from typing import Protocol as Shape

from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import Protocol, State

from headrace.errors import forget_calls

DATA_FRAMES: Final = (Opcode.BINARY, Opcode.CONT)
# What one WebSocket gets parsed in a pass of the loop: frames of no or one byte cost as much as large ones.
_FRAMES_AT_ONCE: Final = 256
_BYTES_AT_ONCE: Final = 64 << 10
_SLICE_BYTES: Final = 2 << 10  # some 340 frames at most


class Above(Shape):
    """Reads and writes the byte stream: a connection or a link, which a socket's transport could call as well."""

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


def taken(frame: Frame) -> bytes:
    """Return the data of a frame, and leave it none: the parser holds the last frame until the next one comes."""
    data = bytes(frame.data)
    frame.data = b""
    return data


class WebSocketStream(asyncio.Transport):
    """The transport of the byte stream. `_socket` is None before the connection and after its end.

    What comes is parsed a bounded part at a time, and no further than whoever is above reads: the rest waits, and
    nothing more is read from the socket, until `call_soon` has let the others be read.
    """

    def __init__(self, above: Above, frames: Protocol, call_soon: Callable[..., object]) -> None:
        super().__init__()
        self._above = above
        self._frames = frames
        self._socket: asyncio.Transport | None = None
        self._call_soon = call_soon
        self._unparsed = b""
        self._at = 0
        self._wanted = True  # by whoever is above
        self._paused = False  # the socket
        self._in_turn = False
        self.received = 0  # bytes

    # asyncio.Protocol: what the socket's transport calls

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if self._unparsed:
            self._unparsed = self._unparsed[self._at :] + data
            self._at = 0
        else:
            self._unparsed = data
            self._at = 0
            self._take_turn()

    def _take_turn(self) -> None:
        self._in_turn = False
        if self._unparsed and self._socket is not None:
            try:
                self._parse_on()
            except Exception as error:  # noqa: BLE001  it must not cost the others, whatever the transport makes of it
                self._on_error(error)

    def _parse_on(self) -> None:
        data, start, seen = self._unparsed, self._at, 0
        end = min(len(data), start + _BYTES_AT_ONCE)
        while self._at < end and self._wanted and seen < _FRAMES_AT_ONCE and self._socket is not None:
            piece = data[self._at : min(self._at + _SLICE_BYTES, end)]
            self._at += len(piece)
            self._frames.receive_data(piece)
            for event in self._frames.events_received():
                seen += 1
                self._on_event(event)
            self._send()
        if self._at == len(data):
            self._unparsed = b""
        elif self._wanted and not self._in_turn:
            self._in_turn = True
            self._call_soon(self._take_turn)
        self._steer()

    def _steer(self) -> None:
        """Read from the socket as long as nothing of it waits."""
        pause = bool(self._unparsed) or not self._wanted
        socket = self._socket
        if socket is None or pause == self._paused or socket.is_closing():
            return
        self._paused = pause
        if pause:
            socket.pause_reading()
        else:
            socket.resume_reading()

    def _on_error(self, error: Exception) -> None:
        """Handle an exception that nobody expected."""
        self.abort()

    def _on_event(self, event: object) -> None:
        """Handle a request, a response or a frame."""
        raise NotImplementedError

    def give_up(self) -> None:
        """Let go of the socket and of everything that the parser holds: there is no connection, or no more.

        The parser is a generator that refers to itself, and its errors to the calls that raised them, so both would
        stay in memory until garbage is collected, with what they have read.
        """
        self._socket = None
        self._unparsed = b""
        frames = self._frames
        frames.parser.close()
        forget_calls(frames.parser_exc)
        forget_calls(frames.handshake_exc)
        frames.parser_exc = frames.handshake_exc = None
        frames.reader.buffer.clear()
        frames.events.clear()
        frames.writes.clear()

    def pause_writing(self) -> None:
        self._above.pause_writing()

    def resume_writing(self) -> None:
        self._above.resume_writing()

    def _send(self) -> None:
        """Write what the frame layer wants to say; b"" among it asks for the end of the stream."""
        transport = self._socket
        if transport is None:
            return
        for data in self._frames.data_to_send():
            if data:
                transport.write(data)
            else:
                transport.close()

    # asyncio.Transport: what is above calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._socket is not None and self._frames.state is State.OPEN:
            self._frames.send_binary(data)
            self._send()

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        """Say Close; nobody waits for the answer of who is left."""
        if self._socket is None:
            return
        if self._frames.state is State.OPEN:
            self._frames.send_close(CloseCode.NORMAL_CLOSURE)
            self._send()
        if self._socket is not None:
            self._socket.close()

    def abort(self) -> None:
        """End now, and parse no more of what came."""
        self._wanted = False
        if self._socket is not None:
            self._socket.abort()

    def is_closing(self) -> bool:
        return self._socket is None or self._socket.is_closing()

    def pause_reading(self) -> None:
        self._wanted = False
        self._steer()

    def resume_reading(self) -> None:
        self._wanted = True
        if self._unparsed and not self._in_turn:
            self._in_turn = True
            self._call_soon(self._take_turn)
        self._steer()

    def get_write_buffer_size(self) -> int:
        return 0 if self._socket is None else self._socket.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._socket is not None:
            self._socket.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._socket is None else self._socket.get_extra_info(name, default)
