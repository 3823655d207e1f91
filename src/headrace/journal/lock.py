"""One process at a time writes to a data directory: `<data-dir>/lock`, held by flock, with the holder's pid in it."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.journal.disk import Disk
from headrace.journal.errors import JournalLocked

NAME = "lock"


def lock_data_dir(disk: Disk, data_dir: Path) -> int:
    """The descriptor that holds the lock. The file stays: removing it would let two processes in."""
    path = data_dir / NAME
    fd = disk.open_or_create(path)
    if not disk.lock(fd):
        owner = disk.pread(fd, 32, 0).decode("ascii", "replace").strip()
        disk.close(fd)
        raise JournalLocked(
            f"{path}: another process (pid {owner or 'unknown'}) has this data directory open"
        )
    try:
        disk.truncate(fd, 0)
        disk.write_fully(fd, [f"{os.getpid()}\n".encode()], 0)
    except BaseException:
        disk.close(fd)  # or it would be locked as long as this process lives
        raise
    return fd
