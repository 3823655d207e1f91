"""Stdin as messages, read so that Ctrl-C ends the command also while nothing comes.

A thread that waits in `read` cannot be ended. It is a daemon, and it reads the descriptor itself: Python's own buffer
has a lock that such a thread would keep when the interpreter ends.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress

_CHUNK_BYTES = 64 << 10


async def lines() -> AsyncIterator[bytes]:
    """Yield the lines without their ends; what stands behind the last end is a line, too."""
    rest: list[bytes] = []
    async for chunk in _chunks():
        first, *more = chunk.split(b"\n")
        rest.append(first)
        for line in more:
            yield b"".join(rest).rstrip(b"\r")
            rest = [line]
    if last := b"".join(rest):
        yield last.rstrip(b"\r")


async def whole() -> bytes:
    """Return all of stdin."""
    return b"".join([chunk async for chunk in _chunks()])


async def _chunks() -> AsyncIterator[bytes]:
    try:
        fd = sys.stdin.buffer.fileno()
    except (io.UnsupportedOperation, AttributeError):  # it is a file in memory
        yield sys.stdin.buffer.read()
        return
    loop = asyncio.get_running_loop()
    wanted = threading.Semaphore(0)
    arrived: asyncio.Queue[bytes | OSError] = asyncio.Queue()

    def read() -> None:
        while wanted.acquire():
            found: bytes | OSError
            try:
                found = os.read(fd, _CHUNK_BYTES)
            except OSError as error:
                found = error
            with suppress(RuntimeError):  # the loop is closed: nobody waits for it
                loop.call_soon_threadsafe(arrived.put_nowait, found)
            if not isinstance(found, bytes) or not found:
                return

    threading.Thread(target=read, daemon=True).start()
    while True:
        wanted.release()
        chunk = await arrived.get()
        if isinstance(chunk, OSError):
            raise chunk
        if not chunk:
            return
        yield chunk
