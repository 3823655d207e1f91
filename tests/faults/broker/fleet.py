"""Clients that keep the books: what was acknowledged to them, what they got, and how often they were cut off.

All clients of a `Fleet` live on one thread and one `pump`, each with a persistent session of MQTT 5: whoever is cut
comes back by itself, sends again with DUP what was not acknowledged, and goes on, as devices do. `faults` says in words
what was not as promised; it is empty for a broker that keeps its word.
"""

from __future__ import annotations

import re
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from e2e.wire import (
    CONNACK,
    DISCONNECT,
    NEVER,
    PINGREQ,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SESSION_EXPIRY,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    Packet,
    Properties,
    connect_packet,
    decode,
    encode_properties,
    packet,
    text,
)

RETRY_S = 0.05
PATIENCE_S = 30.0  # far more than anything here takes: only who gives no answer at all is late


@dataclass(slots=True)
class Sent:
    """A message that a device has published; `number` is unique in its fleet, and its payload."""

    number: int
    topic: str
    qos: int
    retain: bool
    data: bytes
    packet_id: int
    properties: Properties | None = None
    released: bool = False  # PUBREC was seen


@dataclass(slots=True)
class Got:
    """A PUBLISH as it arrived."""

    number: int
    topic: str
    qos: int
    dup: bool
    retain: bool


@dataclass(slots=True)
class Books:
    """Of one device, over all its connections."""

    acked: list[Sent] = field(default_factory=list)
    got: list[Got] = field(default_factory=list)
    cuts: int = 0
    refusals: list[str] = field(default_factory=list)


