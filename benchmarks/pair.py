"""Two clients that exchange messages at a fixed rate, and how long each one took: who else is on the broker shows here.

    python -m benchmarks.pair HOST:PORT --seconds 10 [--rate 200] [--patience 30]

QoS 1. A message is due at its time, whether those before it were answered or not, and its latency counts from then: a
broker that is busy for a second makes late what was due within it. Prints milliseconds from due to delivery and to
PUBACK as JSON, and how many messages were not back `--patience` seconds after the last one.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import struct
import time
from dataclasses import asdict, dataclass
from typing import Any, Self

from benchmarks.flood_packets import acknowledgement, connect, publish, subscribe

TOPIC = b"neighbours/pair"


@dataclass(frozen=True)
class Latency:
    """Milliseconds."""

    p50: float
    p99: float
    max: float


@dataclass(frozen=True)
class Exchange:
    """What one exchange found."""

    messages: int
    delivery: Latency
    puback: Latency
    missing: int  # deliveries
    unacknowledged: int


def latency(taken: dict[int, float]) -> Latency:
    """Of all that came. Zeros when nothing did."""
    found = sorted(taken.values()) or [0.0]
    at = [found[len(found) // 2], found[min(len(found) - 1, len(found) * 99 // 100)], found[-1]]
    return Latency(*(round(seconds * 1000, 2) for seconds in at))


class Pair:
    """A publisher and a subscriber."""

    def __init__(self, host: str, port: int, timeout_s: float = 30) -> None:
        """Raises OSError when the broker does not answer in time."""
        self.publisher = self._opened(host, port, timeout_s)
        self.subscriber = self._opened(host, port, timeout_s)
        self._due: list[float] = []
        self._delivered: dict[int, float] = {}
        self._acknowledged: dict[int, float] = {}
        self._buffers = {self.publisher: bytearray(), self.subscriber: bytearray()}

    @staticmethod
    def _opened(host: str, port: int, timeout_s: float) -> socket.socket:
        made = socket.create_connection((host, port), timeout_s)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def _greet(self) -> None:
        for made, name in ((self.publisher, b"pair-publisher"), (self.subscriber, b"pair-subscriber")):
            made.sendall(connect(name))
            self._expect(made, 4)
        self.subscriber.sendall(subscribe(1, [TOPIC], 1))
        self._expect(self.subscriber, 5)

    @staticmethod
    def _expect(made: socket.socket, size: int) -> None:
        if len(made.recv(size, socket.MSG_WAITALL)) < size:
            raise ConnectionError("the broker closed the connection")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.publisher.close()
        self.subscriber.close()

    def exchange(self, seconds: float, rate: int, patience_s: float) -> Exchange:
        """Raises OSError when one of the two is cut off, or gets no answer to its greeting."""
        self._greet()
        count = int(seconds * rate)
        began = time.perf_counter()
        until = began + seconds + patience_s
        while len(self._delivered) < count or len(self._acknowledged) < count:
            now = time.perf_counter()
            if now > until:
                break
            while len(self._due) < count and (due := began + len(self._due) / rate) <= now:
                self._send(due)
            wait = 0.05
            if len(self._due) < count:
                wait = max(0.0, began + len(self._due) / rate - time.perf_counter())
            for ready in select.select(list(self._buffers), [], [], wait)[0]:
                self._receive(ready)
        return Exchange(
            count,
            latency(self._delivered),
            latency(self._acknowledged),
            count - len(self._delivered),
            count - len(self._acknowledged),
        )

    def _send(self, due: float) -> None:
        number = len(self._due)
        self._due.append(due)
        payload = struct.pack(">I", number) + bytes(60)
        self.publisher.sendall(publish(TOPIC, payload, 1, number % 65_535 + 1))

    def _receive(self, ready: socket.socket) -> None:
        data = ready.recv(1 << 16)
        now = time.perf_counter()
        if not data:
            raise ConnectionError("one of the two was cut off")
        buffer = self._buffers[ready]
        buffer += data
        while len(buffer) > 1 and len(buffer) >= 2 + buffer[1]:  # nothing here is longer than 127 bytes
            first, body = buffer[0], bytes(buffer[2 : 2 + buffer[1]])
            del buffer[: 2 + len(body)]
            if first >> 4 == 4:
                self._note(self._acknowledged, int.from_bytes(body[:2], "big") - 1, now)
            elif first >> 4 == 3:
                at = 2 + len(TOPIC)
                ready.sendall(acknowledgement(4, int.from_bytes(body[at : at + 2], "big")))
                self._note(self._delivered, int.from_bytes(body[at + 2 : at + 6], "big"), now)

    def _note(self, into: dict[int, float], number: int, now: float) -> None:
        into.setdefault(number, now - self._due[number])


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.pair", description=__doc__.split("\n")[0])
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--patience", type=float, default=30)
    options = parser.parse_args()
    host, _, port = options.address.rpartition(":")
    with Pair(host, int(port)) as pair:
        found = pair.exchange(options.seconds, options.rate, options.patience)
    result: dict[str, Any] = asdict(found)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
