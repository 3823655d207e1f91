"""The socket of a client: the few lines between asyncio and the sans-I/O protocol. Runs on the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Link(asyncio.Protocol):
    """Hands on what arrives and how it ended; `closed` is done when the transport is gone."""

    def __init__(self, on_data: Callable[[bytes], None], on_lost: Callable[[Exception | None], None]) -> None:
        self._on_data = on_data
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self.closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._on_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._may_write.set()
        self.closed.set()
        self._on_lost(exc)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    async def writable(self) -> None:
        """Wait until the write buffer is below its limit."""
        await self._may_write.wait()

    def write(self, data: bytes) -> None:
        if self._transport is not None and data:
            self._transport.write(data)

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Close when what was written is out."""
        if self._transport is not None:
            self._transport.close()
        else:
            self.closed.set()

    async def finish(self, timeout_s: float) -> None:
        """End what we send and read on, unheard, until the peer closes.

        Closing a socket with unread bytes resets the connection, and a reset takes along what the peer has not read
        yet: our last acknowledgements.
        """
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self.resume_reading()
            if transport.can_write_eof():  # under TLS and in a WebSocket the server closes after DISCONNECT
                transport.write_eof()
            try:
                async with asyncio.timeout(timeout_s):
                    await self.closed.wait()
            except TimeoutError:
                transport.abort()
        await self.closed.wait()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
