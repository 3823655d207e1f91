"""A merge on a machine that lacks something: each of its calls fails, and whoever looks reads what was there before.

The disk is full, there are no descriptors or no memory, a sync fails; the broker lives on, reads on, and tries again.
And while segments are merged somebody copies the folder by hand, which nobody should: then the copy holds all of it, or
it is refused.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from faults.journal.crash_run import DATA_DIR
from faults.journal.simulated_disk import SimulatedDisk
from faults.journal.test_merging import (
    LIMITED,
    LIVE,
    RECORDS,
    check_everybody,
    check_start,
    compact,
    compacted,
    contents,
    merge,
    opened,
    record,
)
from headrace.journal.catalog import Segment
from headrace.journal.disk import DISK
from headrace.journal.errors import CorruptJournal, SyncFailed
from headrace.journal.inspect import verify
from headrace.journal.log import SegmentedLog
from headrace.journal.segment import split_records
from headrace.journal.snapshot import SnapshotWriter

CALLS = ("open", "create", "pread", "pwritev", "truncate", "rename", "unlink", "fsync", "fsync_directory")
TROUBLES: dict[str, tuple[Callable[[], BaseException], frozenset[str]]] = {
    "space": (lambda: OSError(errno.ENOSPC, "full"), frozenset(("create", "pwritev", "rename"))),
    "descriptors": (lambda: OSError(errno.EMFILE, "none"), frozenset(("open", "create", "fsync_directory"))),
    "memory": (MemoryError, frozenset(CALLS)),
    "input and output": (
        lambda: OSError(errno.EIO, "broken"),
        frozenset(CALLS) - {"fsync", "fsync_directory"},
    ),
    "syncs": (lambda: SyncFailed(errno.EIO, "broken"), frozenset(("fsync", "fsync_directory"))),
}


class Troubled(SimulatedDisk):
    """The call number `fails_at` of those in `calls_that_fail`, and `times` - 1 after it, raise what `trouble` makes."""

    fails_at = times = made = 0
    calls_that_fail: frozenset[str] = frozenset()
    trouble: Callable[[], BaseException] = MemoryError

    def __getattribute__(self, name: str) -> object:
        found = super().__getattribute__(name)
        if name not in CALLS or name not in self.calls_that_fail:
            return found

        def call(*arguments: object, **named: object) -> object:
            self.made += 1
            if self.fails_at <= self.made < self.fails_at + self.times:
                error = type(self).trouble if isinstance(self.trouble, type) else self.trouble
                self._forget_if_sync(name, arguments)
                raise error()
            return found(*arguments, **named)

        return call

    def _forget_if_sync(self, name: str, arguments: tuple[object, ...]) -> None:
        """As Linux does: what could not be synced counts as clean, and the next sync has nothing to say about it."""
        if name == "fsync":
            self._open[arguments[0]].fail_sync()  # type: ignore[index]
        elif name == "fsync_directory":
            self._pending = [change for change in self._pending if change[0].parent != arguments[0]]


def readable(log: SegmentedLog) -> None:
    """As sessions read, whatever became of the merge."""
    for offset in LIVE:
        batch = log.read_batch(offset)
        assert split_records(batch.body)[offset - batch.base_offset] == record(offset)
    assert sum(batch.count for batch in log.scan(0)) == RECORDS


def troubled_merge(disk: Troubled, kind: str, number: int, times: int, power: bool) -> bool:
    """Whether the trouble came before the merge was over."""
    disk.rng.seed(number)
    wanted = contents(disk)
    log = opened(disk)
    disk.trouble, disk.calls_that_fail = TROUBLES[kind]
    disk.made, disk.fails_at, disk.times = 0, number, times
    with suppress(OSError, MemoryError):
        merge(log)
    came = disk.made >= number
    disk.calls_that_fail = frozenset()
    readable(log)
    check_everybody(disk, wanted)
    for _ in range(2):  # at the next snapshots
        merge(log)
        readable(log)
        log.set_floor(0)
    check_everybody(disk, wanted)
    if power:
        disk.crash()
    else:
        log.close()
        disk.kill()
    check_everybody(disk, wanted)
    check_start(disk, wanted)
    return came


@pytest.mark.slow
@pytest.mark.parametrize("power", [True, pytest.param(False, marks=pytest.mark.deep)])
@pytest.mark.parametrize("kind", TROUBLES)
def test_each_call_of_a_merge_fails(kind: str, power: bool) -> None:
    """Once, or six times in a row."""
    disk = compacted(1, Troubled)
    number, came = 0, True
    while came:
        number += 1 + number // 5  # each of the first, and a part of the many reads behind them
        for times in (1, 6):
            trial = deepcopy(disk)
            assert isinstance(trial, Troubled)
            came = troubled_merge(trial, kind, number, times, power)
    assert number > 2


@pytest.mark.parametrize("seed", range(6))
def test_a_name_that_was_never_synced_is_written_anew_by_the_next_start(seed: int) -> None:
    """The directory's sync failed and says nothing more; then comes a start, and then the power goes."""
    disk = compacted(seed, Troubled)
    assert isinstance(disk, Troubled)
    wanted = contents(disk)
    log = opened(disk)
    disk.trouble, disk.calls_that_fail = TROUBLES["syncs"][0], frozenset(("fsync_directory",))
    disk.made, disk.fails_at, disk.times = 0, 1, 1
    with pytest.raises(SyncFailed):
        merge(log)
    disk.calls_that_fail = frozenset()
    assert log.mergeable() == []
    disk.kill()
    check_start(disk, wanted)
    disk.crash()
    check_everybody(disk, wanted)
    check_start(disk, wanted)


