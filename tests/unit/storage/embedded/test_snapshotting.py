"""When a snapshot is full, when it holds changes, and when none is taken."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import message
from headrace.core.ports.clock import Clock
from headrace.core.ports.settings import BrokerSettings
from headrace.core.worker import Worker
from headrace.journal.errors import OffsetOutOfRange
from headrace.journal.log import LogSettings, SegmentedLog
from headrace.journal.snapshot import newest_chain
from headrace.services.watchdog import Watchdog
from headrace.storage.embedded.local import LocalJournal
from headrace.storage.embedded.snapshotting import (
    CHANGES_MAX,
    FULL_SHARE_OF_JOURNAL,
    RETRY_S,
    Folder,
    Snapshotting,
    durable,
)
from headrace.storage.memory import ManualScheduler


class Running:
    """A broker over a real log, without sockets."""

    def __init__(self, folder: Path) -> None:
        self.log = SegmentedLog.open(folder, LogSettings(durability="os"), print)
        clock = Clock()
        clock.now_us = 1
        self.broker = Worker(ManualScheduler(), clock, BrokerSettings()).own(
            0, LocalJournal(self.log, OffsetOutOfRange)
        )
        self.now = 0.0
        self.snapshots = Snapshotting(self.broker, Folder(self.log), 1000, 3600, Watchdog(), lambda: self.now)

    def start(self) -> None:
        """Within the loop."""
        loop = asyncio.get_running_loop()

        def on_durable(offset: int) -> None:
            loop.call_soon_threadsafe(self.broker.commit.on_high_watermark, offset)

        self.log.start(on_durable, self.broker.commit.on_failure)

    async def publish(self, payload: bytes = b"x", topic: bytes = b"t") -> None:
        one = message(topic, payload)
        one.flags |= 4  # retained: state that a snapshot has
        self.broker.commit.append(one)
        ticks = asyncio.create_task(self.tick())
        await durable(self.broker.commit)
        ticks.cancel()

    async def tick(self) -> None:
        while True:
            self.broker.worker.end_tick()
            await asyncio.sleep(0.001)

    async def take(self) -> list[int | None]:
        """The parents in the chain afterwards: None is a full one."""
        ticks = asyncio.create_task(self.tick())
        await self.snapshots.take()
        ticks.cancel()
        return [found.parent for found in newest_chain(self.log.directory)]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    found = Running(tmp_path)
    yield found
    found.log.close()


def test_full_once_then_changes_until_they_are_many_or_a_full_one_is_cheap(running: Running) -> None:
    async def run() -> None:
        running.start()
        await running.publish(b"x" * 10_000, b"large")
        assert await running.take() == [None]
        for count in range(1, CHANGES_MAX + 1):
            await running.publish(b"%d" % count)
            parents = await running.take()
            assert parents[0] is None
            assert None not in parents[1:]
            assert len(parents) == 1 + count
        await running.publish(b"one too many")
        assert await running.take() == [None]
        await running.publish(b"more")
        await running.take()
        for _ in range(FULL_SHARE_OF_JOURNAL + 2):
            await running.publish(b"x" * 10_000)
        assert await running.take() == [None]

    asyncio.run(run())


def test_nothing_new_nothing_written(running: Running) -> None:
    async def run() -> None:
        running.start()
        await running.publish()
        await running.take()
        before = sorted(path.name for path in running.log.directory.iterdir())
        await running.take()
        assert sorted(path.name for path in running.log.directory.iterdir()) == before

    asyncio.run(run())


def test_one_that_was_given_up_is_followed_by_a_full_one(running: Running) -> None:
    async def run() -> None:
        running.start()
        await running.publish(b"x" * 10_000)
        await running.take()
        await running.publish(b"seen by the one that is given up")
        given_up = asyncio.create_task(running.snapshots.take())
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert not list(running.log.directory.glob("*.tmp"))
        await running.publish(b"another")
        assert await running.take() == [None]

    asyncio.run(run())


def test_a_journal_that_failed_ends_the_wait(running: Running) -> None:
    async def run() -> None:
        running.broker.commit.append(message())
        running.broker.commit.on_failure(OSError("gone"))
        with pytest.raises(OSError, match="the journal has failed"):
            await running.snapshots.take()

    asyncio.run(run())


def test_due_after_bytes_but_not_before_four_times_its_size(running: Running) -> None:
    async def run() -> None:
        running.start()
        assert not running.snapshots.due()
        await running.publish(b"x" * 1000)
        assert running.snapshots.due()
        await running.publish(b"x" * 10_000)
        await running.take()
        await running.publish(b"x" * 20_000)
        assert not running.snapshots.due()
        await running.publish(b"x" * 22_000)
        assert running.snapshots.due()

    asyncio.run(run())


def test_one_that_failed_is_tried_again_soon(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after as many bytes as if it had succeeded: until then nothing of the journal could be deleted."""

    async def run() -> None:
        running.start()
        await running.publish(b"x" * 1000)
        assert running.snapshots.due()
        with monkeypatch.context() as patched:
            patched.setattr("headrace.storage.embedded.snapshotting.SnapshotWriter.commit", _no_descriptor)
            with pytest.raises(OSError, match="too many"):
                await running.take()
        assert not running.snapshots.due(), "not at once"
        running.now += RETRY_S
        assert running.snapshots.due()
        assert await running.take() == [None]
        running.now += RETRY_S
        assert not running.snapshots.due()

    asyncio.run(run())


def _no_descriptor(*_: object) -> None:
    raise OSError(24, "too many open files")
