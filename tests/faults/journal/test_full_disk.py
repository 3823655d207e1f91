"""A full disk: nothing is acknowledged that is not written, the reserve is lived on, and space that returns ends it."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from faults.journal.crash_run import DATA_DIR, SMALL, Run, content, reopened
from faults.journal.simulated_disk import SimulatedDisk
from headrace.journal.disk import Disk
from headrace.journal.errors import LENT, NO_RESERVE, DiskFull, SyncFailed
from headrace.journal.log import LogSettings, SegmentedLog
from headrace.journal.reserve import NAME, SIZE_MIN
from headrace.journal.watermark import Watermark

RESERVE = DATA_DIR / NAME


class SmallDisk(SimulatedDisk):
    """Holds `capacity` bytes in all files together; an allocation that fails leaves a part behind."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

    def used(self) -> int:
        return sum(len(self.content(path)) for path in self._names)

    def allocate(self, fd: int, position: int, length: int) -> None:
        there = self.size(fd)
        room = self.capacity - self.used()
        if position + length - there > room:
            super().allocate(fd, there, max(0, room))
            raise OSError(errno.ENOSPC, "No space left on device")
        super().allocate(fd, position, length)

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        data = b"".join(buffers)
        room = self.capacity - self.used() + self.size(fd) - position
        if data and room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().pwritev(fd, [data[: max(room, 0)]], position)

    def free_bytes(self, directory: object) -> int:
        return self.capacity - self.used()


@pytest.mark.parametrize("syncer", [False, True])
def test_what_was_handed_over_is_written_on_the_reserve_and_the_disk_is_said_to_be_full(syncer: bool) -> None:
    disk = SmallDisk(16 << 10)
    run = Run(disk, syncer=syncer)
    assert RESERVE in disk._names
    sent = [b"%d" % i * 900 for i in range(20)]
    while not run.full:
        assert run.append([sent[run.acknowledged]]) == run.log.next_offset
    assert run.full == ["No space left on device"]
    assert run.log.full
    assert RESERVE not in disk._names
    assert run.failures == []
    assert content(run.log) == sent[: run.acknowledged]


@pytest.mark.parametrize("syncer", [False, True])
def test_with_the_reserve_used_up_nothing_is_acknowledged_until_space_returns(syncer: bool) -> None:
    disk = SmallDisk(16 << 10)
    run = Run(disk, syncer=syncer)
    bodies = [b"%02d" % i * 450 for i in range(30)]
    for body in bodies:
        run.log.append(body, 1, 1, 1)
    run.wait_for(lambda: bool(run.full))
    disk.capacity = 200 << 10
    run.wait_for(lambda: run.acknowledged == 30)
    run.wait_for(lambda: run.full[-1] == "")
    assert run.log.full == ""
    assert run.failures == []
    assert RESERVE in disk._names, "ready for the next time"
    assert content(run.log) == bodies
    run.log.close()
    assert reopened(disk)[0] == bodies


@pytest.mark.parametrize("syncer", [False, True])
def test_what_a_full_disk_gave_back_is_taken_as_it_is_needed(syncer: bool) -> None:
    """Another journal on the disk may need it before anything of this one can go."""
    disk = SmallDisk(20 << 20)
    run = Run(disk, settings=LogSettings(segment_bytes_max=1 << 20, reserve_bytes=5 << 20), syncer=syncer)
    reserve = run.log.reserve_bytes
    body = bytes(100_000)
    while not run.full:
        run.append([body])
    assert reserve > 1 << 20
    assert disk.free_bytes(DATA_DIR) > reserve - (200 << 10)
    run.log.roll()
    run.append([body])
    assert disk.free_bytes(DATA_DIR) > reserve - (400 << 10)
    room = run.log.room()
    run.append([bytes(1000)])
    assert room - 1500 < run.log.room() < room, "what the segment has already is counted"
    run.log.close()


class StuckReserve(SmallDisk):
    """Cannot remove the reserve `left` times."""

    left = 0

    def unlink(self, path: Path) -> None:
        if path == RESERVE and self.left:
            self.left -= 1
            raise OSError(errno.EIO, "Input/output error")
        super().unlink(path)


@pytest.mark.parametrize("lends", [True, False])
def test_a_reserve_that_cannot_be_given_at_once_is_given_later(lends: bool) -> None:
    disk = StuckReserve(20 << 20)
    run = Run(disk, settings=LogSettings(segment_bytes_max=1 << 20, reserve_bytes=1 << 20))
    body = bytes(100_000)
    run.append([body])
    count = 1
    disk.left = 2
    run.log.lend(lends)
    while disk.left or NAME in disk.names(DATA_DIR):
        run.append([body])
        count += 1
        assert (run.failures, run.acknowledged) == ([], count)
    assert len(run.full) == 1
    assert (run.full == [LENT]) == lends
    run.log.close()


@pytest.mark.parametrize("share", [True, False])
def test_who_starts_again_beside_others_keeps_back_as_much_as_before(share: bool) -> None:
    """With a small reserve it would write full what another shard needs, and never be short by its own word."""
    disk = SmallDisk(20 << 20)
    settings = LogSettings(segment_bytes_max=1 << 20, reserve_bytes=1 << 20, streams=share)
    run = Run(disk, settings=settings)
    reserve = run.log.reserve_bytes
    body = bytes(100_000)
    while not run.full:
        run.append([body])
    disk.kill()
    disk.crash()
    run = Run(disk, settings=settings)
    if share:
        assert run.log.reserve_bytes == reserve
        assert run.log.full == NO_RESERVE
        assert run.log.room() > reserve // 4
    else:
        assert run.log.reserve_bytes < reserve
        assert not run.log.full
    run.log.close()


