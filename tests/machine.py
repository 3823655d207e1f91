"""Several workers of a machine on one loop: real sockets, journals in memory, between them all as between processes.

Worker n owns shard n. All have the listeners of the first one, by name; each has its own port, where a client comes in.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import ClassVar, Final

import uvloop

from headrace.core.homes import Homes
from headrace.core.ports.clock import Clock, Scheduler
from headrace.core.ports.settings import BrokerSettings
from headrace.core.worker import Worker
from headrace.mqtt import codec
from headrace.mqtt.packets import Connect
from headrace.net.tls import TlsFiles
from headrace.peers.handover import HandOver
from headrace.peers.peers import Peers
from headrace.services.doors import Doors, DoorSettings
from headrace.services.node_counts import NodeCounts
from headrace.services.node_times import NodeTimes
from headrace.storage.memory import MemoryJournal
from headrace.workers.place import Place

CLOSES_S: Final = 10.0
NO_FILES = TlsFiles("", "", "", "none")
SETTINGS = DoorSettings(1000, 20.0, 1 << 20, NO_FILES)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class LoopTicks(Scheduler):
    """Ends a tick in the next pass, and makes everything durable at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self.worker: Worker | None = None
        self.journals: list[MemoryJournal] = []

    def request_tick(self) -> None:
        self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        assert self.worker is not None
        self.worker.end_tick()
        for broker, journal in zip(self.worker.brokers, self.journals, strict=True):
            if not broker.idle:
                journal.durable = len(journal.records)
                broker.commit.on_high_watermark(journal.durable)
                self.request_tick()


class OneWorker:
    """One worker with its listeners and its hand-over."""

    def __init__(self, place: Place, urls: list[str], settings: DoorSettings, told: list[str]) -> None:
        loop = asyncio.get_running_loop()
        ticks = LoopTicks(loop)
        self.worker = ticks.worker = Worker(ticks, Clock(), BrokerSettings(), Homes(place.shards))
        owners = place.owners()
        for shard in owners.shards_of(place.index):
            journal = MemoryJournal()
            ticks.journals.append(journal)
            self.worker.own(shard, journal).sessions.absences.start()
        self.broker = self.worker.brokers[0]
        self.counts = NodeCounts(place.runtime / "counts", place.index, place.workers)
        self.times = NodeTimes(place.runtime / "times", place.index, place.workers)
        self.doors = Doors(
            self.worker,
            settings,
            None,
            lambda what, **more: told.append(f"{what} {more}"),
            counts=self.counts,
            times=self.times,
        )
        for url in urls:
            self.doors.open(url)
        self.ports = [listener.url.partition("?")[0].rpartition(":")[2] for listener in self.doors.listeners]
        self.peers = Peers(place, owners, self.worker, loop, told.append)
        self.handover = HandOver(
            place, owners, self.doors, self.peers.open_channel, self.peers.is_silent, loop, told.append
        )
        self.peers.accept = self.handover.accept
        self.worker.arrivals.elsewhere = self.handover
        self._loop = loop
        self._time()

    @property
    def clients(self) -> int:
        """How many connections it has."""
        return sum(len(one.connections.open) for one in self.doors.listeners)

    @property
    def accepted(self) -> int:
        return self.doors.accepted()

    @property
    def relayed(self) -> int:
        """How many it has the socket of, and another worker the client."""
        return sum(len(one.connections.relayed) for one in self.doors.listeners)

    def _time(self) -> None:
        clock = self.worker.clock
        clock.mono_ms, clock.now_us = time.monotonic_ns() // 1_000_000, time.time_ns() // 1000
        self.worker.on_timer()
        self._timer = self._loop.call_later(0.02, self._time)

    async def open(self) -> None:
        self.handover.open()
        await self.peers.start()

    async def close(self) -> None:
        self.doors.stop_accepting()
        self.handover.close()
        await self.peers.stop()
        self.doors.close()
        self._timer.cancel()
        await asyncio.sleep(0.01)


class Machine:
    """So many workers. `told` is what they say in the log. `opened`: those that no test has closed yet."""

    opened: ClassVar[list[Machine]] = []

    def __init__(
        self, runtime: Path, urls: list[str], count: int = 2, settings: DoorSettings = SETTINGS
    ) -> None:
        self.told: list[str] = []
        self.runtime = runtime
        self._urls, self._count, self._settings = urls, count, settings
        self.workers = [self._make(index) for index in range(count)]
        self._name_listeners()

    def _make(self, index: int) -> OneWorker:
        place = Place(index, self._count, self._count, self.runtime, "", 1)
        urls = [url.replace("INDEX", str(index)) for url in self._urls]
        return OneWorker(place, urls, self._settings, self.told)

    def _name_listeners(self) -> None:
        """As if the others had inherited the listeners of the first one."""
        names = self.workers[0].doors.urls
        for one in self.workers[1:]:
            for listener, name in zip(one.doors.listeners, names, strict=True):
                listener.url = listener.connections.url = name
                one.doors._count(listener.connections, "listener", name)

    async def open(self) -> None:
        self.opened.append(self)
        for one in self.workers:
            await one.open()
        await until(lambda: all(one.peers.links_up == self._count - 1 for one in self.workers))

    async def close(self) -> None:
        if self in self.opened:
            self.opened.remove(self)
        for one in self.workers:
            await one.close()

    def name_at(self, index: int, prefix: str = "c") -> str:
        """A client id that is at home in this worker."""
        homes = self.workers[0].worker.homes
        names = (f"{prefix}{number}" for number in range(10_000))
        return next(name for name in names if homes.of_client("default", name) == index)


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    """On the loop of the node, which ends with the test, whatever became of it; and workers that it left open end."""
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        runner.run(test())
    except BaseException:
        _end(runner)
        raise
    left_open = _end(runner)
    assert not left_open, left_open


def _end(runner: asyncio.Runner) -> list[str]:
    """Close a loop; -> what was still open on it. While a warning of that is an error, uvloop would leave it open, and
    wait for it without end."""
    left_open = [f"workers of {machine.runtime}" for machine in Machine.opened]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for machine in list(Machine.opened):
            runner.run(asyncio.wait_for(machine.close(), CLOSES_S))
        runner.close()
    return left_open + [str(warning.message) for warning in found]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def settled(descriptors: set[int]) -> None:
    """Wait until this process has no other sockets than these."""
    await until(lambda: open_descriptors() <= descriptors)


def open_descriptors() -> set[int]:
    """The sockets of this process; what else it opens is the loop's."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of this very listing
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.add(int(name))
    return found


def connect_packet(client_id: str, version: int = 4, clean: bool = True, keep_alive_s: int = 0) -> bytes:
    return codec.encode_connect(Connect(version, client_id, clean, keep_alive_s))
