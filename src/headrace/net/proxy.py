"""The PROXY protocol, versions 1 and 2: who a client is behind a load balancer (HAProxy's proxy-protocol.txt).

A header comes before everything else on the connection, TLS included. Nothing behind it may be read here, so it is
peeked at first; its first byte ('P' or CR) can open neither an MQTT CONNECT, nor TLS, nor HTTP::

    version 1   "PROXY TCP4|TCP6|UNKNOWN <source> <destination> <port> <port>" CR LF    at most 107 bytes
    version 2   12 bytes signature | u8 version << 4 | command | u8 family << 4 | protocol | u16 length, big endian
                then `length` bytes: source and destination addresses, ports, type-length-values (not used)
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Final

from headrace.errors import HeadraceError

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
V1_BYTES_MAX: Final = 107
V2_FIXED: Final = 16
V2_REST_MAX: Final = 4096
_LOCAL, _PROXIED = 0x20, 0x21


class NoProxyHeader(HeadraceError):
    """The connection does not open with a PROXY header, or with a wrong one."""


class ProxyHeader:
    """Collects one header. `source` is "host:port" of the client, "" when the balancer speaks for itself."""

    def __init__(self, *, required: bool) -> None:
        self._required = required
        self._taken = bytearray()
        self.done = False
        self.source = ""

    def take(self, peeked: bytes) -> int:
        """Return how many of the bytes that lie ready belong to the header; they are to be read now. Raises
        NoProxyHeader."""
        if not self._taken and peeked[:1] not in (b"P", b"\r"):
            if self._required:
                raise NoProxyHeader("no PROXY header")
            self.done = True
            return 0
        data = bytes(self._taken) + peeked
        end = self._end(data)
        count = min(end, len(data)) - len(self._taken)
        self._taken += peeked[:count]
        if len(self._taken) == end:
            self.done = True
            header = bytes(self._taken)
            self.source = _source_2(header) if header[:1] == b"\r" else _source_1(header)
        return count

    def _end(self, data: bytes) -> int:
        """Return where the header ends, as far as it is known: never beyond its end."""
        if data[:1] == b"\r":
            if not SIGNATURE.startswith(data[:12]):
                raise NoProxyHeader("wrong signature of a PROXY header")
            if len(data) < V2_FIXED:
                return V2_FIXED
            length = int.from_bytes(data[14:16], "big")
            if length > V2_REST_MAX:
                raise NoProxyHeader(f"PROXY header of {length} bytes")
            return V2_FIXED + length
        newline = data.find(b"\r\n", 0, V1_BYTES_MAX)
        if not b"PROXY ".startswith(data[:6]) or (newline < 0 and len(data) >= V1_BYTES_MAX):
            raise NoProxyHeader("wrong PROXY header")
        return newline + 2 if newline >= 0 else len(data) + 1


def _source_1(header: bytes) -> str:
    words = header[:-2].decode("ascii", "replace").split(" ")
    if words[1:2] == ["UNKNOWN"]:
        return ""
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise NoProxyHeader("wrong PROXY header")
    try:
        return _address(ipaddress.ip_address(words[2]), int(words[4]))
    except ValueError as error:
        raise NoProxyHeader(f"PROXY header: {error}") from None


def _source_2(header: bytes) -> str:
    command, family = header[12], header[13] >> 4
    if command not in (_LOCAL, _PROXIED):
        raise NoProxyHeader(f"PROXY header with version and command 0x{command:02X}")
    sizes = {1: 4, 2: 16}
    if command == _LOCAL or family not in sizes:
        return ""
    size = sizes[family]
    rest = header[V2_FIXED:]
    if len(rest) < 2 * size + 4:
        raise NoProxyHeader("PROXY header too short for its addresses")
    return _address(ipaddress.ip_address(rest[:size]), int.from_bytes(rest[2 * size : 2 * size + 2], "big"))


def _address(host: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> str:
    if not 0 <= port <= 65535:
        raise ValueError(f"port {port}")
    return f"[{host}]:{port}" if host.version == 6 else f"{host}:{port}"


async def read_header(
    loop: asyncio.AbstractEventLoop, accepted: socket.socket, *, required: bool
) -> ProxyHeader:
    """Read the header off a non-blocking socket and not a byte more. Raises NoProxyHeader, OSError."""
    header = ProxyHeader(required=required)
    while not header.done:
        await _readable(loop, accepted)
        peeked = accepted.recv(V2_FIXED + V2_REST_MAX, socket.MSG_PEEK)
        if not peeked:
            raise NoProxyHeader("closed before a PROXY header")
        count = header.take(peeked)
        if count:
            accepted.recv(count)
    return header


async def _readable(loop: asyncio.AbstractEventLoop, accepted: socket.socket) -> None:
    ready = loop.create_future()
    loop.add_reader(accepted, _resolve, ready)
    try:
        await ready
    finally:
        loop.remove_reader(accepted)


def _resolve(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
