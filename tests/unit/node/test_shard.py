"""A shard over its journal on disk: it recovers what it was told, names itself in trouble, and keeps what others need."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from harness import message
from headrace.core.commit import Deferred
from headrace.core.homes import Homes
from headrace.core.ports.clock import Clock
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.message import Given, copy_of
from headrace.core.records.message_id import JournalName, Origin
from headrace.core.records.stream_record import FOLLOWED, stream_record
from headrace.core.shards.alone import Alone
from headrace.core.worker import Worker
from headrace.journal.backup import backup
from headrace.journal.disk import DISK
from headrace.journal.errors import JournalLocked
from headrace.journal.lock import lock_data_dir
from headrace.journal.log import LogSettings
from headrace.journal.restore import restore
from headrace.node.shard import (
    WINDOW_BYTES_LEAST,
    OwnedShard,
    Surroundings,
    _streams,
    settle,
)
from headrace.services.ticks import LoopScheduler
from headrace.services.watchdog import Watchdog
from headrace.storage.embedded.storage import EmbeddedSettings, EmbeddedStorage, Listening, name_of

LOG = LogSettings(segment_bytes_max=4096, retention_bytes=16384)


def storage_of(
    folder: Path, watchdog: Watchdog, count: int, number: int, patient: bool = False
) -> EmbeddedStorage:
    """The storage of one shard of so many."""
    settings = EmbeddedSettings(replace(LOG, streams=count > 1), 1 << 40, 3600.0)
    listening = Listening(print, lambda _: None, watchdog)
    return EmbeddedStorage(folder, settings, listening, str(number) if count > 1 else "", patient)


def logger(capture: LogCapture) -> Any:
    """A logger of its own: the one of all is what the program has made it."""
    return structlog.wrap_logger(None, processors=[capture], wrapper_class=structlog.BoundLogger)


class Holding:
    """A worker with so many shards, all of them here."""

    def __init__(self, folder: Path, count: int, capture: LogCapture) -> None:
        clock = Clock()
        clock.now_us = 1_790_000_000_000_000
        watchdog = Watchdog()
        scheduler = LoopScheduler(asyncio.get_running_loop(), watchdog)
        self.worker = Worker(scheduler, clock, BrokerSettings(), Homes(count))
        scheduler.end_tick = self.worker.end_tick
        self.stopped = 0
        around = Surroundings(self.worker, watchdog, "hold", self.stop, logger(capture))
        self.storages = [storage_of(folder / f"shard-{n}", watchdog, count, n) for n in range(count)]
        self.logs = [storage.log for storage in self.storages]
        self.shards = [OwnedShard(n, storage, around) for n, storage in enumerate(self.storages)]
        for shard in self.shards:
            shard.recover(freeze=False)
        for shard in self.shards:
            shard.name_sources({one.number: one.name for one in self.shards})
            shard.start(None)

    def stop(self, shard: int) -> None:
        self.stopped += 1

    async def end(self) -> None:
        for shard in self.shards:
            shard.rest()
            shard.close_sessions()
        await settle(self.worker, self.shards)
        for shard in self.shards:
            await shard.snapshot()
            shard.close()


def run(folder: Path, count: int, look: Callable[[Holding], None]) -> list[dict[str, object]]:
    """Own shards, look at them, and stop; returns what was logged."""

    capture = LogCapture()

    async def life() -> None:
        holding = Holding(folder, count, capture)
        await settle(holding.worker, holding.shards)
        for shard in holding.shards:
            shard.begin()
        look(holding)
        await settle(holding.worker, holding.shards)
        await holding.end()

    asyncio.run(life())
    return [dict(line) for line in capture.entries]


def test_each_shard_recovers_what_it_was_told(tmp_path: Path) -> None:
    def tell(holding: Holding) -> None:
        for shard in holding.shards:
            for _ in range(shard.number + 1):
                shard.broker.commit.append(message())

    found: list[int] = []
    run(tmp_path, 3, tell)
    lines = run(tmp_path, 3, lambda holding: found.extend(log.high_watermark for log in holding.logs))
    assert found == [3, 4, 5]  # and a record for each of two starts
    recovered = [line for line in lines if line["event"] == "recovered"]
    assert [line["shard"] for line in recovered] == [0, 1, 2]


def test_one_shard_alone_is_named_nowhere(tmp_path: Path) -> None:
    def look(holding: Holding) -> None:
        [shard] = holding.shards
        assert type(shard.broker.neighbours) is Alone
        figures = holding.storages[0].figures
        assert figures is not None
        assert figures.shard == ""
        shard._fail(OSError(errno.EIO, "no such luck"))
        assert shard.trouble == "journal failed: [Errno 5] no such luck"

    assert not any("shard" in line for line in run(tmp_path, 1, look))


def test_who_is_in_trouble_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    def look(holding: Holding) -> None:
        first, second = holding.shards
        assert (first.trouble, second.trouble) == ("", "")
        second._set_full("No space left on device", True)
        assert second.trouble == "shard 1: the journal's disk is full: No space left on device"
        assert second.broker.gate.full
        assert not first.broker.gate.full
        first.broker.gate.set_others_full(True)
        assert first.trouble.startswith("shard 0: little space is left, and another shard's disk is full")
        first.broker.gate.set_others_full(False)
        second._set_full("", False)
        assert second.trouble == ""
        second._fail(OSError(errno.EIO, "no such luck"))
        assert second.trouble == "shard 1: journal failed: [Errno 5] no such luck"
        assert (first.trouble, holding.stopped) == ("", 1)
        first.broker.commit.append(message())

    ends: list[int] = []
    run(tmp_path, 2, look)
    run(tmp_path, 2, lambda holding: ends.append(holding.logs[0].high_watermark))
    assert ends == [3]


def test_a_shard_keeps_what_another_one_has_not_read(tmp_path: Path) -> None:
    floors: list[int] = []

    async def life() -> None:
        holding = Holding(tmp_path, 2, LogCapture())
        shard = holding.shards[0]
        for _ in range(20):
            shard.broker.commit.append(message(payload=b"x" * 500))
        await settle(holding.worker, holding.shards)
        await shard.snapshot()
        floors.append(holding.logs[0]._floor)
        shard.broker.commit.append(stream_record(FOLLOWED, 1, [(1, 7)]))
        await settle(holding.worker, holding.shards)
        await shard.snapshot()
        floors.append(holding.logs[0]._floor)
        await holding.end()

    asyncio.run(life())
    assert floors == [0, 7]


def test_a_copy_has_the_message_id_of_the_shard_it_came_from(tmp_path: Path) -> None:
    def look(holding: Holding) -> None:
        first, second = holding.shards
        original = message()
        original.offset = 5
        copy = copy_of(original, 0, 5)
        copy.offset = 99
        assert second.name.id_of(copy) == first.name.id_of(original)
        assert second.name.id_of(original) != first.name.id_of(original)

    run(tmp_path, 2, look)


@pytest.mark.parametrize("source", [0, 1])
def test_a_retained_message_that_a_session_was_given_has_the_message_id_of_where_it_was_published(
    tmp_path: Path, source: int
) -> None:
    """Published to shard `source`, kept by another one, and given to a session of shard 1."""

    def look(holding: Holding) -> None:
        original = message()
        original.offset = 5
        given = Given(copy_of(original, source, 5))
        given.offset = 99
        assert holding.shards[1].name.id_of(given) == holding.shards[source].name.id_of(original)

    run(tmp_path, 2, look)


@pytest.mark.interpreted  # what it defers is a class of its own; `shard` is interpreted in both builds
def test_what_is_durable_takes_effect_as_of_now(tmp_path: Path) -> None:
    """The process may have stood still since the clock was set: what has expired meanwhile is not to be delivered."""
    seen: list[int] = []

    class Looking(Deferred):
        def __init__(self, clock: Clock) -> None:
            super().__init__()
            self.clock = clock

        def run(self) -> None:
            seen.append(self.clock.now_us)

    async def life() -> None:
        holding = Holding(tmp_path, 1, LogCapture())
        (shard,) = holding.shards
        clock = holding.worker.clock
        shard.broker.commit.append(message())
        shard.broker.commit.defer(Looking(clock))
        holding.worker.end_tick()
        clock.now_us = 1
        await settle(holding.worker, holding.shards)
        await holding.end()

    before_us = time.time_ns() // 1000
    asyncio.run(life())
    assert before_us <= seen[0] <= time.time_ns() // 1000


def test_the_lock_of_a_worker_that_ends_is_waited_for(tmp_path: Path) -> None:
    async def own(patient: bool) -> None:
        storage_of(tmp_path, Watchdog(), 2, 1, patient).close()

    fd = lock_data_dir(DISK, tmp_path)
    with pytest.raises(JournalLocked):
        asyncio.run(own(patient=False))
    timer = Timer(0.2, DISK.close, (fd,))
    timer.start()
    asyncio.run(own(patient=True))
    timer.join()


def test_the_journal_of_another_worker_has_the_name_that_it_gives_itself(tmp_path: Path) -> None:
    names: list[bytes] = []
    original = message()
    original.offset = 0
    run(tmp_path, 2, lambda holding: names.append(holding.shards[0].name.id_of(original)))
    named = name_of(tmp_path / "shard-0", logger(LogCapture()))
    assert named is not None
    assert named.id_of(original) == names[0]


def test_what_was_copied_into_the_journal_of_another_worker_has_the_name_of_its_origin(
    tmp_path: Path,
) -> None:
    """What it retains was published before the data directory was divided, and may be given to a session here."""
    run(tmp_path, 2, lambda holding: holding.worker.end_tick())
    origin = Origin("old", 100, [(0, 7)])
    named = name_of(tmp_path / "shard-0", logger(LogCapture()), origin)
    assert named is not None
    assert named.differs_from(JournalName("old", [(0, 7)]), 100) == -1


def test_epochs_of_records_that_are_gone_are_known_after_a_start(tmp_path: Path) -> None:
    """A snapshot has them: the records that are there tell of themselves alone. A backup was restored meanwhile."""
    names: list[JournalName] = []
    spans: list[tuple[int, int]] = []

    async def life(folder: Path) -> None:
        holding = Holding(folder, 1, LogCapture())
        (shard,) = holding.shards
        names.append(shard.name)
        for _ in range(40):
            shard.broker.commit.append(message(payload=b"x" * 500))
            await settle(holding.worker, holding.shards)
        await shard.snapshot()
        holding.logs[0].apply_retention()
        spans.append((holding.logs[0].start_offset, holding.logs[0].high_watermark))
        await holding.end()

    asyncio.run(life(tmp_path / "one"))
    backup(tmp_path / "one" / "shard-0", tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "two" / "shard-0")
    asyncio.run(life(tmp_path / "two"))
    asyncio.run(life(tmp_path / "two"))
    restored_at = spans[1][1] - 40
    assert spans[2][0] > restored_at > 40  # nothing is there of the epoch before
    assert names[1].differs_from(names[0], restored_at - 2) == -1
    assert names[2].differs_from(names[1], spans[1][1]) == -1
    assert names[2].differs_from(names[0], spans[2][0]) > 0


def test_a_journal_that_cannot_be_read_has_no_name_and_its_copies_are_taken_for_nothing_else(
    tmp_path: Path,
) -> None:
    capture = LogCapture()
    assert name_of(tmp_path / "nowhere", logger(capture)) is None
    assert len(capture.entries) == 1
    copy, other = copy_of(message(), 1, 5), message()
    copy.offset, other.offset = 9, 5
    name = JournalName("u", [(0, 1)])
    assert name.id_of(copy) != name.id_of(other)


@pytest.mark.parametrize(
    ("others", "reserve_bytes", "window"),
    [
        (1, 16 << 20, 4 << 20),
        (4, 16 << 20, 1 << 20),
        (1, 4 << 20, 1 << 20),
        (1, 0, 4 << 20),
        (9, 1, WINDOW_BYTES_LEAST),
    ],
)
def test_what_is_on_its_way_to_a_shard_fits_into_what_is_kept_back_for_a_full_disk(
    others: int, reserve_bytes: int, window: int
) -> None:
    assert _streams(others, reserve_bytes).window_bytes == window
