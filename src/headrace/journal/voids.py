"""Void records: offsets that nothing is at, written as sparse batches of which no record is left (`segment`).

A batch takes a few bytes, however many records it stands for. `leave_out` makes a gap of them at the end of a journal:
what is written next gets no offset that somebody may remember for something else.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from time import time_ns
from typing import Final
from uuid import UUID

from headrace.journal.active import SegmentFile, create_segment
from headrace.journal.catalog import Segment
from headrace.journal.disk import Disk
from headrace.journal.segment import (
    SPARSE,
    SegmentHeader,
    pack_batch_header,
    seed_of,
    sparse_body,
)

VOIDS_MAX: Final = 4096  # in a batch


def add_voids(
    disk: Disk, file: SegmentFile, seed: int, epoch: int, offsets: range, timestamp_us: int
) -> None:
    """Append void records to a segment that ends where they begin. Nothing is synced. Raises OSError."""
    body = sparse_body({})
    segment = file.segment
    for base in range(offsets.start, offsets.stop, VOIDS_MAX):
        count = min(VOIDS_MAX, offsets.stop - base)
        head = pack_batch_header(seed, body, base, count, epoch, 0, timestamp_us, timestamp_us, SPARSE)
        segment.size = disk.write_fully(file.fd, [head, body], segment.size)
        segment.note(timestamp_us, timestamp_us)
        segment.end_offset = base + count


def leave_out(disk: Disk, directory: Path, uuid: str, epoch: int, offsets: range) -> None:
    """Make the offsets behind the end of a journal void, in a segment of their own; `directory` is that of its segments,
    and nobody has it open since a clean stop. The segments that come are of `epoch`, which whoever opens the journal
    publishes: it is there with the name of the first of them, or not at all. Raises OSError."""
    seed, now_us = seed_of(UUID(uuid).bytes), time_ns() // 1000
    segment = Segment(directory, offsets.start)
    temporary = segment.path.with_suffix(".tmp")
    file = SegmentFile(disk, segment, disk.create(temporary), 0, 0)
    try:
        disk.write_fully(file.fd, [SegmentHeader(UUID(uuid).bytes, epoch, offsets.start, now_us).pack()], 0)
        add_voids(disk, file, seed, epoch, offsets, now_us)
        file.seal(seed)
    finally:
        file.close()
    with suppress(FileNotFoundError):
        disk.unlink(segment.index_path)  # of an empty segment that had the name
    disk.rename(temporary, segment.path)
    disk.fsync_directory(directory)
    header = SegmentHeader(UUID(uuid).bytes, epoch, offsets.stop, now_us)
    create_segment(disk, directory, header, 0).close()
