"""The few operations of the disk that are more than a system call."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.journal.disk import DISK, Disk
from headrace.journal.log import SegmentedLog
from headrace.journal.watermark import FILE_SIZE, read_slots
from unit.journal.log_at import SMALL, filled, opened, silent


class ShortWrites(Disk):
    """Writes at most three bytes a call."""

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        return super().pwritev(fd, [b"".join(buffers)[:3]], position)


def test_short_writes_are_completed(tmp_path: Path) -> None:
    disk = ShortWrites()
    fd = disk.create(tmp_path / "file")
    assert disk.write_fully(fd, [b"abcd", b"", b"efghi"], 2) == 11
    disk.close(fd)
    assert (tmp_path / "file").read_bytes() == b"\0\0abcdefghi"


def test_more_buffers_than_one_call_takes(tmp_path: Path) -> None:
    buffers = [b"%d," % i for i in range(3000)]
    fd = DISK.create(tmp_path / "file")
    assert DISK.write_fully(fd, buffers, 0) == len(b"".join(buffers))
    DISK.close(fd)
    assert (tmp_path / "file").read_bytes() == b"".join(buffers)


def test_replace_leaves_one_file(tmp_path: Path) -> None:
    for data in (b"old", b"new and longer"):
        DISK.replace(tmp_path / "file", data)
        assert DISK.read_file(tmp_path / "file") == data
    assert DISK.names(tmp_path) == ["file"]
    assert DISK.names(tmp_path / "nowhere") == []


def test_allocate_gives_zeros(tmp_path: Path) -> None:
    fd = DISK.create(tmp_path / "file")
    DISK.allocate(fd, 0, 10_000)
    assert DISK.pread(fd, 20_000, 0) in (b"", bytes(10_000))
    DISK.close(fd)


def test_a_lock_is_exclusive_and_ends_with_its_descriptor(tmp_path: Path) -> None:
    first, second = (DISK.open_or_create(tmp_path / "lock") for _ in range(2))
    assert DISK.lock(first)
    assert not DISK.lock(second)
    DISK.close(first)
    assert DISK.lock(second)
    DISK.close(second)


class FullDisk(Disk):
    """What is there may be written over; beyond that there is space for the high watermark alone."""

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        size = sum(map(len, buffers))
        if size != FILE_SIZE and position + size > self.size(fd):
            raise OSError(errno.ENOSPC, "full")
        return super().pwritev(fd, buffers, position)

    def allocate(self, fd: int, position: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "full")


def test_what_cannot_be_replaced_leaves_nothing(tmp_path: Path) -> None:
    DISK.replace(tmp_path / "file", b"old")
    with pytest.raises(OSError, match="full"):
        FullDisk().replace(tmp_path / "file", b"new")
    assert DISK.names(tmp_path) == ["file"]
    assert DISK.read_file(tmp_path / "file") == b"old"


def test_a_log_opens_without_space_for_its_indexes(tmp_path: Path) -> None:
    """Without its reserve, which was used up, and without the indexes of finished segments, which compaction removes:
    only a broker that runs can free what nobody needs."""
    bodies = [b"%d" % i * 200 for i in range(40)]
    filled(tmp_path, bodies)
    indexes = sorted((tmp_path / "journal").glob("*.index"))
    assert len(indexes) > 1
    for path in indexes:
        path.unlink()
    log = SegmentedLog.open(tmp_path, SMALL, silent, FullDisk())
    assert [batch.body for batch in log.scan(0)] == bodies
    assert log.read_batch(20).body == bodies[20]
    assert read_slots(DISK, tmp_path)[0].high_watermark == 40
    log.close()
    assert not [name for name in DISK.names(tmp_path / "journal") if name.endswith(".tmp")]
    again = opened(tmp_path)
    assert (again.high_watermark, again.epoch) == (40, 1)
    again.close()


class ShortReads(Disk):
    """Reads at most three bytes a call."""

    def pread(self, fd: int, length: int, position: int) -> bytes:
        return super().pread(fd, min(length, 3), position)


def test_short_reads_are_completed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    disk = ShortReads()
    fd = disk.open(tmp_path / "file")
    assert disk.read_fully(fd, 8, 1) == b"12345678"
    assert disk.read_fully(fd, 8, 7) == b"789"
    assert disk.read_fully(fd, 8, 10) == b""
    assert disk.read_file(tmp_path / "file") == b"0123456789"
    disk.close(fd)


def test_a_whole_log_over_short_reads(tmp_path: Path) -> None:
    bodies = [b"%03d" % number * 300 for number in range(12)]
    filled(tmp_path, bodies)
    log = SegmentedLog.open(tmp_path, SMALL, silent, ShortReads())
    assert [batch.body for batch in log.scan(0)] == bodies
    assert [log.read_batch(offset).body for offset in range(12)] == bodies
    log.close()
