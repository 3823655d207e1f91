"""Compaction: a segment that a few old references keep alive is written anew with those records alone.

Offsets stay (sparse batches, see `segment.py`). Only segments that retention would have dropped otherwise are
touched, so whoever reads the journal front to back still finds everything within the limits of retention.

    segment = log.compactable()[0]           on the loop
    new = log.rewrite_sparse(segment, live)        on any thread; `live`: offsets in it that are still referred to
    log.adopt(new)                                 on the loop

A crash before `adopt` leaves a `.tmp` file that the next start removes; after it, either file is right.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from time import time_ns

from headrace.journal.active import SegmentFile
from headrace.journal.catalog import Segment
from headrace.journal.disk import Disk
from headrace.journal.errors import CorruptBatch
from headrace.journal.overlap import header_of
from headrace.journal.segment import (
    BATCH_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
    SPARSE,
    Batch,
    SegmentHeader,
    batch_size_at,
    kept_at,
    pack_batch_header,
    seed_of,
    sparse_body,
    split_records,
)
from headrace.journal.walk import Walk

_OFFSETS_MAX = 4096  # a batch; reading one back takes 16 bytes for each record that is gone
_BYTES_MAX = 64 << 10


class SparseWriter:
    """Draws the kept records of many batches together, those of each epoch by themselves: ids name it for ever."""

    def __init__(self, file: SegmentFile, seed: int, epoch: int) -> None:
        self._file = file
        self._seed = seed
        self._epoch = epoch
        self._base = file.segment.base_offset
        self._count = 0
        self._bytes = 0
        self._kept: dict[int, bytes] = {}
        self._first_us = 0
        self._max_us = 0

    def add(self, batch: Batch, live: Collection[int]) -> None:
        if batch.epoch != self._epoch:
            self.flush()
            self._epoch = batch.epoch
        records = split_records(batch.body)
        for offset, record in enumerate(records, batch.base_offset):
            if not self._count:
                self._first_us = self._max_us = batch.first_timestamp_us
            self._first_us = min(self._first_us, batch.first_timestamp_us, batch.max_timestamp_us)
            self._max_us = max(self._max_us, batch.first_timestamp_us, batch.max_timestamp_us)
            if offset in live:
                self._kept[self._count] = record
                self._bytes += len(record)
            self._count += 1
            if self._count >= _OFFSETS_MAX or self._bytes >= _BYTES_MAX:
                self.flush()

    def flush(self) -> None:
        if not self._count:
            return
        segment = self._file.segment
        body = sparse_body(self._kept)
        times = (self._first_us, self._max_us)
        head = pack_batch_header(
            self._seed, body, self._base, self._count, self._epoch, self._base, *times, SPARSE
        )
        position = segment.size
        segment.size = self._file.append([head, body], position)
        segment.index.add(self._base, position)
        segment.note(*times)
        segment.end_offset = self._base = self._base + self._count
        self._count = self._bytes = 0
        self._kept = {}


def rewrite_sparse(
    disk: Disk, segment: Segment, uuid: bytes, epoch: int, live: Collection[int], index_interval_bytes: int
) -> Segment:
    """Return the new segment under its temporary name, synced. Raises CorruptBatch, and OSError on a full disk."""
    new = Segment(segment.path.parent, segment.base_offset)
    created_us = later_than(disk, segment.path)
    fd = disk.create(temporary_of(new))
    try:
        file = SegmentFile(disk, new, fd, 0, 0)
        disk.write_fully(fd, [SegmentHeader(uuid, epoch, new.base_offset, created_us).pack()], 0)
        _copy(disk, segment, SparseWriter(file, seed_of(uuid), epoch), seed_of(uuid), live)
        file.seal(seed_of(uuid))
    except BaseException:
        disk.unlink(temporary_of(new))
        raise
    finally:
        disk.close(fd)
    new.min_timestamp_us, new.max_timestamp_us = segment.min_timestamp_us, segment.max_timestamp_us
    new.kept_records = len(live)
    new.index = new.index.thinned(index_interval_bytes)
    return new


def is_worth_it(segment: Segment, live: Collection[int]) -> bool:
    """Return whether at least half of the records would go. `kept_records` is known."""
    return len(live) < segment.kept_records and 2 * len(live) <= segment.kept_records


def count_kept(disk: Disk, segment: Segment) -> int:
    """Return how many records are in a segment and not left out, by the words of its batch headers. A segment that
    compaction has not written is not read through. Raises OSError."""
    offsets = segment.end_offset - segment.base_offset
    fd = disk.open(segment.path)
    try:
        kept, position = 0, SEGMENT_HEADER_SIZE
        while position < segment.size:
            header = disk.read_fully(fd, BATCH_HEADER_SIZE + 4, position)
            size, sparse = batch_size_at(header, 0), kept_at(header, 0)
            if not size or sparse < 0:
                return offsets
            kept += sparse
            position += size
        return kept
    finally:
        disk.close(fd)


def later_than(disk: Disk, path: Path) -> int:
    """Return a time of creation for what takes the place of this segment, later than its own however the clock was
    set."""
    return max(time_ns() // 1000, header_of(disk, path).created_us + 1)


def temporary_of(segment: Segment) -> Path:
    return segment.path.with_suffix(".sparse.tmp")


def _copy(disk: Disk, segment: Segment, writer: SparseWriter, seed: int, live: Collection[int]) -> None:
    source = disk.open(segment.path)
    try:
        walk = Walk(disk, source, seed, segment.base_offset, limit=segment.size)
        for batch in walk:
            writer.add(batch, live)
        if walk.next_offset != segment.end_offset:
            raise CorruptBatch(str(segment.path), walk.position, walk.next_offset, walk.stop)
    finally:
        disk.close(source)
    writer.flush()
