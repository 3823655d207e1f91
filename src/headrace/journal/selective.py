"""Walking a segment for a range of time: batches outside it are stepped over by their headers alone.

A batch says the time of its first record and its largest one, so most of a segment is never read. What is
stepped over is not checked beyond the chain of offsets and lengths; what is yielded is checked as ever.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.journal.disk import Disk
from headrace.journal.segment import (
    BATCH_HEADER_SIZE,
    Batch,
    batch_range_at,
    batch_size_at,
    batch_times_at,
)
from headrace.journal.walk import READ_AHEAD_BYTES, Walk


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The time from `since_us` up to `until_us`, in microseconds since 1970."""

    since_us: int
    until_us: int

    def overlaps(self, one_us: int, other_us: int) -> bool:
        """Return whether anything between the two lies in the range. Either may be the earlier: clocks are set back."""
        return max(one_us, other_us) >= self.since_us and min(one_us, other_us) < self.until_us


class SelectiveWalk(Walk):
    """Yields the batches that overlap `times`, up to the one that holds `end_offset - 1`."""

    def __init__(
        self,
        disk: Disk,
        fd: int,
        seed: int,
        next_offset: int,
        position: int,
        times: TimeRange,
        end_offset: int,
    ) -> None:
        super().__init__(disk, fd, seed, next_offset, position)
        self._times = times
        self._end_offset = end_offset
        self._ahead = BATCH_HEADER_SIZE

    def _next(self) -> Batch | None:
        while self.next_offset < self._end_offset:
            at = self._load(BATCH_HEADER_SIZE)
            size = batch_size_at(self._data, at)
            if not size or batch_range_at(self._data, at)[0] != self.next_offset:
                return super()._next()  # which says what is wrong
            if self._times.overlaps(*batch_times_at(self._data, at)):
                self._ahead = min(4 * self._ahead, READ_AHEAD_BYTES)
                return super()._next()
            self._ahead = BATCH_HEADER_SIZE
            self.position += size
            self.next_offset = batch_range_at(self._data, at)[1]
        return None

    def _load(self, wanted: int) -> int:
        """Read ahead, further the more batches in a row are wanted."""
        at = self.position - self._data_position
        if len(self._data) - at < wanted:
            self._data = self._disk.read_fully(self._fd, max(wanted, self._ahead), self.position)
            self._data_position = self.position
            at = 0
        return at
