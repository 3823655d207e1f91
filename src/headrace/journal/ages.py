"""How old segments are, by a clock that cannot jump: retention by age must not believe the time of day.

While the log is open, a segment ages with the monotonic clock from when it was first seen finished. What was there when
the log was opened is as much older than the segment behind it as the times of their newest records say, but a gap in
them counts for no more than `gap_max_s`: it is silence, or the broker was stopped, or the clock was set. So a clock
that jumps, once and by years, ages nothing by more than that, and time in which the broker did not run does not count.

Runs on the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from time import monotonic

from headrace.journal.catalog import Segment


class Ages:
    """Keeps the ages of the segments of one open log."""

    def __init__(
        self, segments: Sequence[Segment], gap_max_s: float, clock: Callable[[], float] = monotonic
    ) -> None:
        """Begin with the ages of `segments`, those that are there when the log is opened, oldest first."""
        self._clock = clock
        self._born: dict[int, float] = {}  # base offset -> when it was 0 s old, on that clock
        now = born = clock()
        for older, newer in reversed(list(pairwise(segments))):
            if older.batches and newer.batches:
                gap_us = newer.max_timestamp_us - older.max_timestamp_us
                born -= min(max(gap_us, 0) / 1_000_000, gap_max_s)
            self._born[older.base_offset] = born if older.batches else now

    def see(self, segments: Sequence[Segment]) -> None:
        """Note the segments that are there now; the last one is being written."""
        now = self._clock()
        born = self._born
        self._born = {one.base_offset: born.get(one.base_offset, now) for one in segments[:-1]}

    def merged(self, group: Sequence[Segment]) -> None:
        """Note that one segment took the place of these: it is as old as the newest of them."""
        born = self._born.get(group[-1].base_offset)
        if born is not None:
            self._born[group[0].base_offset] = born

    def __call__(self, segment: Segment) -> int:
        """Return at most how many seconds ago the newest record of a segment came; 0 for one that is being written."""
        born = self._born.get(segment.base_offset)
        return 0 if born is None else int(self._clock() - born)