class NoRoom(SimulatedDisk):
    """Without space for what a merge or a start writes anew, while `is_full`."""

    is_full = False

    def copied(self, fd: int) -> bool:
        return any(
            name.name.endswith(".sparse.tmp") and file is self._open[fd] for name, file in self._names.items()
        )

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        if self.is_full and self.copied(fd):
            raise OSError(errno.ENOSPC, "full")
        return super().pwritev(fd, buffers, position)


def test_a_start_on_a_full_disk_leaves_what_it_cannot_write_anew() -> None:
    disk = compacted(1, NoRoom)
    assert isinstance(disk, NoRoom)
    wanted = contents(disk)
    log = opened(disk)
    steps = merging_steps(log)
    for _ in range(3):  # until the merged one has its name
        next(steps)
    disk.kill()
    names = [name for name in disk.names(log.directory) if name.endswith(".log")]
    disk.is_full = True
    reports: list[str] = []
    log = SegmentedLog.open(DATA_DIR, LIMITED, reports.append, disk)
    assert "segments that were merged into another one cannot be removed yet: full" in reports
    assert [name for name in disk.names(log.directory) if name.endswith((".log", ".tmp"))] == names
    readable(log)
    log.close()
    check_everybody(disk, wanted)
    disk.is_full = False
    check_start(disk, wanted)


def test_retention_takes_what_was_merged_into_its_own_segment_alone() -> None:
    """The file of another one, whose merge is not durable, stays."""
    disk = compacted(1, Troubled)
    assert isinstance(disk, Troubled)
    log = opened(disk)
    disk.trouble, disk.calls_that_fail = TROUBLES["descriptors"][0], frozenset(("fsync_directory",))
    disk.made, disk.fails_at, disk.times = 0, 1, 1
    with pytest.raises(OSError, match="none"):
        merge(log)
    left = list(log._catalog.leftovers)
    assert left
    log._catalog.leftovers.append(log.directory / f"{RECORDS:020d}.log")
    log.set_floor(RECORDS)
    SnapshotWriter(log.directory, RECORDS, disk).commit()
    log._catalog.remove_first()
    assert log._catalog.leftovers == [log.directory / f"{RECORDS:020d}.log"]


# A person copies the folder


class Copying:
    """The files of a directory, one after the other, by the names that were there at first."""

    def __init__(self, source: Path, target: Path, order: Callable[[list[Path]], None]) -> None:
        self.source, self.target = source, target
        self._left = [path.relative_to(source) for path in source.rglob("*") if path.is_file()]
        order(self._left)

    def copy(self, count: int) -> None:
        part, self._left = self._left[:count], self._left[count:]
        for name in part:
            (self.target / name).parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # and says so, and goes on
                shutil.copyfile(self.source / name, self.target / name)


def merging_steps(log: SegmentedLog) -> Iterator[None]:
    """Between the steps of a merge."""
    for segment in log.compactable():
        log.count_kept(segment)
    yield
    for group in log.mergeable():
        new: Segment = log.merge(group)
        yield
        log.adopt_merged(new, group)
        yield
        log.remove_leftovers()
        yield


@pytest.mark.parametrize("seed", range(12))
def test_a_folder_that_is_copied_meanwhile_holds_all_or_is_refused(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    data, target = tmp_path / "data", tmp_path / "copy"
    limits = replace(LIMITED, reserve_bytes=0)
    log = SegmentedLog.open(data, limits, lambda _: None, DISK)
    for offset in range(RECORDS):
        log.append(record(offset), 1, offset + 1, offset + 1)
    log.close()
    log = SegmentedLog.open(data, limits, lambda _: None, DISK)
    SnapshotWriter(log.directory, log.high_watermark).commit()
    log.set_floor(0)
    compact(log, LIVE)
    wanted = [(batch.base_offset, batch.count, batch.body) for batch in log.scan(0)]
    order: Callable[[list[Path]], None] = rng.choice((list.sort, list.reverse, rng.shuffle))
    copying = Copying(data, target, order)
    for _ in merging_steps(log):
        copying.copy(rng.randrange(25))
    copying.copy(1000)
    log.close()
    report = verify(target)
    try:
        again = SegmentedLog.open(target, limits, lambda _: None, DISK)
    except CorruptJournal:
        assert not report.ok, "a start refuses what verify finds sound"
        return
    assert report.ok, report.lines()
    assert [(batch.base_offset, batch.count, batch.body) for batch in again.scan(0)] == wanted
    again.close()
