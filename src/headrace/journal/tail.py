"""The last segment when a log is opened: walking it to its end, then going on in it or beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headrace.journal.active import SegmentFile
from headrace.journal.catalog import Segment
from headrace.journal.disk import Disk
from headrace.journal.search import find_batches
from headrace.journal.segment import (
    BATCH_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
    Batch,
    SegmentHeader,
    pack_batch_header,
    seed_of,
)
from headrace.journal.walk import FOOTER, Walk, has_data, read_footer


class Tail:
    """What walking the last segment found. `durable_offset` is the largest one that any intact batch, before
    or behind the damage, or the footer vouches for."""

    def __init__(self, disk: Disk, directory: Path, base_offset: int, seed: int) -> None:
        self.segment = Segment(directory, base_offset)
        self.durable_offset = base_offset
        self.epoch = 0
        self.is_clean = False
        self.damage = ""
        fd = disk.open(self.segment.path)
        try:
            walk = Walk(disk, fd, seed, base_offset)
            self._take(walk)
            self._judge_end(disk, fd, seed, walk)
        finally:
            disk.close(fd)

    def _take(self, walk: Walk) -> None:
        segment = self.segment
        for batch in walk:
            segment.index.add(batch.base_offset, walk.position - batch.size)
            segment.note(batch.first_timestamp_us, batch.max_timestamp_us)
            self.durable_offset = max(self.durable_offset, batch.durable_offset)
            self.epoch = max(self.epoch, batch.epoch)
        segment.size = walk.position
        segment.end_offset = walk.next_offset

    def _judge_end(self, disk: Disk, fd: int, seed: int, walk: Walk) -> None:
        if walk.stop == FOOTER:
            self.is_clean = True
            self.durable_offset = walk.next_offset
            return
        if not walk.is_damaged and not has_data(disk, fd, walk.position):
            return
        self.damage = walk.stop
        footer = read_footer(disk, fd, seed)
        if footer:
            self.durable_offset = max(self.durable_offset, footer.end_offset)
        for _, batch in find_batches(disk, fd, seed, walk.position, walk.next_offset):
            self.durable_offset = max(self.durable_offset, batch.durable_offset)


def open_to_append(disk: Disk, segment: Segment, allocate_bytes: int) -> SegmentFile:
    """Open the segment for appending behind its last batch; what lies there (footer, torn batch) is cut off."""
    fd = disk.open(segment.path, write=True)
    disk.truncate(fd, segment.size)
    disk.fsync(fd)
    return SegmentFile(disk, segment, fd, allocate_bytes, segment.size)


def rewrite(
    disk: Disk, old: Segment, header: SegmentHeader, position: int, allocate_bytes: int
) -> SegmentFile:
    """Copy the batches from `position` on into a new segment, synced before it gets its name.

    If the new segment has the old one's base offset it takes its place.
    """
    segment = Segment(old.path.parent, header.base_offset)
    temporary = segment.path.with_suffix(".tmp")
    seed = seed_of(header.uuid)
    source = disk.open(old.path)
    fd = disk.create(temporary)
    try:
        disk.write_fully(fd, [header.pack()], 0)
        walk = Walk(disk, source, seed, header.base_offset, position, old.size)
        _copy(disk, fd, segment, iter(walk), header.base_offset, seed)
    finally:
        disk.close(source)
    disk.fsync(fd)
    disk.rename(temporary, segment.path)
    disk.fsync_directory(segment.path.parent)
    return SegmentFile(disk, segment, fd, allocate_bytes, segment.size)


def _copy(disk: Disk, fd: int, segment: Segment, batches: Iterator[Batch], durable: int, seed: int) -> None:
    position = SEGMENT_HEADER_SIZE
    for batch in batches:
        head = pack_batch_header(
            seed,
            batch.body,
            batch.base_offset,
            batch.count,
            batch.epoch,
            durable,
            batch.first_timestamp_us,
            batch.max_timestamp_us,
        )
        disk.write_fully(fd, [head, batch.body], position)
        segment.index.add(batch.base_offset, position)
        segment.note(batch.first_timestamp_us, batch.max_timestamp_us)
        position += BATCH_HEADER_SIZE + len(batch.body)
        segment.size = position
        segment.end_offset = batch.end_offset
