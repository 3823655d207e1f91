"""A shard over a partition, without a broker: what it says when Kafka, or somebody else, does what it should not."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID
from zlib import crc32

import pytest

from harness import message
from headrace.core.homes import Homes
from headrace.core.ports.clock import Clock
from headrace.core.ports.journal import GONE, NOT_NOW
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.message import Message
from headrace.core.records.record import FLAG_RETAIN
from headrace.core.worker import Worker
from headrace.journal.disk import Disk
from headrace.journal.errors import JournalError, JournalLocked, UnsupportedFormat
from headrace.journal.segment import BATCH_HEADER_SIZE, seed_of
from headrace.services.ticks import LoopScheduler
from headrace.services.watchdog import Watchdog
from headrace.storage.kafka import snapshot_place
from headrace.storage.kafka import storage as module
from headrace.storage.kafka.cache import DIRECTORY, ENTRY_HEADER_SIZE, FILE_HEADER_SIZE, CacheDamaged
from headrace.storage.kafka.envelope import FLOOR, LEVEL, pack_owned, unpack, uuid_of
from headrace.storage.kafka.journal_reader import KafkaJournalReader
from headrace.storage.kafka.storage import (
    KafkaLost,
    KafkaSilent,
    KafkaStorage,
    NotNamed,
    ShardElsewhere,
)
from headrace.storage.kafka.topics import KafkaUnusable
from headrace.storage.port import StorageEvents
from kafka_partition import FakeShard, ShownPartition

DEADLINE_S = 10.0


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Run:
    """A broker over a storage over a fake partition; it notes what it hears."""

    def __init__(self, partition: FakeShard, folder: Path, **more: Any) -> None:
        self.time = Time()
        self.said: list[str] = []
        self.storage = KafkaStorage(partition.settings(**more), folder, self.said.append, self.time)
        self.heard: list[object] = []
        clock = Clock()
        clock.now_us = 1_790_000_000_000_000
        scheduler = LoopScheduler(asyncio.get_running_loop(), Watchdog())
        self.worker = Worker(scheduler, clock, BrokerSettings(), Homes())
        scheduler.end_tick = self.worker.end_tick
        self.broker = self.worker.own(0, self.storage.journal)
        try:
            self.found = self.storage.recover(self.broker, self.said.append)
        except BaseException:
            self.storage.close()
            raise

    def start(self) -> None:
        self.storage.start(StorageEvents(self.durable, self.failed, self.full), None)

    def durable(self, high_watermark: int) -> None:
        self.broker.commit.on_high_watermark(high_watermark)

    def failed(self, error: BaseException) -> None:
        self.heard.append(error)

    def full(self, reason: str, for_space: bool) -> None:
        self.heard.append((reason, for_space))

    def append(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.broker.commit.append(message(payload=payload))
        self.worker.end_tick()

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.001)

    async def write(self, *payloads: bytes) -> None:
        self.append(*payloads)
        await self.until(lambda: self.broker.idle)

    def payloads(self) -> list[bytes]:
        count = self.storage.high_watermark
        found = [self.storage.journal.fetch(offset) for offset in range(count)]
        return [one.payload for one in found if isinstance(one, Message)]


def lived(partition: FakeShard, folder: Path, look: Callable[[Run], Awaitable[None]]) -> None:
    async def life() -> None:
        run = Run(partition, folder)
        try:
            run.start()
            await look(run)
        finally:
            run.storage.close()

    asyncio.run(life())


async def write_three(run: Run) -> None:
    await run.write(b"one", b"two")
    await run.write(b"three")


async def see_three(run: Run) -> None:
    assert run.found.replayed == 3
    assert run.payloads() == [b"one", b"two", b"three"]


@pytest.mark.parametrize("second", ["same", "another"])
def test_an_owner_finds_everything_with_the_cache_or_without(tmp_path: Path, second: str) -> None:
    partition = FakeShard()
    lived(partition, tmp_path / "same", write_three)
    lived(partition, tmp_path / second, see_three)


def test_a_cache_that_is_behind_is_gone_on_from(tmp_path: Path) -> None:
    partition = FakeShard()

    async def write_one(run: Run) -> None:
        await run.write(b"one", b"two")

    async def write_another(run: Run) -> None:
        await run.write(b"three")

    lived(partition, tmp_path / "a", write_one)
    lived(partition, tmp_path / "b", write_another)
    lived(partition, tmp_path / "a", see_three)


def test_another_topic_s_cache_is_of_no_use(tmp_path: Path) -> None:
    lived(FakeShard(), tmp_path, write_three)

    async def life() -> None:
        storage = KafkaStorage(FakeShard().settings(topic="other"), tmp_path, print)
        try:
            assert storage.uuid != str(UUID(bytes=uuid_of("topic", 0)))
            assert storage.behind(0) == (0, 0)
            assert not list((tmp_path / DIRECTORY).iterdir())
        finally:
            storage.close()

    asyncio.run(life())


def test_one_process_has_the_cache(tmp_path: Path) -> None:
    async def look(run: Run) -> None:
        with pytest.raises(JournalLocked):
            KafkaStorage(FakeShard().settings("n1/0"), tmp_path, print)

    lived(FakeShard(), tmp_path, look)


def test_a_report_that_never_comes_is_found_out_by_reading(tmp_path: Path) -> None:
    partition = FakeShard()

    async def look(run: Run) -> None:
        partition.answers = False
        run.append(b"one")
        await asyncio.sleep(0)
        assert not run.broker.idle
        partition.answers = True
        run.time.now += 6.0
        await run.until(lambda: run.heard[:1] == [("Kafka has not answered for 5 s", False)])
        run.time.now += 1.0
        await run.until(lambda: run.heard[-1] == ("", False))
        await run.until(lambda: run.broker.idle)
        assert run.payloads() == [b"one"]

    lived(partition, tmp_path, look)


def test_kafka_that_is_away_for_a_while_costs_nothing_but_time(tmp_path: Path) -> None:
    partition = FakeShard()

    async def look(run: Run) -> None:
        partition.is_away = True
        run.append(b"one")
        for _ in range(4):
            run.time.now += 6.0
            await asyncio.sleep(0.15)
        assert run.heard == [("Kafka has not answered for 5 s", False)]
        partition.is_away = False
        run.time.now += 11.0
        await run.until(lambda: run.broker.idle)
        await run.write(b"two")
        assert run.payloads() == [b"one", b"two"]

    lived(partition, tmp_path, look)


def test_an_owner_that_is_replaced_fails_and_names_who_owns(tmp_path: Path) -> None:
    partition = FakeShard()

    async def look(run: Run) -> None:
        await run.write(b"one")
        owner = run.storage._owner.fold.owner
        partition.values.append(pack_owned(seed_of(uuid_of("topic", 0)), b"z" * 16, owner, "n1/0"))
        run.append(b"two")
        await run.until(lambda: bool(run.heard))
        (error,) = run.heard
        assert isinstance(error, ShardElsewhere)
        assert "n1/0" in str(error)
        assert not run.broker.idle

    lived(partition, tmp_path, look)


def test_an_owner_that_writes_a_newer_format_ends_the_shard_and_is_named(tmp_path: Path) -> None:
    shard = FakeShard()

    async def look(run: Run) -> None:
        await run.write(b"one")
        seed = seed_of(uuid_of("topic", 0))
        owned = bytearray(pack_owned(seed, b"z" * 16, run.storage._owner.fold.owner, "n1/0"))
        owned[8] = LEVEL + 1
        owned[4:8] = crc32(bytes(owned[8:]), seed).to_bytes(4, "little")
        shard.values.append(bytes(owned))
        run.append(b"two")
        await run.until(lambda: bool(run.heard))
        assert isinstance(run.heard[0], UnsupportedFormat)

    lived(shard, tmp_path / "a", look)
    with pytest.raises(UnsupportedFormat):
        lived(shard, tmp_path / "b", look)


def test_what_kafka_has_lost_is_named(tmp_path: Path) -> None:
    partition = FakeShard()

    async def look(run: Run) -> None:
        await run.write(b"one")
        partition.values.pop()
        run.time.now += 6.0
        await run.until(lambda: bool(run.heard))
        assert isinstance(run.heard[0], KafkaLost)

    lived(partition, tmp_path, look)
    with pytest.raises(KafkaLost, match="ends at Kafka offset"):
        lived(partition, tmp_path, see_three)


def test_a_partition_without_its_beginning_is_refused(tmp_path: Path) -> None:
    partition = FakeShard()
    lived(partition, tmp_path / "a", write_three)
    partition.start = 2
    with pytest.raises(KafkaLost, match="its oldest records are deleted"):
        lived(partition, tmp_path / "b", see_three)


def test_a_copy_of_a_journal_under_another_topic_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    shard = FakeShard()
    lived(shard, tmp_path / "a", write_three)
    before = list(shard.values)
    with pytest.raises(KafkaLost, match="the journal of another topic"):
        KafkaStorage(shard.settings(topic="copy"), tmp_path / "b", print)
    assert shard.values == before


def test_what_is_no_journal_does_not_keep_one_from_beginning(tmp_path: Path) -> None:
    shard = FakeShard()
    shard.values = [b"somebody tries it out", b""]
    lived(shard, tmp_path / "a", write_three)
    lived(shard, tmp_path / "b", see_three)


@pytest.mark.parametrize("hole", [0, 1])
def test_records_that_are_missing_in_the_midst_are_named(tmp_path: Path, hole: int) -> None:
    shard = FakeShard()
    lived(shard, tmp_path / "a", write_three)
    shard.holes = {hole}
    with pytest.raises(KafkaLost, match="Kafka offset"):
        lived(shard, tmp_path / "b", see_three)


def test_a_hole_while_it_is_owned_ends_the_shard(tmp_path: Path) -> None:
    shard = FakeShard()

    async def look(run: Run) -> None:
        await run.write(b"one")
        shard.holes = {len(shard.values)}
        shard.values.append(b"a marker")
        run.append(b"two")
        await run.until(lambda: bool(run.heard))
        assert isinstance(run.heard[0], JournalError)

    lived(shard, tmp_path / "a", look)
    with pytest.raises(KafkaLost):
        lived(shard, tmp_path / "a", see_three)


def test_a_start_without_an_answer_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_WITHIN_S", -1.0)
    partition = FakeShard()
    partition.is_away = True
    with pytest.raises(KafkaSilent):
        lived(partition, tmp_path, see_three)


def test_a_shard_that_the_group_does_not_name_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NAMED_WITHIN_S", 0.3)
    shard = FakeShard()
    with pytest.raises(NotNamed):
        KafkaStorage(shard.settings(ask=lambda _: None), tmp_path, print)
    assert shard.values == []
    asked: list[Callable[[], None]] = []

    def answer_the_second(tell: Callable[[], None]) -> None:
        asked.append(tell)
        if len(asked) == 2:
            tell()

    monkeypatch.setattr(module, "NAMED_WITHIN_S", 10.0)
    KafkaStorage(shard.settings(ask=answer_the_second), tmp_path, print).close()
    assert len(shard.values) == 1


def test_nothing_is_heard_once_it_is_given_up(tmp_path: Path) -> None:
    partition = FakeShard()

    async def look(run: Run) -> None:
        run.storage.close()
        partition.values.pop()
        run.time.now += 60.0
        await asyncio.sleep(0.2)
        assert run.heard == []

    lived(partition, tmp_path, look)


class FullDisk(Disk):
    """A disk without space as long as `is_full`."""

    is_full = True

    def write_fully(self, fd: int, buffers: Any, position: int) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write_fully(fd, buffers, position)


def test_what_the_cache_has_no_space_for_waits_and_is_not_lost(tmp_path: Path) -> None:
    shard = FakeShard()

    async def look(run: Run) -> None:
        await run.write(b"one")
        disk = run.storage._cache._disk = FullDisk()
        run.append(b"two")
        await run.until(lambda: bool(run.heard))
        assert run.heard == [("the cache cannot be written: No space left on device", False)]
        assert not run.broker.idle
        await asyncio.sleep(0.25)  # it is tried again, and told once
        disk.is_full = False
        await run.until(lambda: run.broker.idle)
        assert run.heard[1:] == [("", False)]
        assert run.payloads() == [b"one", b"two"]

    lived(shard, tmp_path, look)


def test_a_cache_that_cannot_be_opened_lets_the_directory_go(tmp_path: Path) -> None:
    (tmp_path / DIRECTORY).write_bytes(b"no directory")
    with pytest.raises(OSError):
        lived(FakeShard(), tmp_path, write_three)
    (tmp_path / DIRECTORY).unlink()
    lived(FakeShard(), tmp_path, write_three)


def damage(folder: Path) -> None:
    """Change a byte of the first batch in the cache, as a disk may."""
    path = min((folder / DIRECTORY).glob("*.cache"))
    data = bytearray(path.read_bytes())
    data[FILE_HEADER_SIZE + ENTRY_HEADER_SIZE + BATCH_HEADER_SIZE + 1] ^= 1
    path.write_bytes(data)


def test_a_cache_that_is_damaged_is_read_from_kafka_again(tmp_path: Path) -> None:
    shard = FakeShard()
    lived(shard, tmp_path, write_three)

    async def look(run: Run) -> None:
        damage(tmp_path)
        assert run.storage.journal.fetch(0) is NOT_NOW
        await run.until(lambda: bool(run.heard))
        assert isinstance(run.heard[0], CacheDamaged)
        assert run.storage.journal.fetch(2) is not NOT_NOW

    lived(shard, tmp_path, look)
    lived(shard, tmp_path, see_three)


def test_a_cache_that_is_found_damaged_at_a_start_is_of_use_at_none(tmp_path: Path) -> None:
    shard = FakeShard()
    lived(shard, tmp_path, write_three)
    damage(tmp_path)
    with pytest.raises(CacheDamaged):
        lived(shard, tmp_path, see_three)
    lived(shard, tmp_path, see_three)


# Snapshots


LARGE = bytes(4000)


async def two_snapshots(run: Run) -> None:
    """Take two full ones, each with a message behind it, of a state that refers to the message before both."""
    kept = message(topic=b"kept", payload=b"kept")
    kept.flags |= FLAG_RETAIN
    await run.write(LARGE)
    run.broker.commit.append(kept)
    for _ in range(2):
        await run.write(LARGE)
        await run.storage.snapshot()
    await run.write(b"last")


def retained(run: Run) -> list[bytes]:
    tenant = run.broker.fold.tenants["default"]
    return [one.payload for one in tenant.retained.walk_all().take(10)]


@pytest.mark.parametrize("second", ["same", "another"])
def test_a_snapshot_saves_a_start_the_replay_of_what_is_before_it(tmp_path: Path, second: str) -> None:
    shard = FakeShard()
    lived(shard, tmp_path / "same", two_snapshots)

    async def look(run: Run) -> None:
        assert (run.found.snapshot, run.found.replayed) == (4, 1)
        assert retained(run) == [b"kept"]
        assert run.payloads() == [LARGE, b"kept", LARGE, LARGE, b"last"]
        assert not [one for one in (tmp_path / second / DIRECTORY).iterdir() if one.suffix == ".pieces"]

    lived(shard, tmp_path / second, look)


async def much(run: Run) -> None:
    """Take three full snapshots of a state that refers to nothing."""
    for _ in range(3):
        await run.write(LARGE)
        await run.storage.snapshot()
    await run.write(b"last")


@pytest.mark.parametrize("second", ["same", "another", "behind"])
def test_what_nobody_needs_is_deleted_and_a_start_goes_on_from_what_is_left(
    tmp_path: Path, second: str
) -> None:
    shard = FakeShard()

    async def write_one(run: Run) -> None:
        await run.write(b"one")

    lived(shard, tmp_path / "behind", write_one)
    lived(shard, tmp_path / "same", much)
    assert shard.start > 0
    assert shard.snapshots.start > 0

    async def look(run: Run) -> None:
        assert (run.found.snapshot, run.found.replayed) == (4, 1)
        fetched = run.storage.journal.fetch(4)
        assert isinstance(fetched, Message)
        assert fetched.payload == b"last"
        if second != "same":
            assert run.storage.journal.fetch(0) is GONE
        await much(run)

    lived(shard, tmp_path / second, look)


def test_what_a_queue_refers_to_is_not_deleted(tmp_path: Path) -> None:
    shard = FakeShard()
    lived(shard, tmp_path / "a", two_snapshots)
    lived(shard, tmp_path / "a", much)
    assert shard.start == 0  # the only MARK before it is none

    async def look(run: Run) -> None:
        assert retained(run) == [b"kept"]
        fetched = run.storage.journal.fetch(1)
        assert isinstance(fetched, Message)
        assert fetched.payload == b"kept"

    lived(shard, tmp_path / "b", look)


def lived_with(shard: FakeShard, folder: Path, consumed: Callable[[], int | None]) -> list[str]:
    """Three full snapshots beside registered consumers; what the storage has said."""
    said: list[str] = []

    async def life() -> None:
        run = Run(shard, folder, consumed=consumed)
        try:
            run.start()
            await much(run)
            said.extend(run.said)
        finally:
            run.storage.close()

    asyncio.run(life())
    return said


def reads(shard: FakeShard) -> list[int]:
    """The first offsets of the batches that a reader without the shard finds from the oldest on."""
    reader = KafkaJournalReader(uuid_of("topic", 0), ShownPartition(shard), ShownPartition(shard.snapshots))
    return [batch.base_offset for batch in reader.scan(reader.start_offset())]


def test_what_a_registered_consumer_has_not_read_is_not_deleted(tmp_path: Path) -> None:
    shard = FakeShard()
    assert lived_with(shard, tmp_path, lambda: 0) == []
    assert (shard.start, reads(shard)) == (0, [0, 1, 2, 3])
    assert shard.snapshots.start > 0
    lived_with(shard, tmp_path, lambda: 2)
    assert shard.start > 0
    assert min(reads(shard)) in range(1, 3)
    lived_with(shard, tmp_path, lambda: None)
    assert min(reads(shard)) > 2


def test_who_registers_while_the_journal_is_let_go_keeps_it(tmp_path: Path) -> None:
    shard = FakeShard()
    asked: list[int | None] = []

    def consumed() -> int | None:
        asked.append(0 if any(is_floor(value) for value in shard.values) else None)
        return asked[-1]

    assert lived_with(shard, tmp_path, consumed) == []
    assert asked == [None, None, 0, 0]
    assert (shard.start, reads(shard)) == (0, [0, 1, 2, 3])


def test_an_owner_that_stood_still_while_it_asked_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has registered meanwhile may have found no FLOOR: another owner has written a manifest behind it."""
    shard = FakeShard()
    monkeypatch.setattr(snapshot_place, "ANSWERED_WITHIN_S", 0.02)

    def consumed() -> int | None:
        if any(is_floor(value) for value in shard.values):
            time.sleep(0.05)
        return None

    assert lived_with(shard, tmp_path, consumed) == []
    assert any(is_floor(value) for value in shard.values)
    assert (shard.start, reads(shard)) == (0, [0, 1, 2, 3])
    monkeypatch.undo()
    lived_with(shard, tmp_path, lambda: None)
    assert shard.start > 0


