"""The job `compact-events`: the events of a journal without what later ones made void, for a broker to start from.

Like a compacted Kafka topic: of each key the last record stays. The keys are a session and what happened to it (opened,
resumed, closed, will, owner), a session and a topic filter, a retained topic, a device and its owner, a topic queue and a
cluster of it; sessions that ended, queues that were closed and retained messages that were cleared leave nothing. Records
stay as they are in the journal: who folds them has the state at the checkpoint.

    <lake>/event_snapshot               Delta table: the rows of schema `events` that are left, and one row `checkpoint`
                                        of each journal
    <lake>/bootstrap/<offset>.snapshot  the same records in a file, for `headrace serve --bootstrap`; of several journals,
                                        shards or brokers, each has its files in a folder `<journal uuid>` there

A run reads the events behind the last checkpoint and replaces what the table has of the journal, rows and checkpoint in
one commit: a run that is killed is done again, and nothing is counted twice. The job holds retention back as a consumer:
a journal whose first events are gone cannot be compacted any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Final

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.journal.bootstrap_file import bootstrap_path, write_bootstrap
from headrace_spark.base.errors import DataLoss, LakeConflict, TableMoved
from headrace_spark.base.lake_url import Location
from headrace_spark.base.progress import Progress, Report
from headrace_spark.base.settings import RunSettings
from headrace_spark.lake.bootstraps import Bootstraps
from headrace_spark.lake.durable import SyncedTable
from headrace_spark.lake.lake_of import AnyLake, lake_of, tending
from headrace_spark.lake.messages import KEPT_LOG
from headrace_spark.lake.own_columns import require_own_columns
from headrace_spark.records.schema import EVENTS
from headrace_spark.source.journal import commit, journals_of, register, require_history, source_options
from headrace_spark.source.lag import records_left
from headrace_spark.source.log_reader import LogReader
from headrace_spark.source.options import check_consumer
from headrace_spark.source.ranges import JournalOffset

JOB: Final = "compact-events"
CHECKPOINT: Final = "checkpoint"
COLUMNS: Final = (
    *("kind", "tenant", "client_id", "incarnation", "topic_filter", "topic", "message_offset", "cluster"),
    *("journal_uuid", "journal_epoch", "journal_offset", "item", "record"),
)
SNAPSHOT: Final = StructType([EVENTS[name] for name in COLUMNS])
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
    journals_of(settings)


def run(spark: SparkSession, settings: Settings, stop: Event, report: Report) -> Progress:
    """Run the job. Raises PipelineError. Prints the path of each file that it has written."""
    lake = lake_of(spark, settings.lake)
    with lake.holding(JOB):
        return _run(spark, settings, lake, stop, report)


def _run(spark: SparkSession, settings: Settings, lake: AnyLake, stop: Event, report: Report) -> Progress:
    began = monotonic()
    said = set[Location]()
    tend = tending(spark, settings.upkeep, lake, (), [lake.root / "event_snapshot"])
    while True:
        at = monotonic()
        journals = journals_of(settings)
        rows, ends = 0, dict[str, int]()
        for journal in journals:
            lake.require_held()
            ends[journal.uuid], kept, file = compact_once(spark, settings, lake, journal, len(journals) > 1)
            rows += kept
            if file not in said:
                print(file, flush=True)
                said.add(file)
        lag = sum(records_left(journal, ends[journal.uuid]) for journal in journals)
        took = (monotonic() - at,)
        progress = Progress(rows, sum(ends.values()), lag, monotonic() - began, took, ends=ends)
        report(progress)
        lake.require_held()
        tend()
        if not settings.follow or stop.wait(settings.trigger_s):
            return progress


def compact_once(
    spark: SparkSession, settings: Settings, lake: AnyLake, journal: LogReader, is_shard: bool
) -> tuple[int, int, Location]:
    """Bring table and file of one journal up to its high watermark; the checkpoint, the rows that the table has of it,
    and the file.

    Raises TableMoved if another process has brought the table further meanwhile.
    """
    table = lake.root / "event_snapshot"
    old = kept_in(spark, lake, table)
    marks = {} if old is None else checkpoints(old)
    start = starting_offset(journal, marks.get(journal.uuid))
    register(journal, settings.consumer, start, "" if old is None else lake.owner(JOB, table))
    end = journal.high_watermark()
    files = Bootstraps(lake, journal.uuid if is_shard or marks.keys() - {journal.uuid} else "")
    file = bootstrap_path(files.folder, end)
    if journal.uuid in marks and end == start and files.is_whole(file):
        return (
            end,
            rows_of(spark, table, journal).count() - 1,
            files.at(file),
        )  # nothing is new, nothing is written
    rows = events(spark, journal, start, end)
    if old is not None:
        if (
            "cluster" not in old.columns
        ):  # of a headrace that knew no queues: what is new to us may be behind us
            before = events(spark, journal, min(start, journal.complete_offset()), start)
            rows = before.where(F.col("kind").isin(*_OF_QUEUES)).unionByName(rows)
        kept = rows_of(spark, table, journal).where(F.col("kind") != CHECKPOINT)
        rows = rows.unionByName(kept, allowMissingColumns=True)
    mark = Row("kind", "journal_uuid", "journal_epoch", "journal_offset")
    checkpoint = spark.createDataFrame(
        [mark(CHECKPOINT, journal.uuid, journal.epoch, end)],
        "kind string, journal_uuid string, journal_epoch long, journal_offset long",
    )
    with read_once(rows):
        kept = compacted(rows).unionByName(checkpoint, allowMissingColumns=True)
        put_in_place(lake, table, kept, journal, end)
    left = rows_of(spark, table, journal)
    count = require_at(table, left, end)
    write_bootstrap(files.folder, journal.uuid, journal.epoch, end, _records(left))
    files.show(file)
    owner = lake.owner(JOB, table)
    commit(journal, settings.consumer, JournalOffset(journal.uuid, journal.epoch, end), owner)
    return end, count, files.at(file)


@contextmanager
def read_once(rows: DataFrame) -> Iterator[None]:
    """Keep rows within, in memory or on the local disk: a dozen parts of what is compacted look at them, and each would
    read the journal by itself."""
    rows.persist()
    try:
        yield
    finally:
        rows.unpersist()


def kept_in(spark: SparkSession, lake: AnyLake, table: Location) -> DataFrame | None:
    """Return the rows of the table, None where there is none. Raises LakeConflict if it lacks a column of ours."""
    if not DeltaTable.isDeltaTable(spark, str(table)):
        return None
    log = lake.tables.open(table)
    assert log is not None
    require_own_columns(lake.tables, table, log, SNAPSHOT, {"cluster"})
    return spark.read.format("delta").load(str(table))


def require_at(table: Location, rows: DataFrame, end: int) -> int:
    """Return how many rows the table has beside its checkpoint. Raises LakeConflict if that is elsewhere: RESTORE takes
    rows back, and not the transaction that says how far they go."""
    at = F.max(F.when(F.col("kind") == CHECKPOINT, F.col("journal_offset")))
    found = rows.agg(at, F.count("*")).first()
    assert found is not None
    if found[0] != end:
        raise LakeConflict(
            f"Delta's RESTORE has taken {table} back to offset {found[0]}, while its log says {end}. RESTORE it to the "
            "version before that; or remove it, and it is made anew from the journal"
        )
    return int(found[1]) - 1


def rows_of(spark: SparkSession, table: Location, journal: LogReader) -> DataFrame:
    """Return what the table has of a journal."""
    return spark.read.format("delta").load(str(table)).where(F.col("journal_uuid") == journal.uuid)


def checkpoints(rows: DataFrame) -> Mapping[str, Row]:
    """Return the row `checkpoint` of each journal, by its uuid."""
    return {row.journal_uuid: row for row in rows.where(F.col("kind") == CHECKPOINT).collect()}


def put_in_place(lake: AnyLake, table: Location, rows: DataFrame, journal: LogReader, end: int) -> None:
    """Replace what the table has of a journal, unless it is at that offset or further. Raises TableMoved where it is
    further."""
    app_id = f"{JOB}-{journal.uuid}-{journal.epoch}"
    lake.require_held()
    writer = rows.write.format("delta").mode("overwrite").option("mergeSchema", "true").options(**KEPT_LOG)
    if lake.tables.exists(table):
        writer = writer.option("replaceWhere", f"journal_uuid = '{journal.uuid}'")
    writer.option("txnAppId", app_id).option("txnVersion", end).save(str(table))
    log = lake.tables.open(table)
    found = None if log is None else log.transaction_version(app_id)
    if found != end:
        raise TableMoved(
            f"{table} is at version {found} of {app_id}, not at {end}: another process writes it"
        )
    if isinstance(table, Path):
        SyncedTable(table).sync()


def starting_offset(journal: LogReader, mark: Row | None) -> int:
    """Return the offset of a checkpoint, or the beginning of the journal. Raises ForeignOffset, DataLoss."""
    start = 0
    if mark is not None:
        start = mark.journal_offset
        require_history(journal, JournalOffset(mark.journal_uuid, mark.journal_epoch, start))
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
