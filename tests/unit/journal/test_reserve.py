"""The reserve: held, given away, regained, found again."""

from __future__ import annotations

import errno
from pathlib import Path

from headrace.journal.disk import DISK, Disk
from headrace.journal.reserve import NAME, SIZE_MIN, Reserve


class SmallDisk(Disk):
    """Says how much is free and refuses to allocate more than that."""

    def __init__(self, free: int) -> None:
        self.free = free

    def free_bytes(self, directory: Path) -> int:
        return self.free

    def allocate(self, fd: int, position: int, length: int) -> None:
        if length > self.free:
            raise OSError(errno.ENOSPC, "full")
        super().allocate(fd, position, length)


def test_it_is_blocks_that_are_taken_and_given(tmp_path: Path) -> None:
    reserve = Reserve(DISK, tmp_path, 1 << 20)
    assert not reserve.release(), "nothing is held yet"
    assert reserve.hold()
    status = (tmp_path / NAME).stat()
    assert status.st_size == 1 << 20
    assert status.st_blocks * 512 >= 1 << 20
    assert reserve.hold()
    assert reserve.release()
    assert not (tmp_path / NAME).exists()
    assert not reserve.release()


def test_the_one_of_the_last_start_is_found(tmp_path: Path) -> None:
    Reserve(DISK, tmp_path, 1 << 20).hold()
    found = Reserve(SmallDisk(0), tmp_path, 2 << 20)
    assert (found.is_held, found.size) == (True, 1 << 20)


def test_one_that_is_larger_than_wanted_is_made_anew(tmp_path: Path) -> None:
    Reserve(DISK, tmp_path, 1 << 20).hold()
    smaller = Reserve(DISK, tmp_path, 1 << 19)
    assert not smaller.is_held
    assert smaller.hold()
    assert (tmp_path / NAME).stat().st_size == 1 << 19


def test_on_a_small_disk_it_is_a_part_of_what_is_free(tmp_path: Path) -> None:
    assert Reserve(SmallDisk(16 << 20), tmp_path, 16 << 20).size == 1 << 20
    assert Reserve(SmallDisk(1 << 20), tmp_path, 16 << 20).size == SIZE_MIN


def test_on_a_full_disk_it_is_as_large_as_before(tmp_path: Path) -> None:
    assert Reserve(SmallDisk(1 << 20), tmp_path, 16 << 20, lambda: 31 << 20).size == 2 << 20
    assert Reserve(SmallDisk(0), tmp_path, 16 << 20, lambda: 1 << 30).size == 16 << 20


def test_it_is_held_again_only_with_a_quarter_to_spare(tmp_path: Path) -> None:
    disk = SmallDisk(16 << 20)
    reserve = Reserve(disk, tmp_path, 1 << 20)
    disk.free = (1 << 20) + 1000
    assert not reserve.hold()
    assert not (tmp_path / NAME).exists()
    disk.free = (1 << 20) * 5 // 4
    assert reserve.hold()


def test_none_is_wanted(tmp_path: Path) -> None:
    reserve = Reserve(DISK, tmp_path, 0)
    assert reserve.hold()
    assert not reserve.release()
    assert not (tmp_path / NAME).exists()
