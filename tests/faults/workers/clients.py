"""Clients that live through whatever happens to a node: each comes back with its session and goes on.

What a client sees that must not be it writes into the ledger: a session that is gone, a message of QoS 2 that comes
twice, one that comes behind a later one of its publisher.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from faults.window import Window
from faults.workers.ways import Way, Writer
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect, SubscriptionRequest, Will
from headrace.mqtt.properties import Properties

WINDOW = 20
AGAIN_S = (0.05, 0.3)  # until a client comes back
ANSWER_S = 120.0  # for so long a client waits for CONNACK: the whole node may be starting, on a slow machine
LET_IN_S = 240.0  # and until it is let in


class Ledger:
    """What was sent, acknowledged and received, and what was wrong."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.acked: dict[str, set[int]] = {}  # by publisher
        self.wills_due: dict[str, set[int]] = {}  # by client: the number of the connection that had CONNACK
        self.ways: Counter[str] = Counter()  # connections that had CONNACK, by the way that they came
        self.refusals = 0  # CONNACK with a reason: the worker is away

    def wrong(self, what: str) -> None:
        self.faults.append(what)


class Peer:
    """A client with a session that outlives its connections, until it is `over`; `away` for a while if told so."""

    def __init__(self, ledger: Ledger, client_id: str) -> None:
        self.ledger = ledger
        self.client_id = client_id
        self.connected = False
        self.over = False
        self.away = False
        self.lives = 0
        self._writer: Writer | None = None

    async def run(self, ways: Sequence[Way]) -> None:
        """Live until it is over; each connection comes by any of the ways."""
        while not self.over:
            if not self.away:
                await self._live(random.choice(ways))
            await asyncio.sleep(random.uniform(*AGAIN_S))

    def leave(self) -> None:
        """End the connection without a word."""
        if self._writer is not None:
            self._writer.abort()

    async def _live(self, way: Way) -> None:
        with suppress(ConnectionError, ssl.SSLError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                reader, self._writer = await way.open()
            try:
                async with asyncio.timeout(ANSWER_S):
                    await self._connect(reader)
                self.ledger.ways[way.name] += 1
                while True:
                    self.on_packet(*await _packet(reader))
            finally:
                self.connected = False
                self._writer.abort()

    async def _connect(self, reader: asyncio.StreamReader) -> None:
        """Raises ConnectionError for a refusal."""
        self.write(codec.encode_connect(Connect(4, self.client_id, False, 0, None, None, self.will())))
        _, body = await _packet(reader)
        if body[1]:
            self.ledger.refusals += 1
            raise ConnectionRefusedError(body[1])
        if self.lives and not body[0] & 1:
            self.ledger.wrong(f"{self.client_id}: its session is gone")
        self.lives += 1
        self.connected = True
        self.on_connected()

    def write(self, data: bytes) -> None:
        if self._writer is not None:
            self._writer.write(data)

    def will(self) -> Will | None:
        """Return the will of the next connection."""
        return None

    def on_connected(self) -> None:
        """Go on where the connection before has ended."""

    def on_packet(self, first: int, body: bytes) -> None:
        """Handle a packet."""


async def _packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    first = (await reader.readexactly(1))[0]
    length, shift, byte = 0, 0, 128
    while byte >= 128:
        byte = (await reader.readexactly(1))[0]
        length |= (byte & 127) << shift
        shift += 7
    return first, await reader.readexactly(length)


class Publisher(Peer):
    """Publishes 1, 2, 3, ... as `NAME:NUMBER`; `due` says how many it may have sent by now. With `kept` they are
    retained, on so many topics below `topic` in turn."""

    def __init__(self, ledger: Ledger, client_id: str, qos: int, topic: str, kept: int = 0) -> None:
        super().__init__(ledger, client_id)
        self.qos = qos
        self.due = 0
        self.acked = ledger.acked.setdefault(client_id, set())
        self.open = Window(self.acked, self._publish, self.write)
        self._topic, self._kept = topic, kept

    def topic(self, number: int) -> str:
        """Return where a number is published."""
        return f"{self._topic}/{number % self._kept}" if self._kept else self._topic

    def payload(self, number: int) -> bytes:
        """Return what is published; every seventh retained message deletes the one before."""
        return b"" if self._kept and number % 7 == 0 else f"{self.client_id}:{number}".encode()

    def fill(self) -> None:
        """Send what is due, as far as the window goes."""
        while self.connected and len(self.open) < WINDOW and self.open.sent < self.due:
            self.open.send()

    @property
    def sent(self) -> int:
        """Return the last number that was sent."""
        return self.open.sent

    def on_connected(self) -> None:
        self.open.send_again()

    def _publish(self, packet_id: int, number: int, dup: bool) -> None:
        topic, payload, retain = self.topic(number).encode(), self.payload(number), self._kept > 0
        self.write(codec.encode_publish(4, topic, payload, self.qos, retain, dup, packet_id))

    def on_packet(self, first: int, body: bytes) -> None:
        self.open.answered(first, body)


class Arrivals:
    """What has come to one subscriber, or to all members of a group: the numbers of each publisher."""

    def __init__(self, ledger: Ledger, name: str, in_order: bool) -> None:
        self.numbers: dict[str, set[int]] = {}
        self._ledger, self._name, self._in_order = ledger, name, in_order
        self._last: dict[str, int] = {}

    def take(self, source: str, number: int, qos: int, dup: bool) -> None:
        known = self.numbers.setdefault(source, set())
        if number in known:
            if qos == 2:
                self._ledger.wrong(f"{self._name}: {source}:{number} at QoS 2 came twice (DUP {dup})")
            return
        known.add(number)
        last = self._last.get(source, 0)
        if self._in_order and number < last:
            self._ledger.wrong(f"{self._name}: {source}:{number} came after {last}")
        self._last[source] = max(last, number)


class Subscriber(Peer):
    """Takes what comes, acknowledges it, and notes each message once, when it comes first."""

    def __init__(
        self, ledger: Ledger, client_id: str, filters: list[str], arrivals: Arrivals | None = None
    ) -> None:
        super().__init__(ledger, client_id)
        self.arrivals = arrivals or Arrivals(ledger, client_id, in_order=True)
        self.subscribed = False
        self._filters = filters
        self._incoming: set[int] = set()

    def on_connected(self) -> None:
        if not self.subscribed:
            requests = [SubscriptionRequest(one, 2, False, False, 0) for one in self._filters]
            self.write(codec.encode_subscribe(4, 1, requests, Properties()))

    def on_packet(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind == 9:
            self.subscribed = self.subscribed or not any(code & 0x80 for code in body[2:])
            self.on_connected()  # a home that is away refuses a shared subscription: again
        elif kind == 6:
            packet_id = int.from_bytes(body[:2], "big")
            self._incoming.discard(packet_id)
            self.write(codec.encode_pubcomp(4, packet_id))
        elif kind == 3:
            self._on_publish(first >> 1 & 3, bool(first & 8), body)

    def _on_publish(self, qos: int, dup: bool, body: bytes) -> None:
        at = 2 + int.from_bytes(body[:2], "big")
        packet_id = int.from_bytes(body[at : at + 2], "big")
        source, _, number = body[at + 2 :].decode().rpartition(":")
        if qos == 1:
            self.arrivals.take(source, int(number), qos, dup)
            self.write(codec.encode_puback(4, packet_id))
            return
        if packet_id not in self._incoming:
            self._incoming.add(packet_id)
            self.arrivals.take(source, int(number), qos, dup)
        self.write(codec.encode_pubrec(4, packet_id))


class Mortal(Peer):
    """Leaves a will, `NAME:NUMBER` of each connection that it tries: one whose CONNACK got lost has a will too."""

    _tried = 0

    def will(self) -> Will:
        self._tried += 1
        return Will("will/" + self.client_id, f"{self.client_id}:{self._tried}".encode(), 2)

    def on_connected(self) -> None:
        self.over = True
        self.ledger.wills_due[self.client_id] = {self._tried}


async def die_with_will(ledger: Ledger, ways: Sequence[Way], client_id: str, lives_s: float) -> None:
    """Connect with a will, and go without a word after a while; the will is due once CONNACK has come."""
    peer = Mortal(ledger, client_id)
    life = asyncio.create_task(peer.run(ways))
    try:
        async with asyncio.timeout(LET_IN_S):
            while not peer.lives:
                await asyncio.sleep(0.02)
        await asyncio.sleep(lives_s)
    except TimeoutError:
        ledger.wrong(f"{client_id} was not let in within {LET_IN_S} s")
    finally:
        peer.over = True
        peer.leave()
        await life


async def retained(
    way: Way, client_id: str, topic_filter: str, expected: dict[str, bytes]
) -> dict[str, bytes]:
    """Return what a new client finds retained: all that is expected, as soon as it is there, and what comes within a
    second behind that."""
    found: dict[str, bytes] = {}
    reader, writer = await way.open()
    try:
        writer.write(codec.encode_connect(Connect(4, client_id, True, 0)))
        await _packet(reader)
        requests = [SubscriptionRequest(topic_filter, 0, False, False, 0)]
        writer.write(codec.encode_subscribe(4, 1, requests, Properties()))
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(ANSWER_S if expected.items() - found.items() else 1.0):
                    first, body = await _packet(reader)
                if first >> 4 == 3:
                    at = 2 + int.from_bytes(body[:2], "big")
                    found[body[2:at].decode()] = body[at:]
    finally:
        writer.abort()
    return found
