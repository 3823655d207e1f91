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
from headrace_spark.base.progress import Progress, Report
from headrace_spark.base.query import durations_s, run_query
from headrace_spark.base.settings import RunSettings
from headrace_spark.devices.outbox import Outbox
from headrace_spark.devices.plans import Plans
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.table_backlog import TableBacklog
from headrace_spark.lake.table_log import open_log
from headrace_spark.lake.table_position import TablePosition
from headrace_spark.lake.tables import DEAD_LETTERS
from headrace_spark.lake.upkeep import FileMarks, Upkeep
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
    patience_s: float

    @property
    def address(self) -> BrokerAddress:
        return BrokerAddress(
            self.url, self.username or None, read_password(self.password_file), self.ca_file or None
        )

    @property
    def source(self) -> Path:
        """Return the table, a folder; within the lake unless the path is absolute."""
        return self.folder.absolute() / self.table


def check(settings: Settings) -> None:
    """Check that the job can run. Raises BadOption, LakeConflict."""
    check_consumer(settings.name)
    settings.address.check()
    if not settings.table:
        raise BadOption("pipeline.publish.table", "", "the table whose rows are published is needed")
    if open_log(settings.source) is None:
        raise BadOption(
            "pipeline.publish.table", settings.table, f"there is no Delta table in {settings.source}"
        )


def run(spark: SparkSession, settings: Settings, stop: Event, report: Report) -> Progress:
    """Run the job until it has done its work or is to stop. Raises PipelineError."""
    with Lake(settings.folder).holding(f"{JOB}-{settings.name}"):
        tracker = Tracker(settings, report)
        upkeep = tended(spark, settings)

        def observe(finished: list[StreamingQueryProgress]) -> None:
            tracker.observe(finished)
            upkeep.tend()

        run_query(lambda: start_query(spark, settings), observe, stop, settings.restarts_max)
        return tracker.progress


class Tracker:
    """Adds up what Spark reports. The lag is rows of the table."""

    def __init__(self, settings: Settings, report: Report) -> None:
        self._report = report
        self._backlog = TableBacklog(settings.source)
        self._checkpoint = Lake(settings.folder).checkpoint(JOB, settings.name)
        self._position: TablePosition | None = None
        self._began = monotonic()
        self.progress = Progress(0, 0, 0, 0.0)

    def observe(self, finished: list[StreamingQueryProgress]) -> None:
        """Observe the progress. Called about twice a second with the batches finished since; often none."""
        rows = self.progress.rows + sum(batch.numInputRows for batch in finished)
        if self._position is None and (passed := self._checkpoint.passed()) is not None:
            self._position = TablePosition.from_dict(passed)
        for done in finished:
            self._position = TablePosition.from_dict(json.loads(done.sources[0].endOffset))
        lag = self._backlog.lag(self._position, time())
        elapsed_s, took = monotonic() - self._began, durations_s(finished)
        self.progress = Progress(
            rows, rows, lag.messages, elapsed_s, took, lag_bytes=lag.bytes, lag_s=lag.seconds
        )
        self._report(self.progress)


def tended(spark: SparkSession, settings: Settings) -> Upkeep:
    """Return the upkeep of outbox and dead letters; batches that were sent leave the outbox by themselves."""
    lake = Lake(settings.folder)
    outbox = lake.root / "outbox"
    return Upkeep(
        spark,
        settings.upkeep,
        FileMarks(lake.checkpoints),
        [LakeTable(lake.root, DEAD_LETTERS).path],
        [outbox],
    )


def start_query(spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Start the query over the rows of the table, from its first version on; only appends count."""
    rows = (
        spark.readStream.format("delta")
        .option("maxFilesPerTrigger", settings.files_per_trigger_max)
        .option("skipChangeCommits", True)
        .load(str(settings.source))
    )
    lake = Lake(settings.folder)
    checkpoint = lake.checkpoint(JOB, settings.name)
    outbox = Outbox(lake.root / "outbox", settings.address, settings.connections, settings.patience_s)
    plans = Plans(outbox.table, settings.name, checkpoint, settings.source)
    plans.resume(None if plans.query is None else outbox.last_batch(plans.query))
    outbox.create(spark)
    writer = (
        rows.writeStream.foreachBatch(outbox.batches(plans))
        .queryName(f"{JOB}-{settings.name}")
        .option("checkpointLocation", str(checkpoint.path))
    )
    if settings.follow:
        return writer.trigger(processingTime=f"{round(settings.trigger_s * 1000)} milliseconds").start()
    return writer.trigger(availableNow=True).start()
