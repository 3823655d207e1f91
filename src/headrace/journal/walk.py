"""Walking the batches of one segment file from a position on: every checksum is verified, every end has a
name.

Used by recovery, by scans, by the reader in other processes and by verify. Reads ahead in chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headrace.journal.disk import Disk
from headrace.journal.segment import (
    BATCH_HEADER_SIZE,
    BATCH_MAGIC,
    END_MAGIC,
    FOOTER_MAGIC,
    FOOTER_SIZE,
    SEGMENT_HEADER_SIZE,
    Batch,
    Footer,
    batch_size_at,
    kept_at,
    unpack_batch,
)

READ_AHEAD_BYTES = 1 << 20

# Why a walk stopped
RUNNING = "running"
END_OF_DATA = "end of data"
FOOTER = "footer"
TORN = "the batch reaches beyond the end of the file"
NO_BATCH = "no batch begins here"
BAD_CHECKSUM = "bad checksum"
WRONG_OFFSET = "a batch with another offset than expected"


class Walk:
    """Walks over the batches of one segment file: iterating yields them. Afterwards `stop` says why it ended, and
    `position` and `next_offset` where.

    `position` is always that of the batch after the last one yielded. Stops quietly before `limit` bytes.
    """

    def __init__(
        self,
        disk: Disk,
        fd: int,
        seed: int,
        next_offset: int,
        position: int = SEGMENT_HEADER_SIZE,
        limit: int = 0,
    ) -> None:
        self.position = position
        self.next_offset = next_offset
        self.stop = RUNNING
        self.footer: Footer | None = None
        self._disk = disk
        self._fd = fd
        self._seed = seed
        self._limit = limit
        self._data = b""
        self._data_position = position

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self._next()) is not None:
            self.position += batch.size
            self.next_offset = batch.base_offset + batch.count
            yield batch

    @property
    def is_damaged(self) -> bool:
        return self.stop not in (RUNNING, END_OF_DATA, FOOTER)

    def _next(self) -> Batch | None:
        if self._limit and self.position >= self._limit:
            self.stop = END_OF_DATA
            return None
        at = self._load(BATCH_HEADER_SIZE)
        magic = self._data[at : at + 4]
        if magic != BATCH_MAGIC:
            self.stop = self._end(magic)
            return None
        size = batch_size_at(self._data, at)
        if not size:
            self.stop = TORN
            return None
        at = self._load(size)
        if len(self._data) - at < size:
            self.stop = TORN
            return None
        return self._checked(unpack_batch(self._data, at, self._seed))

    def _checked(self, batch: Batch | None) -> Batch | None:
        if batch is None:
            self.stop = BAD_CHECKSUM
        elif batch.base_offset != self.next_offset:
            self.stop = WRONG_OFFSET
            return None
        return batch

    def _end(self, magic: bytes) -> str:
        if magic in (b"", END_MAGIC):
            return END_OF_DATA
        if magic == FOOTER_MAGIC:
            at = self._load(FOOTER_SIZE)
            footer = Footer.unpack(self._data[at : at + FOOTER_SIZE], self._seed)
            if footer and footer.position == self.position and footer.end_offset == self.next_offset:
                self.footer = footer
                return FOOTER
        return NO_BATCH

    def _load(self, wanted: int) -> int:
        """See to it that `wanted` bytes from the position on are in the buffer, if the file has them."""
        at = self.position - self._data_position
        if len(self._data) - at < wanted:
            self._data = self._disk.read_fully(self._fd, max(wanted, READ_AHEAD_BYTES), self.position)
            self._data_position = self.position
            at = 0
        return at


def read_footer(disk: Disk, fd: int, seed: int) -> Footer | None:
    """Return the footer at the end of the file, if it ends with one."""
    position = disk.size(fd) - FOOTER_SIZE
    if position < SEGMENT_HEADER_SIZE:
        return None
    footer = Footer.unpack(disk.read_fully(fd, FOOTER_SIZE, position), seed)
    return footer if footer and footer.position == position else None


def has_data(disk: Disk, fd: int, position: int) -> bool:
    """Return whether any byte at or after `position` is not zero."""
    while data := disk.read_fully(fd, READ_AHEAD_BYTES, position):
        if data.count(0) != len(data):
            return True
        position += len(data)
    return False


def is_compacted(disk: Disk, path: Path) -> bool:
    """Return whether compaction has written a segment: all of its batches are sparse then. Raises OSError."""
    fd = disk.open(path)
    try:
        return kept_at(disk.read_fully(fd, BATCH_HEADER_SIZE + 4, SEGMENT_HEADER_SIZE), 0) >= 0
    finally:
        disk.close(fd)
