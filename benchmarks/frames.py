"""Thousands of low-power devices at once: frames beside ActiveMQ Classic and a plain server that syncs before it answers.

    python -m benchmarks.frames [--most 6000] [--rounds 2] [--record]

Messages have 24 bytes, and a message counts as taken when the server has answered that it is durable. In turns, so that
all meet the same neighbours, at 1,000 to MOST senders, ROUNDS times, the best of which counts:

- `arrive`: the senders come evenly within one second; each connects, sends one message and waits for the answer;
- `burst`: all are connected; then each sends one message at the same moment.

ActiveMQ (STOMP, persistent, a queue of KahaDB, which syncs) and the plain server (`plain.c`: write, fdatasync, answer)
run on the same disk. `senders.c` is the load, before others (nice -5) where that is allowed, as if on a machine of its
own. Behind each run the queue, or the plain server's file, is read to its end: accuracy is how many of the bodies that
were sent are there.

Then: `killed`, the same arrival with SIGKILL for headrace half a second into it and a start behind it; `cpu`, frames and
MQTT QoS 1 for a second of the broker's CPU time, 100 senders with 16 unanswered messages each, into one topic that has a
queue; `consumers`, 1 to 16 of them, each of which needs 20 ms for a message.

`--record` writes results/frames-DATE.json and results/frames.png. Exit 1 where something that is wanted is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import json
import os
import shutil
import statistics
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.contestant import HERE, SCRATCH, compiled
from benchmarks.frames_chart import draw
from benchmarks.kafka_broker import Artifacts, fetch
from benchmarks.machine import machine
from benchmarks.memory import open_files
from benchmarks.stomp_queue import drain
from demo.services import PYTHON, Service
from headrace.clients.frame import Consumer, Message, Producer
from headrace.testing.ports import free_port
from headrace_spark.base.jars import jars_folder

RESULTS = HERE / "results"
ACTIVEMQ: Artifacts = tuple(
    ("org.apache.activemq", name, "6.3.1")
    for name in ("activemq-broker", "activemq-kahadb-store", "activemq-stomp")
)
MODES = ("arrive", "burst")
STEP, ROUNDS, KILLS = 1000, 2, 3
READY_S, STOP_S, PATIENCE_S = 60, 30, 180
FLAT, CPU_SHARE, LINEAR = 1.3, 0.8, 0.8
CONSUMERS, HANDLED_S, CONSUME_S = (1, 2, 4, 8, 16), 0.02, 4.0


@dataclass(frozen=True)
class Server:
    """A contestant that runs: where its senders connect, which protocol they speak, and its process."""

    name: str
    protocol: str
    port: int
    service: Service
    mqtt_port: int = 0

    @property
    def pid(self) -> int:
        assert self.service.process is not None
        return self.service.process.pid


@dataclass(frozen=True)
class Times:
    """One run: ms from a sender's begin to its answer, and from the first begin to the last answer."""

    server: str
    mode: str
    senders: int
    answered: int
    found: int
    repeated: int
    total_ms: float
    mean_ms: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    reconnected: int


# Contestants


@contextlib.contextmanager
def serving(name: str, protocol: str, port: int, *command: str, mqtt_port: int = 0) -> Iterator[Server]:
    folder = SCRATCH / f"frames-{name}"
    service = Service(name, folder / "log", *command)
    try:
        service.start_ready(READY_S)
        yield Server(name, protocol, port, service, mqtt_port)
    finally:
        service.stop(STOP_S)


def fresh(name: str) -> Path:
    folder = SCRATCH / f"frames-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def headrace(name: str = "headrace") -> contextlib.AbstractContextManager[Server]:
    folder, port, mqtt_port = fresh(name), free_port(), free_port()
    listen = ["--listen", f"tcp://127.0.0.1:{mqtt_port}", "--listen", f"frame://127.0.0.1:{port}"]
    data = ["--data-dir", str(folder / "data")]
    return serving(name, "frame", port, *PYTHON, "headrace", "serve", *data, *listen, mqtt_port=mqtt_port)


def activemq() -> contextlib.AbstractContextManager[Server]:
    folder, port = fresh("activemq"), free_port()
    jars = fetch(jars_folder().parent / f"bench-activemq-{ACTIVEMQ[0][2]}", ACTIVEMQ)
    # The last option, because a Service asks every JVM for the fast compiler alone.
    java = ["java", "-Xms1g", "-Xmx1g", "-XX:TieredStopAtLevel=4", "-cp", f"{jars}/*"]
    return serving(
        "activemq", "stomp", port, *java, str(HERE / "ActiveMQ.java"), str(port), str(folder / "kaha")
    )


def plain() -> contextlib.AbstractContextManager[Server]:
    folder, port = fresh("plain"), free_port()
    return serving("plain", "plain", port, str(compiled("plain")), str(port), str(folder / "file"))


