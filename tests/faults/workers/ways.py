"""Ways of a client into a node: a plain socket, TLS, a WebSocket. The plain one is passed to the worker of the client's
home, the others are relayed to it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake
from websockets.frames import DATA_OPCODES, Frame
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

CHUNK = 65_536


class Writer(Protocol):
    """What a client writes to."""

    def write(self, data: bytes) -> None: ...
    def abort(self) -> None: ...


Ends = tuple[asyncio.StreamReader, Writer]


@dataclass(frozen=True)
class Way:
    """A way into the node: `open` raises ConnectionError, SSLError, TimeoutError."""

    name: str
    open: Callable[[], Awaitable[Ends]]


class _Stream:
    """A plain socket, or TLS."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def write(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    def abort(self) -> None:
        self._writer.transport.abort()


class _WebSocket:
    """A WebSocket whose binary frames are a byte stream."""

    def __init__(self, below: Ends, url: str) -> None:
        self.reader = asyncio.StreamReader()
        self._frames = ClientProtocol(parse_uri(url), subprotocols=[Subprotocol("mqtt")])
        self._below, self._socket = below
        self._upgraded = asyncio.Event()
        self._pump = asyncio.create_task(self._read())

    async def upgrade(self) -> None:
        """Raises ConnectionError if the server speaks no WebSocket, or is gone."""
        self._frames.send_request(self._frames.connect())
        self._flush()
        await self._upgraded.wait()
        if isinstance(self._frames.handshake_exc, InvalidHandshake) or self.reader.at_eof():
            raise ConnectionRefusedError(str(self._frames.handshake_exc))

    async def _read(self) -> None:
        try:
            with suppress(OSError):
                while data := await self._below.read(CHUNK):
                    self._frames.receive_data(data)
                    for event in self._frames.events_received():
                        self._upgraded.set()
                        if isinstance(event, Frame) and event.opcode in DATA_OPCODES:
                            self.reader.feed_data(bytes(event.data))
                    self._flush()
        finally:
            self.reader.feed_eof()
            self._upgraded.set()

    def _flush(self) -> None:
        for data in self._frames.data_to_send():
            if data:
                self._socket.write(data)

    def write(self, data: bytes) -> None:
        with suppress(
            Exception
        ):  # it is closing: what is not acknowledged is sent again on another connection
            self._frames.send_binary(data)
            self._flush()

    def abort(self) -> None:
        self._socket.abort()
        self._pump.cancel()


async def _tcp(port: int) -> Ends:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    return reader, _Stream(writer)


def tcp(port: int) -> Way:
    """Return the way by a plain socket."""
    return Way("tcp", lambda: _tcp(port))


def tls(port: int, ca: str) -> Way:
    """Return the way by TLS, with the certificate of this authority."""
    context = ssl.create_default_context(cafile=ca)

    async def open_tls() -> Ends:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="localhost"
        )
        return reader, _Stream(writer)

    return Way("tls", open_tls)


def websocket(port: int) -> Way:
    """Return the way by a WebSocket."""

    async def open_websocket() -> Ends:
        made = _WebSocket(await _tcp(port), f"ws://127.0.0.1:{port}/mqtt")
        try:
            await made.upgrade()
        except BaseException:
            made.abort()
            raise
        return made.reader, made

    return Way("ws", open_websocket)