def is_floor(value: bytes) -> bool:
    found = unpack(seed_of(uuid_of("topic", 0)), value)
    return found is not None and found.kind == FLOOR


def test_while_nobody_knows_of_consumers_nothing_is_deleted(tmp_path: Path) -> None:
    shard = FakeShard()

    def fail() -> None:
        raise KafkaUnusable("away")

    said = lived_with(shard, tmp_path, fail)
    assert shard.start == 0
    assert "nothing is deleted" in said[0]


def test_an_owner_deletes_while_another_node_begins(tmp_path: Path) -> None:
    shard = FakeShard()
    lived(shard, tmp_path / "a", much)
    start, shard.start = shard.start, 0  # not every broker has deleted it yet

    def delete() -> None:
        shard.start = start

    shard.before_reading = delete

    async def look(run: Run) -> None:
        assert run.found.replayed == 1

    lived(shard, tmp_path / "b", look)


async def one_snapshot(run: Run) -> None:
    await run.write(LARGE)
    await run.storage.snapshot()


async def delete_up_to_what_is_kept(run: Run) -> None:
    """Take snapshots of a state that refers to a message behind the first of them, up to which is deleted."""
    await one_snapshot(run)
    kept = message(topic=b"kept", payload=b"kept")
    kept.flags |= FLAG_RETAIN
    run.broker.commit.append(kept)
    await one_snapshot(run)
    await one_snapshot(run)


