"""The few operations of the disk that are more than a system call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.journal.disk import DISK, Disk


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
