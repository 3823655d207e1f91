"""The job `archive`: every message of a journal, once, into the Delta table `messages`.

Exactly once rests on three things. Spark writes the range of offsets of a micro-batch into its checkpoint
before it reads; a range of the journal always gives the same rows; and Delta's streaming sink commits the
rows together with (query id, batch id), so a batch that is repeated after kill -9 is recognised and skipped.

Start-up refuses what would break that: a checkpoint whose batches the table does not have (the table was
replaced), and two archives of one journal into one lake. A lost checkpoint costs nothing: batches are whole,
so the table itself says where to go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event
from time import monotonic
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from headrace.journal.reader import JournalReader
from headrace_spark.errors import LakeConflict
from headrace_spark.journal import (
    commit,
    holds_last,
    journal_of,
    registered_offset,
    source_options,
)
from headrace_spark.lake import PARTITIONED_BY, Checkpoint, Lake
from headrace_spark.options import EARLIEST, check_consumer
from headrace_spark.progress import Progress, Report
from headrace_spark.query import run_query
from headrace_spark.ranges import JournalOffset
from headrace_spark.schema import MESSAGES
from headrace_spark.settings import RunSettings
from headrace_spark.upkeep import Upkeep

JOB: Final = "archive"


@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings):
    """`[pipeline.archive]`: one journal into the table `messages` of one lake."""

    consumer: str
    records_per_trigger_max: int
    bytes_per_trigger_max: int
    fail_on_data_loss: bool


def check(settings: Settings) -> None:
    """Raises BadOption, JournalMissing."""
    check_consumer(settings.consumer)
    journal_of(settings)


def run(spark: SparkSession, settings: Settings, stop: Event, report: Report) -> Progress:
    """Raises PipelineError."""
    journal = journal_of(settings)
    lake = Lake(settings.lake)
    with lake.archiving(journal.uuid):
        start = starting_offset(journal, lake, lake.checkpoint(JOB, settings.consumer))
        lake.create_messages(spark)
        upkeep = Upkeep(spark, settings.upkeep, lake.checkpoints, [lake.messages])
        tracker = Tracker(settings, journal, start, report)

        def observe(finished: list[StreamingQueryProgress]) -> None:
            tracker.observe(finished)
            upkeep.tend()

        run_query(lambda: start_query(spark, settings, start), observe, stop, settings.restarts_max)
        return tracker.progress


def starting_offset(journal: JournalReader, lake: Lake, checkpoint: Checkpoint) -> str:
    """Where a query without a finished batch begins: behind the rows that the table has. Raises LakeConflict."""
    state = lake.state()
    done, query_id = checkpoint.last_batch, checkpoint.query_id
    if done is not None and query_id is None:
        raise LakeConflict(
            f"checkpoint {checkpoint.path} has batches and no file `metadata`: it is not whole. Remove it, and the "
            "archive goes on from the table"
        )
    if done is not None and query_id is not None:
        written = lake.last_batch(query_id)
        if written is None or written < done:
            raise LakeConflict(
                f"checkpoint {checkpoint.path} has finished batch {done}, but table {lake.messages} does not hold it: "
                "the table was removed or replaced. Remove the checkpoint too, and the archive goes on from the table"
            )
    end = None if state is None else state.end(journal.uuid)
    if end is None:
        return EARLIEST
    if not holds_last(journal, end.offset, end.epoch):
        raise LakeConflict(
            f"table {lake.messages} has messages up to offset {end.offset}, epoch {end.epoch}, which journal "
            f"{journal.uuid} (epoch {journal.epoch}) no longer has: it was cut back since. Archive it into another lake"
        )
    return str(end.offset)


def read_messages(spark: SparkSession, settings: Settings, start: str) -> DataFrame:
    """The journal as a stream of `messages`."""
    return (
        spark.readStream.format("headrace-journal")
        .option("consumer", settings.consumer)
        .option("startingOffsets", start)
        .option("maxRowsPerTrigger", settings.records_per_trigger_max)
        .option("maxBytesPerTrigger", settings.bytes_per_trigger_max)
        .option("failOnDataLoss", settings.fail_on_data_loss)
        .option("partitions", spark.sparkContext.defaultParallelism)
        .options(**source_options(journal_of(settings)))
        .load()
        .select(*MESSAGES.names)
    )


def start_query(spark: SparkSession, settings: Settings, start: str) -> StreamingQuery:
    lake = Lake(settings.lake)
    writer = (
        read_messages(spark, settings, start)
        .writeStream.format("delta")
        .queryName(f"{JOB}-{settings.consumer}")
        .partitionBy(*PARTITIONED_BY)
        .option("checkpointLocation", str(lake.checkpoint(JOB, settings.consumer).path))
    )
    if settings.follow:
        return writer.trigger(processingTime=f"{round(settings.trigger_s * 1000)} milliseconds").start(
            str(lake.messages)
        )
    return writer.trigger(availableNow=True).start(str(lake.messages))


class Tracker:
    """Adds up what Spark reports, and commits the consumer's position once Spark has finished a batch for good.

    The source commits too, but a batch later, and never the last one (decision 32): an idle archive would
    hold back retention for ever.
    """

    def __init__(
        self,
        settings: Settings,
        journal: JournalReader,
        start: str,
        report: Report,
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._report = report
        self._began = monotonic()
        begin = journal.start_offset() if start == EARLIEST else int(start)
        known = registered_offset(journal, settings.consumer) or 0
        self.progress = Progress(0, max(begin, known), 0, 0.0)

    def observe(self, finished: list[StreamingQueryProgress]) -> None:
        """Called about twice a second with the batches finished since; often none."""
        rows, offset = self.progress.rows, self.progress.offset
        for batch in finished:
            rows += batch.numInputRows
            reached = JournalOffset.from_json(batch.sources[0].endOffset)
            if reached.offset != offset:
                commit(self._journal, self._settings.consumer, reached)
            offset = reached.offset
        lag = max(0, self._journal.high_watermark() - offset)
        self.progress = Progress(rows, offset, lag, monotonic() - self._began)
        self._report(self.progress)
