"""One process at a time writes to a data directory: `<data-dir>/lock`, held by flock, with the holder's pid in it."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.journal.disk import Disk
from headrace.journal.errors import JournalLocked, NotOurs

NAME = "lock"
_FILES = (NAME, "watermark", "reserve")
_FOLDERS = ("journal",)


def check_access(disk: Disk, data_dir: Path) -> None:
    """Name the first file that this process may not write, before anything is written: what was started as root once
    has left some. Raises NotOurs."""
    folders = [data_dir, *(data_dir / name for name in _FOLDERS if name in disk.names(data_dir))]
    files = [data_dir / name for name in disk.names(data_dir) if name in _FILES]
    files += [folder / name for folder in folders[1:] for name in disk.names(folder)]
    for path in (*folders, *files):
        if disk.may_write(path):
            continue
        owner, user = disk.owner(path), os.geteuid()
        raise NotOurs(
            f"{path} belongs to user {owner}, and this process, of user {user}, may not write it: was it started as "
            f"another user before? `chown -R {user} {data_dir}`, or start it as that user"
        )


def lock_data_dir(disk: Disk, data_dir: Path) -> int:
    """Return the descriptor that holds the lock. The file stays: removing it would let two processes in. Raises
    JournalLocked, NotOurs."""
    check_access(disk, data_dir)
    path = data_dir / NAME
    fd = disk.open_or_create(path)
    if not disk.lock(fd):
        owner = disk.pread(fd, 32, 0).decode("ascii", "replace").strip()
        disk.close(fd)
        raise JournalLocked(
            f"{path}: another process (pid {owner or 'unknown'}) has this data directory open"
        )
    try:
        pid = f"{os.getpid()}\n".encode()
        disk.write_fully(fd, [pid], 0)  # in place of the last one's: that needs no space
        disk.truncate(fd, len(pid))
    except BaseException:
        disk.close(fd)  # or it would be locked as long as this process lives
        raise
    return fd
