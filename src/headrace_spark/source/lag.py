"""How far behind the end of a journal an offset is: records, their bytes, and the age of the oldest."""

from __future__ import annotations

from collections.abc import Iterable
from time import time

from headrace_spark.base.figures import Lag
from headrace_spark.base.progress import Progress
from headrace_spark.base.settings import RunSettings
from headrace_spark.source.journal import first_time_us, journals_of
from headrace_spark.source.log_reader import LogReader
from headrace_spark.source.ranges import bytes_between
from headrace_spark.source.remote import IMPATIENT


def records_left(journal: LogReader, offset: int) -> int:
    """Return how many records there are from `offset` to the journal's end that can be read: what retention has passed,
    and what a shard keeps of a journal that was divided, counts for nothing. Raises JournalError, JournalUnreachable."""
    return max(0, journal.high_watermark() - max(offset, journal.complete_offset()))


def lag_of(journal: LogReader, offset: int, now_s: float) -> Lag:
    """Return how far `offset` is behind the journal's end, by the records that can be read. Bytes are about right. Raises
    JournalError, JournalUnreachable."""
    end = journal.high_watermark()
    start = max(offset, journal.complete_offset())
    if start >= end:
        return Lag(0, 0, 0.0)
    size = bytes_between(journal.segments(), start, end)
    oldest_us = first_time_us(journal, start)
    age_s = 0.0 if oldest_us is None else now_s - oldest_us / 1e6
    return Lag(end - start, size, max(0.0, age_s))


def lag_of_all(positions: Iterable[tuple[LogReader, int]], now_s: float) -> Lag:
    """Return how far offsets of several journals are behind their ends: the sums, and the age of the oldest record.
    Raises JournalError, JournalUnreachable."""
    found = [lag_of(journal, offset, now_s) for journal, offset in positions]
    return Lag(
        sum(lag.messages for lag in found),
        sum(lag.bytes for lag in found),
        max((lag.seconds for lag in found), default=0.0),
    )


class JournalLag:
    """Measures how far behind a job is, with a reader of its own: on another thread than the job's."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._journals: list[LogReader] = []

    def __call__(self, progress: Progress) -> Lag:
        """Return how far a job is behind the ends of its journals: the sums, and the age of the oldest record. Raises
        what cannot be helped just now: JournalError, PipelineError, OSError."""
        if not self._journals:
            self._journals = journals_of(self._settings, IMPATIENT)
        now_s = time()
        return lag_of_all(
            [(journal, progress.ends.get(journal.uuid, 0)) for journal in self._journals], now_s
        )
