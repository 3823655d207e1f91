"""`headrace bench`: load on any MQTT broker, with what came of it: rates, latency, losses, the broker's CPU.

One process on one loop. Closed loop by default (each publisher keeps its window full), open with `--rate`.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import click
import uvloop

from headrace.clients.load import HEAD, LoadClient, Publisher, Subscriber, Tally
from headrace.clients.options import VERSIONS, address
from headrace.mqtt.packets import Connect
from headrace.mqtt.properties import Properties

CONNECTING_AT_ONCE = 200
SETUP_TIMEOUT_S = 60.0
DRAIN_TIMEOUT_S = 10.0
MODES = ("p2p", "fan-in", "fan-out")


@dataclass(frozen=True)
class Plan:
    """What is to be run. `pairs` counts publishers in fan-in, subscribers in fan-out."""

    host: str
    port: int
    mode: str
    pairs: int
    qos: int
    window: int
    rate: float
    size: int
    seconds: float
    warm_up_s: float
    persistent: bool
    version: int
    prefix: str


@dataclass
class Result:
    """Rates are per second, latencies in milliseconds. `lost` = never came; 0 for QoS 1 and 2 unless a limit dropped."""

    sent_rate: float = 0.0
    received_rate: float = 0.0
    acknowledgement_p50_ms: float = 0.0
    acknowledgement_p99_ms: float = 0.0
    delivery_p50_ms: float = 0.0
    delivery_p99_ms: float = 0.0
    sent: int = 0
    acked: int = 0
    received: int = 0
    lost: int = 0
    repeats: int = 0
    reordered: int = 0
    closed: int = 0
    broker_cpu_cores: float | None = None
    messages_per_cpu_second: float | None = None


class BenchFailed(click.ClickException):
    """The run could not be set up, or the broker closed connections."""

    exit_code = 1


@click.command("bench")
@click.option("--url", default="tcp://127.0.0.1:1883", show_default=True)
@click.option("--mode", type=click.Choice(MODES), default="p2p", show_default=True)
@click.option("-n", "--pairs", type=click.IntRange(1, 9000), default=100, show_default=True)
@click.option("-q", "--qos", type=click.IntRange(0, 2), default=1, show_default=True)
@click.option("-w", "--window", type=click.IntRange(1, 1000), default=1, show_default=True)
@click.option(
    "--rate", type=click.FloatRange(0), default=0.0, help="messages a second in all; 0: closed loop"
)
@click.option("-s", "--size", type=click.IntRange(HEAD.size, 1 << 20), default=64, show_default=True)
@click.option("-t", "--seconds", type=click.FloatRange(0.1, 86_400), default=5.0, show_default=True)
@click.option("--warm-up", "warm_up_s", type=click.FloatRange(0), default=1.0, show_default=True)
@click.option("-c", "--persistent", is_flag=True, help="subscribers keep their sessions")
@click.option("--protocol", type=click.Choice(list(VERSIONS)), default="3.1.1", show_default=True)
@click.option("--pid", type=int, help="the broker's process, to measure its CPU")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="write the result there")
def bench(
    url: str,
    mode: str,
    pairs: int,
    qos: int,
    window: int,
    rate: float,
    size: int,
    seconds: float,
    warm_up_s: float,
    persistent: bool,
    protocol: str,
    pid: int | None,
    json_file: Path | None,
) -> None:
    """Put load on a broker and say what came of it. Exit 1 if something was lost, repeated unmarked or closed."""
    host, port = address(url)
    plan = Plan(
        host,
        port,
        mode,
        pairs,
        qos,
        window,
        rate,
        size,
        seconds,
        warm_up_s,
        persistent,
        VERSIONS[protocol],
        "bench" + secrets.token_hex(4),
    )
    try:
        result = uvloop.run(Run(plan, pid).run())
    except (OSError, TimeoutError) as error:
        raise BenchFailed(str(error) or "the broker did not answer in time") from error
    for name, value in asdict(result).items():
        if value is not None:
            click.echo(f"{name:26} {value:,.2f}" if isinstance(value, float) else f"{name:26} {value:,}")
    if json_file is not None:
        report = {"plan": asdict(plan), "result": asdict(result)}
        json_file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if wrong := faults(result, qos):
        raise BenchFailed(f"the run is not sound: {wrong}")


def faults(result: Result, qos: int) -> str:
    """What went wrong, with its count; empty when nothing did. QoS 0 promises no delivery."""
    counts = {
        "lost": result.lost if qos else 0,
        "out of order": result.reordered,
        "connections closed": result.closed,
    }
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _at_least(tally: Tally, ready: int) -> Callable[[], bool]:
    return lambda: tally.ready >= ready or tally.refused > 0


class Run:
    """One run of a plan: connect, warm up, measure, drain."""

    def __init__(self, plan: Plan, pid: int | None) -> None:
        self._plan = plan
        self._pid = pid
        publishers = 1 if plan.mode == "fan-out" else plan.pairs
        subscribers = 1 if plan.mode == "fan-in" else plan.pairs
        self._tally = Tally(publishers)
        padding = b"x" * (plan.size - HEAD.size)
        self._subscribers = [self._subscriber(number) for number in range(subscribers)]
        self._publishers = [
            Publisher(
                self._tally, self._connect(f"p{n}", True), self._topic(n), plan.qos, n, plan.window, padding
            )
            for n in range(publishers)
        ]

    def _topic(self, number: int) -> str:
        return f"{self._plan.prefix}/{0 if self._plan.mode == 'fan-out' else number}"

    def _subscriber(self, number: int) -> Subscriber:
        plan = self._plan
        topic = f"{plan.prefix}/+" if plan.mode == "fan-in" else self._topic(number)
        connect = self._connect(f"s{number}", not plan.persistent)
        return Subscriber(self._tally, connect, topic, plan.qos)

    def _connect(self, name: str, clean: bool) -> Connect:
        properties = Properties()
        if self._plan.version == 5 and not clean:
            properties.session_expiry_interval = 3600
        return Connect(
            self._plan.version, f"{self._plan.prefix}-{name}", clean, 0, None, None, None, properties
        )

    async def run(self) -> Result:
        """Raises OSError, TimeoutError when the broker cannot be reached."""
        await self._open([*self._subscribers, *self._publishers])
        driver = asyncio.create_task(self._drive())
        await self._show("warm-up", self._plan.warm_up_s)
        tally = self._tally
        tally.measuring = True
        before = (time.monotonic(), tally.sent, tally.received, self._cpu())
        await self._show("measuring", self._plan.seconds)
        after = (time.monotonic(), tally.sent, tally.received, self._cpu())
        tally.measuring = False
        tally.stopping = True
        await driver
        await self._drained()
        for client in [*self._subscribers, *self._publishers]:
            if client.transport is not None:
                client.transport.abort()
        return self._result(before, after)

    def _cpu(self) -> float:
        return 0.0 if self._pid is None else cpu_seconds(self._pid)

    async def _open(self, clients: list[LoadClient]) -> None:
        loop = asyncio.get_running_loop()
        for at in range(0, len(clients), CONNECTING_AT_ONCE):
            part = clients[at : at + CONNECTING_AT_ONCE]
            await asyncio.gather(*[self._open_one(loop, client) for client in part])
            await self._until(_at_least(self._tally, at + len(part)), SETUP_TIMEOUT_S)
            if self._tally.refused:
                raise BenchFailed("the broker refused connections or subscriptions")

    async def _open_one(self, loop: asyncio.AbstractEventLoop, client: LoadClient) -> None:
        # A compiled class is a protocol by its methods, not by its base (decisions 27).
        await loop.create_connection(lambda: cast(asyncio.Protocol, client), self._plan.host, self._plan.port)

    async def _until(self, done: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > deadline:
                raise TimeoutError("the broker did not answer in time")
            await asyncio.sleep(0.002)

    async def _show(self, what: str, seconds: float) -> None:
        """Wait, with a line of progress each second on a terminal."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if sys.stderr.isatty():
                click.echo(f"\r{what}: {left:4.0f} s, {self._tally.received:,} received ", err=True, nl=False)
            await asyncio.sleep(min(1.0, left))

    # Load

    async def _drive(self) -> None:
        if self._plan.rate:
            await self._paced()
        elif self._plan.qos:
            for publisher in self._publishers:
                publisher.fill()
                publisher.flush()
        else:
            await self._flooded()

    async def _paced(self) -> None:
        """Open loop: the publishers take turns at the given rate."""
        for publisher in self._publishers:
            publisher.paced = True
        began, due = time.monotonic(), 0
        while not self._tally.stopping:
            target = int((time.monotonic() - began) * self._plan.rate)
            while due < target:
                publisher = self._publishers[due % len(self._publishers)]
                publisher.send()
                publisher.flush()
                due += 1
            await asyncio.sleep(0.0005)

    async def _flooded(self) -> None:
        """QoS 0 has no acknowledgement: keep as many under way as windows and subscribers allow."""
        tally = self._tally
        copies = len(self._subscribers) if self._plan.mode == "fan-out" else 1
        limit = self._plan.window * len(self._publishers)
        while not tally.stopping:
            for publisher in self._publishers:
                if tally.sent - tally.received // copies >= limit:
                    break
                for _ in range(min(8, self._plan.window)):
                    publisher.send()
                publisher.flush()
            await asyncio.sleep(0)

    async def _drained(self) -> None:
        """Wait for what is under way; what has not come when nothing came for DRAIN_TIMEOUT_S is lost."""
        copies = len(self._subscribers) if self._plan.mode == "fan-out" else 1
        tally = self._tally
        came, deadline = -1, 0.0
        while tally.received < tally.sent * copies or (self._plan.qos and tally.acked < tally.sent):
            if came != tally.received + tally.acked:
                came, deadline = tally.received + tally.acked, time.monotonic() + DRAIN_TIMEOUT_S
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(0.002)

    def _result(self, before: tuple[float, int, int, float], after: tuple[float, int, int, float]) -> Result:
        tally = self._tally
        seconds = after[0] - before[0]
        sent, received, cpu = after[1] - before[1], after[2] - before[2], after[3] - before[3]
        copies = len(self._subscribers) if self._plan.mode == "fan-out" else 1
        unique = tally.received - tally.repeats - tally.reordered
        return Result(
            sent / seconds,
            received / seconds,
            tally.acknowledgement.percentile(0.5) / 1000,
            tally.acknowledgement.percentile(0.99) / 1000,
            tally.delivery.percentile(0.5) / 1000,
            tally.delivery.percentile(0.99) / 1000,
            tally.sent,
            tally.acked,
            tally.received,
            tally.sent * copies - unique,
            tally.repeats,
            tally.reordered,
            tally.closed,
            None if self._pid is None else cpu / seconds,
            None if self._pid is None or not cpu else (sent + received) / cpu,
        )
