"""The job `publish`: every row that is appended to a Delta table, once, to devices as an MQTT 5 message.

The table's columns are those of `headrace_spark.devices.outgoing`. Exactly once rests on three things: Spark's
checkpoint fixes which files of the table make a micro-batch; the outbox keeps the batch with a number for every row
before the first one leaves; and the broker stores a numbered message once. The outbox also remembers how far the table
was kept, so a checkpoint that was lost or is older than that is moved forward (`headrace_spark.devices.plans`).

A row that is no message (a wildcard in its topic), or that the broker refuses for good (0x87: the credentials do not
allow its topic), is put aside in the table `dead_letters` with the reason, and the others go on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import monotonic, time
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from headrace_spark.base.broker_address import BrokerAddress, read_password
from headrace_spark.base.errors import BadOption
from headrace_spark.base.lake_url import LakeUrl, Location
from headrace_spark.base.progress import Progress, Report
from headrace_spark.base.query import durations_s, run_query
from headrace_spark.base.settings import RunSettings
from headrace_spark.devices.outbox import Outbox
from headrace_spark.devices.plans import FOLDER, AnyPlans, Plans, TablePlans
from headrace_spark.lake.changes import not_appended
from headrace_spark.lake.hadoop_files import said_plainly
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.lake_of import AnyLake, lake_of, tending
from headrace_spark.lake.location import table_location
from headrace_spark.lake.notes import UrlNotes
from headrace_spark.lake.table_backlog import TableBacklog
from headrace_spark.lake.table_log import Folders, Tables
from headrace_spark.lake.table_plan import TablePlan
from headrace_spark.lake.table_position import TablePosition
from headrace_spark.lake.tables import DEAD_LETTERS
from headrace_spark.lake.url_lake import UrlLake
from headrace_spark.source.options import check_consumer

JOB: Final = "publish"


@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings):
    """`[pipeline.publish]`: one table to one broker."""

    table: str
    url: str
    username: str
    password_file: str
    ca_file: str
    name: str
    connections: int
    files_per_trigger_max: int
    skip_changes: bool
    patience_s: float

    @property
    def address(self) -> BrokerAddress:
        return BrokerAddress(
            self.url, self.username or None, read_password(self.password_file), self.ca_file or None
        )

    @property
    def source(self) -> Location:
        """Return the table; within the lake unless the path is absolute, or a URL."""
        return table_location(self.lake, self.table)


def check(settings: Settings) -> None:
    """Check that the job can run. Raises BadOption, LakeConflict."""
    check_consumer(settings.name)
    settings.address.check()
    if isinstance(settings.source, LakeUrl) and not isinstance(settings.lake, LakeUrl):
        raise BadOption(
            "pipeline.publish.table", settings.table, "the lake is a folder: the table has to be in one"
        )
    if not settings.table:
        raise BadOption("pipeline.publish.table", "", "the table whose rows are published is needed")
    if not isinstance(settings.lake, LakeUrl):
        require_source(settings, Folders())


def require_source(settings: Settings, tables: Tables) -> None:
    """Raise BadOption unless there is a table to publish."""
    if tables.open(settings.source) is None:
        raise BadOption(
            "pipeline.publish.table", settings.table, f"there is no Delta table in {settings.source}"
        )


def run(spark: SparkSession, settings: Settings, stop: Event, report: Report) -> Progress:
    """Run the job until it has done its work or is to stop. Raises PipelineError."""
    lake = lake_of(spark, settings.lake)
    with lake.holding(f"{JOB}-{settings.name}"):
        require_source(settings, lake.tables)
        table = lake.root / "outbox"
        outbox = Outbox(table, settings.address, settings.connections, settings.patience_s, lake.tables)
        plans = plans_in(spark, settings, lake, outbox)
        tracker = Tracker(settings, TableBacklog(settings.source, lake.tables), report)
        put_aside = lake.table_of(DEAD_LETTERS).path
        tend = tending(spark, settings.upkeep, lake, [put_aside], [table])

        def observe(finished: list[StreamingQueryProgress]) -> None:
            tracker.observe(finished)
            lake.require_held()
            tend()  # batches that were sent leave the outbox by themselves

        def begin() -> StreamingQuery:
            lake.require_held()
            return start_query(spark, settings, outbox, plans, tracker)

        run_query(begin, observe, stop, settings.restarts_max)
        return tracker.progress


def plans_in(spark: SparkSession, settings: Settings, lake: AnyLake, outbox: Outbox) -> AnyPlans:
    if isinstance(lake, Lake) and isinstance(settings.source, Path):
        checkpoint = lake.checkpoint(JOB, settings.name)
        checkpoint.make_ready()
        return Plans(lake.root / "outbox", settings.name, checkpoint, settings.source, settings.skip_changes)
    assert isinstance(lake, UrlLake)
    with said_plainly(outbox.table):
        outbox.create(spark)
    plan = TablePlan(lake, f"{JOB}-{settings.name}", outbox.table, settings.source)
    of_folder = UrlNotes(lake.files, lake.root / "outbox" / FOLDER)
    return TablePlans(
        plan,
        outbox.table,
        settings.source,
        settings.name,
        lake.notes,
        of_folder,
        lake.tables,
        settings.skip_changes,
    )


class Tracker:
    """Adds up what Spark reports. The lag is rows of the table."""

    def __init__(self, settings: Settings, backlog: TableBacklog, report: Report) -> None:
        self._settings = settings
        self._report = report
        self._backlog = backlog
        self._position: TablePosition | None = None
        self._began = monotonic()
        self.progress = Progress(0, 0, 0, 0.0)

    def starts_at(self, position: TablePosition | None) -> None:
        """Note below which place everything is done, as the plans had it before a batch could write there."""
        self._position = position
        self._require_appended()

    def _require_appended(self) -> None:
        """Raise LakeConflict if the table has a version ahead whose rows would not leave, unless it is to be skipped: no
        batch comes of it."""
        changed = self._backlog.changed(self._position)
        if changed is not None and not self._settings.skip_changes:
            raise not_appended(self._settings.source, *changed)

    def observe(self, finished: list[StreamingQueryProgress]) -> None:
        """Observe the progress. Called about twice a second with the batches finished since; often none. Raises
        LakeConflict."""
        rows = self.progress.rows + sum(batch.numInputRows for batch in finished)
        for done in finished:
            self._position = TablePosition.from_dict(json.loads(done.sources[0].endOffset))
        self._require_appended()
        lag = self._backlog.lag(self._position, time())
        elapsed_s, took = monotonic() - self._began, durations_s(finished)
        self.progress = Progress(
            rows, rows, lag.messages, elapsed_s, took, lag_bytes=lag.bytes, lag_s=lag.seconds
        )
        self._report(self.progress)


def start_query(
    spark: SparkSession, settings: Settings, outbox: Outbox, plans: AnyPlans, tracker: Tracker
) -> StreamingQuery:
    """Start the query over the rows of the table, from its first version on; only appends count, and a version that is
    none and brings rows is refused (`headrace_spark.lake.changes`)."""
    rows = (
        spark.readStream.format("delta")
        .option("maxFilesPerTrigger", settings.files_per_trigger_max)
        .option("skipChangeCommits", True)
        .load(str(settings.source))
    )
    outbox.require_unrestored(outbox.restores())
    checkpoint = plans.start(None if plans.query is None else outbox.last_batch(plans.query))
    tracker.starts_at(plans.position())
    outbox.create(spark)
    writer = (
        rows.writeStream.foreachBatch(outbox.batches(plans))
        .queryName(f"{JOB}-{settings.name}")
        .option("checkpointLocation", f"file:{checkpoint.path}")
    )
    if settings.follow:
        return writer.trigger(processingTime=f"{round(settings.trigger_s * 1000)} milliseconds").start()
    return writer.trigger(availableNow=True).start()
