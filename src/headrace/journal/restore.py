"""Restore: `headrace restore` makes a data directory from a backup.

To the end of the backup or to an offset before it. Either way history goes on differently from there than it
may have gone in the original, so the epoch rises, and whoever remembers an offset is told. Two restores of one
backup have other epochs (`epochs.raised`).

Everything is built in `<data-dir>/restore.tmp` and synced, then moved up; the segments last, in one step. It is built
inside the data directory because this may be a mount point, which cannot be renamed. Until that step there is
nothing that a broker would serve: one that finds `restore.tmp` and no segments refuses to start. A restore that
was interrupted is run again.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from time import time_ns

from headrace import __version__
from headrace.journal.consumers import DIRECTORY as CONSUMERS
from headrace.journal.copying import (
    Likeness,
    SegmentWriter,
    clipped,
    copy_consumers,
    copy_file,
    give_to_owner,
    sync_directories,
    write_watermark,
)
from headrace.journal.disk import DISK, Disk
from headrace.journal.epochs import raised
from headrace.journal.errors import JournalError, OffsetOutOfRange
from headrace.journal.lock import NAME as LOCK
from headrace.journal.lock import lock_data_dir
from headrace.journal.manifest import VERSION, Manifest, read_manifest
from headrace.journal.reader import DIRECTORY, JournalReader
from headrace.journal.segment import file_name
from headrace.journal.snapshot import SUFFIX as SNAPSHOT_SUFFIX
from headrace.journal.snapshot import SnapshotFile, positions
from headrace.journal.watermark import NAME as WATERMARK
from headrace.ownership import make_directory

MAKING = "restore.tmp"
_MEANINGLESS = {LOCK, DIRECTORY, "lost+found"}  # of a start that failed; of a file system's root


def restore(source: Path, data_dir: Path, to_offset: int | None = None, disk: Disk = DISK) -> Manifest:
    """Make `data_dir`, which is empty or not there yet, with the records below `to_offset`. Returns what is there now.

    Raises CorruptFile, UnsupportedFormat, OffsetOutOfRange, JournalError if no state is known at that offset,
    JournalLocked, FileExistsError.
    """
    manifest = read_manifest(source)
    end = manifest.high_watermark if to_offset is None else to_offset
    if not manifest.start_offset <= end <= manifest.high_watermark:
        raise OffsetOutOfRange(end, manifest.start_offset, manifest.high_watermark)
    manifest.check(source)
    kept = _snapshots_up_to(source / DIRECTORY, end)
    if manifest.start_offset > 0 and not kept:
        raise JournalError(
            f"the backup begins at offset {manifest.start_offset} and has no snapshot up to {end}; "
            "the state of sessions at that offset is not in it"
        )
    _check_empty(data_dir)
    is_new = not data_dir.exists()
    likeness = Likeness.of(source)
    make_directory(data_dir, likeness.directory_mode)
    lock_fd = lock_data_dir(disk, data_dir)
    try:
        _check_empty(data_dir)  # a broker may have been here until now
        _remove_interrupted(data_dir)
        made = _build(source, data_dir / MAKING, manifest, end, kept, disk)
        likeness.give(data_dir / MAKING)
        give_to_owner(data_dir, data_dir / MAKING, data_dir / LOCK)
        _move_up(data_dir, disk)
        if is_new:
            disk.fsync_directory(data_dir.absolute().parent)
    except BaseException:
        _remove_interrupted(data_dir)
        raise
    finally:
        disk.close(lock_fd)
    return made


def is_interrupted(data_dir: Path, disk: Disk = DISK) -> bool:
    """Return whether a restore into it was begun and did not get as far as the segments."""
    return MAKING in disk.names(data_dir) and not disk.names(data_dir / DIRECTORY)


def _check_empty(data_dir: Path) -> None:
    names = {path.name for path in data_dir.iterdir()} if data_dir.exists() else set()
    if DIRECTORY in names and any((data_dir / DIRECTORY).iterdir()):
        raise FileExistsError(f"{data_dir} already holds a journal")
    more = names - _MEANINGLESS - (set() if MAKING not in names else {MAKING, WATERMARK, CONSUMERS})
    if more:
        raise FileExistsError(
            f"{data_dir} is not empty ({', '.join(sorted(more)[:5])}): restore makes a data directory of its own"
        )


def _remove_interrupted(data_dir: Path) -> None:
    """Remove what an interrupted restore left; the directory it worked in last, for it is the mark."""
    if not is_interrupted(data_dir):
        return
    (data_dir / WATERMARK).unlink(missing_ok=True)
    shutil.rmtree(data_dir / CONSUMERS, ignore_errors=True)
    shutil.rmtree(data_dir / MAKING)


def _build(source: Path, made: Path, manifest: Manifest, end: int, kept: list[Path], disk: Disk) -> Manifest:
    epoch = raised(manifest.epoch)
    disk.make_directory(made / DIRECTORY)
    reader = JournalReader(source, disk)
    writer = SegmentWriter(disk, made / DIRECTORY, manifest.uuid, epoch)
    for info in reader.segments():
        if info.base_offset < end or info.base_offset == manifest.start_offset:
            batches = reader.scan(info.base_offset, min(info.end_offset, end))
            last = min(info.end_offset, end)
            writer.write(info.base_offset, clipped(batches, info.base_offset, last))
    for path in kept:
        copy_file(disk, path, made / DIRECTORY / path.name)
    copy_consumers(disk, source, made)
    version = reader.version
    write_watermark(disk, made, manifest.uuid, epoch, end, reader.complete_offset(), version)
    start, now_us = manifest.start_offset, time_ns() // 1000
    return Manifest(VERSION, manifest.uuid, epoch, start, end, now_us, {}, __version__, version)


def _move_up(data_dir: Path, disk: Disk) -> None:
    """Move the files up, the segments last: a high watermark without them is refused, they without it would lose the
    new epoch."""
    made = data_dir / MAKING
    sync_directories(disk, made)
    disk.fsync_directory(data_dir)
    for name in (CONSUMERS, WATERMARK):
        if (made / name).exists():
            disk.rename(made / name, data_dir / name)
    disk.fsync_directory(data_dir)
    disk.rename(made / DIRECTORY, data_dir / DIRECTORY)
    disk.fsync_directory(data_dir)
    made.rmdir()


def _snapshots_up_to(directory: Path, end: int) -> list[Path]:
    """Return the snapshots that reflect no record at or above `end`."""
    paths = [directory / file_name(position, SNAPSHOT_SUFFIX) for position in positions(directory)]
    return [path for path in paths if SnapshotFile(path).applied_offset <= end]
