"""One client that does one thing as fast as it can: of every packet type, and into every queue that a client can fill.

    python -m benchmarks.floods NAME HOST:PORT [WEBSOCKET-PORT]

Says `under way` once whoever belongs to it is connected, floods until SIGTERM, then says how many bytes went out and
how often it was cut off. A connection that is cut off comes back at once.
"""

from __future__ import annotations

import contextlib
import json
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.flood_packets import (
    UPGRADE,
    Blocks,
    acknowledgement,
    connect,
    ever_new,
    frame,
    numbered,
    packet,
    publish,
    same,
    subscribe,
    text,
    unsubscribe,
    varint,
)
from benchmarks.memory import open_files

PINGREQ = packet(0xC0)
LEVELS = 15  # of a topic that 2 ** 15 filters match
STORM_CONNECTIONS = 64
HALF_CONNECTIONS = 4000
MANY = 50  # that flood at once


class Address(NamedTuple):
    host: str
    port: int
    websocket_port: int


@dataclass
class Line:
    """One connection of a flood: how it greets, what it says for ever, and whether it reads what it gets."""

    hello: bytes
    blocks: Blocks | None = None
    reads: bool = True
    websocket: bool = False
    after: bytes = b""  # once, behind the CONNACK
    socket: socket.socket | None = None
    rest: memoryview = field(default_factory=lambda: memoryview(b""))


