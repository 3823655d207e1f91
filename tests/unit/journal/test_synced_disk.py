"""Write and sync: everything is written first, and a sync that failed is told from a write that failed."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.journal.disk import DISK, Disk
from headrace.journal.errors import SyncFailed
from headrace.journal.synced_disk import SYNCED_DISK


class ShortWrites(Disk):
    """Writes at most three bytes a call."""

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        return super().pwritev(fd, [b"".join(buffers)[:3]], position)


@pytest.mark.parametrize("disk", [SYNCED_DISK, DISK, ShortWrites()], ids=["synced", "plain", "short"])
@pytest.mark.parametrize("count", [1, 1025])
def test_all_is_written_before_it_is_synced(tmp_path: Path, disk: Disk, count: int) -> None:
    buffers = [b"%d," % i for i in range(count)]
    fd = disk.create(tmp_path / "file")
    disk.write_and_sync(fd, buffers, 5)
    disk.close(fd)
    assert (tmp_path / "file").read_bytes() == bytes(5) + b"".join(buffers)


@pytest.mark.parametrize("disk", [SYNCED_DISK, DISK], ids=["synced", "plain"])
def test_a_failed_sync_is_no_failed_write(disk: Disk) -> None:
    fd = disk.open(Path("/dev/null"), write=True)  # takes writes, knows no sync
    try:
        with pytest.raises(SyncFailed) as caught:
            disk.write_and_sync(fd, [b"body"], 0)
    finally:
        disk.close(fd)
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(OSError) as refused:
        disk.write_and_sync(-1, [b"body"], 0)
    assert not isinstance(refused.value, SyncFailed)
