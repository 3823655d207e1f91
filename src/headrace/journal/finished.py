"""A finished segment as a reader sees it: its batches, and any bytes of it.

For readers that keep an index of their own: `key` names this very content, since compaction may put another file in
its place, and a journal that was put back from a copy may have gone on otherwise in a segment of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from headrace.journal.disk import Disk
from headrace.journal.segment import SEGMENT_HEADER_SIZE, Batch, SegmentHeader, file_name, seed_of
from headrace.journal.walk import Walk, read_footer

_TAIL_BYTES: Final = 64 << 10
_DIGEST_BYTES: Final = 8


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
        self._created_us = header.created_us

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._disk.close(self._fd)

    @property
    def key(self) -> str:
        """Return a name for this content: base offset, creation time, and a digest of the size and the end of the file.

        There are the footer (end offset, count of batches, times) and the last batches with their checksums, epochs and
        times: two segments that parted anywhere differ there.
        """
        begin = max(0, self.size - _TAIL_BYTES)
        digest = blake2b(b"%d" % self.size, digest_size=_DIGEST_BYTES)
        digest.update(self.read(begin, self.size - begin))
        return f"{self.base_offset:020d}-{self._created_us:x}-{digest.hexdigest()}"

    def batches(self) -> Iterator[Batch]:
        """Yield the batches from the first on, back to back; ends early where the segment is damaged."""
        return iter(Walk(self._disk, self._fd, self.seed, self.base_offset))

    def read(self, position: int, length: int) -> bytes:
        return self._disk.read_fully(self._fd, length, position)
