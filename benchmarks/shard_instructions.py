"""How many instructions does a message cost the cores of two workers together, beside one? Counted by callgrind.

    python -m benchmarks.shard_instructions [--record]

As `instructions`: packets in, packets out, journals that are durable at once, all in this process, with the link
between the workers in memory. *alone* is a shard without others; *together*: publishers and subscribers are at home in
one of two shards; *apart*: in different ones; *owed*: the same with so little credit that most of each round waits for
it. QoS 1.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Final, cast

from benchmarks.instructions import PAIRS, PAYLOAD, START_US, Immediate, OneWorker, environment
from benchmarks.record import parser_of, show
from headrace.core.broker import Broker
from headrace.core.homes import Homes
from headrace.core.ports.clock import Clock
from headrace.core.ports.settings import BrokerSettings
from headrace.core.shards.routes import Routes
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.worker import Worker
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect, SubscriptionRequest
from headrace.mqtt.protocol import ServerProtocol
from headrace.peers.channel import Channel
from headrace.peers.peer_frames import Greeting
from headrace.peers.peer_link import FRAME_BYTES_MAX, LinkOwner, PeerLink
from headrace.peers.wires import LinkWire, ShardWire
from headrace.storage.embedded.local import LocalJournal
from headrace.storage.memory import MemoryLink

FEW, MORE = 400, 2000  # messages of every run, and beyond that
LOADS: Final = ("alone", "together", "apart", "owed")
LITTLE_BYTES: Final = 400  # of credit


@dataclass
class Batch:
    """A batch as the log reads it back."""

    base_offset: int
    body: bytes


class MemoryLog:
    """A log whose batches are durable at once, and stay in memory."""

    def __init__(self) -> None:
        self.next_offset = 0
        self._batches: list[Batch] = []

    def append(self, body: bytes, count: int, first_timestamp_us: int, max_timestamp_us: int) -> int:
        self._batches.append(Batch(self.next_offset, body))
        self.next_offset += count
        return self._batches[-1].base_offset

    def room(self) -> int:
        return 0

    def has_room(self) -> bool:
        return True

    def read_batch(self, offset: int) -> Batch:
        return self._batches[bisect_right(self._batches, offset, key=lambda batch: batch.base_offset) - 1]


class Pipe:
    """The transport of a link: what is written waits until the other side reads."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def set_write_buffer_limits(self, high: int) -> None:
        """Take everything."""

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def get_write_buffer_size(self) -> int:
        return 0


class Side(LinkOwner):
    """One worker with one of two shards, and its end of the link."""

    def __init__(self, number: int, little: bool) -> None:
        self.log = MemoryLog()
        self.journal = LocalJournal(self.log, KeyError)
        clock = Clock()
        clock.now_us, clock.mono_ms = START_US, START_US // 1000
        self.worker = Worker(Immediate(), clock, BrokerSettings(), Homes(2))
        self.broker = self.worker.own(number, self.journal)
        streams = StreamSettings()
        if little:
            streams.window_bytes = LITTLE_BYTES
        self.near = self.broker.join(self.journal, Routes(), streams)
        self.broker.sessions.absences.start()
        self.near.begin(0)
        self.calls: list[Callable[[], None]] = []
        self.pipe = Pipe()
        greeting = Greeting(number, 2, 2, 1, bytes(16))
        dialled = 1 if number == 0 else -1
        self.link = PeerLink(self, greeting, dialled, FRAME_BYTES_MAX, self.worker, self.calls.append)

    def greet(self) -> None:
        self.link.connection_made(cast("object", self.pipe))  # type: ignore[arg-type]

    def admit(self, link: PeerLink, transport: object) -> None:
        """Let the other one in."""

    def check(self, link: PeerLink, theirs: Greeting) -> int:
        """It is the other one."""
        return theirs.worker

    def opened(self, link: PeerLink) -> None:
        far = 1 - self.broker.shard
        wire = LinkWire(self, self.near, far, True, link, link.number())
        link.open_wire(wire)
        self.near.connect(far, wire)

    def follow(self, link: PeerLink, number: int, follower: int, source: int) -> LinkWire | None:
        return LinkWire(self, self.near, follower, False, link, number)

    def take_channel(self, channel: Channel, opening: bytes) -> None:
        raise AssertionError("nobody relays")

    def ended(self, link: PeerLink, reason: str, why: str) -> None:
        raise AssertionError(f"the link has ended: {reason} {why}")

    def wire_ended(self, wire: ShardWire) -> None:
        raise AssertionError("a wire has ended")

    def failed(self, error: Exception) -> None:
        raise error

    def tick(self) -> None:
        commit = self.broker.commit
        self.worker.end_tick()
        while not commit.idle:
            commit.on_high_watermark(self.log.next_offset)
            self.worker.end_tick()
        calls, self.calls = list(self.calls), self.calls
        self.calls.clear()
        for call in calls:
            call()


