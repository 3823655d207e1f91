"""The job `archive`: every message of a journal, once, into the Delta table `messages`.

Exactly once rests on three things. Spark writes the range of offsets of a micro-batch into its checkpoint
before it reads; a range of the journal always gives the same rows; and Delta commits the rows together with
the offset behind them, so the table itself says up to where it has the journal. What is done belongs to offsets,
never to the number of a batch: a checkpoint that was lost, or restored from an older copy, plans other batches under
the same numbers, and what the table has of them is left out.

The workers that read the journal write the files, and the driver adds them to the table (ADR 0009). Where somebody
has switched on more of Delta than this job knows, Spark writes the rows of these files anew; a job notices that from
one batch to the next.

Start-up refuses what would break that: a checkpoint that is ahead of the table (the table was replaced or restored), and
two archives of one journal into one lake.
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

from headrace.journal.reader import JournalReader
from headrace_spark.base.errors import LakeConflict
from headrace_spark.base.progress import Progress, Report
from headrace_spark.base.query import durations_s, run_query
from headrace_spark.base.settings import RunSettings
from headrace_spark.lake.checkpoint import Checkpoint
from headrace_spark.lake.delta_commit import append_files, has_version, remove_files
from headrace_spark.lake.durable import SyncedTable
from headrace_spark.lake.lake import JournalEnd, Lake, archive_id
from headrace_spark.lake.lake_table import rows_of_files
from headrace_spark.lake.table_files import rows_in
from headrace_spark.lake.upkeep import Upkeep
from headrace_spark.records.schema import MESSAGES
from headrace_spark.source.file_source import FORMAT
from headrace_spark.source.journal import (
    commit,
    holds_last,
    journal_of,
    reaches,
    register,
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
        checkpoint = lake.checkpoint(JOB, settings.consumer)
        written = written_below(journal, lake, checkpoint)
        lake.create_messages(spark)
        register(
            journal, settings.consumer, written or journal.complete_offset(), lake.owner(JOB, lake.messages)
        )
        upkeep = Upkeep(spark, settings.upkeep, lake.checkpoints, [lake.messages])
        added = Added(lake, checkpoint)
        tracker = Tracker(settings, journal, written, added, report)

        def observe(finished: list[StreamingQueryProgress]) -> None:
            tracker.observe(finished)
            upkeep.tend()

        run_query(lambda: start_query(spark, settings, written, added), observe, stop, settings.restarts_max)
        return tracker.progress


def written_below(journal: JournalReader, lake: Lake, checkpoint: Checkpoint) -> int:
    """The table has every message of the journal below this offset, 0 if it has none.

    Raises LakeConflict, ForeignOffset.
    """
    checkpoint.require_whole("Remove it, and the archive goes on from the table")
    if (before := lake.lost_by_restore()) is not None:
        raise LakeConflict(
            f"Delta's RESTORE has taken rows out of table {lake.messages}, which would be missing for ever. To have them "
            f"back: RESTORE TABLE delta.`{lake.messages}` TO VERSION AS OF {before}. Or use another lake"
        )
    state = lake.state()
    last = None if state is None else state.end(journal.uuid)
    if last is not None and not holds_last(journal, last.offset, last.epoch):
        raise _cut_back(lake, journal, last)
    said = lake.archived(journal.uuid, journal.epoch)
    if said is not None and not reaches(journal, said.offset, said.epoch):
        raise _cut_back(lake, journal, said)
    written = max(end.offset if end else 0 for end in (last, said))
    require_together(lake, checkpoint, journal.uuid, None if said is None else written)
    return written


def require_together(lake: Lake, checkpoint: Checkpoint, uuid: str, written: int | None) -> None:
    """What the checkpoint has passed is in the table. `written`: None if only batches of an older headrace are in it.

    Raises LakeConflict, ForeignOffset.
    """
    passed, done = checkpoint.passed(), checkpoint.last_batch
    if passed is None:
        return
    position = JournalOffset.from_dict(passed)
    if written is None:
        batch = lake.last_batch(str(checkpoint.query_id))
        is_ahead = done is not None and (batch is None or batch < done)
    else:
        is_ahead = position.uuid == uuid and position.offset > written
    if is_ahead:
        raise LakeConflict(
            f"checkpoint {checkpoint.path} has read up to offset {position.offset}, but table {lake.messages} does not "
            f"hold that: it has the journal up to offset {written or 0}. The table was removed, replaced or restored "
            "from an older copy. Remove the checkpoint too, and the archive goes on from the table"
        )


def _cut_back(lake: Lake, journal: JournalReader, end: JournalEnd) -> LakeConflict:
    return LakeConflict(
        f"table {lake.messages} has messages up to offset {end.offset}, epoch {end.epoch}, which journal "
        f"{journal.uuid} (epoch {journal.epoch}) no longer has: it was cut back since. Archive it into another lake"
    )


def start_query(spark: SparkSession, settings: Settings, written: int, added: Added) -> StreamingQuery:
    lake = Lake(settings.lake)
    files = (
        spark.readStream.format(FORMAT)
        .option("table", str(lake.messages))
        .option("writtenBelow", written)
        .option("consumer", settings.consumer)
        .option("owner", lake.owner(JOB, lake.messages))
        .option("startingOffsets", written or EARLIEST)
        .option("maxRowsPerTrigger", settings.records_per_trigger_max)
        .option("maxBytesPerTrigger", settings.bytes_per_trigger_max)
        .option("failOnDataLoss", settings.fail_on_data_loss)
        .option("partitions", spark.sparkContext.defaultParallelism)
        .options(**source_options(journal_of(settings)))
        .load()
    )
    writer = (
        files.writeStream.foreachBatch(added.batch)
        .queryName(f"{JOB}-{settings.consumer}")
        .option("checkpointLocation", str(lake.checkpoint(JOB, settings.consumer).path))
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
        end = JournalOffset.from_dict(self._checkpoint.end(batch))
        app_id = archive_id(end.uuid, end.epoch)
        if not has_version(DeltaLog(self._lake.messages), app_id, end.offset):
            actions = [row.action for row in files.collect()]  # the workers write them now
            self._append(files.sparkSession, actions, app_id, end.offset, batch)
            self.rows[batch] = sum(rows_in(action) for action in actions)
        self._synced.sync()  # before Spark calls the batch finished, and the consumer's position moves

    def _append(self, spark: SparkSession, actions: list[str], app_id: str, version: int, batch: int) -> None:
        table = self._lake.messages
        if self._lake.is_plain():
            query = {str(self._checkpoint.query_id): batch}  # by which an older headrace goes on
            append_files(spark, table, actions, app_id, version, also=query)
            return
        rows = rows_of_files(spark, table, actions, MESSAGES)
        rows.write.format("delta").mode("append").option("txnAppId", app_id).option(
            "txnVersion", version
        ).save(str(table))
        remove_files(table, actions)


class Tracker:
    """Adds up what Spark reports, and commits the consumer's position once Spark has finished a batch for good.

    The source commits too, but a batch later, and never the last one (decision 32): an idle archive would
    hold back retention for ever.
    """

    def __init__(
        self,
        settings: Settings,
        journal: JournalReader,
        written: int,
        added: Added,
        report: Report,
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._added = added
        self._report = report
        self._owner = Lake(settings.lake).owner(JOB, Lake(settings.lake).messages)
        self._began = monotonic()
        known = registered_offset(journal, settings.consumer) or 0
        self.progress = Progress(0, max(written or journal.complete_offset(), known), 0, 0.0)

    def observe(self, finished: list[StreamingQueryProgress]) -> None:
        """Called about twice a second with the batches finished since; often none."""
        rows, offset = self.progress.rows, self.progress.offset
        for batch in finished:
            rows += self._added.rows.pop(batch.batchId, batch.numInputRows)
            reached = JournalOffset.from_json(batch.sources[0].endOffset)
            if reached.offset != offset:
                commit(self._journal, self._settings.consumer, reached, self._owner)
            offset = reached.offset
        lag = max(0, self._journal.high_watermark() - offset)
        self.progress = Progress(rows, offset, lag, monotonic() - self._began, durations_s(finished))
        self._report(self.progress)
