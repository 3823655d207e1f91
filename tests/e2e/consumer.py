"""A subscriber in a thread: persistent, acknowledges, returns after a cut, writes down all it saw."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from broker_process import BrokerProcess
from e2e.producer import Producer
from e2e.raw import ClosedError, RawClient, SilenceError
from e2e.wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Packet


@dataclass(slots=True)
class Arrival:
    source: str
    number: int
    dup: bool
    packet_id: int
    life: int  # counts this subscriber's connections


def arrival(packet: Packet, life: int = 0) -> Arrival:
    source, _, number = packet.payload.decode().strip().partition(":")
    return Arrival(source, int(number), packet.dup, packet.packet_id, life)


@dataclass
class Ledger:
    """What a subscriber received, and the judgement over it."""

    arrivals: list[Arrival] = field(default_factory=list)

    def numbers(self, source: str) -> list[int]:
        return [one.number for one in self.arrivals.copy() if one.source == source]

    def missing(self, producers: Iterable[Producer]) -> dict[str, list[int]]:
        """Acknowledged to the publisher and never delivered."""
        lost = {one.name: sorted(one.acked - set(self.numbers(one.name))) for one in producers}
        return {source: numbers[:20] for source, numbers in lost.items() if numbers}

    def faults(self, producers: Iterable[Producer]) -> list[str]:
        """Reordered first deliveries, and repeats that neither carry DUP nor come from a resend."""
        resent = {one.name: one.resent for one in producers}
        seen: dict[str, set[int]] = {name: set() for name in resent}
        highest: dict[str, int] = dict.fromkeys(resent, -1)
        found = []
        for at, one in enumerate(self.arrivals):
            if one.number in seen[one.source]:
                if not one.dup and one.number not in resent[one.source]:
                    found.append(f"#{at} {one}: repeated without DUP")
            elif one.number < highest[one.source]:
                found.append(f"#{at} {one}: after {highest[one.source]}")
            seen[one.source].add(one.number)
            highest[one.source] = max(highest[one.source], one.number)
        return found

    def repeated(self, source: str) -> set[int]:
        return {number for number, times in Counter(self.numbers(source)).items() if times > 1}


class Consumer(threading.Thread):
    """Reads until every number that the producers had acknowledged is there, or nothing comes any more."""

    def __init__(
        self, broker: BrokerProcess, client_id: str, topic_filter: str, qos: int = 1, *, resume: bool = False
    ) -> None:
        super().__init__(name=client_id, daemon=True)
        self.broker, self.client_id, self.topic_filter, self.qos = broker, client_id, topic_filter, qos
        self.ledger = Ledger()
        self.lives = 0
        self.sessions_lost = 0
        self.error: BaseException | None = None
        self._over = threading.Event()
        self._pending: set[int] = set()  # QoS 2 ids delivered and not released
        self._client = self._connect(first=not resume)

    def _connect(self, first: bool = False) -> RawClient:
        client = RawClient(self.broker.address, self.client_id, 4)
        try:
            connack = client.connect(clean=False)
            if first:
                client.subscribe(self.topic_filter, qos=self.qos)
            elif not connack.session_present:
                self.sessions_lost += 1
        except BaseException:
            client.close()
            raise
        self.lives += 1
        return client

    def close(self) -> None:
        """Go away before it was started: the session stays."""
        self._client.close()

    def run(self) -> None:
        try:
            while not self._over.is_set():
                try:
                    self._on_packet(self._client.read(0.05))
                except SilenceError:
                    continue
                except ClosedError:
                    self._return()
        except BaseException as error:
            self.error = error
        finally:
            self._client.close()

    def _return(self) -> None:
        self._client.close()
        until = time.monotonic() + 30
        while not self._over.is_set():
            try:
                self._client = self._connect()
                return
            except (ClosedError, OSError):
                if time.monotonic() > until:
                    raise
                self._over.wait(0.01)

    def _on_packet(self, packet: Packet) -> None:
        if packet.kind == PUBREL:
            self._pending.discard(packet.packet_id)
            self._client.ack(PUBCOMP, packet.packet_id)
            return
        assert packet.kind == PUBLISH, str(packet)
        assert packet.qos == self.qos, str(packet)
        if self.qos == 1:
            self.ledger.arrivals.append(arrival(packet, self.lives))
            self._client.ack(PUBACK, packet.packet_id)
            return
        if packet.packet_id not in self._pending:  # method B of 4.3.3: an id not released is the same message
            self._pending.add(packet.packet_id)
            self.ledger.arrivals.append(arrival(packet, self.lives))
        else:
            assert packet.dup, f"{packet}: sent again without DUP [MQTT-3.3.1-1]"
        self._client.ack(PUBREC, packet.packet_id)

    def finish(self, producers: Iterable[Producer], deadline_s: float = 30.0) -> None:
        """Waits until nothing acknowledged is missing, or the deadline; then ends the thread."""
        until = time.monotonic() + deadline_s
        wanted = {one.name: len(one.acked) for one in producers}
        while self.is_alive() and time.monotonic() < until:
            arrivals = list(self.ledger.arrivals)
            counts = {
                source: len({one.number for one in arrivals if one.source == source}) for source in wanted
            }
            if all(counts[source] >= number for source, number in wanted.items()):
                break
            self.join(0.05)
        self._over.set()
        self.join(10)
        assert self.error is None, repr(self.error)
        assert not self.is_alive()
