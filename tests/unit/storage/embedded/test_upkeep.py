"""A full disk gets space again as soon as something can go, and keeps what somebody needs."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import message
from headrace.core.broker import Broker
from headrace.core.homes import Homes
from headrace.core.ports.clock import Clock
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.message import Message
from headrace.core.records.stream_record import FOLLOWED, stream_record
from headrace.core.shards.neighbours import Neighbours
from headrace.core.shards.peer import Announced, Filled, Follow, Frame, Granted, Hello, Wire
from headrace.core.shards.routes import Routes
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.state.streams import NO_START
from headrace.core.worker import Worker
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.disk import Disk
from headrace.journal.errors import LENT, OffsetOutOfRange
from headrace.journal.log import LogSettings, SegmentedLog
from headrace.services.watchdog import Watchdog
from headrace.storage.embedded.local import LocalJournal
from headrace.storage.embedded.snapshotting import Folder, Snapshotting, durable
from headrace.storage.embedded.upkeep import Upkeep
from headrace.storage.memory import ManualScheduler

CAPACITY = 2 << 20
TURNS_MAX = 400


class SmallDisk(Disk):
    """Allocates no more than CAPACITY bytes in the data directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def free_bytes(self, directory: Path) -> int:
        used = sum(path.stat().st_blocks * 512 for path in self._folder.rglob("*") if path.is_file())
        return CAPACITY - used

    def allocate(self, fd: int, position: int, length: int) -> None:
        if length > self.free_bytes(self._folder):
            raise OSError(errno.ENOSPC, "No space left on device")
        super().allocate(fd, position, length)


class Follower(Wire):
    """The wire to another shard; `follow` lets it ask for all that is published to `t`."""

    def say(self, frame: Frame) -> None:
        pass

    def cut(self) -> None:
        pass

    def follow(self, broker: Broker, granted: int) -> None:
        neighbours = broker.neighbours
        assert isinstance(neighbours, Neighbours)
        neighbours.begin(0)
        for frame in (Hello(1, 1, 1), Announced([("default", "t")]), Follow(0, granted, NO_START)):
            neighbours.heard(self, frame)

    def grant(self, broker: Broker, granted: int) -> None:
        assert isinstance(broker.neighbours, Neighbours)
        broker.neighbours.heard(self, Granted(granted))


class Running:
    """A broker over a log on a small disk, without sockets."""

    def __init__(
        self, folder: Path, segment_bytes_max: int, streams: bool = False, followed: bool = False
    ) -> None:
        settings = LogSettings(segment_bytes_max=segment_bytes_max, reserve_bytes=128 << 10, streams=streams)
        self.log = SegmentedLog.open(folder, settings, print, SmallDisk(folder))
        clock = Clock()
        clock.now_us = 1
        journal = LocalJournal(self.log, OffsetOutOfRange)
        homes = Homes(2 if followed else 1)
        self.broker = Worker(ManualScheduler(), clock, BrokerSettings(), homes).own(0, journal)
        self.follower = Follower()
        self.said: list[str] = []  # of the disk
        if followed:
            self.broker.join(journal, Routes(), StreamSettings())
        snapshots = Snapshotting(self.broker, Folder(self.log), 1 << 40, 3600, Watchdog())
        self.upkeep = Upkeep(self.broker, self.log, snapshots, Watchdog())

    def start(self) -> None:
        """Within the loop."""
        loop = asyncio.get_running_loop()

        def on_durable(offset: int) -> None:
            loop.call_soon_threadsafe(self.broker.commit.on_high_watermark, offset)

        self.log.start(on_durable, self.broker.commit.on_failure, self.said.append)

    async def tick(self) -> None:
        while True:
            self.broker.worker.end_tick()
            await asyncio.sleep(0.001)

    async def fill(self) -> None:
        while not self.log.full:
            self.broker.commit.append(message(b"t", bytes(8000)))
            await durable(self.broker.commit)

    async def relieve(self) -> None:
        for _ in range(TURNS_MAX):
            await self.upkeep.turn()
            await asyncio.sleep(0.01)
            if not self.log.full:
                return


