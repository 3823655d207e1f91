"""The job `compact-events`: the events of a journal without what later ones made void, for a broker to start from.

Like a compacted Kafka topic: of each key the last record stays. The keys are a session and what happened to it (opened,
resumed, closed, will, owner), a session and a topic filter, a retained topic, a device and its owner, a topic queue and a
cluster of it; sessions that ended, queues that were closed and retained messages that were cleared leave nothing. Records
stay as they are in the journal: who folds them has the state at the checkpoint.

    <lake>/event_snapshot               Delta table: the rows of schema `events` that are left, and one row `checkpoint`
    <lake>/bootstrap/<offset>.snapshot  the same records in a file, for `headrace serve --bootstrap`

A run reads the events behind the last checkpoint and replaces the table, rows and checkpoint in one commit: a run that is
killed is done again, and nothing is counted twice. The job holds retention back as a consumer: a journal whose first
events are gone cannot be compacted any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Final

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from headrace.journal.bootstrap_file import bootstrap_path, write_bootstrap
from headrace_spark.base.errors import DataLoss, ForeignOffset, TableMoved
from headrace_spark.base.lake_url import Location
from headrace_spark.base.progress import Progress, Report
from headrace_spark.base.settings import RunSettings
from headrace_spark.lake.bootstraps import Bootstraps
from headrace_spark.lake.durable import SyncedTable
from headrace_spark.lake.lake_of import AnyLake, lake_of, tending
from headrace_spark.lake.messages import KEPT_LOG
from headrace_spark.source.journal import commit, journal_of, register, require_history, source_options
from headrace_spark.source.log_reader import LogReader
from headrace_spark.source.options import check_consumer
from headrace_spark.source.ranges import JournalOffset

JOB: Final = "compact-events"
CHECKPOINT: Final = "checkpoint"
COLUMNS: Final = (
    *("kind", "tenant", "client_id", "incarnation", "topic_filter", "topic", "message_offset", "cluster"),
    *("journal_uuid", "journal_epoch", "journal_offset", "item", "record"),
)
_LIFE: Final = (
    *("session_opened", "session_resumed", "session_closed", "will_fired", "will_cancelled"),
    "owner_set",  # in the record that opens a session, or in one that resumes it, which need not be the last
)
_SUBSCRIPTIONS: Final = ("subscribed", "unsubscribed")
_RETAINED: Final = ("retained_set", "retained_cleared")
_OF_QUEUES: Final = ("device_owned", "queue_opened", "queue_closed", "cluster_made")


@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings):
    """`[pipeline.compact_events]`: what the job `compact-events` is told."""

    consumer: str


def check(settings: Settings) -> None:
    """Check that the job can run. Raises BadOption, JournalMissing."""
    check_consumer(settings.consumer)
    journal_of(settings)


def run(spark: SparkSession, settings: Settings, stop: Event, report: Report) -> Progress:
    """Run the job. Raises PipelineError. Prints the path of each file that it has written."""
    lake = lake_of(spark, settings.lake)
    with lake.holding(JOB):
        return _run(spark, settings, lake, stop, report)


def _run(spark: SparkSession, settings: Settings, lake: AnyLake, stop: Event, report: Report) -> Progress:
    began = monotonic()
    said: Location | None = None
    files = Bootstraps(lake)
    tend = tending(spark, settings.upkeep, lake, (), [lake.root / "event_snapshot"])
    while True:
        at = monotonic()
        end, rows, file = compact_once(spark, settings, lake, files)
        if file != said:
            print(file, flush=True)
        said = file
        journal = journal_of(settings)
        lag, ends = journal.high_watermark() - end, {journal.uuid: end}
        progress = Progress(rows, end, lag, monotonic() - began, (monotonic() - at,), ends=ends)
        report(progress)
        lake.require_held()
        tend()
        if not settings.follow or stop.wait(settings.trigger_s):
            return progress


def compact_once(
    spark: SparkSession, settings: Settings, lake: AnyLake, files: Bootstraps
) -> tuple[int, int, Location]:
    """Bring table and file up to the high watermark; the checkpoint, the rows of the table, and the file.

    Raises TableMoved if another process has brought the table further meanwhile.
    """
    journal = journal_of(settings)
    table = lake.root / "event_snapshot"
    old = spark.read.format("delta").load(str(table)) if DeltaTable.isDeltaTable(spark, str(table)) else None
    start = starting_offset(journal, old)
    register(journal, settings.consumer, start, "" if old is None else lake.owner(JOB, table))
    end = journal.high_watermark()
    file = bootstrap_path(files.folder, end)
    if old is not None and end == start and files.is_whole(file):
        return end, old.count() - 1, files.at(file)  # nothing is new, and nothing is written
    rows = events(spark, journal, start, end)
    if old is not None:
        if (
            "cluster" not in old.columns
        ):  # of a headrace that knew no queues: what is new to us may be behind us
            before = events(spark, journal, min(start, journal.complete_offset()), start)
            rows = before.where(F.col("kind").isin(*_OF_QUEUES)).unionByName(rows)
        kept = old.where(F.col("kind") != CHECKPOINT)
        rows = rows.unionByName(kept, allowMissingColumns=True)
    mark = Row("kind", "journal_uuid", "journal_epoch", "journal_offset")
    checkpoint = spark.createDataFrame(
        [mark(CHECKPOINT, journal.uuid, journal.epoch, end)],
        "kind string, journal_uuid string, journal_epoch long, journal_offset long",
    )
    put_in_place(lake, table, compacted(rows).unionByName(checkpoint, allowMissingColumns=True), journal, end)
    left = spark.read.format("delta").load(str(table))
    write_bootstrap(files.folder, journal.uuid, journal.epoch, end, _records(left))
    files.show(file)
    owner = lake.owner(JOB, table)
    commit(journal, settings.consumer, JournalOffset(journal.uuid, journal.epoch, end), owner)
    return end, left.count() - 1, files.at(file)


def put_in_place(lake: AnyLake, table: Location, rows: DataFrame, journal: LogReader, end: int) -> None:
    """Replace the table, unless it is at that offset or further. Raises TableMoved where it is further."""
    app_id = f"{JOB}-{journal.uuid}-{journal.epoch}"
    writer = rows.write.format("delta").mode("overwrite").option("mergeSchema", "true").options(**KEPT_LOG)
    writer.option("txnAppId", app_id).option("txnVersion", end).save(str(table))
    log = lake.tables.open(table)
    found = None if log is None else log.transaction_version(app_id)
    if found != end:
        raise TableMoved(
            f"{table} is at version {found} of {app_id}, not at {end}: another process writes it"
        )
    if isinstance(table, Path):
        SyncedTable(table).sync()


def starting_offset(journal: LogReader, old: DataFrame | None) -> int:
    """Return the checkpoint of the table, or the beginning of the journal. Raises ForeignOffset, DataLoss."""
    found = None if old is None else old.where(F.col("kind") == CHECKPOINT).first()
    start = 0
    if found is not None:
        if found.journal_uuid != journal.uuid:
            raise ForeignOffset(
                f"the table event_snapshot belongs to journal {found.journal_uuid}, {journal.location} holds "
                f"{journal.uuid}: use another lake"
            )
        start = found.journal_offset
        require_history(journal, JournalOffset(found.journal_uuid, found.journal_epoch, start))
    complete = journal.complete_offset()
    if complete > start:
        raise DataLoss(
            f"the events from offset {start} up to {complete} are gone from {journal.location}: retention or compaction "
            "has passed them. A copy of this broker is made by `headrace backup` and `headrace restore`"
        )
    return start


def events(spark: SparkSession, journal: LogReader, start: int, end: int) -> DataFrame:
    """Return the rows of schema `events` from one offset to another."""
    return (
        spark.read.format("headrace-journal")
        .option("schema", "events")
        .option("columns", ",".join(COLUMNS))
        .option("startingOffsets", start)
        .option("endingOffsets", end)
        .options(**source_options([journal]))
        .load()
        .select(*COLUMNS)
    )


def compacted(rows: DataFrame) -> DataFrame:
    """Return the rows of the records that the state still depends on; compacting twice changes nothing."""
    kind = F.col("kind")
    ended = rows.where(kind == "session_ended").select("incarnation").distinct()
    of_sessions = rows.where(kind.isin(*_LIFE, *_SUBSCRIPTIONS)).join(ended, "incarnation", "left_anti")
    expired = rows.where(kind == "retained_expired").select(F.col("message_offset").alias("journal_offset"))
    retained = last(rows.where(kind.isin(*_RETAINED)), "tenant", "topic").where(kind == "retained_set")
    kept = (
        last(of_sessions.where(kind.isin(*_LIFE)), "incarnation", "kind"),
        last(of_sessions.where(kind.isin(*_SUBSCRIPTIONS)), "incarnation", "topic_filter"),
        retained.join(expired, "journal_offset", "left_anti"),
        rows.where(kind == "broker_started"),
        first(rows.where(kind == "device_owned"), "tenant", "client_id"),
        *_of_queues(rows),
    )
    offsets = reduce(DataFrame.union, [part.select("journal_offset") for part in kept]).distinct()
    return rows.join(offsets, "journal_offset", "left_semi").select(*COLUMNS)


def _of_queues(rows: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the queues that are open, and the clusters that were made since."""
    kind = F.col("kind")
    closed = rows.where(kind == "queue_closed").select(F.col("message_offset").alias("journal_offset"))
    opened = rows.where(kind == "queue_opened").join(closed, "journal_offset", "left_anti")
    open_ones = first(opened, "tenant", "topic")
    since = open_ones.select("tenant", "topic", F.col("journal_offset").alias("since"))
    made = rows.where(kind == "cluster_made").join(since, ["tenant", "topic"]).where("journal_offset > since")
    return open_ones, first(made.drop("since"), "tenant", "topic", "cluster")


def last(rows: DataFrame, *key: str) -> DataFrame:
    """Return the newest row of each key."""
    return _one_each(rows, key, F.desc("journal_offset"), F.desc("item"))


def first(rows: DataFrame, *key: str) -> DataFrame:
    """Return the oldest row of each key."""
    return _one_each(rows, key, F.asc("journal_offset"), F.asc("item"))


def _one_each(rows: DataFrame, key: tuple[str, ...], *order: Column) -> DataFrame:
    number = F.row_number().over(Window.partitionBy(*key).orderBy(*order))
    return rows.withColumn("number", number).where("number = 1").drop("number")


def _records(rows: DataFrame) -> Iterator[tuple[int, bytes]]:
    """Yield offset and bytes of each record, in order."""
    ordered = rows.where(F.col("record").isNotNull()).orderBy("journal_offset")
    for row in ordered.select("journal_offset", "record").toLocalIterator():
        yield row.journal_offset, bytes(row.record)
