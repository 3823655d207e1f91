"""Making a data directory of several shards: in a folder of itself, moved up when all of it is right.

From the beginning on the directory's `watermark` says that journals lie below it, and `shards.json`, which comes last, is
missing: so nothing opens it in between. What an interrupted run has left the next one removes, and nothing else.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headrace.data.layout import NAME as SHARDS
from headrace.data.layout import is_new, is_shard
from headrace.journal.copying import Likeness, give_to_owner, sync_directories
from headrace.journal.disk import DISK, Disk
from headrace.journal.lock import NAME as LOCK
from headrace.journal.lock import lock_data_dir
from headrace.journal.reader import DIRECTORY as JOURNAL
from headrace.journal.watermark import NAME as WATERMARK
from headrace.journal.watermark import sharded_page
from headrace.ownership import make_directory

_PASSED_OVER: Final = {LOCK, "lost+found", JOURNAL}
_NO_NODE: Final = bytes(16)  # until the directory has its own
_FEW: Final = 5  # names in a message


def is_interrupted(data_dir: Path, making: str, disk: Disk = DISK) -> bool:
    """Return whether shards were begun to be made in the folder `making`, and did not get as far as `shards.json`."""
    names = disk.names(data_dir)
    return making in names and SHARDS not in names


@contextmanager
def built(data_dir: Path, making: str, likeness: Likeness, owner: Path, disk: Disk = DISK) -> Iterator[Path]:
    """Give the folder `making` of a data directory that is empty or not there yet, under its lock, and move up what is
    in it when the block ends: `watermark`, `shard-<n>`, `shards.json`. What is raised within leaves an empty directory.
    It belongs to whom `owner` belongs. Raises FileExistsError, JournalLocked, OSError."""
    _check_empty(data_dir, making, disk)
    was_there = data_dir.exists()
    make_directory(data_dir, likeness.directory_mode)
    lock_fd = lock_data_dir(disk, data_dir)
    try:
        _check_empty(data_dir, making, disk)  # somebody may have been here until now
        _remove_interrupted(data_dir, making, disk)
        folder = data_dir / making
        disk.make_directory(folder)
        disk.replace(data_dir / WATERMARK, sharded_page(_NO_NODE))
        yield folder
        likeness.give(folder)
        give_to_owner(owner, *((folder, data_dir / LOCK) if was_there else (data_dir,)))
        _move_up(data_dir, folder, disk)
        if not was_there:
            disk.fsync_directory(data_dir.absolute().parent)
    except BaseException:
        _remove_interrupted(data_dir, making, disk)
        raise
    finally:
        disk.close(lock_fd)


def _check_empty(data_dir: Path, making: str, disk: Disk) -> None:
    interrupted = is_interrupted(data_dir, making, disk)
    names = set(disk.names(data_dir))
    if interrupted:
        names = {name for name in names if name not in (making, WATERMARK) and not is_shard(name)}
    if SHARDS in names or not (interrupted or is_new(data_dir, disk)):
        raise FileExistsError(f"{data_dir} already holds a journal")
    if more := sorted(names - _PASSED_OVER):
        raise FileExistsError(
            f"{data_dir} is not empty ({', '.join(more[:_FEW])}): a data directory of its own is made"
        )


def _remove_interrupted(data_dir: Path, making: str, disk: Disk) -> None:
    """Remove what an interrupted run left; the folder that it worked in last, for it is the mark."""
    if not is_interrupted(data_dir, making, disk):
        return
    for name in disk.names(data_dir):
        if is_shard(name):
            shutil.rmtree(data_dir / name)
    (data_dir / WATERMARK).unlink(missing_ok=True)
    shutil.rmtree(data_dir / making)


def _move_up(data_dir: Path, folder: Path, disk: Disk) -> None:
    sync_directories(disk, folder)
    shards = sorted(name for name in disk.names(folder) if is_shard(name))
    for name in (WATERMARK, *shards):
        disk.rename(folder / name, data_dir / name)
    disk.fsync_directory(data_dir)
    disk.rename(folder / SHARDS, data_dir / SHARDS)
    disk.fsync_directory(data_dir)
    shutil.rmtree(folder)