@contextmanager
def running(
    folder: Path, segment_bytes_max: int, streams: bool = False, followed: bool = False
) -> Iterator[Running]:
    found = Running(folder, segment_bytes_max, streams, followed)
    try:
        yield found
    finally:
        found.log.close()


@pytest.mark.parametrize("segment_bytes_max", [256 << 10, 64 << 20])
def test_what_nobody_needs_goes(tmp_path: Path, segment_bytes_max: int) -> None:
    async def run() -> None:
        node.start()
        ticks = asyncio.create_task(node.tick())
        await node.fill()
        await node.relieve()
        ticks.cancel()
        assert node.log.full == ""
        assert node.log.start_offset > 0

    with running(tmp_path, segment_bytes_max) as node:
        asyncio.run(run())


@pytest.mark.parametrize("streams", [True, False])
def test_what_nobody_needs_goes_while_another_shard_has_no_space(tmp_path: Path, streams: bool) -> None:
    """That one may hold next to nothing, and this one write no more, so that it would never find the disk full."""

    async def run() -> None:
        node.start()
        ticks = asyncio.create_task(node.tick())
        for _ in range(100):
            node.broker.commit.append(message(b"t", bytes(8000)))
            await durable(node.broker.commit)
        await node.upkeep.turn()
        assert node.log.start_offset == 0
        free = SmallDisk(tmp_path).free_bytes(tmp_path)
        (tmp_path / "shard-1").write_bytes(bytes(free - (140 << 10)))
        assert not node.log.full
        for _ in range(20):
            await node.upkeep.turn()
            await asyncio.sleep(0.01)
        ticks.cancel()
        assert (node.log.start_offset > 0) == streams

    with running(tmp_path, 256 << 10, streams) as node:
        asyncio.run(run())


def test_the_reserve_is_given_to_a_shard_that_has_to_take_what_lies_here(tmp_path: Path) -> None:
    """It has no space to take it, and nothing goes here before it has: without the reserve both would wait for ever."""

    async def run() -> None:
        node.start()
        ticks = asyncio.create_task(node.tick())
        commit, follower = node.broker.commit, node.follower
        follower.follow(node.broker, 1)
        for _ in range(100):
            commit.append(message(b"t", bytes(8000), qos=1))
            await durable(commit)
        disk = SmallDisk(tmp_path)
        (tmp_path / "shard-1").write_bytes(bytes(disk.free_bytes(tmp_path) - (40 << 10)))
        await node.upkeep.turn()
        assert not node.log.full, "it may have been granted something just now"
        await node.upkeep.turn()
        await durable(commit)
        assert node.log.full == LENT
        assert disk.free_bytes(tmp_path) > 150 << 10
        assert node.log.room() > 90 << 10, "half of the reserve is for the progress of sessions"
        (tmp_path / "shard-1").unlink()
        for _ in range(3):
            await node.upkeep.turn()
        await node.relieve()
        ticks.cancel()
        assert not node.log.full

    with running(tmp_path, 256 << 10, streams=True, followed=True) as node:
        asyncio.run(run())


def publishers_wait(node: Running) -> bool:
    return node.broker.gate.full


async def some_turns(node: Running) -> None:
    """Longer than a full disk is looked at again, and more often."""
    for _ in range(8):
        await node.upkeep.turn()
        await durable(node.broker.commit)
        await asyncio.sleep(0.1)


