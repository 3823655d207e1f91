"""The segments of the open log, and reading a batch by offset.

Reads run on the loop; the writer adds to the last segment and, on its thread, appends a new one when it rolls. The
list is replaced as a whole under a lock, so a reader always works on one that fits together.

Descriptors that were opened for reads stay open, and one is held in reserve: when the process has none left, a read gives
up one of ours instead of failing.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from headrace.journal.disk import Disk
from headrace.journal.errors import CorruptBatch, OffsetOutOfRange
from headrace.journal.index import SUFFIX as INDEX_SUFFIX
from headrace.journal.index import OffsetIndex
from headrace.journal.segment import (
    SEGMENT_HEADER_SIZE,
    Batch,
    Footer,
    base_offset_of,
    batch_range_at,
    batch_size_at,
    file_name,
    unpack_batch,
)
from headrace.journal.walk import Walk

OPEN_FILES_MAX = 64
NO_END = 1 << 62


class Segment:
    """One segment as the open log knows it. `end_offset` and `size` (bytes that hold data) come last in a
    write."""

    __slots__ = (
        "base_offset",
        "batches",
        "end_offset",
        "index",
        "kept_records",
        "max_timestamp_us",
        "min_timestamp_us",
        "path",
        "size",
        "went_back",
    )

    def __init__(self, directory: Path, base_offset: int) -> None:
        self.path = directory / file_name(base_offset)
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size = SEGMENT_HEADER_SIZE
        self.batches = 0
        self.min_timestamp_us = 0
        self.max_timestamp_us = 0
        self.went_back = False  # the time, somewhere between its batches or within one
        self.index = OffsetIndex()
        self.kept_records = -1  # by compaction; -1: nobody has looked since the log was opened

    def note(self, first_timestamp_us: int, max_timestamp_us: int) -> None:
        """Note that the segment has one more batch with these times. Either may be the earlier: clocks are set back."""
        low_us, high_us = first_timestamp_us, max_timestamp_us
        if high_us < low_us:
            low_us, high_us = high_us, low_us
            self.went_back = True
        if not self.batches:
            self.min_timestamp_us = low_us
        self.batches += 1
        if low_us < self.max_timestamp_us:
            self.went_back = True
            self.min_timestamp_us = min(self.min_timestamp_us, low_us)
        if high_us > self.max_timestamp_us:
            self.max_timestamp_us = high_us

    def take(self, footer: Footer) -> None:
        """Take over what the footer says, without reading the batches."""
        self.end_offset = footer.end_offset
        self.size = footer.position
        self.batches = footer.batches
        self.min_timestamp_us = footer.min_timestamp_us
        self.max_timestamp_us = footer.max_timestamp_us

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(INDEX_SUFFIX)


class Catalog:
    """The segments of the open log, in order. Never empty while the log is open: the last one is being written."""

    def __init__(
        self, disk: Disk, seed: int, segments: list[Segment], open_files_max: int = OPEN_FILES_MAX
    ) -> None:
        self._disk = disk
        self._seed = seed
        self._open_files_max = open_files_max
        self._lock = Lock()
        self._view = ([segment.base_offset for segment in segments], segments)
        self._files: dict[int, int] = {}  # base offset -> descriptor, least recently opened first
        self._directory = segments[0].path.parent
        self._spare = -1
        self._leaving: Segment | None = None  # its name may be gone, and it is still in the list
        self.leftovers: list[
            Path
        ] = []  # by merging: files of segments that another one has taken in, oldest first
        self._take_spare()

    @property
    def segments(self) -> list[Segment]:
        """Return the segments, oldest first, in a list that nobody changes."""
        return self._view[1]

    def needs(self, segment: Segment) -> bool:
        """Return whether the file of a segment that was in the list must have its name. Runs on any thread."""
        if segment is self._leaving:  # asked first: the list is without it before that is over
            return False
        return segment.base_offset in self._view[0]

    def append(self, segment: Segment) -> None:
        """Add a segment behind the others. Runs on the writer thread."""
        with self._lock:
            bases, segments = self._view
            self._view = ([*bases, segment.base_offset], [*segments, segment])

    def remove_first(self) -> Segment:
        """Delete the files of the oldest segment and forget it. Raises OSError, and then it is still there.

        What merging could not remove goes after it: before the merged one has its name durably, they are needed."""
        gone = self._leaving = self._view[1][0]
        try:
            with suppress(FileNotFoundError):
                self._disk.unlink(gone.path)  # takes the name at once, and may take long to free the blocks
            with self._lock:
                bases, segments = self._view
                self._view = (bases[1:], segments[1:])
        finally:
            self._leaving = None
        self._close(gone)
        with suppress(FileNotFoundError):
            self._disk.unlink(gone.index_path)
        with suppress(OSError):
            self.remove_leftovers(gone.end_offset)
        return gone

    def replace(self, segment: Segment) -> None:
        """Put another file in the place of the one with the same base offset. Runs on the loop."""
        with self._lock:
            bases, segments = self._view
            at = bases.index(segment.base_offset)
            self._view = (bases, [*segments[:at], segment, *segments[at + 1 :]])
        self._close(segment)

    def merge(self, new: Segment, group: Sequence[Segment]) -> None:
        """Put one segment in the place of these neighbours. Runs on the loop."""
        with self._lock:
            bases, segments = self._view
            at, end = bases.index(group[0].base_offset), bases.index(group[-1].base_offset) + 1
            merged = [*segments[:at], new, *segments[end:]]
            self._view = ([segment.base_offset for segment in merged], merged)
        for segment in group:
            self._close(segment)
        self.leftovers += [segment.path for segment in group[1:]]

    def merged(self) -> list[Segment]:
        """Return the segments into which a merge has put what is left over."""
        bases = {base_offset_of(path.name) or 0 for path in self.leftovers}
        return [
            one for one in self.segments if any(one.base_offset < base < one.end_offset for base in bases)
        ]

    def remove_leftovers(self, end_offset: int = NO_END) -> None:
        """Delete the files of merged segments, those that begin below `end_offset`. Raises OSError, and then the files
        that are left are still to go."""
        for path in list(self.leftovers):
            if (base_offset_of(path.name) or 0) < end_offset:
                for gone in (path, path.with_suffix(INDEX_SUFFIX)):
                    with suppress(FileNotFoundError):
                        self._disk.unlink(gone)
                with suppress(ValueError):  # by another thread, which a stop did not wait for
                    self.leftovers.remove(path)

    def _close(self, segment: Segment) -> None:
        """Close a file of which nothing is read any more."""
        fd = self._files.pop(segment.base_offset, -1)
        if fd >= 0:
            self._disk.close(fd)
            if self._spare < 0:
                self._take_spare()

    def close(self) -> None:
        while self._give_up_one():
            pass

    def read(self, offset: int) -> Batch:
        """Return the batch that holds `offset`. Raises OffsetOutOfRange, CorruptBatch."""
        segment = self._find(offset)
        _, position, end = segment.index.span(offset, segment.size)
        data = self._disk.read_fully(self._file(segment), end - position, position)
        return self._pick(data, offset) or self._walk_to(segment, offset)

    def bytes_from(self, offset: int) -> int:
        """Return how many bytes hold data from the batch of `offset` on, as exact as the index. Runs on any thread."""
        total = 0
        for segment in self.segments:
            if segment.end_offset > offset:
                start = SEGMENT_HEADER_SIZE
                with suppress(IndexError):
                    start = segment.index.span(offset, segment.size)[1]
                total += max(0, segment.size - start)
        return total

    def scan(self, start: int, end: int) -> Iterator[Batch]:
        """Yield the batches that hold `start` up to `end`, without any after; `start` may lie inside the first."""
        while start < end:
            segment = self._find(start)
            base, position, _ = segment.index.span(start, segment.size)
            fd = self._open(segment.path)  # its own: those of `read` are closed for one another
            try:
                walk = Walk(self._disk, fd, self._seed, base, position, segment.size)
                for batch in walk:
                    if batch.end_offset <= start:
                        continue
                    yield batch
                    start = batch.end_offset
                    if start >= end:
                        return
            finally:
                self._disk.close(fd)
            if walk.is_damaged or start < segment.end_offset:
                raise CorruptBatch(str(segment.path), walk.position, start, walk.stop)

    def _find(self, offset: int) -> Segment:
        bases, segments = self._view
        i = bisect_right(bases, offset) - 1
        if i < 0 or offset >= segments[i].end_offset:
            raise OffsetOutOfRange(offset, bases[0], segments[-1].end_offset)
        return segments[i]

    def _pick(self, data: bytes, offset: int) -> Batch | None:
        """Hop over the batches before the one that holds `offset` and return that one."""
        at = 0
        while size := batch_size_at(data, at):
            base, end = batch_range_at(data, at)
            if base <= offset < end:
                return unpack_batch(data, at, self._seed)
            at += size
        return None

    def _walk_to(self, segment: Segment, offset: int) -> Batch:
        """Walk to a batch without the index, which is not trusted: only if this fails too is the segment damaged."""
        walk = Walk(self._disk, self._file(segment), self._seed, segment.base_offset, limit=segment.size)
        for batch in walk:
            if batch.end_offset > offset:
                return batch
        raise CorruptBatch(str(segment.path), walk.position, offset, walk.stop)

    def _file(self, segment: Segment) -> int:
        fd = self._files.get(segment.base_offset, -1)
        if fd < 0:
            if len(self._files) >= self._open_files_max:
                self._disk.close(self._files.pop(next(iter(self._files))))
            fd = self._files[segment.base_offset] = self._open(segment.path)
        return fd

    def _open(self, path: Path) -> int:
        """Open a file again and again for as long as we hold any descriptor of our own: the process cannot be out of
        them."""
        try:
            return self._disk.open(path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._give_up_one():
                raise
        return self._disk.open(path)

    def _give_up_one(self) -> bool:
        """Close the file that was opened first, or the spare; False if there is neither."""
        if self._files:
            fd = self._files.pop(next(iter(self._files)))
        else:
            fd, self._spare = self._spare, -1
        if fd >= 0:
            self._disk.close(fd)
        return fd >= 0

    def _take_spare(self) -> None:
        with suppress(OSError):
            self._spare = self._disk.open(self._directory)