class Flood:
    """Pours the blocks of its lines out, takes what comes in and forgets it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.bytes = 0
        self.cuts = 0
        self._lines: dict[int, Line] = {}
        self._epoll = select.epoll()
        self._trash = bytearray(1 << 20)

    def open(self, line: Line) -> None:
        """Raises OSError when the broker does not answer."""
        port = self.address.websocket_port if line.websocket else self.address.port
        made = socket.create_connection((self.address.host, port), 30)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if line.websocket:
            made.sendall(UPGRADE)
            made.recv(4096)
        made.sendall(frame(line.hello) if line.websocket else line.hello)
        made.recv(4096)  # CONNACK
        if line.after:
            made.sendall(line.after)
        if line.blocks is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        made.setblocking(False)
        line.socket, line.rest = made, memoryview(b"")
        self._lines[made.fileno()] = line
        events = (select.EPOLLIN if line.reads else 0) | (select.EPOLLOUT if line.blocks is not None else 0)
        self._epoll.register(made, events)

    def pour(self) -> None:
        """Until somebody ends the process."""
        while True:
            for fd, events in self._epoll.poll(0.5):
                line = self._lines[fd]
                try:
                    if events & (select.EPOLLERR | select.EPOLLHUP):
                        raise ConnectionResetError
                    if events & select.EPOLLIN:
                        self._take(line)
                    if events & select.EPOLLOUT:
                        self._give(line)
                except OSError:
                    self._again(fd, line)

    def _take(self, line: Line) -> None:
        assert line.socket is not None
        if not line.socket.recv_into(self._trash):
            raise ConnectionResetError

    def _give(self, line: Line) -> None:
        assert line.socket is not None
        assert line.blocks is not None
        if not line.rest:
            line.rest = memoryview(line.blocks())
        with contextlib.suppress(BlockingIOError):
            sent = line.socket.send(line.rest)
            line.rest = line.rest[sent:]
            self.bytes += sent

    def _again(self, fd: int, line: Line) -> None:
        self.cuts += 1
        del self._lines[fd]
        assert line.socket is not None
        line.socket.close()
        self.open(line)


Start = Callable[[Flood], None]


def one(blocks: Callable[[], Blocks], version: int = 4, reads: bool = True, websocket: bool = False) -> Start:
    """A single connection that says these blocks."""

    def start(flood: Flood) -> None:
        flood.open(Line(connect(b"flood", version), blocks(), reads, websocket))

    return start


def many(blocks: Callable[[], Blocks], connections: int = MANY) -> Start:
    """So many connections that say these blocks, all at once."""

    def start(flood: Flood) -> None:
        for number in range(connections):
            flood.open(Line(connect(b"flood-%d" % number), blocks()))

    return start


def heard(
    blocks: Callable[[], Blocks],
    receivers: int,
    topic_filter: bytes = b"flood/#",
    qos: int = 0,
    reads: bool = True,
    clean: bool = True,
) -> Start:
    """The same, and so many who get it; who asks for QoS 1 acknowledges nothing."""

    def start(flood: Flood) -> None:
        open_files(receivers + 500)
        asked = subscribe(1, [topic_filter], qos)
        for number in range(receivers):
            flood.open(Line(connect(b"receiver-%d" % number, 4, clean), None, reads, after=asked))
        flood.open(Line(connect(b"flood"), blocks()))

    return start


def publishing(qos: int, topic: bytes = b"flood/1", payload: bytes = b"x" * 64) -> Callable[[], Blocks]:
    return lambda: numbered(lambda number: publish(topic, payload, qos, number), 1000)


def exactly_once() -> Blocks:
    def both(number: int) -> bytes:
        return publish(b"flood/2", qos=2, packet_id=number) + acknowledgement(6, number)

    return numbered(both, 1000)


def behind_retained(flood: Flood) -> None:
    """QoS 0 that must wait for a retained message of the same publisher."""
    first = publish(b"flood/kept", qos=1, packet_id=1, retain=True)
    rest = publish(b"flood/0") * 4000
    flood.open(Line(connect(b"flood"), same(first + rest)))


def identifiers(flood: Flood) -> None:
    """30 000 subscriptions with an identifier each, all of which match."""
    line = Line(connect(b"flood", 5), None)
    flood.open(line)
    assert line.socket is not None
    line.socket.setblocking(True)
    for number in range(30_000):
        levels = [b"+" if number >> level & 1 else b"a" for level in range(LEVELS)]
        properties = b"\x0b" + varint(number + 1)
        line.socket.sendall(subscribe(number % 60_000 + 1, [b"/".join(levels)], 0, properties))
        if number % 200 == 199:
            line.socket.recv(1 << 16)
    line.socket.setblocking(False)
    flood.open(Line(connect(b"flood-2", 5), same(publish(b"/".join([b"a"] * LEVELS), properties=b""))))


def matching_many(flood: Flood) -> None:
    """2 000 filters of which every topic matches a part, and no topic comes twice."""
    line = Line(connect(b"flood"), None)
    flood.open(line)
    assert line.socket is not None
    filters = [
        b"deep/" + b"/".join(b"+" if number >> level & 1 else b"a" for level in range(11))
        for number in range(2000)
    ]
    for start in range(0, len(filters), 100):
        line.socket.setblocking(True)
        line.socket.sendall(subscribe(1, filters[start : start + 100]))
    line.socket.setblocking(False)
    tail = b"/a" * 10
    flood.open(Line(connect(b"flood-2"), ever_new(lambda number: publish(b"deep/%d" % number + tail))))


def joins(flood: Flood) -> None:
    """Members of a group come and go while messages are published to it."""
    for member in range(8):
        ask, leave = subscribe(1, [b"$share/g/flood/#"], 1), unsubscribe(2, [b"$share/g/flood/#"])
        flood.open(Line(connect(b"member-%d" % member), same(ask, leave)))
    flood.open(Line(connect(b"flood"), publishing(1)()))


def storm(flood: Flood, make: Callable[[int], bytes], whole: bool = True, keep: int = 0) -> None:
    """Connect, say something and go, or stay until `keep` others have come; `whole`: wait for the CONNACK."""
    kept: list[socket.socket] = []
    number = 0
    waiting: dict[int, socket.socket] = {}
    epoll = select.epoll()
    while True:
        while len(waiting) < STORM_CONNECTIONS:
            made = socket.create_connection((flood.address.host, flood.address.port), 30)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # no TIME-WAIT
            said = make(number)
            made.sendall(said)
            flood.bytes += len(said)
            number += 1
            if whole:
                waiting[made.fileno()] = made
                epoll.register(made, select.EPOLLIN)
                continue
            kept.append(made)
            if len(kept) > keep:
                kept.pop(0).close()
        for fd, _ in epoll.poll(0.5):
            waiting.pop(fd).close()


def storming(make: Callable[[int], bytes], whole: bool = True, keep: int = 0) -> Start:
    def start(flood: Flood) -> None:
        open_files(keep + 500)
        under_way()
        storm(flood, make, whole, keep)

    return start


def sessions(number: int) -> bytes:
    return connect(b"session-%d" % number, 5, False, expiry_s=3600)


def half(number: int) -> bytes:
    return connect(b"half-%d" % number)[:9]


def with_will(number: int) -> bytes:
    return connect(b"mourned-%d" % (number % 500), will=(b"wills/%d" % (number % 500), b"x" * 200))


def aliases() -> Blocks:
    def make(number: int) -> bytes:
        return publish(b"flood/%d" % number, properties=b"\x23" + (number % 10 + 1).to_bytes(2, "big"))

    return ever_new(make)


def wide_filters(number: int) -> bytes:
    return subscribe(number % 65_535 + 1, [b"wide/%d/%d" % (number, at) for at in range(10_000)], 1)


def many_properties() -> Blocks:
    return same(publish(b"flood/p", b"x", 1, 1, properties=(b"\x26" + text(b"name") + text(b"value")) * 5000))


FLOODS: dict[str, Start] = {
    "ping": one(lambda: same(PINGREQ)),
    "ping-unread": one(lambda: same(PINGREQ), reads=False),
    "pubrel": one(lambda: numbered(lambda number: acknowledgement(6, number))),
    "pubrel-unread": one(lambda: numbered(lambda number: acknowledgement(6, number)), reads=False),
    "bogus-puback": one(lambda: numbered(lambda number: acknowledgement(4, number))),
    "bogus-pubrec": one(lambda: numbered(lambda number: acknowledgement(5, number)), 5),
    "bogus-pubcomp": one(lambda: numbered(lambda number: acknowledgement(7, number)), 5),
    "sys-qos1": one(lambda: same(publish(b"$SYS/x", qos=1, properties=b"")), 5),
    "sys-qos0": one(lambda: same(publish(b"$SYS/x"))),
    "qos0": one(publishing(0)),
    "qos1": one(publishing(1)),
    "qos2": one(exactly_once),
    "qos2-open": one(lambda: numbered(lambda number: publish(b"flood/2", qos=2, packet_id=number))),
    "qos0-heard": heard(publishing(0), 1),
    "qos1-deaf": heard(publishing(1), 1, qos=1, reads=False, clean=False),
    "qos0-deaf": heard(publishing(0), 1, reads=False),
    "qos1-unacknowledged": heard(publishing(1), 1, qos=1, clean=False),
    "qos0-behind-retained": behind_retained,
    "large": one(lambda: same(publish(b"flood/large", bytes(1_000_000), 1))),
    "retained-new": one(
        lambda: ever_new(lambda number: publish(b"kept/%d" % number, qos=1, packet_id=1, retain=True))
    ),
    "retained-same": one(lambda: same(publish(b"kept/1", qos=1, retain=True))),
    "fan-out-500": heard(publishing(0), 500),
    "fan-out-501": heard(publishing(0), 501),
    "fan-out-5000": heard(publishing(0), 5000),
    "fan-out-1000-qos1": heard(publishing(1), 1000, qos=1, clean=False),
    "subscribe": one(lambda: same(subscribe(1, [b"flood/+/#"]), unsubscribe(2, [b"flood/+/#"]))),
    "subscribe-new": one(lambda: ever_new(lambda number: subscribe(1, [b"own/%d/#" % number], 1))),
    "subscribe-wide": one(lambda: ever_new(wide_filters, 1)),
    "unsubscribe": one(lambda: same(unsubscribe(1, [b"never/asked"]))),
    "share-new": one(lambda: ever_new(lambda number: subscribe(1, [b"$share/g%d/f/#" % number], 1))),
    "share-joins": joins,
    "aliases": one(aliases, 5),
    "properties": one(many_properties, 5),
    "identifiers": identifiers,
    "deep-topics": one(lambda: ever_new(lambda number: publish(b"/%d" % number * 5000), 20)),
    "matching-many": matching_many,
    "many-pings": many(lambda: same(PINGREQ)),
    "many-qos0": many(publishing(0)),
    "many-qos1": many(publishing(1)),
    "many-subscribe": many(lambda: same(subscribe(1, [b"flood/+/#"]), unsubscribe(2, [b"flood/+/#"]))),
    "reconnect": storming(lambda number: connect(b"storm-%d" % (number % 1000))),
    "takeover": storming(lambda _: connect(b"storm", clean=False)),
    "sessions-new": storming(sessions),
    "half-connect": storming(half, whole=False, keep=HALF_CONNECTIONS),
    "garbage": storming(lambda _: b"\xff\x00" * 2000),
    "wills": storming(with_will),
    "websocket-pings": one(lambda: same(frame(b"", 9)), websocket=True),
    "websocket-bytes": one(lambda: same(frame(PINGREQ[:1]), frame(PINGREQ[1:])), websocket=True),
}


def under_way() -> None:
    print("under way", flush=True)


def main() -> None:
    name, at, *more = sys.argv[1:]
    host, _, port = at.rpartition(":")
    flood = Flood(Address(host, int(port), int(more[0]) if more else 0))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    began = time.monotonic()
    try:
        FLOODS[name](flood)
        under_way()
        flood.pour()
    finally:
        seconds = round(time.monotonic() - began, 2)
        print(json.dumps({"bytes": flood.bytes, "cuts": flood.cuts, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