def test_what_is_given_to_others_is_not_taken_and_given_by_turns(tmp_path: Path) -> None:
    """The follower that takes nothing may have been stopped; each turn would be two lines in the log."""

    async def run() -> None:
        node.start()
        ticks = asyncio.create_task(node.tick())
        commit = node.broker.commit
        node.follower.follow(node.broker, 1)
        for _ in range(100):
            commit.append(message(b"t", bytes(8000), qos=1))
            await durable(commit)
        disk, other = SmallDisk(tmp_path), tmp_path / "shard-1"
        other.write_bytes(bytes(disk.free_bytes(tmp_path) - (150 << 10)))
        assert node.log.short
        await some_turns(node)
        assert node.said == [], "there is as much as a shard that is full gets by on"
        other.write_bytes(bytes(other.stat().st_size + (50 << 10)))
        await some_turns(node)
        assert node.said == [LENT]
        other.write_bytes(bytes(other.stat().st_size - (20 << 10)))
        node.follower.grant(node.broker, 100_000)
        await some_turns(node)
        assert node.said == [LENT], "it has not got all"
        node.follower.grant(node.broker, 10_000_000)
        await some_turns(node)
        ticks.cancel()
        assert node.said == [LENT, ""]

    with running(tmp_path, 256 << 10, streams=True, followed=True) as node:
        asyncio.run(run())


@pytest.mark.parametrize("is_there", [True, False])
def test_what_nobody_needs_goes_while_publishers_wait_for_another_shard(
    tmp_path: Path, is_there: bool
) -> None:
    """There is more than a shard that is short of space has, and nobody writes, so that it would never be."""

    async def run() -> None:
        node.start()
        ticks = asyncio.create_task(node.tick())
        broker, follower = node.broker, node.follower
        follower.follow(broker, 10_000_000)
        assert isinstance(broker.neighbours, Neighbours)
        for _ in range(100):
            broker.commit.append(message(b"u", bytes(8000)))
            await durable(broker.commit)
        broker.commit.append(stream_record(FOLLOWED, 1, [(1, 100)]))
        broker.neighbours.heard(follower, Filled(False))
        disk, other = SmallDisk(tmp_path), tmp_path / "shard-1"
        other.write_bytes(bytes(disk.free_bytes(tmp_path) - (200 << 10)))
        await some_turns(node)
        assert (node.log.short, node.log.start_offset) == (False, 0)
        if is_there:
            broker.neighbours.heard(follower, Filled(True))
        else:
            broker.neighbours.broken(follower)
        assert publishers_wait(node)
        for _ in range(10):
            broker.neighbours.on_timer()
            await some_turns(node)
            if not publishers_wait(node):
                break
        ticks.cancel()
        assert node.log.start_offset > 0
        assert not publishers_wait(node)
        await node.upkeep.turn()
        assert not node.log.short, "it is as before"

    with running(tmp_path, 256 << 10, streams=True, followed=True) as node:
        asyncio.run(run())


def test_what_a_session_waits_for_stays(tmp_path: Path) -> None:
    async def run() -> None:
        node.start()
        ticks = asyncio.create_task(node.tick())
        broker = node.broker
        first = message(b"t", b"needed")
        offset = broker.commit.append(first)
        await durable(broker.commit)
        await node.fill()
        one = message(b"r", b"needed")
        one.offset, one.flags = offset, one.flags | 4
        broker.fold.tenant("default").retained.apply(one)  # somebody refers to it
        await node.relieve()
        ticks.cancel()
        assert node.log.full == ""
        assert node.log.start_offset == 0
        found = LocalJournal(node.log, OffsetOutOfRange).fetch(offset)
        assert isinstance(found, Message)
        assert found.payload == b"needed"

    with running(tmp_path, 256 << 10) as node:
        asyncio.run(run())


def test_what_a_consumer_has_not_read_stays(tmp_path: Path) -> None:
    async def run() -> None:
        node.start()
        ticks = asyncio.create_task(node.tick())
        ConsumerPosition.register(tmp_path, "archive", node.log.uuid, node.log.epoch, 0)
        await node.fill()
        for _ in range(20):
            await node.upkeep.turn()
            await asyncio.sleep(0.01)
        assert node.log.full
        assert node.log.start_offset == 0
        ConsumerPosition.commit(
            tmp_path, "archive", node.log.uuid, node.log.epoch, node.log.high_watermark - 20
        )
        await node.relieve()
        ticks.cancel()
        assert node.log.full == ""

    with running(tmp_path, 256 << 10) as node:
        asyncio.run(run())