# The load


def senders(server: Server, mode: str, count: int, topic: str, *more: str) -> subprocess.Popen[str]:
    first = ["nice", "-n", "-5"] if os.geteuid() == 0 else []
    command = [*first, str(compiled("senders")), "-m", mode, "-P", server.protocol, "-p", str(server.port)]
    return subprocess.Popen(
        [*command, "-n", str(count), "-x", topic, *more], stdout=subprocess.PIPE, text=True, cwd=HERE
    )


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate(timeout=PATIENCE_S)
    if process.returncode:
        raise RuntimeError(f"senders ended with {process.returncode}")
    return dict(json.loads(out))


def bodies(server: Server, topic: str, count: int) -> list[bytes]:
    """What the server has of a topic. Of the plain one: of its whole file."""
    if server.protocol == "frame":
        return asyncio.run(consumed(f"frame://127.0.0.1:{server.port}", topic, count))
    if server.protocol == "stomp":
        return drain(server.port, topic, count)
    file = SCRATCH / "frames-plain/file"
    content = file.read_bytes()
    os.truncate(file, 0)
    return [content[at : at + 24] for at in range(0, len(content), 24)]


async def consumed(url: str, topic: str, count: int) -> list[bytes]:
    """All messages of a topic queue: when nothing came for a second, and as many as were sent, or nothing for ten."""
    consumer = Consumer(url, topic, "count")
    found: list[bytes] = []

    @consumer.handler
    async def note(message: Message) -> None:
        found.append(message.payload)

    running = asyncio.create_task(consumer.run())
    quiet = 0
    while quiet < (2 if len(found) >= count else 20):
        before = len(found)
        await asyncio.sleep(0.5)
        quiet = quiet + 1 if len(found) == before else 0
    consumer.stop()
    await running
    return found


def measure(server: Server, mode: str, count: int, topic: str) -> Times:
    return times(server, mode, count, topic, said(senders(server, mode, count, topic)))


def times(server: Server, mode: str, count: int, topic: str, report: dict[str, Any]) -> Times:
    """What the senders say, and what is there."""
    found = bodies(server, topic, count)
    distinct = {struct.unpack(">II", body[:8]) for body in found} & {(sender, 0) for sender in range(count)}
    shown = ("total_ms", "mean_ms", "p50_ms", "p99_ms", "max_ms")
    numbers = {name: round(float(report[name]), 1) for name in shown}
    return Times(
        server.name, mode, count, report["answered"], len(distinct), len(found) - len(distinct),
        reconnected=report["reconnected"], **numbers,
    )  # fmt: skip


def concurrent(most: int, rounds: int) -> list[Times]:
    """All contestants in turns, at all numbers of senders."""
    rows = []
    with headrace() as ours, activemq() as theirs, plain() as simple:
        contestants = (ours, theirs, simple)
        for server in contestants:  # the JVM compiles what it will need; so all have a first time
            for warm_up in range(3):
                measure(server, "burst", STEP, f"warm{warm_up}")
        for turn in range(rounds):
            for count in range(STEP, most + 1, STEP):
                for mode in MODES:
                    for server in contestants:
                        rows.append(measure(server, mode, count, f"{mode}{count}-{turn}"))
                        print(rows[-1], flush=True)
    return rows


def killed(count: int, kills: int = KILLS) -> list[Times]:
    """SIGKILL in the middle of an arrival, and a start."""
    rows = []
    with headrace("headrace-killed") as server:
        for turn in range(kills):
            topic = f"killed{turn}"
            load = senders(server, "arrive", count, topic)
            time.sleep(0.5)  # of the second in which the senders come
            server.service.kill()
            server.service.start_ready(READY_S)
            rows.append(times(server, "arrive", count, topic, said(load)))
            print(rows[-1], flush=True)
    return rows


