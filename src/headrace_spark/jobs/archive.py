"""The job `archive`: every message of a broker's journals, once, into the Delta table `messages`.

Exactly once rests on three things. Spark fixes the range of offsets of a micro-batch before it reads; a range of the
journal always gives the same rows; and Delta commits the rows together with the offset behind them, so the table itself
says up to where it has the journal. What is done belongs to offsets, never to the number of a batch: a checkpoint that
was lost, or restored from an older copy, plans other batches under the same numbers, and what the table has of them is
left out. All journals are one query and each batch is one commit: it is in the table for every shard, or for none.

How the rows come into the table depends on where it is (`headrace_spark.archive`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from threading import Event
from time import monotonic

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from headrace_spark.archive.settings import ArchiveSettings
from headrace_spark.archive.target import Target, target_of
from headrace_spark.base.progress import Progress, Report
from headrace_spark.base.query import durations_s, run_query
from headrace_spark.source.journal import commit, journals_of, register, registered_offset
from headrace_spark.source.lag import records_left
from headrace_spark.source.log_reader import LogReader
from headrace_spark.source.options import check_consumer
from headrace_spark.source.ranges import StreamOffset

Settings = ArchiveSettings


def check(settings: Settings) -> None:
    """Check that the job can run. Raises BadOption, JournalMissing."""
    check_consumer(settings.consumer)
    journals_of(settings)


def run(spark: SparkSession, settings: Settings, stop: Event, report: Report) -> Progress:
    """Run the job until it has done its work or is to stop. Raises PipelineError."""
    journals = journals_of(settings)
    target = target_of(spark, settings, journals)
    with target.held():
        written = target.open()
        begin = {journal.uuid: written[journal.uuid] or journal.complete_offset() for journal in journals}
        for journal in journals:
            register(journal, settings.consumer, begin[journal.uuid], target.owner)
        tend = target.upkeep()
        tracker = Tracker(settings, journals, begin, target, report)

        def observe(finished: list[StreamingQueryProgress]) -> None:
            tracker.observe(finished)
            target.require_held()
            tend()

        run_query(target.start, observe, stop, settings.restarts_max)
        return tracker.progress


class Tracker:
    """Adds up what Spark reports, and commits the consumer's position once Spark has finished a batch for good.

    The source commits too, but not before Spark asks it for the next batch (decision 32).
    """

    def __init__(
        self,
        settings: Settings,
        journals: Sequence[LogReader],
        begin: Mapping[str, int],
        target: Target,
        report: Report,
    ) -> None:
        self._settings = settings
        self._journals = {journal.uuid: journal for journal in journals}
        self._target = target
        self._report = report
        self._began = monotonic()
        self._ends = {
            journal.uuid: max(begin[journal.uuid], registered_offset(journal, settings.consumer) or 0)
            for journal in journals
        }
        self.progress = Progress(0, sum(self._ends.values()), 0, 0.0, ends=self._ends)

    def observe(self, finished: list[StreamingQueryProgress]) -> None:
        """Observe the progress. Called about twice a second with the batches finished since; often none."""
        rows = self.progress.rows
        for batch in finished:
            added = self._target.rows(batch.batchId)
            rows += batch.numInputRows if added is None else added
            self._reached(StreamOffset.from_dict(json.loads(batch.sources[0].endOffset)))
        ends = dict(self._ends)
        lag = sum(records_left(journal, ends[uuid]) for uuid, journal in self._journals.items())
        elapsed_s, took = monotonic() - self._began, durations_s(finished)
        self.progress = Progress(rows, sum(ends.values()), lag, elapsed_s, took, ends=ends)
        self._report(self.progress)

    def _reached(self, end: StreamOffset) -> None:
        for uuid, position in end.positions.items():
            if position.offset != self._ends.get(uuid):
                commit(self._journals[uuid], self._settings.consumer, position, self._target.owner)
                self._ends[uuid] = position.offset