def test_what_others_write_and_delete_while_a_shard_is_read_is_known_to_its_next_owner(
    tmp_path: Path,
) -> None:
    shard = FakeShard()
    lived(shard, tmp_path / "a", one_snapshot)
    early = list(shard.snapshots.values)
    lived(shard, tmp_path / "a", delete_up_to_what_is_kept)
    start, late = shard.start, shard.snapshots.values
    assert start > 0
    shard.start, shard.snapshots.values, shard.snapshots.start = 0, early, 0

    def show() -> None:
        shard.snapshots.values = late

    shard.before_reading = show  # the snapshots are read by then
    lived(shard, tmp_path / "b", one_snapshot)
    shard.start = start

    async def look(run: Run) -> None:
        assert retained(run) == [b"kept"]
        fetched = run.storage.journal.fetch(2)
        assert isinstance(fetched, Message)
        assert fetched.payload == b"kept"

    lived(shard, tmp_path / "c", look)


def test_a_journal_that_loses_what_a_snapshot_has_while_it_is_read_is_refused(tmp_path: Path) -> None:
    shard = FakeShard()
    lived(shard, tmp_path / "a", one_snapshot)
    readings = iter([1, 2])

    def lose_at_the_second() -> None:
        if next(readings, 0) == 2:
            shard.values.pop()

    shard.before_reading = lose_at_the_second
    with pytest.raises(KafkaLost, match="was there, and is no more"):
        lived(shard, tmp_path / "b", one_snapshot)