class Load:
    """Publishers and subscribers in pairs."""

    def __init__(self, name: str) -> None:
        self.sides: list[Side] = []
        self.single = OneWorker() if name == "alone" else None
        if self.single is None:
            self.sides = [Side(0, name == "owed"), Side(1, name == "owed")]
            for side in self.sides:
                side.greet()
        self.settle()
        publishing = self._broker(0)
        subscribed = self._broker(0 if name in ("alone", "together") else 1)
        self.publishers = [self._client(publishing, f"p{number}", True) for number in range(PAIRS)]
        self.subscribers = [self._client(subscribed, f"s{number}", False) for number in range(PAIRS)]
        self.settle()
        for number, (_, wire) in enumerate(self.subscribers):
            wire.receive_data(codec.encode_subscribe(4, 1, [SubscriptionRequest(f"mb/{number}/cmd", 1)]))
        self.settle()
        self.packets = [
            codec.encode_publish(4, f"mb/{number}/cmd".encode(), PAYLOAD, 1, False, False, 1, b"", -1)
            for number in range(PAIRS)
        ]
        self.received = self.rounds = 0

    def _broker(self, number: int) -> Broker:
        return self.sides[number].broker if self.single is None else self.single.broker

    def _client(self, broker: Broker, prefix: str, clean: bool) -> tuple[MemoryLink, ServerProtocol]:
        worker = cast("Worker", broker.worker)
        name = next(
            n for n in map(f"{prefix}-{{}}".format, count()) if worker.home_of("default", n) is broker
        )
        link = MemoryLink(worker)
        wire = ServerProtocol(link, 1 << 20, 16)
        wire.receive_data(codec.encode_connect(Connect(4, name, clean)))
        return link, wire

    def settle(self) -> None:
        """Passes of both loops until nothing is on its way."""
        if self.single is not None:
            self.single.tick()
            return
        first, second = self.sides
        moved = True
        while moved:
            moved = False
            for near, far in ((first, second), (second, first)):
                near.tick()
                written, near.pipe.written = near.pipe.written, []
                for data in written:
                    far.link.data_received(data)
                    moved = True

    def run(self, messages: int) -> None:
        """Raises RuntimeError when not every message came out."""
        wanted = self.received + messages
        for _ in range(messages // PAIRS):
            self.rounds += 1
            for (_, wire), packet in zip(self.publishers, self.packets, strict=True):
                wire.receive_data(packet)
            self.settle()
            for link, wire in self.subscribers:
                wire.receive_data(codec.encode_puback(4, self.rounds))
                self.received += link.sent.count(PAYLOAD)
                link.sent = b""
            for link, _ in self.publishers:
                link.sent = b""
            self.settle()
        if self.received != wanted:
            raise RuntimeError(f"{self.received} of {wanted} messages came out")


def instructions(name: str, messages: int) -> int:
    """Of a whole process that runs a load, by callgrind. Raises RuntimeError."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command += [
        sys.executable,
        "-m",
        "benchmarks.shard_instructions",
        "--run",
        name,
        "--messages",
        str(messages),
    ]
    variables = os.environ | {"PYTHONHASHSEED": "0", "PYTHONMALLOC": "pymalloc"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600, check=False)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or found is None:
        raise RuntimeError(f"callgrind: {done.stderr[-2000:]}")
    return int(found[1])


def counted() -> dict[str, int]:
    """Instructions a message of each load, in and out together."""
    runs = [(name, messages) for name in LOADS for messages in (FEW, FEW + MORE)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        totals = list(pool.map(lambda run: instructions(*run), runs))
    return {name: (totals[2 * at + 1] - totals[2 * at]) // MORE for at, name in enumerate(LOADS)}


def main() -> int:
    parser = parser_of("shard_instructions", __doc__)
    parser.add_argument("--run", help="run this load in this process, and end")
    parser.add_argument("--messages", type=int, default=FEW)
    options = parser.parse_args()
    if options.run:
        Load(options.run).run(options.messages)
        return 0
    result = {"instructions_a_message": counted(), "environment": environment()}
    show(result, "shard_instructions" if options.record else "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