class Device:
    """A client whose session outlives its connections."""

    def __init__(
        self, fleet: Fleet, name: str, clean: bool = False, will: tuple[str, bytes] | None = None
    ) -> None:
        self.fleet, self.name, self.clean, self.will = fleet, name, clean, will
        self.keep_alive_s = 0
        self.will_properties: Properties | None = None
        self.books = Books()
        self.wanted = True  # come back when cut
        self.holding = False  # acknowledge nothing
        self.socket: socket.socket | None = None
        self.connected = False
        self.session_present = False
        self.held: dict[int, int] = {}  # packet id -> number of what is not acknowledged
        self.returning: set[int] = set()  # packet ids that must come back with DUP before anything new
        self.subscribed = False
        self._asked: dict[int, bytes] = {}  # SUBSCRIBE and UNSUBSCRIBE that wait for their answer
        self._filters: list[tuple[str, int]] = []
        self._open: dict[int, Sent] = {}
        self._incoming: set[int] = set()
        self._buffer = bytearray()
        self._next_id = 0
        self._retry_at = 0.0
        self.waits_for_pong = 0

    # -- a connection

    def connect(self) -> None:
        """One attempt; a broker that is not there is tried again by the fleet's pump."""
        self.wanted = True
        self._retry_at = time.monotonic() + RETRY_S
        try:
            self.socket = socket.create_connection(self.fleet.address, 5)
        except OSError:
            return
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer.clear()
        self.waits_for_pong = 0
        self.write(
            connect_packet(
                self.name,
                version=5,
                clean=self.clean,
                keep_alive_s=self.keep_alive_s,
                properties={SESSION_EXPIRY: NEVER},
                will=self.will,
                will_qos=1,
                will_properties=self.will_properties,
            )
        )

    def write(self, data: bytes) -> None:
        if self.socket is not None:
            try:
                self.socket.settimeout(10)
                self.socket.sendall(data)
            except OSError:
                self._cut()

    def leave(self) -> None:
        """DISCONNECT, and do not come back until `connect`."""
        self.wanted = False
        self.write(packet(DISCONNECT << 4, b""))
        self._gone()

    def abort(self) -> None:
        """The connection dies, without a word, until `connect`."""
        self.wanted = False
        if self.socket is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._gone()

    def _gone(self) -> None:
        if self.socket is not None:
            self.socket.close()
        self.socket, self.connected = None, False

    def _cut(self) -> None:
        if self.socket is not None:
            self.books.cuts += 1
        self._gone()

    def retry(self, now: float) -> None:
        if self.wanted and self.socket is None and now >= self._retry_at:
            self.connect()

    # -- what it asks for

    def subscribe(self, topic_filter: str, qos: int = 2) -> None:
        self._filters.append((topic_filter, qos))
        self._subscribe(topic_filter, qos)

    def _subscribe(self, topic_filter: str, qos: int) -> None:
        self._ask(SUBSCRIBE << 4 | 2, encode_properties(None) + text(topic_filter) + bytes([qos]))

    def _ask(self, first_byte: int, body: bytes) -> None:
        identifier = self._id()
        self._asked[identifier] = packet(first_byte, struct.pack(">H", identifier) + body)
        self.write(self._asked[identifier])

    def publish(
        self,
        topic: str,
        qos: int = 1,
        retain: bool = False,
        size: int = 0,
        properties: Properties | None = None,
    ) -> Sent:
        number = self.fleet.next_number()
        sent = Sent(
            number, topic, qos, retain, b"%d " % number + bytes(size), self._id() if qos else 0, properties
        )
        self.fleet.sent[number] = sent
        if qos:
            self._open[sent.packet_id] = sent
        if self.connected or not qos:
            self._send(sent, False)
        return sent

    def ping(self) -> None:
        self.waits_for_pong += 1
        self.write(packet(PINGREQ << 4, b""))

    def _send(self, sent: Sent, dup: bool) -> None:
        body = text(sent.topic) + (struct.pack(">H", sent.packet_id) if sent.qos else b"")
        flags = (8 if dup else 0) | sent.qos << 1 | (1 if sent.retain else 0)
        self.write(packet(PUBLISH << 4 | flags, body + encode_properties(sent.properties) + sent.data))

    def _id(self) -> int:
        taken = self._open.keys() | self._asked.keys()
        while (at := self._next_id % 65_535 + 1) in taken:
            self._next_id = at
        self._next_id = at
        return at

    @property
    def idle(self) -> bool:
        """Everything it asked for was answered."""
        return self.connected and not self.waits_for_acks and not self.waits_for_pong

    @property
    def waits_for_acks(self) -> bool:
        return bool(self._open or self._asked)

    # -- what comes in

    def readable(self) -> None:
        assert self.socket is not None
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._cut()
            return
        self._buffer += data
        try:
            while (found := self._parse()) is not None:
                self._on_packet(found)
        except (AssertionError, ValueError) as error:
            self.fleet.fault(f"P9: {self.name} was sent what is no packet: {error}")
            self._gone()

    def _parse(self) -> Packet | None:
        buffer, at, length, shift = self._buffer, 1, 0, 0
        while at < len(buffer):
            digit = buffer[at]
            at, length, shift = at + 1, length | (digit & 127) << shift, shift + 7
            if digit < 128:
                if len(buffer) < at + length:
                    return None
                found = decode(buffer[0], bytes(buffer[at : at + length]), 5)
                del buffer[: at + length]
                return found
        return None

    def _on_packet(self, found: Packet) -> None:
        kind = found.kind
        if kind == CONNACK:
            self._on_connack(found)
        elif kind == PUBLISH:
            self._on_publish(found)
        elif kind in (PUBACK, PUBREC, PUBCOMP):
            self._on_ack(found)
        elif kind == PUBREL:
            self._incoming.discard(found.packet_id)
            if not self.holding:
                self._acknowledge(PUBCOMP, found.packet_id)
        elif kind in (SUBACK, UNSUBACK):
            self._asked.pop(found.packet_id, None)
            self.subscribed = True
            if any(code >= 0x80 for code in found.codes):
                self.books.refusals.append(str(found))
        elif kind == DISCONNECT:
            self.books.refusals.append(str(found))
        else:
            self.waits_for_pong = max(0, self.waits_for_pong - 1)

    def _on_connack(self, found: Packet) -> None:
        if found.reason:
            self.books.refusals.append(str(found))
            self._gone()
            return
        self.connected, self.session_present = True, found.session_present
        if self.subscribed and not self.clean and not found.session_present:
            self.fleet.fault(f"P2: the session of {self.name} is gone, with its subscriptions")
        self.returning = set(self.held) if found.session_present else set()
        self.held.clear()
        for sent in self._open.values():
            if sent.released:
                self._acknowledge(PUBREL, sent.packet_id)
            else:
                self._send(sent, True)
        for asked in self._asked.values():
            self.write(asked)
        if self.subscribed and self.clean:
            for topic_filter, qos in self._filters:
                self._subscribe(topic_filter, qos)

    def _on_publish(self, found: Packet) -> None:
        number = int(found.payload.split(b" ", 1)[0])
        got = Got(number, found.topic, found.qos, found.dup, found.retain)
        if found.qos:
            self._check_return(found.packet_id, number, found.dup)
            self.held[found.packet_id] = number
        if found.qos == 2 and found.packet_id in self._incoming:
            if not found.dup:
                self.fleet.fault(f"P4: {self.name}: packet id {found.packet_id} came again without DUP")
        else:
            self.books.got.append(got)
        if found.qos == 2:
            self._incoming.add(found.packet_id)
        if found.qos and not self.holding:
            self.held.pop(found.packet_id, None)
            self._acknowledge(PUBACK if found.qos == 1 else PUBREC, found.packet_id)

    def _check_return(self, packet_id: int, number: int, dup: bool) -> None:
        if packet_id in self.returning:
            self.returning.discard(packet_id)
            if not dup:
                self.fleet.fault(f"P4: {self.name}: {number} came back under id {packet_id} without DUP")

    def _on_ack(self, found: Packet) -> None:
        sent = self._open.get(found.packet_id)
        if sent is None:
            return
        if found.reason >= 0x80:
            self.books.refusals.append(str(found))
            del self._open[found.packet_id]
            return
        if found.kind == PUBREC:
            if not sent.released:
                self.books.acked.append(sent)
            sent.released = True
            self._acknowledge(PUBREL, found.packet_id)
            return
        if found.kind == PUBACK:
            self.books.acked.append(sent)
        del self._open[found.packet_id]

    def _acknowledge(self, kind: int, packet_id: int) -> None:
        self.write(packet(kind << 4 | (2 if kind == PUBREL else 0), struct.pack(">H", packet_id)))


