"""A small synchronous MQTT 3.1, 3.1.1 and 5.0 client over a plain socket, for audits.

It does nothing by itself: no automatic acks, no automatic pings, no reconnect.  The test decides which
packet leaves and when, and which one never does.  Every read has a deadline; a stream that ends raises
`ClosedError`, a stream that stays silent raises `SilenceError`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Self

from e2e.wire import (
    CONNACK,
    DISCONNECT,
    KIND_NAMES,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Packet,
    Properties,
    connect_packet,
    decode,
    encode_properties,
    packet,
    text,
)

DEADLINE_S = 10.0


class ClosedError(Exception):
    """The broker closed the connection (end of stream or reset)."""


class SilenceError(Exception):
    """Nothing arrived before the deadline."""


class RawClient:
    """One TCP connection to the broker at `address`, and the id of the MQTT client that speaks over it."""

    def __init__(self, address: tuple[str, int], client_id: str = "", version: int = 4) -> None:
        self.client_id, self.version = client_id, version
        self.socket = socket.create_connection(address, timeout=DEADLINE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connack = Packet(CONNACK)
        self._buffer = bytearray()
        self._at = 0
        self._early: deque[Packet] = deque()
        self._next_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- sending

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise ClosedError(str(error)) from error

    def connect(self, *, expect: int | None = 0, deadline_s: float = DEADLINE_S, **fields: Any) -> Packet:
        """CONNECT and wait for CONNACK; `expect` is the reason code it must carry, None for any."""
        self.send(connect_packet(self.client_id, version=self.version, **fields))
        self.connack = self.expect(CONNACK, deadline_s)
        assert expect is None or self.connack.reason == expect, f"CONNACK reason {self.connack.reason:#x}"
        return self.connack

    def next_id(self) -> int:
        self._next_id = self._next_id % 65535 + 1
        return self._next_id

    def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        qos: int = 0,
        *,
        retain: bool = False,
        dup: bool = False,
        packet_id: int | None = None,
        properties: Properties | None = None,
    ) -> int:
        """Sends a PUBLISH and waits for nothing; returns its packet id, 0 for QoS 0."""
        identifier = 0 if qos == 0 else packet_id if packet_id is not None else self.next_id()
        data = payload.encode() if isinstance(payload, str) else payload
        body = text(topic) + (struct.pack(">H", identifier) if qos else b"")
        body += encode_properties(properties) if self.version == 5 else b""
        self.send(packet(PUBLISH << 4 | (8 if dup else 0) | qos << 1 | (1 if retain else 0), body + data))
        return identifier

    def deliver(self, topic: str, payload: bytes | str = b"", qos: int = 1, **fields: Any) -> None:
        """Publishes and waits until the broker has taken it: PUBACK, or the whole QoS 2 handshake."""
        identifier = self.publish(topic, payload, qos, **fields)
        if qos == 1:
            self.expect_ack(PUBACK, identifier)
        elif qos == 2:
            self.expect_ack(PUBREC, identifier)
            self.ack(PUBREL, identifier)
            self.expect_ack(PUBCOMP, identifier)
        else:
            self._early.extend(self.ping())

    def deliver_many(self, topic: str, numbers: Iterable[int], qos: int = 1, window: int = 100) -> None:
        """Publishes each number as its own payload, `window` at a time, and waits for every last ack."""
        last = {1: PUBACK, 2: PUBCOMP}[qos]
        waiting: set[int] = set()
        for number in numbers:
            waiting.add(self.publish(topic, str(number), qos))
            while len(waiting) >= window:
                waiting -= self._one_done(last)
        while waiting:
            waiting -= self._one_done(last)

    def _one_done(self, last: int) -> set[int]:
        found = self._read(DEADLINE_S)
        assert found.kind in (PUBREC, last), f"{self.client_id}: got {found}"
        assert found.reason < 0x80, str(found)
        if found.kind == PUBREC:
            self.ack(PUBREL, found.packet_id)
        return {found.packet_id} if found.kind == last else set()

    def ack(self, kind: int, packet_id: int, reason: int = 0) -> None:
        body = struct.pack(">H", packet_id) + (bytes([reason]) if reason else b"")
        self.send(packet(kind << 4 | (2 if kind == PUBREL else 0), body))

    def subscribe(
        self,
        *filters: str | tuple[str, int],
        qos: int = 0,
        properties: Properties | None = None,
        granted: Iterable[int] | None = None,
    ) -> bytes:
        """Subscribes and returns the reason codes; a tuple carries the options byte."""
        identifier = self.next_id()
        body = struct.pack(">H", identifier) + (encode_properties(properties) if self.version == 5 else b"")
        wanted = [one if isinstance(one, tuple) else (one, qos) for one in filters]
        for topic_filter, options in wanted:
            body += text(topic_filter) + bytes([options])
        self.send(packet(SUBSCRIBE << 4 | 2, body))
        codes = self.expect_ack(SUBACK, identifier).codes
        expected = bytes(granted) if granted is not None else bytes(options & 3 for _, options in wanted)
        assert codes == expected, f"SUBACK {codes.hex()} instead of {expected.hex()}"
        return codes

    def unsubscribe(self, *filters: str) -> bytes:
        identifier = self.next_id()
        body = struct.pack(">H", identifier) + (encode_properties(None) if self.version == 5 else b"")
        self.send(packet(UNSUBSCRIBE << 4 | 2, body + b"".join(text(one) for one in filters)))
        return self.expect_ack(UNSUBACK, identifier).codes

    # -- receiving

    def read(self, deadline_s: float = DEADLINE_S) -> Packet:
        return self._early.popleft() if self._early else self._read(deadline_s)

    def expect(self, kind: int, deadline_s: float = DEADLINE_S) -> Packet:
        return self.expect_any(kind, deadline_s=deadline_s)

    def expect_any(self, *kinds: int, deadline_s: float = DEADLINE_S) -> Packet:
        found = self.read(deadline_s)
        wanted = " or ".join(KIND_NAMES[kind] for kind in kinds)
        assert found.kind in kinds, f"{self.client_id}: {wanted} expected, got {found}"
        return found

    def expect_ack(self, kind: int, packet_id: int) -> Packet:
        """The answer to a packet of ours; a PUBLISH that comes before it is kept for the next read."""
        while (found := self._read(DEADLINE_S)).kind == PUBLISH:
            self._early.append(found)
        assert found.kind == kind, f"{self.client_id}: {KIND_NAMES[kind]} expected, got {found}"
        assert found.packet_id == packet_id, f"{found}: id {packet_id} expected"
        assert found.reason < 0x80, f"{found}: reason {found.reason:#x}"
        return found

    def receive(self, deadline_s: float = DEADLINE_S) -> Packet:
        """The next PUBLISH, its handshake completed at once."""
        found = self.expect(PUBLISH, deadline_s)
        if found.qos == 1:
            self.ack(PUBACK, found.packet_id)
        elif found.qos == 2:
            self.ack(PUBREC, found.packet_id)
            self.expect_ack(PUBREL, found.packet_id)
            self.ack(PUBCOMP, found.packet_id)
        return found

    def ping(self) -> list[Packet]:
        """A barrier: it has read all we sent.  Returns what it had sent before its PINGRESP."""
        self.send(packet(PINGREQ << 4, b""))
        before = []
        while (found := self.read()).kind != PINGRESP:
            before.append(found)
        return before

    def expect_nothing(self, for_s: float) -> None:
        """The stream stays open and silent for so long: for what only time can show."""
        try:
            found = self.read(for_s)
        except SilenceError:
            return
        raise AssertionError(f"{self.client_id}: nothing expected, got {found}")

    def read_to_end(self, deadline_s: float = DEADLINE_S) -> list[Packet]:
        """Everything until the broker closes the connection."""
        until, found = time.monotonic() + deadline_s, []
        try:
            while True:
                found.append(self.read(until - time.monotonic()))
        except ClosedError:
            return found

    # -- the ends of a connection

    def disconnect(self, reason: int = 0, properties: Properties | None = None) -> list[Packet]:
        """DISCONNECT, and wait until the broker has closed; returns what it had sent before."""
        body = bytes([reason]) + encode_properties(properties) if reason or properties else b""
        self.send(packet(DISCONNECT << 4, body))
        return self.leave()

    def leave(self) -> list[Packet]:
        """An exact cut: half-closes, so that the broker sees all our packets, and returns all it had sent."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
        rest = self.read_to_end()
        self.close()
        return rest

    def abort(self) -> None:
        """Resets the connection, as a radio link that dies: packets under way are lost in both directions."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self.socket.close()

    # -- the stream

    def _read(self, deadline_s: float) -> Packet:
        until = time.monotonic() + deadline_s
        while (found := self._parse()) is None:
            self._fill(until)
        return found

    def _fill(self, until: float) -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise SilenceError(f"{self.client_id}: nothing before the deadline")
        self.socket.settimeout(left)
        try:
            data = self.socket.recv(1 << 16)
        except TimeoutError:
            raise SilenceError(f"{self.client_id}: nothing before the deadline") from None
        except OSError as error:
            raise ClosedError(str(error)) from error
        if not data:
            assert self._at == len(self._buffer), "the connection ended within a packet"
            raise ClosedError("end of stream")
        del self._buffer[: self._at]
        self._at = 0
        self._buffer += data

    def _parse(self) -> Packet | None:
        buffer, at = self._buffer, self._at + 1
        length = shift = 0
        while at < len(buffer):
            digit = buffer[at]
            at += 1
            length |= (digit & 127) << shift
            shift += 7
            if digit < 128:
                break
            assert shift < 28, "remaining length of more than four bytes"
        else:
            return None
        if len(buffer) < at + length:
            return None
        first_byte, self._at = buffer[self._at], at + length
        return decode(first_byte, bytes(buffer[at : at + length]), self.version)
