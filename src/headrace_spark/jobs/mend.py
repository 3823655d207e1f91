"""The job `mend`: rows of `quarantine` that the topic schemas can decode by now go to `clean`; the others stay.

Two tables cannot change at once. A row is added to `clean` first and taken out of `quarantine` when it is there: what a
kill -9 in between left in both is taken out before anything else by the next run, so every row goes over once. It holds
the lock of the job `clean`, whose settings it has, and leaves that job's unfinished batches to it.
"""

from __future__ import annotations

from pathlib import Path
from threading import Event
from time import monotonic
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace_spark.base.errors import LakeConflict
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.base.progress import Progress, Report
from headrace_spark.clean.cleaning import MESSAGES_READ, PLACE, clean_rows, judge
from headrace_spark.clean.continuity import Together
from headrace_spark.clean.topic_schemas import load_topic_schemas
from headrace_spark.jobs import clean
from headrace_spark.jobs.clean import Settings, Tables
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.lake_of import AnyLake, lake_of

__all__ = ["Settings", "check", "run"]

# The day goes with the place: files of other days are not read.
_KEY: Final = ("date", *PLACE)


def check(settings: Settings) -> None:
    """Check that the job can run. Raises BadOption, BadTopicSchema, LakeConflict."""
    clean.check(settings)
    if not isinstance(settings.lake, LakeUrl):
        lake = Lake(settings.lake)
        _require_finished(clean.continuity(lake, Tables(lake)))


def _require_finished(together: Together) -> None:
    if together.is_unfinished:
        raise LakeConflict(f"a batch of the job {clean.JOB} is unfinished: run that first, then mend")


def run(spark: SparkSession, settings: Settings, stop: Event, report: Report) -> Progress:  # noqa: ARG001
    """Move what can be decoded. It ends by itself, with `follow` too. Raises PipelineError."""
    began = monotonic()
    lake = lake_of(spark, settings.lake)
    tables = Tables(lake)
    with lake.holding(clean.JOB):
        check(settings)
        clean.require_archive(lake)
        if tables.quarantine.log() is None or tables.clean.log() is None:
            return Progress(0, 0, 0, monotonic() - began)
        if not isinstance(lake, Lake):
            _require_finished(clean.together_in(settings, lake, tables))
        remove_moved(spark, tables)
        rows = add_mended(spark, settings, lake, tables)
        remove_moved(spark, tables)
        left = tables.quarantine.read(spark).count()
    elapsed_s = monotonic() - began
    progress = Progress(rows, 0, left, elapsed_s, (elapsed_s,))
    report(progress)
    return progress


def add_mended(spark: SparkSession, settings: Settings, lake: AnyLake, tables: Tables) -> int:
    """Add what can be decoded to `clean`, once for each version of `quarantine`; return how many rows."""
    log = tables.quarantine.log()
    assert log is not None  # `run` has seen it; taking rows out has made a version more
    rows = with_payloads(tables.quarantine.read(spark), spark.read.format("delta").load(str(lake.messages)))
    schemas = load_topic_schemas(Path(settings.topic_schemas))
    clean.require_formats(spark, schemas)
    judged = judge(rows, schemas, settings.payload_bytes_max, settings.late_after_s)
    good = clean_rows(judged.withColumn("repeat", F.lit(False)))
    if good.isEmpty():
        return 0
    tables.clean.append(good, f"mend-{log.metadata().id}", log.version())
    return tables.clean.rows_added()


def with_payloads(quarantine: DataFrame, messages: DataFrame) -> DataFrame:
    """Return the rows as `messages` had them. Those that were too large and that `messages` has no more are left out."""
    here = quarantine.where(F.col("payload").isNotNull()).select(*MESSAGES_READ)
    there = quarantine.where(F.col("payload").isNull()).drop("payload")
    found = there.join(messages.select(*_KEY, "payload"), list(_KEY)).select(*MESSAGES_READ)
    return here.unionByName(found)


def remove_moved(spark: SparkSession, tables: Tables) -> None:
    """Take rows out of `quarantine` that `clean` has."""
    since = tables.quarantine.read(spark).agg(F.min("date")).first()
    if since is None or since[0] is None:
        return
    moved = tables.clean.read(spark).where(F.col("date") >= F.lit(since[0])).select(*_KEY)
    both = moved.join(tables.quarantine.read(spark).select(*_KEY), list(_KEY), "left_semi")
    if both.isEmpty():
        return
    same = " AND ".join(f"quarantine.{name} = moved.{name}" for name in _KEY)
    quarantine = tables.quarantine.delta(spark).alias("quarantine")
    quarantine.merge(both.alias("moved"), same).whenMatchedDelete().execute()
