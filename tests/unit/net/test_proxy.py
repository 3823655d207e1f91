"""PROXY headers: whole, byte by byte, with what follows them, and wrong ones."""

from __future__ import annotations

import asyncio
import socket

import pytest

from headrace.net.proxy import SIGNATURE, NoProxyHeader, ProxyHeader, read_header

V4 = SIGNATURE + b"\x21\x11\x00\x0c" + bytes([192, 0, 2, 9, 10, 0, 0, 1]) + b"\x30\x39\x07\x5b"
V6 = SIGNATURE + b"\x21\x21\x00\x24" + bytes(15) + b"\x09" + bytes(15) + b"\x01" + b"\x30\x39\x07\x5b"
GOOD = [
    (b"PROXY TCP4 192.0.2.9 10.0.0.1 12345 1883\r\n", "192.0.2.9:12345"),
    (b"PROXY TCP6 2001:db8::9 ::1 12345 1883\r\n", "[2001:db8::9]:12345"),
    (b"PROXY UNKNOWN\r\n", ""),
    (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", ""),
    (V4, "192.0.2.9:12345"),
    (V6, "[::9]:12345"),
    (V4[:14] + b"\x00\x10" + V4[16:] + b"\x04\x00\x01x", "192.0.2.9:12345"),  # a type-length-value behind
    (SIGNATURE + b"\x20\x00\x00\x00", ""),  # LOCAL: the balancer's own health check
    (SIGNATURE + b"\x21\x31\x00\x00", ""),  # a Unix socket
]
BAD = [
    b"PROXY TCP4 192.0.2.9 10.0.0.1 12345\r\n",
    b"PROXY TCP4 192.0.2.999 10.0.0.1 12345 1883\r\n",
    b"PROXY TCP4 192.0.2.9 10.0.0.1 99999 1883\r\n",
    b"PROXY UDP4 192.0.2.9 10.0.0.1 1 2\r\n",
    b"PROXX ",
    b"PROXY " + b"x" * 200,
    b"\r\n\r\n\x00\r\nQUIX\n",
    SIGNATURE + b"\x31\x11\x00\x00",
    SIGNATURE + b"\x21\x11\x00\x04" + bytes(4),
    SIGNATURE + b"\x21\x11\xff\xff",
]


def feed(header: ProxyHeader, data: bytes, size: int) -> bytes:
    """As a socket would: `size` more bytes are ready each time. Returns what was not taken."""
    ready = b""
    for start in range(0, len(data), size):
        ready += data[start : start + size]
        while ready and not header.done:
            count = header.take(ready)
            if count == 0:
                break
            ready = ready[count:]
    return ready


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(("data", "source"), GOOD)
def test_a_header_is_taken_and_nothing_behind_it(data: bytes, source: str, size: int) -> None:
    header = ProxyHeader(required=True)
    assert feed(header, data + b"\x10\x0cMQTT", size) == b"\x10\x0cMQTT"
    assert header.done
    assert header.source == source


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("data", BAD)
def test_a_wrong_header_is_refused(data: bytes, size: int) -> None:
    with pytest.raises(NoProxyHeader):
        feed(ProxyHeader(required=False), data, size)


@pytest.mark.parametrize("first", [b"\x10", b"\x16", b"G"])
def test_without_a_header(first: bytes) -> None:
    header = ProxyHeader(required=False)
    assert header.take(first) == 0
    assert (header.done, header.source) == (True, "")
    with pytest.raises(NoProxyHeader):
        ProxyHeader(required=True).take(first)


@pytest.mark.parametrize(("data", "source"), GOOD)
def test_it_is_read_off_a_socket_in_pieces(data: bytes, source: str) -> None:
    async def read() -> tuple[str, bytes]:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            reading = loop.create_task(read_header(loop, ours, required=True))
            for byte in data:
                theirs.send(bytes([byte]))
                await asyncio.sleep(0)
            theirs.send(b"rest")
            return (await reading).source, ours.recv(100)

    assert asyncio.run(read()) == (source, b"rest")


def test_a_socket_that_ends_early() -> None:
    async def read() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.send(b"PROXY TCP4")
            theirs.shutdown(socket.SHUT_WR)
            await read_header(asyncio.get_running_loop(), ours, required=True)

    with pytest.raises(NoProxyHeader):
        asyncio.run(read())
