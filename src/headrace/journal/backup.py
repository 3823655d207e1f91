"""Backup: `headrace backup`.

A backup is a directory laid out as a data directory, with a `manifest.json` that is written last: without it
the backup is not complete. It is taken while a broker runs and is consistent: snapshots first, then the high
watermark, then every segment up to it, each batch checked on the way.

A registered consumer position holds the segments while they are copied. It moves on with them and is removed
however the backup ends. A lock says that the backup lives, so one that is killed holds nothing any more; where a lock
cannot be asked for, a lease says it later.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, time, time_ns
from typing import Literal, Self

from headrace import __version__
from headrace.journal.consumers import DIRECTORY as CONSUMERS
from headrace.journal.consumers import Alive, ConsumerPosition, is_alive, remove_dead
from headrace.journal.copying import (
    Likeness,
    SegmentWriter,
    clipped,
    copy_consumers,
    copy_file,
    write_watermark,
)
from headrace.journal.disk import DISK, Disk
from headrace.journal.errors import CorruptFile, UnknownConsumer
from headrace.journal.manifest import NAME as MANIFEST
from headrace.journal.manifest import VERSION, Manifest, checksums
from headrace.journal.reader import DIRECTORY, JournalReader
from headrace.journal.segment import Batch, file_name
from headrace.journal.snapshot import SUFFIX as SNAPSHOT_SUFFIX
from headrace.journal.snapshot import SnapshotFile, positions
from headrace.ownership import give_directory, make_directory

LEASE_S = 600
_RENEWAL_S = 60.0
_NAME = "backup-"


class Hold:
    """Keeps retention from deleting what is being copied, as a context."""

    def __init__(self, data_dir: Path, reader: JournalReader, disk: Disk = DISK) -> None:
        self.name = f"{_NAME}{time_ns()}"
        self._data_dir = data_dir
        self._reader = reader
        self._disk = disk
        self._uuid, self._epoch = reader.uuid, reader.epoch
        self._renewed = monotonic()
        self._alive: Alive | None = None

    def __enter__(self) -> Self:
        _remove_left_over(self._data_dir, self._disk)
        try:
            self._alive = Alive(self._data_dir, self.name, self._disk)
            ConsumerPosition.register(
                self._data_dir,
                self.name,
                self._uuid,
                self._epoch,
                self._reader.start_offset(),
                disk=self._disk,
                lease_s=LEASE_S,
            )
        except BaseException:
            self.__exit__()  # a signal may come when the file is there already
            raise
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        with suppress(UnknownConsumer):
            ConsumerPosition.remove(self._data_dir, self.name, self._disk)
        if self._alive is not None:
            self._alive.end()
        for name in self._disk.names(self._data_dir / CONSUMERS):
            if name.startswith((f"{self.name}.", f".{self.name}.")):  # what a signal interrupted
                self._disk.unlink(self._data_dir / CONSUMERS / name)
        return False

    def move(self, offset: int) -> None:
        """Move the hold forward: what lies below `offset` is copied."""
        ConsumerPosition.commit(self._data_dir, self.name, self._uuid, self._epoch, offset, disk=self._disk)

    def watched(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the same batches; as long as they come, the lease does not run out."""
        for batch in batches:
            if monotonic() - self._renewed >= _RENEWAL_S:
                self.renew()
            yield batch

    def renew(self) -> None:
        """Make the lease begin anew."""
        ConsumerPosition.renew(self._data_dir, self.name, self._disk)
        self._renewed = monotonic()


def backup(data_dir: Path, target: Path, disk: Disk = DISK) -> Manifest:
    """Copy what is published to `target`, a directory that is empty or not there yet. Raises NoJournal, CorruptBatch,
    FileExistsError. Whatever is raised, `target` is as it was then."""
    reader = JournalReader(data_dir, disk)
    likeness = Likeness.of(data_dir)
    with emptied(target) as is_new:
        with Hold(data_dir, reader, disk) as hold:
            copying = Copying(data_dir, target, reader, hold, disk)
            copying.snapshots()
            copied = copying.records(reader.high_watermark())
        manifest = complete(target, copied, likeness, disk)
        if is_new:
            target.chmod(likeness.directory_mode)
        disk.fsync_directory(target.absolute().parent)
    return manifest


def complete(target: Path, copied: Manifest, likeness: Likeness, disk: Disk = DISK) -> Manifest:
    """Write the manifest of what was copied, which makes it a backup; returns it with its files."""
    manifest = replace(copied, files=checksums(target))
    likeness.give(target)
    disk.replace(target / MANIFEST, manifest.pack())
    (target / MANIFEST).chmod(likeness.file_mode)
    return manifest


