"""A subscriber without manners: withholds acks, answers out of order, leaves in every way there is, comes back.

It writes down what arrives and judges each packet by what MQTT allows it to be: within the Receive Maximum, a repeat
only with DUP and under its old packet id.
"""

from __future__ import annotations

import random
import threading
import time

from broker_process import BrokerProcess
from e2e.consumer import Arrival, Ledger, arrival
from e2e.producer import Producer
from e2e.raw import ClosedError, RawClient, SilenceError
from e2e.wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, RECEIVE_MAXIMUM, SESSION_EXPIRY, Packet


class Wanderer(threading.Thread):
    """Roams until `settle()`, then behaves and reads until nothing acknowledged to a producer is missing."""

    def __init__(self, broker: BrokerProcess, name: str, topic_filter: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.broker, self.client_id = broker, name
        self.chance = random.Random(f"{name} {seed}")
        self.receive_maximum = self.chance.choice((1, 5, 20, 200))
        self.ledger = Ledger()
        self.faults: list[str] = []
        self.error: BaseException | None = None
        self.lives = 0
        self._settled = threading.Event()
        self._over = threading.Event()
        self._client: RawClient | None = None
        self._unacked: dict[int, Packet] = {}  # in this life: PUBLISH came, PUBACK or PUBREC withheld
        self._released: set[int] = set()  # in this life: PUBREL came, PUBCOMP withheld
        self._window: set[int] = set()  # in this life: ids between PUBLISH (or PUBREL) and our last word
        self._pending: set[int] = set()  # over lives: QoS 2 ids delivered and not released
        self._ids: dict[tuple[str, int], set[int]] = {}
        self._other_id: list[
            Arrival
        ] = []  # repeats under a new id: a fault, unless the producer had resent it
        with RawClient(broker.address, name, 5) as client:
            self._connect(client)
            client.subscribe(topic_filter, qos=2)

    def _connect(self, client: RawClient) -> None:
        properties = {SESSION_EXPIRY: 3600, RECEIVE_MAXIMUM: self.receive_maximum}
        client.connect(clean=False, properties=properties)
        if self.lives and not client.connack.session_present:
            self.faults.append(f"life {self.lives}: the session is gone")
        self.lives += 1

    def settle(self) -> None:
        """From now on it behaves."""
        self._settled.set()

    def run(self) -> None:
        try:
            while not self._over.is_set():
                try:
                    self._live()
                except (ClosedError, OSError):
                    self._over.wait(0.02)
        except BaseException as error:
            self.error = error
        finally:
            if self._client is not None:
                self._client.close()

    def _live(self) -> None:
        """One connection, from CONNECT to one of its ends."""
        older, self._client = self._client, RawClient(self.broker.address, self.client_id, 5)
        if older is not None:
            older.close()
        self._unacked, self._released, self._window = {}, set(), set()
        self._connect(self._client)
        for _ in range(self.chance.randrange(5, 400)):
            if self._over.is_set():
                return
            try:
                self._take(self._client, self._client.read(0.05))
            except SilenceError:
                self._answer(self._client, len(self._window))
            if self._settled.is_set() or len(self._window) > self.receive_maximum // 2:
                self._answer(self._client, len(self._window))
        if not self._settled.is_set():
            self._leave(self._client)

    def _take(self, client: RawClient, packet: Packet) -> None:
        packet_id = packet.packet_id
        if packet.kind == PUBREL:
            self._pending.discard(packet_id)
            self._released.add(packet_id)
            self._window.add(packet_id)
        elif packet.kind == PUBLISH:
            if len(self._window) >= self.receive_maximum or packet_id in self._window:
                self.faults.append(f"life {self.lives}: {packet} beside {sorted(self._window)}")
            self._window.add(packet_id)
            self._unacked[packet_id] = packet
            self._judge(packet)
        else:
            raise ClosedError(str(packet))  # DISCONNECT: the broker stops
        if self._settled.is_set() or self.chance.random() < 0.8:
            self._answer(client, 1)

    def _judge(self, packet: Packet) -> None:
        one = arrival(packet, self.lives)
        key = (one.source, one.number)
        before = self._ids.setdefault(key, set())
        if packet.dup and before and one.packet_id not in before:
            self._other_id.append(one)
        if packet.qos == 2:
            if one.packet_id in self._pending:
                if not packet.dup:
                    self.faults.append(f"{one}: repeated without DUP")
                return
            self._pending.add(one.packet_id)
        before.add(one.packet_id)
        self.ledger.arrivals.append(one)

    def _answer(self, client: RawClient, count: int) -> None:
        """Some of the withheld answers, in any order."""
        for _ in range(count):
            choices = [*self._unacked, *self._released]
            if not choices:
                return
            packet_id = self.chance.choice(choices)
            packet = self._unacked.pop(packet_id, None)
            if packet is None:
                self._released.discard(packet_id)
                self._window.discard(packet_id)
                client.ack(PUBCOMP, packet_id)
            elif packet.qos == 2:
                client.ack(PUBREC, packet_id)
            else:
                self._window.discard(packet_id)
                client.ack(PUBACK, packet_id)

    def _leave(self, client: RawClient) -> None:
        how = self.chance.choice(("disconnect", "half-close", "reset", "takeover"))
        if how == "disconnect":
            for packet in client.disconnect():
                self._late(packet)
        elif how == "half-close":
            for packet in client.leave():
                self._late(packet)
        elif how == "reset":
            client.abort()
        if how != "takeover" and self.chance.random() < 0.5:
            self._over.wait(self.chance.random() * 0.5)

    def _late(self, packet: Packet) -> None:
        """What was on its way when we left: seen, never answered."""
        if packet.kind == PUBLISH:
            self._judge(packet)
        elif packet.kind == PUBREL:
            self._pending.discard(packet.packet_id)

    def finish(self, producers: list[Producer], deadline_s: float = 60.0) -> None:
        """Reads on until nothing is missing any more, or the deadline; then ends the thread."""
        self.settle()
        until = time.monotonic() + deadline_s
        while self.is_alive() and time.monotonic() < until and self.ledger.missing(producers):
            self.join(0.2)
        self._over.set()
        self.join(20)
        assert self.error is None, repr(self.error)
        assert not self.is_alive()
        resent = {producer.name: producer.resent for producer in producers}
        self.faults += [
            f"{one}: under a new id" for one in self._other_id if one.number not in resent[one.source]
        ]
