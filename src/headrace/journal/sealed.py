"""Finished segments when a log is opened: their footer, their index, and the two repairs that are safe.

Both repairs follow from how a log is written and lose nothing: a footer that a crash kept back is written,
and an index that is missing or short is rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.journal.active import SegmentFile
from headrace.journal.catalog import Segment
from headrace.journal.damage import first_damage
from headrace.journal.disk import Disk
from headrace.journal.errors import CorruptFile, CorruptJournal, is_passing, reason_of
from headrace.journal.index import OffsetIndex
from headrace.journal.overlap import taken_in
from headrace.journal.segment import SEGMENT_HEADER_SIZE, Footer, SegmentHeader, seed_of
from headrace.journal.walk import Walk, read_footer

_INDEX_GAP_MAX = 8 << 20  # an index that ends earlier than this before the end has lost its last part


def read_header(disk: Disk, directory: Path, base_offset: int, seed: int | None = None) -> SegmentHeader:
    """Read the header of a segment. Raises CorruptFile, UnsupportedFormat. With a seed, the segment must be of that
    journal."""
    path = Segment(directory, base_offset).path
    fd = disk.open(path)
    try:
        header = SegmentHeader.unpack(disk.read_fully(fd, SEGMENT_HEADER_SIZE, 0), str(path))
    finally:
        disk.close(fd)
    if header.base_offset != base_offset:
        raise CorruptFile(f"{path}: the header says that the segment begins at offset {header.base_offset}")
    if seed is not None and seed_of(header.uuid) != seed:
        raise CorruptFile(f"{path}: the segment belongs to journal {header.uuid.hex()}")
    return header


class SealedLoader:
    """Loads the segments before the last one."""

    def __init__(
        self, disk: Disk, directory: Path, seed: int, index_interval_bytes: int, report: Callable[[str], None]
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._seed = seed
        self._index_interval_bytes = index_interval_bytes
        self._report = report

    def load(
        self, base_offset: int, next_base: int, is_verified: bool = False, behind: Sequence[int] = ()
    ) -> Segment:
        """Return the finished segment that reaches up to `next_base`, or further, if it has taken in some of `behind`,
        the segments from `next_base` on (`merging`). Raises CorruptJournal, CorruptFile. `is_verified`: it is read
        through, with all checksums."""
        read_header(self._disk, self._directory, base_offset, self._seed)
        segment = Segment(self._directory, base_offset)
        fd = self._disk.open(segment.path, write=True)
        try:
            footer = read_footer(self._disk, fd, self._seed) or self._seal_late(fd, segment, next_base)
            if footer.end_offset > next_base and taken_in(
                self._disk, self._directory, self._seed, base_offset, behind
            ):
                next_base, is_verified = footer.end_offset, True
            if footer.end_offset != next_base:
                raise _gap(
                    segment,
                    footer.position,
                    footer.end_offset,
                    next_base,
                    "the next segment begins elsewhere",
                )
            segment.take(footer)
            if is_verified:
                damage = first_damage(self._disk, fd, str(segment.path), self._seed, base_offset, next_base)
                if damage:
                    raise damage.error()
            segment.index = self._index(fd, segment)
        finally:
            self._disk.close(fd)
        return segment

    def _seal_late(self, fd: int, segment: Segment, next_base: int) -> Footer:
        """Write the footer late: the tail was rewritten into the next segment, and a crash came before this one got
        it."""
        walk = Walk(self._disk, fd, self._seed, segment.base_offset)
        for batch in walk:
            if batch.base_offset >= next_base:
                break
            segment.note(batch.first_timestamp_us, batch.max_timestamp_us)
            segment.size = walk.position
            segment.end_offset = batch.end_offset
        if segment.end_offset != next_base:
            raise _gap(segment, segment.size, segment.end_offset, next_base, f"no footer, and {walk.stop}")
        self._disk.truncate(fd, segment.size)
        return SegmentFile(self._disk, segment, fd, 0, segment.size).seal(self._seed)

    def _index(self, fd: int, segment: Segment) -> OffsetIndex:
        try:
            index = OffsetIndex.unpack(self._disk.read_file(segment.index_path), self._seed)
        except FileNotFoundError:
            index = OffsetIndex()
        if index.serves(
            segment.base_offset, SEGMENT_HEADER_SIZE, segment.end_offset, segment.size, _INDEX_GAP_MAX
        ):
            return index
        return self._rebuilt_index(fd, segment)

    def _rebuilt_index(self, fd: int, segment: Segment) -> OffsetIndex:
        dense = OffsetIndex()
        walk = Walk(self._disk, fd, self._seed, segment.base_offset, limit=segment.size)
        for batch in walk:
            dense.add(batch.base_offset, walk.position - batch.size)
        if walk.is_damaged:
            raise _gap(segment, walk.position, walk.next_offset, segment.end_offset, walk.stop)
        thin = dense.thinned(self._index_interval_bytes)
        try:
            self._disk.replace(segment.index_path, thin.pack(self._seed))
        except (OSError, MemoryError) as error:
            if not is_passing(error):
                raise
            reason = reason_of(error)
            self._report(f"no space for {segment.index_path.name} ({reason}): it is made at a later start")
        else:
            self._report(f"rebuilt {segment.index_path.name} by reading its segment")
        return thin


def _gap(segment: Segment, position: int, first: int, end: int, reason: str) -> CorruptJournal:
    return CorruptJournal(str(segment.path), position, first, max(first, end), reason)
