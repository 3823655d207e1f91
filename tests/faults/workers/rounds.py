"""Workers of a node are killed and stopped under load, one, two or all of them; nothing acknowledged may be lost.

    python -m faults.workers.rounds --shards 4 --seconds 600 --seed 1

Publishers in every shard (QoS 1 and 2, and retained messages), subscribers with sessions in two of them and one that is
away most of the time, a shared group with a member in every shard, and clients that go without a word and leave a will.
Random workers get SIGKILL and SIGSTOP, and now and then the supervisor or the whole node. At QoS 1 everything
acknowledged must come at least once, at QoS 2 exactly once, both in the order of each publisher; to the group each
message of QoS 2 once; retained messages are the last ones; every will comes once. Each connection comes over a plain
socket, TLS or a WebSocket: passed to the worker of its home, or relayed. After each fault everybody must get on again.
HEADRACE_BUILD chooses the build.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

from broker_process import BrokerProcess, free_port, wait_until
from certificates import Authority
from faults.workers.clients import (
    Arrivals,
    Ledger,
    Publisher,
    Subscriber,
    die_with_will,
    retained,
)
from faults.workers.ways import Way, tcp, tls, websocket
from headrace.core.homes import Homes

PATIENCE_S = 120.0  # until everybody gets on again, on a machine that does much besides
RATE = 15.0  # messages a second of each publisher
KEPT = 5  # topics of each publisher of retained messages
GROUP = "$share/group/load/#"
SETTINGS: dict[str, object] = {
    "session.backlog_messages_max": 65_535,
    "journal.segment_bytes_max": 1 << 20,
    "journal.snapshot_interval_bytes": 64 << 10,
    "journal.retention_bytes": 4 << 20,
    "sys_interval_s": 1,
}


class ManyWorkers(BrokerProcess):
    """A node of several workers, which may be killed in parts."""

    ready_line = re.compile(r"promise=")

    def __init__(self, folder: Path, workers: int, shards: int) -> None:
        authority = Authority(folder / "ca")
        certificate, key = authority.issue("server")
        ports = {"tls": free_port(), "ws": free_port()}
        listeners = [
            f"tls://127.0.0.1:{ports['tls']}?cert={certificate}&key={key}",
            f"ws://127.0.0.1:{ports['ws']}",
        ]
        settings = {**SETTINGS, "workers": workers, "shards": shards}
        super().__init__(folder, settings, [part for url in listeners for part in ("--listen", url)])
        self.ways = [tcp(self.port), tls(ports["tls"], str(authority.ca)), websocket(ports["ws"])]

    @property
    def workers(self) -> dict[int, int]:
        """The pid of each worker that there is."""
        found = {}
        with suppress(OSError):
            for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
                with suppress(OSError):
                    place = re.search(r'"index": ([0-9]+)', Path(f"/proc/{pid}/cmdline").read_text())
                    if place:
                        found[int(place[1])] = int(pid)
        return found

    def kill(self) -> None:
        """SIGKILL to all processes. The supervisor stands still meanwhile: it would start workers again, and without it
        they would stop in good order."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        workers = list(self.workers.values()) if self.running else []
        send(signal.SIGKILL, workers)
        self.process.kill()
        self.process.wait()
        wait_until(lambda: all(is_gone(pid) for pid in workers), "the end of the workers", PATIENCE_S)
        self._collect()

    def is_ready(self) -> bool:
        try:
            return self.get("/readyz").body == "ready\n"
        except OSError:
            return False


