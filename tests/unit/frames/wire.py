"""Frames put together from the published table with `struct` alone, and handlers that note what they were told."""

from __future__ import annotations

import struct
from functools import reduce

from mypy_extensions import i64

from headrace.errors import ProtocolError
from headrace.frames.bodies import Pulled
from headrace.frames.client import ResponseHandler
from headrace.frames.server import FrameHandler


def crc8(data: bytes) -> int:
    """CRC-8 with the polynomial 0x07, bit by bit."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = ((crc << 1) ^ 0x07) & 0xFF if crc & 0x80 else crc << 1
    return crc


def text(value: str) -> bytes:
    return struct.pack(">H", len(value.encode())) + value.encode()


def frame(version: int, opcode: int, sn: bytes, body: bytes) -> bytes:
    named = sn if version == 1 else bytes([len(sn)]) + sn
    covered = struct.pack(">BIH", version, 8 + len(named) + len(body), opcode) + named + body
    last = reduce(lambda one, other: one ^ other, covered) if version == 1 else crc8(covered)
    return covered + bytes([last])


class Asked(FrameHandler):
    """Notes what a client asked."""

    def __init__(self) -> None:
        self.events: list[list[object]] = []
        self.errors: list[int] = []

    def hello(self, sn: bytes, user: str, password: bytes) -> None:
        self.events.append(["HELLO", sn.hex(), user, password.decode()])

    def publish(self, sn: bytes, seq: i64, topic: bytes, payload: bytes) -> None:
        self.events.append(["PUBLISH", sn.hex(), int(seq), topic.decode(), payload.hex()])

    def join(self, sn: bytes, topic: bytes, cluster: bytes) -> None:
        self.events.append(["JOIN", sn.hex(), topic.decode(), cluster.decode()])

    def leave(self, sn: bytes, topic: bytes, cluster: bytes) -> None:
        self.events.append(["LEAVE", sn.hex(), topic.decode(), cluster.decode()])

    def pull(self, sn: bytes, topic: bytes, cluster: bytes, most: i64, wait_ms: i64) -> None:
        self.events.append(["PULL", sn.hex(), topic.decode(), cluster.decode(), int(most), int(wait_ms)])

    def ack(self, sn: bytes, topic: bytes, cluster: bytes, ids: list[bytes]) -> None:
        self.events.append(["ACK", sn.hex(), topic.decode(), cluster.decode(), [one.hex() for one in ids]])

    def ping(self, sn: bytes) -> None:
        self.events.append(["PING", sn.hex()])

    def broken(self, error: ProtocolError) -> None:
        self.errors.append(error.reason_code)


class Heard(ResponseHandler):
    """Notes what a server said."""

    def __init__(self) -> None:
        self.events: list[list[object]] = []
        self.errors: list[int] = []

    def answered(self, opcode: int, sn: bytes, code: int) -> None:
        self.events.append([opcode, sn.hex(), code])

    def published(self, sn: bytes, seq: int, code: int, message_id: bytes) -> None:
        self.events.append(["PUBLISH", sn.hex(), seq, code, message_id.hex()])

    def notified(self, sn: bytes, topic: bytes, cluster: bytes, available: int) -> None:
        self.events.append(["NOTIFY", sn.hex(), topic.decode(), cluster.decode(), available])

    def pulled(self, sn: bytes, messages: list[Pulled]) -> None:
        rows = [[m.message_id.hex(), m.flags, m.sn.decode(), m.time_ms, m.payload.hex()] for m in messages]
        self.events.append(["PULL", sn.hex(), rows])

    def failed(self, code: int, reason: str) -> None:
        self.events.append(["ERROR", code, reason])

    def broken(self, error: ProtocolError) -> None:
        self.errors.append(error.reason_code)
