"""How far behind the end of a journal an offset is: records, their bytes, and the age of the oldest."""

from __future__ import annotations

from time import time

from headrace_spark.base.figures import Lag
from headrace_spark.base.settings import RunSettings
from headrace_spark.source.journal import journal_of
from headrace_spark.source.log_reader import LogReader
from headrace_spark.source.ranges import bytes_between
from headrace_spark.source.remote import IMPATIENT


def lag_of(journal: LogReader, offset: int, now_s: float) -> Lag:
    """Return how far `offset` is behind the journal's end. Bytes are about right; what retention has passed counts for
    nothing. Raises JournalError, JournalUnreachable."""
    end = journal.high_watermark()
    start = max(offset, journal.start_offset())
    if start >= end:
        return Lag(0, 0, 0.0)
    size = bytes_between(journal.segments(), start, end)
    oldest = next(journal.scan(start, start + 1), None)
    age_s = 0.0 if oldest is None else now_s - oldest.first_timestamp_us / 1e6
    return Lag(end - start, size, max(0.0, age_s))


class JournalLag:
    """Measures how far behind a job's offset is, with a reader of its own: on another thread than the job's."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._journal: LogReader | None = None

    def __call__(self, offset: int) -> Lag:
        """Return how far `offset` is behind the journal's end. Raises what cannot be helped just now: JournalError,
        PipelineError, OSError."""
        if self._journal is None:
            self._journal = journal_of(self._settings, IMPATIENT)
        return lag_of(self._journal, offset, time())
