"""The job `archive`: every message of a journal, once, into the Delta table `messages`.

Exactly once rests on three things. Spark fixes the range of offsets of a micro-batch before it reads; a range of the
journal always gives the same rows; and Delta commits the rows together with the offset behind them, so the table itself
says up to where it has the journal. What is done belongs to offsets, never to the number of a batch: a checkpoint that
was lost, or restored from an older copy, plans other batches under the same numbers, and what the table has of them is
left out.

How the rows come into the table depends on where it is (`headrace_spark.archive`).
"""

from __future__ import annotations

from threading import Event
from time import monotonic

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from headrace_spark.archive.settings import ArchiveSettings
from headrace_spark.archive.target import Target, target_of
from headrace_spark.base.progress import Progress, Report
from headrace_spark.base.query import durations_s, run_query
from headrace_spark.source.journal import commit, journal_of, register, registered_offset
from headrace_spark.source.log_reader import LogReader
from headrace_spark.source.options import check_consumer
from headrace_spark.source.ranges import JournalOffset

Settings = ArchiveSettings


def check(settings: Settings) -> None:
    """Check that the job can run. Raises BadOption, JournalMissing."""
    check_consumer(settings.consumer)
    journal_of(settings)


def run(spark: SparkSession, settings: Settings, stop: Event, report: Report) -> Progress:
    """Run the job until it has done its work or is to stop. Raises PipelineError."""
    journal = journal_of(settings)
    target = target_of(spark, settings, journal)
    with target.held():
        written = target.open()
        register(journal, settings.consumer, written or journal.complete_offset(), target.owner)
        tend = target.upkeep()
        tracker = Tracker(settings, journal, written, target, report)

        def observe(finished: list[StreamingQueryProgress]) -> None:
            tracker.observe(finished)
            target.require_held()
            tend()

        run_query(target.start, observe, stop, settings.restarts_max)
        return tracker.progress


class Tracker:
    """Adds up what Spark reports, and commits the consumer's position once Spark has finished a batch for good.

    The source commits too, but a batch later, and never the last one (decision 32): an idle archive would
    hold back retention for ever.
    """

    def __init__(
        self, settings: Settings, journal: LogReader, written: int, target: Target, report: Report
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._target = target
        self._report = report
        self._began = monotonic()
        known = registered_offset(journal, settings.consumer) or 0
        self.progress = Progress(0, max(written or journal.complete_offset(), known), 0, 0.0)

    def observe(self, finished: list[StreamingQueryProgress]) -> None:
        """Observe the progress. Called about twice a second with the batches finished since; often none."""
        rows, offset = self.progress.rows, self.progress.offset
        for batch in finished:
            added = self._target.rows(batch.batchId)
            rows += batch.numInputRows if added is None else added
            reached = JournalOffset.from_json(batch.sources[0].endOffset)
            if reached.offset != offset:
                commit(self._journal, self._settings.consumer, reached, self._target.owner)
            offset = reached.offset
        lag = max(0, self._journal.high_watermark() - offset)
        self.progress = Progress(rows, offset, lag, monotonic() - self._began, durations_s(finished))
        self._report(self.progress)