@contextmanager
def emptied(target: Path) -> Iterator[bool]:
    """Make an empty directory, for nobody else to read, and give whether it was not there; whatever is raised within, it
    is as it was then. Raises FileExistsError."""
    is_new = _make_empty(target)
    try:
        yield is_new
    except BaseException:
        _clear(target, is_new)
        raise


@dataclass(frozen=True)
class Copying:
    """Copies one data directory that is held: its snapshots, and then what is published."""

    data_dir: Path
    target: Path
    reader: JournalReader
    hold: Hold
    disk: Disk = DISK

    def snapshots(self) -> None:
        """Copy the snapshots that are whole, before the end of the records is chosen: none is ahead of it then."""
        self.disk.make_directory(self.target / DIRECTORY)
        _copy_snapshots(self.disk, self.data_dir / DIRECTORY, self.target / DIRECTORY, self.hold)

    def records(self, end: int) -> Manifest:
        """Copy all else, the records below `end`; returns the manifest, without its files, that is still to be
        written."""
        return _copy_records(self.data_dir, self.target, self.reader, self.hold, end, self.disk)


def _copy_records(
    data_dir: Path, target: Path, reader: JournalReader, hold: Hold, end: int, disk: Disk
) -> Manifest:
    uuid, epoch = reader.uuid, reader.epoch
    copy_consumers(disk, data_dir, target)
    writer = SegmentWriter(disk, target / DIRECTORY, uuid, epoch)
    segments = reader.segments()
    start = segments[0].base_offset
    for info in segments:
        if info.base_offset < end or info.base_offset == start:
            hold.move(info.base_offset)
            last = min(info.end_offset, end)
            batches = reader.scan(info.base_offset, last, uuid=uuid, epoch=epoch)
            writer.write(info.base_offset, clipped(hold.watched(batches), info.base_offset, last))
    # Read last: compaction goes on meanwhile, and what it takes moves that offset first.
    version = reader.version
    write_watermark(disk, target, uuid, epoch, end, reader.complete_offset(), version)
    return Manifest(VERSION, uuid, epoch, start, end, time_ns() // 1000, {}, __version__, version)


def _remove_left_over(data_dir: Path, disk: Disk) -> None:
    """Remove what backups left that were killed."""
    oldest = time() - LEASE_S
    for path in sorted((data_dir / CONSUMERS).glob(f"*{_NAME}*")):  # the locks come first
        name = path.name.lstrip(".").partition(".")[0]
        if not name.startswith(_NAME):
            continue
        with suppress(FileNotFoundError, UnknownConsumer, CorruptFile):
            if path.suffix == ".alive":
                _remove_dead(data_dir, name, disk)
            elif path.suffix == ".tmp":
                if is_alive(data_dir, name, disk) is None and path.stat().st_mtime < oldest:
                    disk.unlink(path)
            elif not ConsumerPosition.read(data_dir, name, disk).counts(data_dir, disk):
                remove_dead(data_dir, name, disk)


def _remove_dead(data_dir: Path, name: str, disk: Disk) -> None:
    """Remove all of a backup whose lock nobody holds any more; the lock last."""
    if is_alive(data_dir, name, disk) is not False:
        return
    for path in (data_dir / CONSUMERS).glob(f"{name}.*.tmp"):
        disk.unlink(path)
    remove_dead(data_dir, name, disk)


def _make_empty(target: Path) -> bool:
    """Make an empty directory, and return whether it was not there; for nobody else to read, until it is complete."""
    make_directory(target.parent)
    try:
        target.mkdir(mode=0o700)
    except FileExistsError:
        if any(target.iterdir()):
            raise FileExistsError(f"{target} is not empty") from None
        return False
    give_directory(target)
    return True


def _clear(target: Path, is_new: bool) -> None:
    for path in target.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if is_new:
        with suppress(OSError):
            target.rmdir()


def _copy_snapshots(disk: Disk, source: Path, target: Path, hold: Hold) -> None:
    """Copy the snapshots that are whole. A new one may take the place of the oldest meanwhile."""
    for position in positions(source, disk):
        path = source / file_name(position, SNAPSHOT_SUFFIX)
        with suppress(FileNotFoundError, CorruptFile):
            SnapshotFile(path, disk)
            copy_file(disk, path, target / path.name)
        hold.renew()
