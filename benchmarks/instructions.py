"""How many instructions does a message cost the broker's core? Counted by callgrind, whatever else the machine does.

    python -m benchmarks.instructions            compare with results/instructions.json; exit 1 beyond +10 %
    python -m benchmarks.instructions --record   count anew and write it down

The load is packets in, packets out, in this process: `PAIRS` publishers and persistent subscribers over links in memory
and a journal that is durable at once; of `frames`, as many devices, whose topic has a queue. Start-up is taken out by a
run with fewer messages. A figure holds for one Python and one compiler: elsewhere there is nothing to compare with, which
is said and is no failure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace.core.ports.clock import Clock, Scheduler
from headrace.core.ports.journal import GONE, Absent, JournalPort
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.message import Message
from headrace.core.worker import Worker
from headrace.frames.bodies import publish_body
from headrace.frames.frame import PUBLISH, VERSION_2, encode_frame
from headrace.mqtt import codec, protocol
from headrace.mqtt.packets import Connect, SubscriptionRequest
from headrace.mqtt.protocol import ServerProtocol
from headrace.net.connection import ConnectionSet
from headrace.net.frame_connection import FrameConnection
from headrace.storage.memory import MemoryLink

RECORD = Path(__file__).parent / "results" / "instructions.json"
TOLERANCE = 0.10
PAIRS, PAYLOAD, START_US = 20, b"x" * 64, 1_790_000_000_000_000
FEW, MORE = 400, 2000  # messages of every load in every run, and of one load beyond that
QOS = {"qos0": 0, "qos1": 1, "qos2": 2}
LOADS = (*QOS, "frames")


class InstantJournal(JournalPort):
    """Durable the moment it is written; keeps nothing. Nothing of this load is ever read again."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def next_offset(self) -> int:
        return self.count

    def append(
        self, body: bytes, records: list[object], first_timestamp_us: int, max_timestamp_us: int
    ) -> None:
        self.count += len(records)

    def fetch(self, offset: int) -> Message | Absent:
        return GONE


class Immediate(Scheduler):
    """The load ends its ticks itself."""

    def request_tick(self) -> None:
        return


class OneWorker:
    """A worker with the only shard, whose clients are in memory and whose event loop is a call."""

    def __init__(self) -> None:
        self.journal = InstantJournal()
        clock = Clock()
        clock.now_us, clock.mono_ms = START_US, START_US // 1000
        self.worker = Worker(Immediate(), clock, BrokerSettings())
        self.broker = self.worker.own(0, self.journal)
        self.broker.sessions.absences.start()

    def tick(self) -> None:
        """As a pass of the event loop, and the journal's answer to it."""
        commit = self.broker.commit
        self.worker.end_tick()
        while not commit.idle:
            commit.on_high_watermark(self.journal.count)
            self.worker.end_tick()


