"""A device over a plain socket, written from the table of docs/reference/frames.md alone: nothing of the product is used.

It does nothing by itself: the test decides which frame leaves and when. Every read has a deadline.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections import deque
from typing import NamedTuple, Self

HELLO, PUBLISH, JOIN, LEAVE, NOTIFY, PULL, ACK, PING = range(1, 9)
RESPONSE, ERROR = 0x8000, 0x80FF
DEADLINE_S = 60.0


class Frame(NamedTuple):
    opcode: int
    sn: bytes
    body: bytes


class Got(NamedTuple):
    """A message that was pulled."""

    message_id: bytes
    redelivered: bool
    sn: str
    time_ms: int
    payload: bytes


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded


def checksum(version: int, data: bytes) -> int:
    found = 0
    for byte in data:
        found ^= byte
        if version == 2:
            for _ in range(8):
                found = ((found << 1) ^ 0x07) & 0xFF if found & 0x80 else found << 1
    return found


def frame(opcode: int, sn: bytes, body: bytes = b"", version: int = 2) -> bytes:
    named = sn if version == 1 else bytes([len(sn)]) + sn
    covered = struct.pack(">BIH", version, 8 + len(named) + len(body), opcode) + named + body
    return covered + bytes([checksum(version, covered)])


class Device:
    """One connection. Frames of other opcodes that come while one is waited for are kept."""

    def __init__(
        self, port: int, sn: bytes = b"door-1", version: int = 2, context: ssl.SSLContext | None = None
    ) -> None:
        self.sn, self.version = sn, version
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self._received = b""
        self._kept: deque[Frame] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, opcode: int, body: bytes = b"", sn: bytes | None = None) -> None:
        self.write(frame(opcode, self.sn if sn is None else sn, body, self.version))

    def read(self, opcode: int, deadline_s: float = DEADLINE_S) -> Frame:
        """The next frame of this opcode. Raises AssertionError for an ERROR, EOFError at the end of the stream."""
        for kept in self._kept:
            if kept.opcode == opcode:
                self._kept.remove(kept)
                return kept
        until = time.monotonic() + deadline_s
        while True:
            found = self._next(until)
            if found.opcode == opcode:
                return found
            assert found.opcode != ERROR, found
            self._kept.append(found)

    def _next(self, until: float) -> Frame:
        while True:
            found = self._take()
            if found is not None:
                return found
            self.socket.settimeout(max(0.001, until - time.monotonic()))
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._received += data

    def _take(self) -> Frame | None:
        if len(self._received) < 5:
            return None
        version, length = struct.unpack_from(">BI", self._received)
        assert version == self.version
        if len(self._received) < length:
            return None
        data, self._received = self._received[:length], self._received[length:]
        assert checksum(version, data[:-1]) == data[-1]
        (opcode,) = struct.unpack_from(">H", data, 5)
        size, at = (1, 7) if version == 1 else (data[7], 8)
        return Frame(opcode, data[at : at + size], data[at + size : -1])

    def ends(self) -> bool:
        """Whether the stream ends, with nothing more in it."""
        self.socket.settimeout(DEADLINE_S)
        try:
            return not self._received and self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    # One request and its answer

    def hello(self, user: str, password: str) -> int:
        self.send(HELLO, text(user) + text(password))
        return self.read(HELLO | RESPONSE).body[0]

    def ping(self) -> None:
        self.send(PING)
        answer = self.read(PING | RESPONSE)
        assert (answer.sn, answer.body) == (self.sn, b"")

    def start_publish(self, seq: int, topic: str, payload: bytes, sn: bytes | None = None) -> None:
        self.send(PUBLISH, struct.pack(">I", seq) + text(topic) + payload, sn)

    def published(self) -> tuple[int, int, bytes]:
        """(seq, code, message id) of the next answer."""
        body = self.read(PUBLISH | RESPONSE).body
        assert len(body) == 21
        seq, code = struct.unpack_from(">IB", body)
        return seq, code, body[5:]

    def publish(self, seq: int, topic: str, payload: bytes) -> bytes:
        """The id of a message that must be taken."""
        self.start_publish(seq, topic, payload)
        answered, code, message_id = self.published()
        assert (answered, code) == (seq, 0)
        return message_id

    def error(self) -> int:
        """The code of an ERROR, behind which the stream ends."""
        found = self.read(ERROR)
        (size,) = struct.unpack_from(">H", found.body, 1)
        assert len(found.body) == 3 + size
        assert self.ends()
        return found.body[0]

    def join(self, topic: str, cluster: str) -> int:
        self.send(JOIN, text(topic) + text(cluster))
        return self.read(JOIN | RESPONSE).body[0]

    def leave(self, topic: str, cluster: str) -> int:
        self.send(LEAVE, text(topic) + text(cluster))
        return self.read(LEAVE | RESPONSE).body[0]

    def start_pull(self, topic: str, cluster: str, most: int, wait_ms: int = 0) -> None:
        self.send(PULL, text(topic) + text(cluster) + struct.pack(">HH", most, wait_ms))

    def pulled(self, deadline_s: float = DEADLINE_S) -> list[Got]:
        body = self.read(PULL | RESPONSE, deadline_s).body
        (count,) = struct.unpack_from(">H", body)
        found, at = [], 2
        for _ in range(count):
            message_id, flags, size = struct.unpack_from(">16sBH", body, at)
            at += 19
            sn = body[at : at + size].decode()
            at += size
            time_ms, size = struct.unpack_from(">QI", body, at)
            at += 12
            found.append(Got(message_id, flags == 1, sn, time_ms, body[at : at + size]))
            at += size
        assert at == len(body)
        return found

    def pull(self, topic: str, cluster: str, most: int, wait_ms: int = 0) -> list[Got]:
        self.start_pull(topic, cluster, most, wait_ms)
        return self.pulled()

    def ack(self, topic: str, cluster: str, *ids: bytes) -> int:
        self.send(ACK, text(topic) + text(cluster) + struct.pack(">H", len(ids)) + b"".join(ids))
        return self.read(ACK | RESPONSE).body[0]

    def notified(self) -> int:
        """How many wait, by the next NOTIFY."""
        return int(struct.unpack(">I", self.read(NOTIFY).body[-4:])[0])
