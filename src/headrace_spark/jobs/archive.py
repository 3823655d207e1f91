"""The job `archive`: every message of a journal, once, into the Delta table `messages`.

Exactly once rests on three things. Spark writes the range of offsets of a micro-batch into its checkpoint
before it reads; a range of the journal always gives the same rows; and Delta commits the rows together with
(query id, batch id), so a batch that is repeated after kill -9 is recognised and skipped.

The workers that read the journal write the files, and the driver adds them to the table (ADR 0009). A table on
which somebody has switched on more of Delta than this job knows is written by Delta's own streaming sink; offsets
and transactions are the same, so a job may change from one to the other between two runs.

Start-up refuses what would break that: a checkpoint whose batches the table does not have (the table was
replaced), and two archives of one journal into one lake. A lost checkpoint costs nothing: batches are whole,
so the table itself says where to go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event
from time import monotonic
from typing import Final

from deltalake import DeltaTable as DeltaLog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from headrace.journal.reader import JournalReader
from headrace_spark.base.errors import LakeConflict
from headrace_spark.base.progress import Progress, Report
from headrace_spark.base.query import run_query
from headrace_spark.base.settings import RunSettings
from headrace_spark.lake.delta_commit import append_files, has_batch
from headrace_spark.lake.durable import SyncedTable
from headrace_spark.lake.lake import PARTITIONED_BY, Checkpoint, Lake
from headrace_spark.lake.table_files import rows_in
from headrace_spark.lake.upkeep import Upkeep
from headrace_spark.records.schema import MESSAGES
from headrace_spark.source.file_source import FORMAT as FILES_FORMAT
from headrace_spark.source.journal import (
    commit,
    holds_last,
    journal_of,
    registered_offset,
    source_options,
)
from headrace_spark.source.options import EARLIEST, check_consumer
from headrace_spark.source.ranges import JournalOffset

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
        added = Added(lake, lake.checkpoint(JOB, settings.consumer))
        tracker = Tracker(settings, journal, start, added, report)

        def observe(finished: list[StreamingQueryProgress]) -> None:
            tracker.observe(finished)
            upkeep.tend()

        run_query(lambda: start_query(spark, settings, start, added), observe, stop, settings.restarts_max)
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


def stream(spark: SparkSession, settings: Settings, start: str, source: str) -> DataStreamReader:
    """The journal as a stream of one of our sources."""
    return (
        spark.readStream.format(source)
        .option("consumer", settings.consumer)
        .option("startingOffsets", start)
        .option("maxRowsPerTrigger", settings.records_per_trigger_max)
        .option("maxBytesPerTrigger", settings.bytes_per_trigger_max)
        .option("failOnDataLoss", settings.fail_on_data_loss)
        .option("partitions", spark.sparkContext.defaultParallelism)
        .options(**source_options(journal_of(settings)))
    )


def start_query(spark: SparkSession, settings: Settings, start: str, added: Added) -> StreamingQuery:
    lake = Lake(settings.lake)
    if lake.is_plain():
        files = stream(spark, settings, start, FILES_FORMAT).option("table", str(lake.messages)).load()
        writer = files.writeStream.foreachBatch(added.batch)
    else:
        rows = stream(spark, settings, start, "headrace-journal").load().select(*MESSAGES.names)
        writer = (
            rows.writeStream.format("delta").partitionBy(*PARTITIONED_BY).option("path", str(lake.messages))
        )
    writer = writer.queryName(f"{JOB}-{settings.consumer}").option(
        "checkpointLocation", str(lake.checkpoint(JOB, settings.consumer).path)
    )
    if settings.follow:
        return writer.trigger(processingTime=f"{round(settings.trigger_s * 1000)} milliseconds").start()
    return writer.trigger(availableNow=True).start()


class Added:
    """The files of each batch into the table. Spark calls `batch` on a thread of its own, one batch after the other."""

    def __init__(self, lake: Lake, checkpoint: Checkpoint) -> None:
        self._lake = lake
        self._checkpoint = checkpoint
        self._synced = SyncedTable(lake.messages)
        self.rows: dict[int, int] = {}
        """By batch; Spark sees files in the place of rows."""

    def batch(self, files: DataFrame, batch: int) -> None:
        spark, table, query_id = files.sparkSession, self._lake.messages, str(self._checkpoint.query_id)
        if not has_batch(DeltaLog(table), query_id, batch):
            actions = [row.action for row in files.collect()]  # the workers write them now
            append_files(spark, table, actions, query_id, batch)
            self.rows[batch] = sum(rows_in(action) for action in actions)
        self._synced.sync()  # before Spark calls the batch finished, and the consumer's position moves


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
        added: Added,
        report: Report,
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._added = added
        self._report = report
        self._began = monotonic()
        begin = journal.start_offset() if start == EARLIEST else int(start)
        known = registered_offset(journal, settings.consumer) or 0
        self.progress = Progress(0, max(begin, known), 0, 0.0)

    def observe(self, finished: list[StreamingQueryProgress]) -> None:
        """Called about twice a second with the batches finished since; often none."""
        rows, offset = self.progress.rows, self.progress.offset
        for batch in finished:
            rows += self._added.rows.pop(batch.batchId, batch.numInputRows)
            reached = JournalOffset.from_json(batch.sources[0].endOffset)
            if reached.offset != offset:
                commit(self._journal, self._settings.consumer, reached)
            offset = reached.offset
        lag = max(0, self._journal.high_watermark() - offset)
        self.progress = Progress(rows, offset, lag, monotonic() - self._began)
        self._report(self.progress)
