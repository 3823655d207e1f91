"""The job `clean`: `messages` -> `clean`, `quarantine` and `repeats`; every row goes into exactly one of them, once.

The rows of a micro-batch are fixed by Spark's checkpoint, and what they become depends on the topic schemas,
which are fixed too while a batch is unfinished (`Pinned`), and on the message ids that are in the tables
already, other than the batch's own. So a batch that is done again after kill -9 comes to the same end. Each write
carries the place in `messages` behind the batch as Delta's transaction, so that it is skipped where it was done; rows
of a batch that the tables may have are left out by their place in the journal (`headrace_spark.clean.continuity`).

A repeat is recognised by its message id among the rows whose broker's date is at most `repeat_days` before
the oldest row of the batch: so long ago may the first copy be (`headrace_spark.clean.known_ids`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, reduce
from pathlib import Path
from threading import Event
from time import monotonic, time
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from headrace_spark.base.cluster import check_workers
from headrace_spark.base.errors import BadOption, LakeConflict
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.base.progress import Progress, Report
from headrace_spark.base.query import durations_s, run_query
from headrace_spark.base.settings import RunSettings
from headrace_spark.clean.cleaning import (
    CHOSEN_ID,
    MESSAGES_READ,
    PLACE,
    clean_rows,
    judge,
    mark_repeats,
    quarantine_rows,
    repeat_rows,
)
from headrace_spark.clean.continuity import Continuity, PlannedContinuity, Together
from headrace_spark.clean.known_ids import KnownIds
from headrace_spark.clean.payload_formats import MODULES
from headrace_spark.clean.topic_schemas import TopicSchema, files_of, has_grown, load_topic_schemas
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.lake_of import AnyLake, lake_of, tending
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.notes import NoteFiles
from headrace_spark.lake.table_backlog import TableBacklog
from headrace_spark.lake.table_plan import TablePlan
from headrace_spark.lake.table_position import TablePosition
from headrace_spark.lake.tables import CLEAN, QUARANTINE, REPEATS

JOB: Final = "clean"
_SCHEMAS: Final = "clean-messages-topic-schemas.toml"


@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings):
    """`[pipeline.clean]`: what the job `clean` is told."""

    topic_schemas: str
    repeat_days: int
    late_after_s: float
    payload_bytes_max: int
    bytes_per_trigger_max: int


class Tables:
    """The three tables of one lake that the job `clean` writes."""

    def __init__(self, lake: AnyLake) -> None:
        self.clean = lake.table_of(CLEAN)
        self.quarantine = lake.table_of(QUARANTINE)
        self.repeats = lake.table_of(REPEATS)
        self.others = (self.repeats, self.quarantine)
        self.all = (*self.others, self.clean)

    def missing(self, messages: DataFrame) -> DataFrame:
        """Return those of the rows that are in none of the tables, each once."""
        since = messages.agg(F.min("date")).first()
        assert since is not None
        if since[0] is None:
            return messages
        spark = messages.sparkSession
        places = [
            table.read(spark).where(F.col("date") >= F.lit(since[0])).select(*PLACE) for table in self.all
        ]
        once = messages.dropDuplicates(list(PLACE))  # RESTORE may bring back what the same batch has
        return once.join(reduce(DataFrame.unionByName, places), list(PLACE), "left_anti")


def check(settings: Settings) -> None:
    """Check that the job can run. Raises BadOption, BadTopicSchema, LakeConflict."""
    if not settings.topic_schemas:
        raise BadOption("pipeline.clean.topic_schemas", "", "name the file that says which topics carry what")
    schemas = load_topic_schemas(Path(settings.topic_schemas))
    if isinstance(settings.lake, LakeUrl):
        return  # it is looked at by Spark
    lake = Lake(settings.lake)
    tables = Tables(lake)
    require_archive(lake)
    require_columns(tables.clean, schemas)
    together = continuity(lake, tables)
    together.require()
    Pinned(lake.notes, together.is_unfinished).require(Path(settings.topic_schemas))


def require_archive(lake: AnyLake) -> None:
    """Raise LakeConflict unless there is something to clean."""
    if lake.table.log() is None:
        raise LakeConflict(f"{lake.messages} is no Delta table yet: run the job archive into this lake first")


def continuity(lake: Lake, tables: Tables) -> Continuity:
    return Continuity(lake.checkpoint(JOB, "messages"), lake.messages, tables.clean, tables.others)


def together_in(settings: Settings, lake: AnyLake, tables: Tables) -> Together:
    """Make what is missing of the tables and return what says where they are. Raises what `check` does."""
    check(settings)
    if isinstance(lake, Lake):
        for table in tables.all:
            table.create()
        together = continuity(lake, tables)
        together.begin()
        return together
    require_archive(lake)
    require_columns(tables.clean, load_topic_schemas(Path(settings.topic_schemas)))
    for table in tables.all:
        table.create()
    plan = TablePlan(lake, JOB, tables.clean.path, lake.messages)
    planned = PlannedContinuity(plan, lake.messages, tables.clean, tables.others)
    planned.require()
    Pinned(lake.notes, planned.is_unfinished).require(Path(settings.topic_schemas))
    return planned


def run(spark: SparkSession, settings: Settings, stop: Event, report: Report) -> Progress:
    """Run the job until it has done its work or is to stop. Raises PipelineError."""
    lake = lake_of(spark, settings.lake)
    with lake.holding(JOB):
        tables = Tables(lake)
        together = together_in(settings, lake, tables)
        Pinned(lake.notes, together.is_unfinished).keep(Path(settings.topic_schemas))
        schemas = load_topic_schemas(Path(settings.topic_schemas))
        require_formats(spark, schemas)
        cleaner = Cleaner(settings, schemas, tables, together)
        tracker = Tracker(cleaner, TableBacklog(lake.messages, lake.tables), together.position(), report)
        written = [table.path for table in tables.all]
        tend = tending(spark, settings.upkeep, lake, written)

        def observe(finished: list[StreamingQueryProgress]) -> None:
            tracker.observe(finished)
            lake.require_held()
            tend()

        begin = partial(start_query, spark, settings, lake, cleaner, together)
        run_query(begin, observe, stop, settings.restarts_max)
        return tracker.progress


def require_formats(spark: SparkSession, schemas: Sequence[TopicSchema]) -> None:
    """Check that the workers can decode what the schemas speak of beside JSON. Raises EngineMissing."""
    if any(schema.form is not None for schema in schemas):
        check_workers(spark, MODULES)


def require_columns(clean: LakeTable, schemas: Sequence[TopicSchema]) -> None:
    """Check the columns of `clean`: a column keeps its type for ever, but an object may get more fields. Raises
    LakeConflict, BadOption."""
    found = clean.columns()
    fixed = set(CLEAN.columns.names)
    for schema in schemas:
        if schema.name in fixed:
            raise BadOption(
                "pipeline.clean.topic_schemas", schema.name, "a column of clean has this name already"
            )
        there = found.get(schema.name)
        if schema.decoded and there is not None and not has_grown(there, schema.column):
            raise LakeConflict(
                f"schema {schema.name} is {schema.column.simpleString()}, but column {schema.name} of {clean.path} "
                f"is {there.simpleString()}: fields may be added; give a schema that changed otherwise another name"
            )


class Pinned:
    """The topic schemas that an unfinished batch was begun with, kept beside its checkpoint.

    Half of the batch may be written already: the other half must be decided alike.
    """

    def __init__(self, notes: NoteFiles, is_unfinished: bool) -> None:
        self._notes = notes
        self._is_unfinished = is_unfinished

    def require(self, file: Path) -> None:
        """Check that the schemas are those with which an unfinished batch was begun. Raises LakeConflict if a batch is
        unfinished and `file`, or what it names, has changed since it was begun."""
        if not self._is_unfinished or self._notes.read(_SCHEMAS) is None:
            return
        for source, copy in self._copies(file).items():
            if self._notes.read(copy) != source.read_bytes():
                raise LakeConflict(
                    f"a batch is unfinished that was begun with other topic schemas than {source}: run the job once "
                    f"with {self._notes.at(_SCHEMAS)}, then change them"
                )

    def keep(self, file: Path) -> None:
        for source, copy in self._copies(file).items():
            self._notes.write(copy, source.read_bytes())

    def _copies(self, file: Path) -> dict[Path, str]:
        """Return the files of the schemas and the names of their copies; the one that names the others comes last."""
        return {each: each.name for each in files_of(file)} | {file: _SCHEMAS}


class Cleaner:
    """Cleans one micro-batch after the other."""

    def __init__(
        self, settings: Settings, schemas: Sequence[TopicSchema], tables: Tables, together: Together
    ) -> None:
        self._settings = settings
        self._schemas = schemas
        self._tables = tables
        self._together = together
        self._known = KnownIds((tables.clean, tables.quarantine))
        self.rows = 0
        """Read so far, by this process. Spark would count a row once for each look at it."""

    def write(self, messages: DataFrame, batch: int) -> None:
        """Write a batch. Called by Spark on a thread of its own, one batch after the other."""
        self._together.plan(batch)
        app_id, version = self._together.app_id, self._together.end(batch).number
        is_repeated = self._together.repeats(batch)
        if is_repeated:
            messages = self._tables.missing(messages)
        clean = self._tables.clean
        rows, marked = self._marked(messages)
        others = rows
        if self._together.is_planned:
            self._write_planned(marked, app_id, version, batch)
            others = 0
        elif (clean.last_version(app_id) or -1) < version:
            clean.append(clean_rows(marked), app_id, version, self._together.note(batch))
            others = rows if is_repeated else rows - clean.rows_added()
        if others:
            self._write_others(marked, app_id, version)
        self.rows += rows

    def _write_planned(self, marked: DataFrame, app_id: str, version: int, batch: int) -> None:
        """Write `clean` last: with that the batch is done."""
        self._write_others(marked, app_id, version)
        self._tables.clean.append(clean_rows(marked), app_id, version, self._together.note(batch))

    def _write_others(self, marked: DataFrame, app_id: str, version: int) -> None:
        """Write the rows that are not clean, which are usually few or none: worth a second look at the batch, not a
        copy of all of it."""
        bad = marked.where(F.col("repeat") | F.col("reason").isNotNull()).persist(
            StorageLevel.MEMORY_AND_DISK
        )
        try:
            found = bad.agg(F.count_if("repeat"), F.count_if(~F.col("repeat"))).first()
            assert found is not None
            if found[0]:
                self._tables.repeats.append(repeat_rows(bad), app_id, version)
            if found[1]:
                self._tables.quarantine.append(quarantine_rows(bad), app_id, version)
        finally:
            bad.unpersist()

    def _marked(self, messages: DataFrame) -> tuple[int, DataFrame]:
        """Return how many rows there are, and the rows judged, with `repeat`; looked for only where publishers chose
        ids."""
        settings = self._settings
        judged = judge(messages, self._schemas, settings.payload_bytes_max, settings.late_after_s)
        chosen_on = F.when(F.col("message_id").startswith(CHOSEN_ID), F.col("date"))
        found = messages.agg(F.count("*"), F.min(chosen_on)).first()
        assert found is not None
        rows, oldest = found
        if oldest is None:
            return rows, judged.withColumn("repeat", F.lit(False))
        since = oldest - timedelta(days=self._settings.repeat_days)
        return rows, mark_repeats(judged, messages, self._known.among(messages, since))


def start_query(
    spark: SparkSession, settings: Settings, lake: AnyLake, cleaner: Cleaner, together: Together
) -> StreamingQuery:
    lake.require_held()
    rows = (
        spark.readStream.format("delta")
        .option("maxBytesPerTrigger", settings.bytes_per_trigger_max)
        .option("skipChangeCommits", "true")  # rows taken out of `messages` later stay in `clean`
        .load(str(lake.messages))
        .select(*MESSAGES_READ)
    )
    write: Callable[[DataFrame, int], None] = cleaner.write
    writer = (
        rows.writeStream.foreachBatch(write)
        .queryName(JOB)
        .option("checkpointLocation", f"file:{together.start().path}")
    )
    if settings.follow:
        return writer.trigger(processingTime=f"{round(settings.trigger_s * 1000)} milliseconds").start()
    return writer.trigger(availableNow=True).start()


class Tracker:
    """Knows where the job stands, from what Spark reports and what the cleaner counted. Its lag is rows of `messages`."""

    def __init__(
        self, cleaner: Cleaner, backlog: TableBacklog, position: TablePosition | None, report: Report
    ) -> None:
        self._cleaner = cleaner
        self._report = report
        self._backlog = backlog
        self._position = position
        self._began = monotonic()
        self.progress = Progress(0, 0, 0, 0.0)

    def observe(self, finished: list[StreamingQueryProgress]) -> None:
        """Observe the progress. Called about twice a second with the batches finished since; often none."""
        batch = self.progress.offset
        for done in finished:
            batch = done.batchId
            self._position = TablePosition.from_dict(json.loads(done.sources[0].endOffset))
        lag = self._backlog.lag(self._position, time())
        rows, elapsed_s, took = self._cleaner.rows, monotonic() - self._began, durations_s(finished)
        self.progress = Progress(
            rows, batch, lag.messages, elapsed_s, took, lag_bytes=lag.bytes, lag_s=lag.seconds
        )
        self._report(self.progress)
