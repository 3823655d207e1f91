"""What a server's and a client's WebSocket have in common: a byte stream above, frames on a socket below.

`net` accepts, `clients` and `bridge` connect; they differ in the upgrade and in what they make of errors. Frames are
made and parsed by `websockets`, which does no I/O of its own.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from typing import Protocol as Shape

from websockets.frames import CloseCode, Opcode
from websockets.protocol import Protocol, State

DATA_FRAMES: Final = (Opcode.BINARY, Opcode.CONT)


class Above(Shape):
    """Who reads and writes the byte stream: a connection or a link, which a socket's transport could call as well."""

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class WebSocketStream(asyncio.Transport):
    """The transport of the byte stream. `_socket` is None before the connection and after its end."""

    def __init__(self, above: Above, frames: Protocol) -> None:
        super().__init__()
        self._above = above
        self._frames = frames
        self._socket: asyncio.Transport | None = None

    # asyncio.Protocol: what the socket's transport calls

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
        if self._frames.state is State.OPEN:
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
        if self._socket is not None:
            self._socket.abort()

    def is_closing(self) -> bool:
        return self._socket is None or self._socket.is_closing()

    def pause_reading(self) -> None:
        if self._socket is not None:
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        if self._socket is not None:
            self._socket.resume_reading()

    def get_write_buffer_size(self) -> int:
        return 0 if self._socket is None else self._socket.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._socket is not None:
            self._socket.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._socket is None else self._socket.get_extra_info(name, default)