def send(number: signal.Signals, pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for has, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


class Town:
    """The clients of a node, and what becomes of them."""

    def __init__(self, shards: int, rng: random.Random) -> None:
        self.ledger, self.rng, self.shards = Ledger(), rng, shards
        homes = Homes(shards)
        names = (f"c{number}" for number in count())
        self._named: Callable[[int], str] = lambda shard: next(
            name for name in names if homes.of_client("default", name) == shard
        )
        ledger = self.ledger
        self.publishers = [
            Publisher(ledger, self._named(shard), qos, f"load/{qos}/{shard}")
            for shard in range(shards)
            for qos in (1, 2)
        ]
        self.keepers = [
            Publisher(ledger, self._named(shard), 1, f"kept/{shard}", KEPT) for shard in range(shards)
        ]
        everything = ["load/#", "will/#"]
        self.subscribers = [Subscriber(ledger, self._named(s), everything) for s in range(0, shards, 2)]
        self.traveller = Subscriber(ledger, self._named(shards - 1), everything)
        together = Arrivals(ledger, "the group", in_order=False)
        self.members = [Subscriber(ledger, self._named(s), [GROUP], together) for s in range(shards)]
        self.listeners = [*self.subscribers, self.traveller, *self.members]
        self.wills = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def move_in(self, ways: list[Way]) -> None:
        """Everybody subscribes, then everybody publishes."""
        self._ways = ways
        self._begin(*(listener.run(ways) for listener in self.listeners))
        await self.until(lambda: all(one.subscribed for one in self.listeners), "everybody has subscribed")
        self._begin(*(one.run(ways) for one in [*self.publishers, *self.keepers]), self._pace(), self._die())

    def _begin(self, *lives: Awaitable[None]) -> None:
        self._tasks += [asyncio.ensure_future(life) for life in lives]

    async def _pace(self) -> None:
        """So many messages a second of each publisher."""
        began, before = time.monotonic(), 0
        while True:
            await asyncio.sleep(0.1)
            if self._ends:
                return
            due = int((time.monotonic() - began) * RATE)
            for publisher in [*self.publishers, *self.keepers]:
                publisher.due += due - before
                publisher.fill()
            before = due

    _ends = False

    async def _die(self) -> None:
        """One after the other connects with a will and dies."""
        while not self._ends:
            self.wills += 1
            name = self._named(self.rng.randrange(self.shards))
            await die_with_will(self.ledger, self._ways, name, self.rng.uniform(0.0, 0.5))
            await asyncio.sleep(0.5)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for it. Raises AssertionError also for what was wrong meanwhile."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            self.check()
            assert time.monotonic() < end, f"{what}: not within {PATIENCE_S} s; {self.state()}"
            await asyncio.sleep(0.05)

    def check(self) -> None:
        """Raise what was wrong so far."""
        assert not self.ledger.faults, self.ledger.faults[:20]
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                task.result()

    def state(self) -> str:
        """Return what everybody does just now."""
        writers = {p.client_id: (p.connected, p.sent, len(p.acked), len(p.open)) for p in self.publishers}
        readers = {s.client_id: (s.connected, s.subscribed, len(s.arrivals.numbers)) for s in self.listeners}
        return f"publishers (connected, sent, acknowledged, open) {writers}, listeners {readers}"

    async def get_on(self) -> None:
        """Wait until each publisher has had something new acknowledged."""
        before = {publisher: len(publisher.acked) for publisher in self.publishers}
        await self.until(
            lambda: all(len(publisher.acked) > had for publisher, had in before.items()),
            "everybody gets on again",
        )

    async def end(self) -> None:
        """Publish no more, and wait until all has come that was acknowledged."""
        self._ends = True
        self.traveller.away = False
        for publisher in [*self.publishers, *self.keepers]:
            publisher.due = publisher.sent
        await self.until(
            lambda: not any(p.open for p in [*self.publishers, *self.keepers]), "all is acknowledged"
        )
        try:
            await self.until(lambda: not self.missing(), "all has come")
        except AssertionError as error:
            raise AssertionError(f"missing: {self.missing()}") from error
        await self._read_retained()
        for peer in [*self.publishers, *self.keepers, *self.listeners]:
            peer.over = True
            peer.leave()
        await asyncio.gather(*self._tasks)
        self.check()

    def missing(self) -> dict[str, list[str]]:
        """Return what was acknowledged, or due of wills, and has not come: for each listener some of it."""
        acked = {p.client_id: p.acked for p in self.publishers}
        wanted = [
            (one.client_id, one.arrivals, acked | self.ledger.wills_due)
            for one in (*self.subscribers, self.traveller)
        ]
        wanted.append(("the group", self.members[0].arrivals, acked))
        return {
            name: lacks for name, arrivals, sources in wanted if (lacks := _lacks(arrivals.numbers, sources))
        }

    async def _read_retained(self) -> None:
        """What new clients in all shards find is what was published last."""
        expected = {}
        for keeper in self.keepers:
            for number in range(1, keeper.sent + 1):
                expected[keeper.topic(number)] = keeper.payload(number)
        expected = {topic: payload for topic, payload in expected.items() if payload}
        for shard in range(self.shards):
            way = self._ways[shard % len(self._ways)]
            found = await retained(way, self._named(shard), "kept/#", expected)
            assert found == expected, f"retained in shard {shard}: {found} instead of {expected}"


def _lacks(arrived: dict[str, set[int]], sources: dict[str, set[int]]) -> list[str]:
    return [
        f"{source}:{sorted(numbers - arrived.get(source, set()))[:5]}"
        for source, numbers in sources.items()
        if not numbers <= arrived.get(source, set())
    ]


class Siege:
    """What is done to a node."""

    def __init__(self, node: ManyWorkers, town: Town, rng: random.Random) -> None:
        self.node, self.town, self.rng = node, town, rng
        self.done: Counter[str] = Counter()
        self._ways: list[tuple[str, float, Callable[[], Awaitable[None]]]] = [
            ("kill a worker", 8, self._kill_one),
            ("kill two", 2, self._kill_two),
            ("stop a worker", 4, self._stop_one),
            ("stop one and kill another", 2, self._stop_and_kill),
            ("stop a worker for long", 0.7, self._stop_long),
            ("kill all", 1.5, self._kill_all),
            ("kill the supervisor", 0.7, self._kill_supervisor),
            ("stop all", 1, self._stop_all),
            ("end in good order", 0.7, self._end_well),
        ]

    async def once(self) -> None:
        """Do one of it."""
        names = [name for name, _, _ in self._ways]
        name = self.rng.choices(names, [weight for _, weight, _ in self._ways])[0]
        self.done[name] += 1
        await next(way for known, _, way in self._ways if known == name)()

    def _some(self, number: int) -> list[int]:
        pids = list(self.node.workers.values())
        return self.rng.sample(pids, min(number, len(pids)))

    async def _kill_one(self) -> None:
        send(signal.SIGKILL, self._some(1))

    async def _kill_two(self) -> None:
        send(signal.SIGKILL, self._some(2))

    async def _stop(self, pids: list[int], seconds: float) -> None:
        send(signal.SIGSTOP, pids)
        await asyncio.sleep(seconds)
        send(signal.SIGCONT, pids)

    async def _stop_one(self) -> None:
        await self._stop(self._some(1), self.rng.uniform(0.2, 4.0))

    async def _stop_long(self) -> None:
        await self._stop(self._some(1), 13.0)  # links end after ten seconds

    async def _stop_and_kill(self) -> None:
        stopped, *others = self._some(2)
        stop = asyncio.create_task(self._stop([stopped], self.rng.uniform(1.0, 4.0)))
        await asyncio.sleep(0.5)
        send(signal.SIGKILL, others)
        await stop

    async def _stop_all(self) -> None:
        await self._stop([self.node.pid, *self.node.workers.values()], self.rng.uniform(1.0, 5.0))

    async def _kill_all(self) -> None:
        await asyncio.to_thread(self.node.kill)
        await asyncio.to_thread(self.node.start, PATIENCE_S)

    async def _kill_supervisor(self) -> None:
        """Its workers stop, and the next one waits for them."""
        await asyncio.to_thread(super(ManyWorkers, self.node).kill)
        await asyncio.to_thread(self.node.start, PATIENCE_S)

    async def _end_well(self) -> None:
        await asyncio.to_thread(self.node.stop, PATIENCE_S)
        await asyncio.to_thread(self.node.start, PATIENCE_S)


async def torture(folder: Path, workers: int, shards: int, seconds: float, seed: int, rounds: int = 0) -> str:
    """Do it for so long, or so many times; returns what was done. Raises what it finds."""
    rng = random.Random(seed)
    node = ManyWorkers(folder, workers, shards)
    town = Town(shards, rng)
    siege = Siege(node, town, rng)
    await asyncio.to_thread(node.start, PATIENCE_S)
    try:
        await town.move_in(node.ways)
        until = time.monotonic() + seconds
        while siege.done.total() < rounds if rounds else time.monotonic() < until:
            town.traveller.away = rng.random() < 0.7
            if town.traveller.away:
                town.traveller.leave()
            await siege.once()
            await asyncio.sleep(rng.uniform(0.05, 1.5))
            town.check()
            if rng.random() < 0.3:
                await town.get_on()
                await town.until(node.is_ready, "all workers are ready")
        await town.get_on()
        await town.end()
        await asyncio.to_thread(node.stop, PATIENCE_S)
    except BaseException:
        print(f"after {dict(siege.done)}:\n" + "".join(node.lines[-60:]), file=sys.stderr)
        raise
    finally:
        if node.running:
            send(signal.SIGCONT, list(node.workers.values()))
            await asyncio.to_thread(node.kill)
    acked = sum(len(publisher.acked) for publisher in [*town.publishers, *town.keepers])
    done = ", ".join(f"{name}: {times}" for name, times in siege.done.most_common())
    return (
        f"{done}\nconnections: {dict(town.ledger.ways)}\n"
        f"{acked} messages acknowledged, {len(town.ledger.wills_due)} wills, {town.ledger.refusals} refusals:"
        " none missing, none of QoS 2 twice, in order"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0, help="[default: one for each shard]")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # what is written over TLS to who is gone
    with tempfile.TemporaryDirectory(prefix="headrace-torture-") as folder:
        workers = options.workers or options.shards
        print(asyncio.run(torture(Path(folder), workers, options.shards, options.seconds, options.seed)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
