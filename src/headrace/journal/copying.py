"""Copies of what a data directory is made of, for backup and restore: synced, and as closed to others as the original."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import time_ns
from uuid import UUID

from headrace.journal.active import SegmentFile
from headrace.journal.catalog import Segment
from headrace.journal.consumers import DIRECTORY as CONSUMERS
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.disk import Disk
from headrace.journal.reader import DIRECTORY as JOURNAL
from headrace.journal.segment import (
    Batch,
    SegmentHeader,
    base_offset_of,
    pack_batch_header,
    seed_of,
    split_records,
)
from headrace.journal.watermark import NAME as WATERMARK
from headrace.journal.watermark import WatermarkState

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Likeness:
    """Says who may read the files and directories of a data directory, as modes."""

    file_mode: int
    directory_mode: int

    @staticmethod
    def of(data_dir: Path) -> Likeness:
        """Return the likeness that the segments and the directory itself have."""
        names = sorted(name for name in os.listdir(data_dir / JOURNAL) if base_offset_of(name) is not None)
        file_mode = (data_dir / JOURNAL / names[-1]).stat().st_mode & 0o777 if names else 0o640
        return Likeness(file_mode, data_dir.stat().st_mode & 0o777)

    def give(self, root: Path) -> None:
        """Give all below `root` the modes of the likeness."""
        for path in root.rglob("*"):
            os.chmod(path, self.directory_mode if path.is_dir() else self.file_mode)


def give_to_owner(data_dir: Path, *roots: Path) -> None:
    """Give what root has made to whom the data directory belongs: the broker, which is not root, must open it."""
    if os.geteuid():
        return
    found = data_dir.stat()
    for root in roots:
        for path in (root, *root.rglob("*")):
            os.chown(path, found.st_uid, found.st_gid, follow_symlinks=False)


class SegmentWriter:
    """Writes finished segments: header, batches, footer, synced."""

    def __init__(self, disk: Disk, directory: Path, uuid: str, epoch: int) -> None:
        self._disk = disk
        self._directory = directory
        self._uuid = UUID(uuid).bytes
        self._epoch = epoch

    def write(self, base_offset: int, batches: Iterator[Batch]) -> None:
        segment = Segment(self._directory, base_offset)
        fd = self._disk.create(segment.path)
        file = SegmentFile(self._disk, segment, fd, 0, 0)
        try:
            self._fill(file, batches)
        finally:
            file.close()
        self._disk.fsync_directory(self._directory)

    def _fill(self, file: SegmentFile, batches: Iterator[Batch]) -> None:
        segment = file.segment
        seed = seed_of(self._uuid)
        header = SegmentHeader(self._uuid, self._epoch, segment.base_offset, time_ns() // 1000)
        self._disk.write_fully(file.fd, [header.pack()], 0)
        for batch in batches:
            durable = min(batch.durable_offset, batch.base_offset)
            times = (batch.first_timestamp_us, batch.max_timestamp_us)
            head = pack_batch_header(
                seed, batch.body, batch.base_offset, batch.count, batch.epoch, durable, *times
            )
            segment.size = self._disk.write_fully(file.fd, [head, batch.body], segment.size)
            segment.note(*times)
            segment.end_offset = batch.end_offset
        file.seal(seed)


def clipped(batches: Iterator[Batch], start: int, end: int) -> Iterator[Batch]:
    """Cut the first and the last batch between two records where they reach beyond `start` and `end`."""
    for batch in batches:
        first, last = max(start, batch.base_offset), min(end, batch.end_offset)
        if (first, last) == (batch.base_offset, batch.end_offset):
            yield batch
            continue
        records = split_records(batch.body)[first - batch.base_offset : last - batch.base_offset]
        times = (batch.first_timestamp_us, batch.max_timestamp_us)
        yield Batch(first, last - first, *times, b"".join(records), batch.epoch)


def copy_file(disk: Disk, source: Path, target: Path) -> None:
    """Copy a file and sync it; its name is not synced. Raises FileNotFoundError."""
    reading = disk.open(source)
    try:
        writing = disk.create(target)
        try:
            position = 0
            while chunk := disk.pread(reading, _CHUNK_BYTES, position):
                position = disk.write_fully(writing, [chunk], position)
            disk.fsync(writing)
        finally:
            disk.close(writing)
    finally:
        disk.close(reading)


def copy_consumers(disk: Disk, source: Path, target: Path) -> None:
    """Copy all consumers but those with a lease, which are other copies under way."""
    for position in ConsumerPosition.list(source, disk):
        if not position.lease_s:
            disk.make_directory(target / CONSUMERS)
            disk.replace(target / CONSUMERS / position.name, position.pack())


def write_watermark(
    disk: Disk, target: Path, uuid: str, epoch: int, end: int, complete_offset: int, version: int
) -> None:
    """Write what a copy that ends at `end` says of itself. `complete_offset`: from where the original is complete, which
    nothing but this says: segments are written anew, and what `reshard` has made never said it. `version`: that of the
    original's file, which says what its records may speak of."""
    complete = min(complete_offset, end)
    state = WatermarkState(UUID(uuid).bytes, epoch, end, end, complete_offset=complete, version=version)
    disk.replace(target / WATERMARK, state.pack_page())


def sync_directories(disk: Disk, root: Path) -> None:
    """Sync `root`, and all below it: the names in them."""
    for path in (*(path for path in root.rglob("*") if path.is_dir()), root):
        disk.fsync_directory(path)