class Load(OneWorker):
    """Messages into a broker, in rounds: one of each publisher, until all sides are done with it."""

    def __init__(self) -> None:
        super().__init__()
        self.received = 0
        self.rounds = 0

    def round(self, number: int) -> None:
        """Round 1, 2, 3, ..."""
        raise NotImplementedError

    def run(self, messages: int) -> None:
        """Raises RuntimeError when not every message came out."""
        wanted = self.received + messages
        for _ in range(messages // PAIRS):
            self.rounds += 1
            self.round(self.rounds)
        if self.received != wanted:
            raise RuntimeError(f"{self.received} of {wanted} messages came out")


class PacketLoad(Load):
    """Publishers and subscribers in pairs; the subscriber of a pair gets packet ids 1, 2, 3, ..."""

    def __init__(self, qos: int) -> None:
        super().__init__()
        self.qos = qos
        self.publishers = [self.client(f"p{number}", clean=True) for number in range(PAIRS)]
        self.subscribers = [self.client(f"s{number}", clean=False) for number in range(PAIRS)]
        self.tick()
        for number, (_, subscriber) in enumerate(self.subscribers):
            subscriber.receive_data(
                codec.encode_subscribe(4, 1, [SubscriptionRequest(self.topic(number), qos)])
            )
        self.tick()
        self.packets = [
            codec.encode_publish(
                4, self.topic(number).encode(), PAYLOAD, qos, False, False, 1 if qos else 0, b"", -1
            )
            for number in range(PAIRS)
        ]

    def topic(self, number: int) -> str:
        return f"mb/{number}/cmd"

    def client(self, name: str, clean: bool) -> tuple[MemoryLink, ServerProtocol]:
        link = MemoryLink(self.broker.worker)
        wire = ServerProtocol(link, 1 << 20, 16)
        wire.receive_data(codec.encode_connect(Connect(4, name, clean)))
        return link, wire

    def feed(self, clients: list[tuple[MemoryLink, ServerProtocol]], packet: bytes) -> None:
        for _, wire in clients:
            wire.receive_data(packet)
        self.tick()

    def round(self, number: int) -> None:
        packet_id = number
        for (_, wire), packet in zip(self.publishers, self.packets, strict=True):
            wire.receive_data(packet)
        self.tick()
        if self.qos == 2:
            self.feed(self.publishers, codec.encode_pubrel(4, 1))
            self.feed(self.subscribers, codec.encode_pubrec(4, packet_id))
            self.feed(self.subscribers, codec.encode_pubcomp(4, packet_id))
        elif self.qos == 1:
            self.feed(self.subscribers, codec.encode_puback(4, packet_id))
        for link, _ in self.subscribers:
            self.received += link.sent.count(PAYLOAD)
            link.sent = b""
        for link, _ in self.publishers:
            link.sent = b""


class Sent(asyncio.Transport):
    """Counts what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Take everything."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.count += len(data)


class FrameLoad(Load):
    """Devices that publish frames, all into one topic, and hear that each is durable."""

    def __init__(self) -> None:
        super().__init__()
        listener = ConnectionSet(PAIRS, 1 << 40)
        self.devices = [FrameConnection(self.worker, listener) for _ in range(PAIRS)]
        self.sent = [Sent() for _ in range(PAIRS)]
        for device, sent in zip(self.devices, self.sent, strict=True):
            device.connection_made(sent)
        # Made before they are counted: no two are the same, or they would be repeated ones.
        self.frames = [self.frames_of(sequence) for sequence in range((FEW + MORE) // PAIRS)]
        self.answer_bytes = len(encode_frame(VERSION_2, PUBLISH, sn(0), bytes(21)))

    def frames_of(self, sequence: int) -> list[bytes]:
        body = publish_body(sequence, b"mb/load", PAYLOAD)
        return [encode_frame(VERSION_2, PUBLISH, sn(number), body) for number in range(PAIRS)]

    def round(self, number: int) -> None:
        for device, frame in zip(self.devices, self.frames[number - 1], strict=True):
            device.data_received(frame)
        self.tick()
        self.received = sum(sent.count for sent in self.sent) // self.answer_bytes


def sn(number: int) -> bytes:
    """Return the SN of a device."""
    return b"device-%02d" % number


def load_of(name: str) -> Load:
    """Make one of LOADS."""
    return FrameLoad() if name == "frames" else PacketLoad(QOS[name])


def run_loads(longer: str) -> None:
    """All loads for a few messages, then one of them for more; `longer` may be "none"."""
    loads = {name: load_of(name) for name in LOADS}
    for load in loads.values():
        load.run(FEW)
    if longer in loads:
        loads[longer].run(MORE)


def runs(longer: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.instructions", "--run", longer]


def instructions(longer: str, variables: dict[str, str]) -> int:
    """Of a whole process that runs the loads, by callgrind. Raises RuntimeError."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *runs(longer)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600, check=False)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or found is None:
        raise RuntimeError(f"callgrind: {done.stderr[-2000:]}")
    return int(found[1])


def count() -> dict[str, int]:
    """Instructions per message of each load. What Python compiles of the sources is there before: whichever process did
    that would be counted for it."""
    with (
        TemporaryDirectory(prefix="headrace-counts-") as compiled,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        variables = os.environ | {"PYTHONHASHSEED": "0", "PYTHONMALLOC": "pymalloc"}
        variables |= {"PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}
        subprocess.run(runs("none"), env=variables, timeout=600, check=True)
        start, *totals = pool.map(lambda longer: instructions(longer, variables), ["none", *LOADS])
    return {load: (total - start) // MORE for load, total in zip(LOADS, totals, strict=True)}


def environment() -> str:
    """What a count depends on beside our code."""
    build = zlib.crc32(str(sysconfig.get_config_var("CONFIG_ARGS")).encode())
    compiler = subprocess.run(["cc", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout
    return f"CPython {platform.python_version()} ({build:08x}), cc {compiler.strip()}, {platform.machine()}"


def compare(found: dict[str, int], recorded: dict[str, int] | None) -> list[str]:
    """Print each figure beside its record; the loads that cost too much."""
    beyond = []
    for load, per_message in found.items():
        known = (recorded or {}).get(load)
        change = "" if known is None else f", recorded {known:,} ({per_message / known - 1:+.1%})"
        print(f"{load}: {per_message:,} instructions a message{change}")
        if known is not None and per_message > known * (1 + TOLERANCE):
            beyond.append(load)
    return beyond


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.instructions", description=__doc__.split("\n")[0])
    parser.add_argument("--record", action="store_true", help="write the figures down as the new measure")
    parser.add_argument("--run", help="run the loads in this process, this one for longer, and end")
    options = parser.parse_args()
    if options.run:
        run_loads(options.run)
        return 0
    if str(protocol.__file__).endswith(".py"):
        print("the interpreted build is imported: there is nothing to count", file=sys.stderr)
        return 2
    records = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    here = environment()
    beyond = compare(found := count(), None if options.record else records.get(here))
    if options.record:
        records[here] = found
        RECORD.write_text(json.dumps(records, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    elif here not in records:
        print(f"nothing to compare with on {here}: `make counts` writes it down")
    if beyond:
        print(f"{', '.join(beyond)}: more than {TOLERANCE:.0%} above the record; `make counts` accepts it")
    return 1 if beyond else 0


if __name__ == "__main__":
    raise SystemExit(main())