def test_a_partition_that_somebody_has_deleted_up_to_its_end_is_refused(tmp_path: Path) -> None:
    shard = FakeShard()

    async def look(run: Run) -> None:
        await run.write(LARGE)
        run.append(LARGE)  # on its way when the snapshot begins, so the MARK is behind its position
        await run.storage.snapshot()

    lived(shard, tmp_path / "a", look)
    shard.start = len(shard.values) - 1
    with pytest.raises(KafkaLost, match="no snapshot has them all"):
        lived(shard, tmp_path / "b", look)


def test_a_snapshot_that_kafka_does_not_take_is_tried_again(tmp_path: Path) -> None:
    shard = FakeShard()

    async def look(run: Run) -> None:
        await run.write(LARGE)
        shard.snapshots.refuses = "full"
        with pytest.raises(OSError, match="full"):
            await run.storage.snapshot()
        shard.snapshots.refuses = ""
        await run.storage.snapshot()

    async def see(run: Run) -> None:
        assert (run.found.snapshot, run.found.replayed) == (1, 0)
        await run.write(b"one more")

    lived(shard, tmp_path / "a", look)
    lived(shard, tmp_path / "b", see)


def test_no_snapshot_is_taken_while_kafka_is_away(tmp_path: Path) -> None:
    shard = FakeShard()

    async def look(run: Run) -> None:
        await run.write(LARGE)
        run.storage.away = "it does not answer"
        with pytest.raises(OSError, match="it does not answer"):
            await run.storage.snapshot()
        run.time.now += 3600.0
        await run.storage.keep_small()
        assert shard.snapshots.values == []
        run.storage.away = ""
        await run.storage.keep_small()
        assert len(shard.snapshots.values) == 2

    lived(shard, tmp_path, look)


@pytest.mark.parametrize("second", ["same", "another"])
@pytest.mark.parametrize("lost", [1, 2, 3, 4, 5, 6, 7, 8])
def test_a_journal_that_has_lost_what_a_snapshot_has_is_refused(
    tmp_path: Path, second: str, lost: int
) -> None:
    shard = FakeShard()

    async def look(run: Run) -> None:
        await run.write(LARGE)
        await run.write(LARGE)
        await run.storage.snapshot()

    lived(shard, tmp_path / "same", look)
    kept = shard.values[:-lost] if lost < len(shard.values) else []
    snapshots, shard.snapshots.values = shard.snapshots.values, []
    shard.values = kept
    if second == "another":
        with suppress(KafkaLost):
            lived(shard, tmp_path / "stranger", look)  # and others have taken the places of what was lost
    shard.snapshots.values = snapshots
    with pytest.raises(KafkaLost):
        lived(shard, tmp_path / second, look)