def test_a_shard_with_much_is_short_of_space_when_others_are_whatever_it_keeps_back() -> None:
    disk = SmallDisk(1 << 20)  # the other one, which has gone meanwhile, had the rest
    settings = LogSettings(segment_bytes_max=1 << 20, reserve_bytes=2 << 20, streams=True)
    run = Run(disk, settings=settings)
    assert run.log.reserve_bytes == SIZE_MIN
    disk.capacity = 18 << 20
    body = bytes(100_000)
    while disk.free_bytes(DATA_DIR) > (1 << 20) + (1 << 17):
        assert run.log.is_tight == (disk.free_bytes(DATA_DIR) < run.log.size_bytes // 16)
        run.append([body])
    assert not run.log.full
    assert run.log.short
    assert not run.log.has_room()
    disk.capacity += 3 << 20
    assert (run.log.short, run.log.has_room()) == (False, True)
    run.log.close()


@pytest.mark.parametrize("syncer", [False, True])
def test_a_power_cut_on_a_full_disk_loses_nothing_that_was_acknowledged(syncer: bool) -> None:
    disk = SmallDisk(16 << 10)
    run = Run(disk, syncer=syncer)
    for i in range(30):
        run.log.append(b"%02d" % i * 450, 1, 1, 1)
    run.wait_for(lambda: bool(run.full))
    disk.kill()
    acknowledged = run.acknowledged
    disk.capacity = 1 << 20
    disk.crash()
    assert len(reopened(disk)[0]) >= acknowledged


@pytest.mark.parametrize("syncer", [False, True])
def test_closing_does_not_wait_for_space(syncer: bool) -> None:
    disk = SmallDisk(16 << 10)
    run = Run(disk, syncer=syncer)
    for i in range(30):
        run.log.append(b"%02d" % i * 450, 1, 1, 1)
    run.wait_for(lambda: bool(run.full))
    run.log.close()
    assert [type(failure) for failure in run.failures] == [DiskFull]
    disk.capacity = 1 << 20
    bodies, _, epoch = reopened(disk)
    assert len(bodies) == run.acknowledged
    assert epoch == 1


@pytest.mark.parametrize(
    ("call", "error"), [("create", errno.ENOSPC), ("create", errno.EIO), ("fsync", errno.ENOSPC)]
)
def test_no_marks_of_a_clean_stop(call: str, error: int) -> None:
    disk = SmallDisk(1 << 20)
    run = Run(disk)
    run.append([b"a", b"b"])
    disk.failures[call] = error  # the high watermark is replaced by a new file
    run.log.close()
    assert any("marks of a clean stop" in line for line in run.reports)
    disk.failures.clear()
    assert reopened(disk)[0] == [b"a", b"b"]


@pytest.mark.parametrize(("error", "is_passing"), [(errno.EIO, False), (errno.ENOSPC, True)])
def test_marks_of_which_nobody_knows_whether_they_are_on_disk(
    monkeypatch: pytest.MonkeyPatch, error: int, is_passing: bool
) -> None:
    def failed(_: Watermark) -> None:
        raise SyncFailed(error, "the sync failed")

    run = Run(SmallDisk(1 << 20))
    run.append([b"a", b"b"])
    monkeypatch.setattr(Watermark, "replace", failed)
    with nullcontext() if is_passing else pytest.raises(SyncFailed):
        run.log.close()
    assert is_passing == any("marks of a clean stop" in line for line in run.reports)


def test_a_start_on_a_full_disk_lives_on_the_reserve() -> None:
    disk = SmallDisk(1 << 20)
    run = Run(disk)
    run.append([b"a"])
    run.log.close()
    disk.capacity = disk.used()
    run = Run(disk)
    assert any("starting on the reserve" in line for line in run.reports)
    assert run.append([b"b"]) == 2
    assert run.full
    disk.capacity = 1 << 20
    run.wait_for(lambda: run.full[-1] == "")
    run.log.close()
    assert reopened(disk)[0] == [b"a", b"b"]


def test_a_start_without_any_space_says_so() -> None:
    disk = SmallDisk(1 << 20)
    Run(disk).log.close()
    disk.failures["create"] = errno.ENOSPC
    with pytest.raises(DiskFull, match="no space to open the journal"):
        Run(disk)
    disk.failures.clear()
    assert reopened(disk)[0] == []


def test_preallocation_shrinks_to_what_fits() -> None:
    disk = SmallDisk(20_000)
    log = SegmentedLog.open(DATA_DIR, SMALL, print, disk)
    log.close()
    small = SmallDisk(4096 + 4096 + 3000)
    log = SegmentedLog.open(DATA_DIR, SMALL, print, small)
    assert log.full == "no space for the reserve"
    log.append(b"x" * 2000, 1, 1, 1)
    log.close()
    assert log.high_watermark == 1


@pytest.mark.parametrize("name", ["allocate", "pwritev"])
def test_an_error_that_is_not_a_full_disk_stays_final(name: str) -> None:
    disk = SimulatedDisk()
    run = Run(disk)
    run.append([b"x" * 3000])
    disk.failures[name] = errno.EIO
    assert run.append([b"y" * 3000]) == 1
    assert len(run.failures) == 1
    assert not isinstance(run.failures[0], DiskFull)


def test_a_write_that_takes_nothing_is_an_error() -> None:
    class Lazy(Disk):
        def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
            return 0

    with pytest.raises(OSError, match="took nothing"):
        Lazy().write_fully(0, [b"abc"], 0)
