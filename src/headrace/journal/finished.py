"""A finished segment as a reader sees it: its batches, and any bytes of it.

For readers that keep an index of their own: `key` names this very file, since compaction may put another one
in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.journal.disk import Disk
from headrace.journal.segment import SEGMENT_HEADER_SIZE, Batch, SegmentHeader, file_name, seed_of
from headrace.journal.walk import Walk, read_footer


class FinishedSegment:
    """An open segment; `footer` is None for the one being written. Use as a context manager.

    Raises FileNotFoundError, CorruptFile.
    """

    def __init__(self, disk: Disk, directory: Path, base_offset: int) -> None:
        self.base_offset = base_offset
        self._disk = disk
        path = directory / file_name(base_offset)
        self._fd = disk.open(path)
        try:
            header = SegmentHeader.unpack(disk.read_fully(self._fd, SEGMENT_HEADER_SIZE, 0), str(path))
            self.seed = seed_of(header.uuid)
            self.footer = read_footer(disk, self._fd, self.seed)
        except BaseException:
            disk.close(self._fd)
            raise
        self.size = disk.size(self._fd)
        self.key = f"{base_offset:020d}-{header.created_us:x}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._disk.close(self._fd)

    def batches(self) -> Iterator[Batch]:
        """Yield the batches from the first on, back to back; ends early where the segment is damaged."""
        return iter(Walk(self._disk, self._fd, self.seed, self.base_offset))

    def read(self, position: int, length: int) -> bytes:
        return self._disk.read_fully(self._fd, length, position)
