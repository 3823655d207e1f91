"""The segment that is being written: preallocation, footer, index file. Creating one.

Runs on the writer thread, or on the loop: before that thread is started, and for the syncer (`begin`, `finish`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from headrace.journal.catalog import Segment
from headrace.journal.disk import Disk
from headrace.journal.errors import is_disk_full, synced
from headrace.journal.segment import FOOTER_SIZE, SEGMENT_HEADER_SIZE, Footer, SegmentHeader

if TYPE_CHECKING:
    from headrace.syscalls import Syncer

Result = TypeVar("Result")
_SMALL_STEP_BYTES = 64 << 10  # preallocated at a time when there is no room for more
SMALL_WRITE_MAX = 128 << 10  # bytes of a write that zeros go behind; larger ones gain nothing by it
ZEROS_MIN = 256 << 10
ZEROS = bytes(1 << 20)


class Attempt(Protocol):
    """Makes a step, which leaves nothing behind if it raises OSError: once, or until it succeeds."""

    def __call__(self, step: Callable[[], Result], /) -> Result: ...


class SegmentFile:
    """The segment that is being written: its descriptor, which file that is, and how far it is preallocated."""

    def __init__(self, disk: Disk, segment: Segment, fd: int, allocate_bytes: int, allocated: int) -> None:
        self.segment = segment
        self.fd = fd
        self.identity = disk.identity_of(fd)
        self._disk = disk
        self._allocate_bytes = allocate_bytes
        self._allocated = allocated
        self._zeroed = 0  # up to where the blocks were written once, as far as we know
        self._index_fd = -1
        self._index_size = 0
        self._begun = (0, 0, 0, 0)  # of what the syncer has: bytes, zeroed up to, growth, bytes for the index

    def preallocate(self, end: int, is_scarce: bool = False) -> None:
        """See to it that there is space up to `end`, in steps, so that a sync need not write the size of the file each
        time. Smaller steps on a disk that is nearly full; with `is_scarce` from the first on, since what was given back
        for others is not to be taken by one step. Raises OSError."""
        growth = self._growth(end)
        if not growth:
            return
        small = max(min(_SMALL_STEP_BYTES, self._allocate_bytes), end - self._allocated)
        try:
            self._grow(small if is_scarce else growth)
        except OSError as error:
            if is_scarce or not is_disk_full(error):
                raise
            self._grow(small)

    def _growth(self, end: int) -> int:
        """Return the bytes to preallocate, so that there is space up to `end`; 0 if there is."""
        return max(self._allocate_bytes, end - self._allocated) if end > self._allocated else 0

    def _grow(self, step: int) -> None:
        try:
            self._disk.allocate(self.fd, self._allocated, step)
        except OSError:
            self._disk.truncate(self.fd, self._allocated)  # some of it may have been allocated
            raise
        self._allocated += step

    def append(self, buffers: Sequence[bytes], position: int) -> int:
        """Write buffers without a sync; return the position after them."""
        return self._disk.write_fully(self.fd, buffers, position)

    def append_durably(self, buffers: Sequence[bytes], position: int, end: int) -> None:
        """Write and sync what ends at `end`, behind which it is preallocated. Raises SyncFailed, OSError.

        A block that is preallocated but was never written costs the file system an entry in its own journal, which
        each sync waits for. So zeros go behind a small write, on behalf of the many that follow it there.
        """
        zeros = self._zeros(position, end, self._allocated)
        self._disk.write_and_sync(self.fd, [*buffers, zeros] if zeros else buffers, position)
        self._zeroed = max(self._zeroed, end + len(zeros))

    def _zeros(self, position: int, end: int, allocated: int) -> bytes:
        if end <= self._zeroed or end - position > SMALL_WRITE_MAX:
            return b""
        return ZEROS[: min(max(ZEROS_MIN, 8 * (end - position)), allocated - end)]

    def begin(
        self, syncer: Syncer, header: bytes, body: bytes, position: int, end: int, entries: bytes
    ) -> None:
        """Begin `preallocate`, `append_durably` and `write_index` at once, by the syncer. Raises OSError."""
        growth = self._growth(end)
        zeros = self._zeros(position, end, self._allocated + growth)
        buffers = (header, body, zeros) if zeros else (header, body)
        self._begun = (end - position + len(zeros), end + len(zeros), growth, len(entries))
        syncer.begin(
            self.fd,
            buffers,
            position,
            self._allocated,
            growth,
            self._index_fd,
            entries,
            self._index_size,
        )

    def finish(self, syncer: Syncer) -> bool | None:
        """Return what became of what was begun: True if all of it is durable, False if it has to be done step by step,
        None if that is not known yet. Raises SyncFailed."""
        wanted, zeroed, growth, entries = self._begun
        try:
            done = syncer.result()
        except (OSError, MemoryError):
            return False
        if done is None:
            return None
        if synced(done) < wanted:
            return False
        self._allocated += growth
        self._zeroed = max(self._zeroed, zeroed)
        self._index_size += entries
        return True

    @property
    def spare_bytes(self) -> int:
        """Return how many bytes are preallocated and hold nothing yet."""
        return max(0, self._allocated - self.segment.size)

    @property
    def has_index(self) -> bool:
        """Return whether there is an index file already."""
        return self._index_fd >= 0

    def seal(self, seed: int) -> Footer:
        """Write the footer, cut the file to size and sync it: whoever finds the footer knows that all above it is
        durable."""
        footer = self.write_footer(seed)
        self.sync_footer()
        return footer

    def write_footer(self, seed: int) -> Footer:
        """Do the first half of `seal`, which may be done again if there was no space."""
        segment = self.segment
        footer = Footer(
            segment.batches,
            segment.end_offset,
            segment.size,
            segment.min_timestamp_us,
            segment.max_timestamp_us,
        )
        self._disk.write_fully(self.fd, [footer.pack(seed)], segment.size)
        return footer

    def sync_footer(self) -> None:
        """Do the second half of `seal`: cut the file to size and sync it."""
        self._disk.truncate(self.fd, self.segment.size + FOOTER_SIZE)
        self._disk.fsync(self.fd)

    def restart_index(self, interval_bytes: int, seed: int) -> None:
        """Write the index file anew, after opening a segment that has batches."""
        if self.segment.batches:
            self.write_index(self.segment.index.thinned(interval_bytes).pack(seed))

    def write_index(self, entries: bytes) -> None:
        """Add to the `.index` file, which other processes may use to start in the middle. Never synced, and the journal
        does without it: what cannot be written is left out."""
        with suppress(OSError, MemoryError):
            if self._index_fd < 0:
                self._index_fd = self._disk.create(self.segment.index_path)
            self._index_size = self._disk.write_fully(self._index_fd, [entries], self._index_size)

    def close(self) -> None:
        """Close what is open; done again, it does nothing."""
        for fd in (self.fd, self._index_fd):
            if fd >= 0:
                self._disk.close(fd)
        self.fd = self._index_fd = -1


def _at_once(step: Callable[[], Result], /) -> Result:
    return step()


def create_segment(disk: Disk, directory: Path, header: SegmentHeader, allocate_bytes: int) -> SegmentFile:
    """Create a new, empty, synced segment. It gets its name last, so a segment file always has a whole header."""
    return name_segment(disk, begin_segment(disk, directory, header, allocate_bytes))


def begin_segment(
    disk: Disk,
    directory: Path,
    header: SegmentHeader,
    allocate_bytes: int,
    is_scarce: bool = False,
    attempt_to_create: Attempt = _at_once,
) -> SegmentFile:
    """Do the first half of `create_segment`, which may be done again if there was no space or no descriptor."""
    segment = Segment(directory, header.base_offset)
    fd = attempt_to_create(partial(disk.create, _temporary(segment)))
    try:
        file = SegmentFile(disk, segment, fd, allocate_bytes, 0)
        file.preallocate(SEGMENT_HEADER_SIZE, is_scarce)
        disk.write_fully(fd, [header.pack()], 0)
    except (OSError, MemoryError):
        disk.close(fd)
        disk.unlink(_temporary(segment))
        raise
    return file


def name_segment(
    disk: Disk, file: SegmentFile, attempt: Attempt = _at_once, attempt_to_sync: Attempt = _at_once
) -> SegmentFile:
    """Do the second half of `create_segment`: sync the segment, give it its name."""
    disk.fsync(file.fd)
    attempt(partial(disk.rename, _temporary(file.segment), file.segment.path))
    attempt_to_sync(partial(disk.fsync_directory, file.segment.path.parent))
    return file


def _temporary(segment: Segment) -> Path:
    return segment.path.with_suffix(".tmp")
