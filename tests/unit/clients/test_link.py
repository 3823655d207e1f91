"""The lines between asyncio and the protocol."""

from __future__ import annotations

import asyncio

import pytest

from headrace.clients.link import Link

pytestmark = pytest.mark.asyncio


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[object] = []
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.calls.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")


def linked() -> tuple[Link, FakeTransport, list[object]]:
    heard: list[object] = []
    link, transport = Link(heard.append, heard.append), FakeTransport()
    link.connection_made(transport)
    return link, transport, heard


async def test_what_comes_is_handed_on() -> None:
    link, _, heard = linked()
    link.data_received(b"x")
    link.connection_lost(None)
    assert heard == [b"x", None]
    assert link.closed.is_set()


async def test_what_goes_out() -> None:
    link, transport, _ = linked()
    link.write(b"a")
    link.write(b"")
    link.pause_reading()
    link.resume_reading()
    link.close()
    link.abort()
    transport.closing = True
    link.pause_reading()
    link.resume_reading()
    assert transport.calls == [b"a", "pause", "resume", "close", "abort"]


async def test_writing_waits_while_the_socket_is_full() -> None:
    link, _, _ = linked()
    link.pause_writing()
    waiting = asyncio.create_task(link.writable())
    await asyncio.sleep(0)
    assert not waiting.done()
    link.resume_writing()
    await waiting


async def test_a_link_that_never_connected_is_closed_at_once() -> None:
    heard: list[object] = []
    link = Link(heard.append, heard.append)
    link.write(b"x")
    link.close()
    link.abort()
    await link.closed.wait()
