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
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from pathlib import Path
from threading import Event
from time import monotonic, time
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from headrace_spark.base.errors import BadOption, LakeConflict
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
from headrace_spark.clean.continuity import Continuity
from headrace_spark.clean.known_ids import KnownIds
from headrace_spark.clean.topic_schemas import TopicSchema, has_grown, load_topic_schemas
from headrace_spark.lake.checkpoint import Checkpoint
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.table_backlog import TableBacklog
from headrace_spark.lake.table_position import TablePosition
from headrace_spark.lake.tables import CLEAN, QUARANTINE, REPEATS
from headrace_spark.lake.upkeep import FileMarks, Upkeep

JOB: Final = "clean"


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

    def __init__(self, lake: Path) -> None:
        self.clean = LakeTable(lake, CLEAN)
        self.quarantine = LakeTable(lake, QUARANTINE)
        self.repeats = LakeTable(lake, REPEATS)
        self.others = (self.repeats, self.quarantine)
        self.all = (*self.others, self.clean)

    def missing(self, messages: DataFrame) -> DataFrame:
        """Return those of the rows that are in none of the tables."""
        since = messages.agg(F.min("date")).first()
        assert since is not None
        if since[0] is None:
            return messages
        spark = messages.sparkSession
        places = [
            table.read(spark).where(F.col("date") >= F.lit(since[0])).select(*PLACE) for table in self.all
        ]
        return messages.join(reduce(DataFrame.unionByName, places), list(PLACE), "left_anti")


def check(settings: Settings) -> None:
    """Check that the job can run. Raises BadOption, BadTopicSchema, LakeConflict."""
    if not settings.topic_schemas:
        raise BadOption("pipeline.clean.topic_schemas", "", "name the file that says which topics carry what")
    schemas = load_topic_schemas(Path(settings.topic_schemas))
    lake, tables = Lake(settings.folder), Tables(settings.folder)
    if lake.table.state() is None:
        raise LakeConflict(f"{lake.messages} is no Delta table yet: run the job archive into this lake first")
    require_columns(tables.clean, schemas)
    checkpoint = lake.checkpoint(JOB, "messages")
    continuity(lake, tables, checkpoint).require()
    Pinned(checkpoint).require(Path(settings.topic_schemas))


def continuity(lake: Lake, tables: Tables, checkpoint: Checkpoint) -> Continuity:
    return Continuity(checkpoint, lake.messages, tables.clean, tables.others)


def run(spark: SparkSession, settings: Settings, stop: Event, report: Report) -> Progress:
    """Run the job until it has done its work or is to stop. Raises PipelineError."""
    lake = Lake(settings.folder)
    with lake.holding(JOB):
        check(settings)
        tables, checkpoint = Tables(settings.folder), lake.checkpoint(JOB, "messages")
        for table in tables.all:
            table.create()
        Pinned(checkpoint).keep(Path(settings.topic_schemas))
        together = continuity(lake, tables, checkpoint)
        together.begin()
        cleaner = Cleaner(settings, load_topic_schemas(Path(settings.topic_schemas)), tables, together)
        tracker = Tracker(cleaner, lake.messages, checkpoint, report)
        upkeep = Upkeep(
            spark, settings.upkeep, FileMarks(lake.checkpoints), [table.path for table in tables.all]
        )

        def observe(finished: list[StreamingQueryProgress]) -> None:
            tracker.observe(finished)
            upkeep.tend()

        run_query(lambda: start_query(spark, settings, cleaner), observe, stop, settings.restarts_max)
        return tracker.progress


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

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._copy = checkpoint.path.with_name(f"{checkpoint.path.name}-topic-schemas.toml")

    def require(self, file: Path) -> None:
        """Check that the schemas are those with which an unfinished batch was begun. Raises LakeConflict if a batch is
        unfinished and `file`, or what it names, has changed since it was begun."""
        if not (self._checkpoint.unfinished and self._copy.exists()):
            return
        for source, copy in self._copies(file).items():
            if not copy.exists() or copy.read_bytes() != source.read_bytes():
                raise LakeConflict(
                    f"a batch is unfinished that was begun with other topic schemas than {source}: run the job once "
                    f"with {self._copy}, then change them"
                )

    def keep(self, file: Path) -> None:
        self._copy.parent.mkdir(parents=True, exist_ok=True)
        for source, copy in self._copies(file).items():
            part = copy.with_suffix(".part")
            shutil.copyfile(source, part)
            part.replace(copy)

    def _copies(self, file: Path) -> dict[Path, Path]:
        """Return the files of the schemas and where they are kept; the one that names the others comes last."""
        named = {schema.file for schema in load_topic_schemas(file) if schema.file}
        return {file.parent / name: self._copy.parent / name for name in sorted(named)} | {file: self._copy}


class Cleaner:
    """Cleans one micro-batch after the other."""

    def __init__(
        self, settings: Settings, schemas: Sequence[TopicSchema], tables: Tables, together: Continuity
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
        app_id, version = self._together.app_id, self._together.end(batch).number
        is_repeated = self._together.repeats(batch)
        if is_repeated:
            messages = self._tables.missing(messages)
        clean = self._tables.clean
        rows, marked = self._marked(messages)
        others = rows
        if (clean.last_version(app_id) or -1) < version:
            clean.append(clean_rows(marked), app_id, version, self._together.note(batch))
            others = rows if is_repeated else rows - clean.rows_added()
        if others:
            self._write_others(marked, app_id, version)
        self.rows += rows

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


def start_query(spark: SparkSession, settings: Settings, cleaner: Cleaner) -> StreamingQuery:
    lake = Lake(settings.folder)
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
        .option("checkpointLocation", str(lake.checkpoint(JOB, "messages").path))
    )
    if settings.follow:
        return writer.trigger(processingTime=f"{round(settings.trigger_s * 1000)} milliseconds").start()
    return writer.trigger(availableNow=True).start()


class Tracker:
    """Knows where the job stands, from what Spark reports and what the cleaner counted. Its lag is rows of `messages`."""

    def __init__(self, cleaner: Cleaner, messages: Path, checkpoint: Checkpoint, report: Report) -> None:
        self._cleaner = cleaner
        self._report = report
        self._backlog = TableBacklog(messages)
        passed = checkpoint.passed()
        self._position = None if passed is None else TablePosition.from_dict(passed)
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