class GaveUp(Exception):
    """What must happen did not; nothing more can be learned."""


def raised(log: str) -> str:
    """What the last traceback in a broker's log ends with; "" without one."""
    found = re.findall(r"^[A-Za-z_.]*(?:Error|Exception)\b.*", log, re.MULTILINE)
    return (found[-1] if found else "something") if "Traceback" in log else ""


class Fleet:
    """Devices of one broker, and what they found."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.devices: list[Device] = []
        self.sent: dict[int, Sent] = {}
        self.faults: list[str] = []
        self._number = 0

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def fault(self, text: str) -> None:
        if text not in self.faults:
            self.faults.append(text)

    def device(self, name: str, *filters: str, **options: object) -> Device:
        """A device that is connected, or tries to be, and asks for its subscriptions."""
        made = Device(self, name, **options)  # type: ignore[arg-type]
        self.devices.append(made)
        made.connect()
        for one in filters:
            made.subscribe(one)
        return made

    def close(self) -> None:
        for device in self.devices:
            device.abort()

    def pump(self, until: Callable[[], bool], deadline_s: float = PATIENCE_S) -> bool:
        """Let everybody read and come back until the condition holds; false when it does not in time."""
        end = time.monotonic() + deadline_s
        while not until():
            now = time.monotonic()
            if now > end:
                return False
            for device in self.devices:
                device.retry(now)
            sockets = {d.socket: d for d in self.devices if d.socket is not None}
            for ready in select.select(list(sockets), [], [], 0.02)[0]:
                if sockets[ready].socket is ready:
                    sockets[ready].readable()
        return True

    def expect(self, until: Callable[[], bool], what: str, deadline_s: float = PATIENCE_S) -> None:
        """As `pump`; what does not happen in time is a fault, and raises GaveUp."""
        if not self.pump(until, deadline_s):
            self.fault(f"not within {deadline_s:g} s: {what}")
            raise GaveUp

    def idle(self) -> bool:
        return all(device.idle for device in self.devices if device.wanted)

    @property
    def cuts(self) -> int:
        return sum(device.books.cuts for device in self.devices)

    # -- the promises

    def acked(self, prefix: str) -> list[Sent]:
        """What was acknowledged on topics that begin so, in no order between devices."""
        return [s for d in self.devices for s in d.books.acked if s.topic.startswith(prefix)]

    def has_all(self, device: Device, prefix: str, members: tuple[Device, ...] = ()) -> bool:
        got = {g.number for d in (device, *members) for g in d.books.got}
        return all(sent.number in got for sent in self.acked(prefix))

    def check_delivered(self, prefix: str, *members: Device) -> None:
        """P2 and P3 for one device, or for the members of a group together."""
        name = "+".join(device.name for device in members)
        counts = Counter(g.number for d in members for g in d.books.got)
        acked = self.acked(prefix)
        missing = [sent.number for sent in acked if not counts[sent.number]]
        if missing:
            self.fault(
                f"P2: {name} misses {len(missing)} of {len(acked)} acknowledged on {prefix}: {missing[:8]}"
            )
        twice = [s.number for s in acked if s.qos == 2 and counts[s.number] > 1]
        if twice:
            self.fault(f"P2: {name} got QoS 2 messages twice: {twice[:8]}")
        if len(members) == 1:
            self._check_order(members[0], prefix)

    def _check_order(self, device: Device, prefix: str) -> None:
        last: dict[tuple[str, int], int] = {}
        seen: set[int] = set()
        for got in device.books.got:
            if got.number in seen or got.retain or not got.qos or not got.topic.startswith(prefix):
                continue
            seen.add(got.number)
            key = (got.topic, got.qos)
            if last.get(key, 0) > got.number:
                self.fault(f"P3: {device.name}: {got.number} came after {last[key]} on {got.topic}")
            last[key] = got.number

    def check_returned(self, device: Device) -> None:
        """P4: what was in flight came back under its packet id."""
        if device.returning:
            self.fault(f"P4: {device.name}: packet ids {sorted(device.returning)} never came back")

    def check_retained(self, reader: Device, prefix: str) -> None:
        """P6: of each topic the reader got the last acknowledged value, or one that was sent after it."""
        kept = {got.topic: got.number for got in reader.books.got if got.retain}
        last: dict[str, Sent] = {}
        for sent in sorted(self.acked(prefix), key=lambda sent: sent.number):
            last[sent.topic] = sent
        for topic, sent in last.items():
            later = [s.number for s in self.sent.values() if s.topic == topic and s.number >= sent.number]
            if kept.get(topic) not in later:
                self.fault(f"P6: {topic} is retained as {kept.get(topic)}, {sent.number} was acknowledged")
