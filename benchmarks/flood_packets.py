"""Packets and blocks of packets for floods, put together by hand: also what no client should send."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator

BLOCK_BYTES = 256 << 10
Blocks = Callable[[], bytes]


def varint(number: int) -> bytes:
    out = bytearray()
    while True:
        number, digit = number >> 7, number & 127
        out.append(digit | 128 if number else digit)
        if not number:
            return bytes(out)


def packet(first_byte: int, body: bytes = b"") -> bytes:
    return bytes([first_byte]) + varint(len(body)) + body


def text(value: bytes) -> bytes:
    return struct.pack(">H", len(value)) + value


def connect(
    client_id: bytes,
    version: int = 4,
    clean: bool = True,
    will: tuple[bytes, bytes] | None = None,
    expiry_s: int = 0,
    login: tuple[bytes, bytes] | None = None,
) -> bytes:
    """CONNECT without keep alive; a will is of QoS 1 and retained, `login` user name and password."""
    flags = (2 if clean else 0) | (0x2C if will else 0) | (0xC0 if login else 0)
    body = b"\x00\x04MQTT" + bytes([version, flags, 0, 0])
    body += (b"\x05\x11" + struct.pack(">I", expiry_s)) if version == 5 else b""
    body += text(client_id)
    if will:
        body += (b"\x00" if version == 5 else b"") + text(will[0]) + text(will[1])
    if login:
        body += text(login[0]) + text(login[1])
    return packet(0x10, body)


def publish(
    topic: bytes,
    payload: bytes = b"x" * 64,
    qos: int = 0,
    packet_id: int = 1,
    retain: bool = False,
    properties: bytes | None = None,
) -> bytes:
    """PUBLISH of 3.1.1, or of 5.0 where properties are given, if only b""."""
    body = text(topic) + (struct.pack(">H", packet_id) if qos else b"")
    body += varint(len(properties)) + properties if properties is not None else b""
    return packet(0x30 | qos << 1 | (1 if retain else 0), body + payload)


def acknowledgement(kind: int, packet_id: int) -> bytes:
    return packet(kind << 4 | (2 if kind == 6 else 0), struct.pack(">H", packet_id))


def subscribe(packet_id: int, filters: list[bytes], qos: int = 0, properties: bytes | None = None) -> bytes:
    body = struct.pack(">H", packet_id)
    body += varint(len(properties)) + properties if properties is not None else b""
    return packet(0x82, body + b"".join(text(one) + bytes([qos]) for one in filters))


def unsubscribe(packet_id: int, filters: list[bytes], version: int = 4) -> bytes:
    body = struct.pack(">H", packet_id) + (b"\x00" if version == 5 else b"")
    return packet(0xA2, body + b"".join(map(text, filters)))


def same(*packets: bytes) -> Blocks:
    """The same packets again and again."""
    one = b"".join(packets)
    block = one * max(1, BLOCK_BYTES // len(one))
    return lambda: block


def numbered(make: Callable[[int], bytes], count: int = 65_535) -> Blocks:
    """The packets of numbers 1 to `count`, and then again."""
    return same(*(make(number) for number in range(1, count + 1)))


def ever_new(make: Callable[[int], bytes], at_once: int = 500) -> Blocks:
    """A packet of each number, none of them twice."""
    numbers: Iterator[int] = itertools.count(1)
    return lambda: b"".join(make(number) for number in itertools.islice(numbers, at_once))


def frame(payload: bytes, opcode: int = 2) -> bytes:
    """A WebSocket frame of a client, masked with zeros."""
    length = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + struct.pack(">H", len(payload))
    return bytes([0x80 | opcode]) + length + bytes(4) + payload


UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)