def cpu(rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Frames and MQTT QoS 1 for the broker's CPU time, in turns."""
    found: dict[str, list[dict[str, Any]]] = {"frames": [], "mqtt": []}
    with headrace("headrace-cpu") as frames:
        mqtt = Server("headrace", "mqtt", frames.mqtt_port, frames.service)
        measure(frames, "burst", 10, "load")  # the topic has its queue
        for _ in range(rounds):
            for name, server in (("frames", frames), ("mqtt", mqtt)):
                load = senders(server, "load", 100, "load", "-w", "16", "-t", "4", "-b", str(frames.pid))
                found[name].append(said(load))
                print(name, found[name][-1], flush=True)
    return found


def consumers() -> dict[int, float]:
    """Messages a second of a slow queue, by how many consume it."""
    found = {}
    with headrace("headrace-consumers") as server:
        url = f"frame://127.0.0.1:{server.port}"
        asyncio.run(fill(url, "slow", int(sum(CONSUMERS) * (CONSUME_S + 1) / HANDLED_S * 1.2)))
        for count in CONSUMERS:
            found[count] = asyncio.run(rate(url, "slow", count))
            print(f"{count} consumers: {found[count]:.1f} messages a second", flush=True)
    return found


async def fill(url: str, topic: str, count: int) -> None:
    async with Producer(url, "filler", in_flight_max=1000) as producer:
        await asyncio.gather(*(producer.publish(topic, struct.pack(">Q", number)) for number in range(count)))


async def rate(url: str, topic: str, count: int) -> float:
    """Messages a second, from when all consumers have begun."""
    crew = [Consumer(url, topic, "slow", sn=f"consumer-{number}") for number in range(count)]
    for consumer in crew:

        @consumer.handler
        async def handle(_: Message) -> None:
            await asyncio.sleep(HANDLED_S)

    running = [asyncio.create_task(consumer.run()) for consumer in crew]
    while min(consumer.processed for consumer in crew) == 0:
        await asyncio.sleep(0.01)
    before, began = sum(consumer.processed for consumer in crew), time.monotonic()
    await asyncio.sleep(CONSUME_S)
    done = sum(consumer.processed for consumer in crew) - before
    taken = time.monotonic() - began
    for consumer in crew:
        consumer.stop()
    await asyncio.gather(*running)
    return round(done / taken, 1)


# What is wanted


def best(rows: list[Times], server: str, mode: str, senders: int, what: str) -> float:
    mine = [row for row in rows if (row.server, row.mode, row.senders) == (server, mode, senders)]
    return float(min(getattr(row, what) for row in mine))


def verdicts(
    rows: list[Times], kills: list[Times], load: dict[str, list[dict[str, Any]]], slow: dict[int, float]
) -> dict[str, dict[str, Any]]:
    """Each figure that is wanted, the one that was measured, and whether it is met."""
    sizes = sorted({row.senders for row in rows})
    least, most = sizes[0], sizes[-1]
    found: dict[str, dict[str, Any]] = {}
    for mode in MODES:
        per_message = [best(rows, "headrace", mode, size, "total_ms") / size for size in (least, most)]
        flat = per_message[1] / per_message[0]
        found[f"{mode}: time a message at {most} by that at {least}"] = verdict(flat, FLAT, flat <= FLAT)
        shares = [
            best(rows, "headrace", mode, size, what) / best(rows, "activemq", mode, size, what)
            for size in sizes
            for what in ("total_ms", "mean_ms")
        ]
        found[f"{mode}: worst of headrace's times by ActiveMQ's"] = verdict(max(shares), 1, max(shares) < 1)
    ours = [row for row in [*rows, *kills] if row.server.startswith("headrace")]
    accuracy = 100 * sum(row.found for row in ours) / sum(row.senders for row in ours)
    exact = all(row.found == row.senders == row.answered and row.repeated == 0 for row in ours)
    found["accuracy, killed ones included, per cent"] = verdict(accuracy, 100, exact)
    rates = {name: statistics.median(run["per_cpu_s"] for run in runs) for name, runs in load.items()}
    share = rates["frames"] / rates["mqtt"]
    found["messages a CPU-second of frames by MQTT's at QoS 1"] = verdict(
        share, CPU_SHARE, share >= CPU_SHARE
    )
    linear = slow[CONSUMERS[-1]] / slow[1] / CONSUMERS[-1]
    found["rate of 16 consumers by 16 times that of one"] = verdict(linear, LINEAR, linear >= LINEAR)
    return found


def verdict(value: float, wanted: float, met: bool) -> dict[str, Any]:
    return {"measured": round(value, 3), "wanted": wanted, "met": met}


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.frames", description=__doc__.split("\n")[0])
    parser.add_argument("--most", type=int, default=6000, help="senders, in steps of a thousand")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    open_files(options.most * 2 + 1000)
    began = machine()
    rows = concurrent(options.most, options.rounds)
    kills = killed(options.most)
    load, slow = cpu(options.rounds), consumers()
    wanted = verdicts(rows, kills, load, slow)
    for name, row in wanted.items():
        print(f"{'met   ' if row['met'] else 'MISSED'} {name}: {row['measured']}, wanted {row['wanted']}")
    if options.record:
        result: dict[str, Any] = {"question": __doc__, "machine": began, "activemq": ACTIVEMQ[0][2]}
        result |= {"verdicts": wanted, "cpu": load, "consumers": slow}
        result |= {"concurrent": [asdict(row) for row in rows], "killed": [asdict(row) for row in kills]}
        date = dt.datetime.now(dt.UTC).date()
        path = RESULTS / f"frames-{date}.json"
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        draw(result, RESULTS / "frames.png")
    return 0 if all(row["met"] for row in wanted.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
