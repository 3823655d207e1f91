"""The job `metrics`: messages, events and progress -> `traffic`, `devices`, `connections`, `deliveries`, `usage`,
`backlog`.

It works through ranges of the journal (`headrace_spark.journal_range`). Parts are appended once, by Delta's
transaction; `devices` and `connections` are merged by key and compared by offset, never added to; `backlog` and
the job's own `metrics_state` are replaced. `metrics_state` comes last: what it holds is what the next range
starts from, so a range that was cut off anywhere is done again from the same state to the same end.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace_spark.connections import connections, sessions_after
from headrace_spark.deliveries import FOREVER, intervals, left_by_ended, numbered, outcomes, queued, settled
from headrace_spark.durable import SyncedTable
from headrace_spark.errors import QueryFailed
from headrace_spark.journal import commit, journal_of, register
from headrace_spark.journal_range import JournalRange, Ranges
from headrace_spark.lake import Lake
from headrace_spark.lake_table import LakeTable
from headrace_spark.options import check_consumer
from headrace_spark.progress import Progress, Report
from headrace_spark.ranges import JournalOffset
from headrace_spark.settings import RunSettings
from headrace_spark.shared_groups import drawn, group_events, group_outcomes
from headrace_spark.tables import BACKLOG, CONNECTIONS, DELIVERIES, DEVICES, METRICS_STATE, TRAFFIC, USAGE
from headrace_spark.traffic import (
    LAST_READ,
    NEWER,
    READ,
    last_messages,
    last_offsets,
    per_device,
    sized,
    traffic,
)
from headrace_spark.upkeep import Upkeep
from headrace_spark.usage import usage

JOB: Final = "metrics"
_EVENTS: Final = (
    "kind", "tenant", "client_id", "incarnation", "topic_filter", "qos", "no_local", "event_timestamp",
    "journal_offset", "item",
)  # fmt: skip
_PROGRESS: Final = (
    "kind",
    "incarnation",
    "group_id",
    "serial",
    "count",
    "reason",
    "progress_timestamp",
    "journal_offset",
)


@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings):
    """`[pipeline.metrics]`."""

    consumer: str
    window_s: int
    topic_levels: int
    records_per_trigger_max: int
    bytes_per_trigger_max: int
    fail_on_data_loss: bool


class Tables:
    """The tables of one lake that this job writes."""

    def __init__(self, lake: Path) -> None:
        self.traffic = LakeTable(lake, TRAFFIC)
        self.devices = LakeTable(lake, DEVICES)
        self.connections = LakeTable(lake, CONNECTIONS)
        self.deliveries = LakeTable(lake, DELIVERIES)
        self.usage = LakeTable(lake, USAGE)
        self.backlog = LakeTable(lake, BACKLOG)
        self.state = LakeTable(lake, METRICS_STATE)
        self.parts = (self.traffic, self.deliveries, self.usage)
        self.all = (*self.parts, self.devices, self.connections, self.backlog, self.state)


def check(settings: Settings) -> None:
    """Raises BadOption, JournalMissing, LakeConflict."""
    check_consumer(settings.consumer)
    journal_of(settings)
    for table in Tables(settings.lake).all:
        table.log()


def run(spark: SparkSession, settings: Settings, stop: Event, report: Report) -> Progress:
    """Raises PipelineError."""
    journal = journal_of(settings)
    tables = Tables(settings.lake)
    began = monotonic()
    with Lake(settings.lake).holding(JOB):
        for table in tables.all:
            table.create()
        ranges = Ranges(JOB, journal, tables.state, tables.parts)
        start = ranges.position()
        register(journal, settings.consumer, journal.start_offset() if start is None else start)
        progress = Progress(0, start or 0, 0, 0.0)
        upkeep = Upkeep(
            spark, settings.upkeep, Lake(settings.lake).checkpoints, [table.path for table in tables.all]
        )
        on_disk = [SyncedTable(table.path) for table in tables.all]
        while not stop.is_set():
            found = ranges.next(
                settings.records_per_trigger_max, settings.bytes_per_trigger_max, settings.fail_on_data_loss
            )
            if found is None:
                if not settings.follow or stop.wait(settings.trigger_s):
                    break
                continue
            count(spark, settings, tables, found)
            for synced in on_disk:
                synced.sync()
            commit(journal, settings.consumer, JournalOffset(journal.uuid, journal.epoch, found.end))
            lag = max(0, journal.high_watermark() - found.end)
            progress = Progress(progress.rows + found.end - found.start, found.end, lag, monotonic() - began)
            report(progress)
            upkeep.tend()
        return progress


def count(spark: SparkSession, settings: Settings, tables: Tables, found: JournalRange) -> None:
    """Work on one range; what Spark fails at (an executor that is lost) is done again. Raises QueryFailed."""
    failures = 0
    while True:
        try:
            return Work(spark, settings, tables, found).do()
        except (PySparkException, Py4JJavaError) as error:
            failure, failures = QueryFailed.from_spark(error), failures + 1
            if failure.is_ours or failures > settings.restarts_max:
                raise failure from None
            print(
                f"offsets {found.start} to {found.end} are counted again: {failure}",
                file=sys.stderr,
                flush=True,
            )


class Work:
    """What happens to one range."""

    def __init__(self, spark: SparkSession, settings: Settings, tables: Tables, found: JournalRange) -> None:
        self._spark = spark
        self._settings = settings
        self._tables = tables
        self._range = found
        self._uuid = found.journal.uuid
        self._kept: list[DataFrame] = []
        self.messages = self._keep(sized(found.read(spark, "messages", READ)))
        self.events = self._keep(found.read(spark, "events", _EVENTS))
        self.progress = self._keep(found.read(spark, "progress", _PROGRESS))

    def do(self) -> None:
        """Write every table, the state last."""
        try:
            before = self._state()
            self._groups(before)
            self._traffic()
            sessions = self._sessions(before)
            entries, done = self._deliveries(before, sessions)
            self._usage()
            self._remember(sessions, entries, done, before)
        finally:
            for kept in self._kept:
                kept.unpersist()

    def _keep(self, rows: DataFrame) -> DataFrame:
        kept = rows.persist(StorageLevel.MEMORY_AND_DISK)
        self._kept.append(kept)
        return kept

    @staticmethod
    def _cut(rows: DataFrame) -> DataFrame:
        """Worked out now, and what is built on it starts here: a plan that goes back to the journal through everything
        kept on the way costs Spark more time than the rows."""
        return rows.localCheckpoint()

    def _state(self) -> DataFrame:
        rows = self._tables.state.read(self._spark).where(F.col("journal_uuid") == self._uuid)
        return self._cut(rows)

    def _groups(self, before: DataFrame) -> None:
        """Make sessions of the groups of shared subscriptions, where there are any."""
        self.routed, self.draws, self.members = self.events, before.where("kind = 'draw'"), None
        hints = (
            self.events.where("startswith(topic_filter, '$share/')"),
            before.where("incarnation < 0"),
            self.progress.where("group_id is not null"),
        )
        if all(hint.isEmpty() for hint in hints):
            return
        subscriptions = before.where("kind = 'subscription'")
        groups = group_events(self.events, subscriptions, before.where("kind = 'session'"))
        self.routed = self._cut(self.events.unionByName(groups))
        self.draws = self._cut(drawn(self.progress, self.draws))
        self.members = intervals(self.events, subscriptions, shared=True)

    def _traffic(self) -> None:
        devices = self._cut(per_device(self.messages, self._settings.window_s))
        self.published = self._cut(traffic(devices, self._settings.topic_levels, self._uuid, self._range.end))
        self._tables.traffic.append(self.published, self._range.app_id, self._range.end)
        new = last_messages(*self._last(devices))
        merge = (
            self._tables.devices.delta(self._spark)
            .alias("old")
            .merge(
                new.alias("new"),
                "old.tenant = new.tenant and old.client_id = new.client_id and old.topic = new.topic",
            )
        )
        merge.whenMatchedUpdateAll(NEWER).whenNotMatchedInsertAll().execute()

    def _last(self, devices: DataFrame) -> tuple[DataFrame, DataFrame]:
        """The offsets of the last messages, and the part of the range that has them: read again, with payloads."""
        last = self._cut(last_offsets(devices))
        oldest = last.agg(F.min("journal_offset")).first()
        assert oldest is not None
        return last, self._range.read(self._spark, "messages", LAST_READ, oldest[0])

    def _sessions(self, before: DataFrame) -> DataFrame:
        """Write `connections`; -> the sessions that were there at any time in this range, with next_serial."""
        old = before.where("kind = 'session'").select(
            "incarnation", "tenant", "client_id", "next_serial", "connected_offset", "connected_timestamp"
        )
        self.connected = self._cut(connections(self.events, old))
        rows = self.connected.withColumn("journal_uuid", F.lit(self._uuid)).select(*CONNECTIONS.columns.names)
        merge = (
            self._tables.connections.delta(self._spark)
            .alias("old")
            .merge(
                rows.alias("new"),
                "old.journal_uuid = new.journal_uuid and old.connected_offset = new.connected_offset "
                "and old.tenant = new.tenant and old.date = new.date",
            )
        )
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
        self.left = sessions_after(self.routed, old, self.connected)
        opened = self.routed.where("kind = 'session_opened'").select(
            "incarnation", "tenant", "client_id", F.lit(1).cast("long").alias("next_serial")
        )
        return self._cut(old.select("incarnation", "tenant", "client_id", "next_serial").unionByName(opened))

    def _deliveries(self, before: DataFrame, sessions: DataFrame) -> tuple[DataFrame, DataFrame]:
        """Write `deliveries`; -> the entries that were in a queue in this range, and what was finished of them."""
        self.subscribed = self._cut(intervals(self.routed, before.where("kind = 'subscription'")))
        new = numbered(queued(self.messages, self.routed, self.subscribed, sessions), sessions)
        self.new = self._cut(new)
        old = before.where("kind = 'entry'").select(
            "incarnation", "serial", "publish_timestamp", "payload_bytes"
        )
        entries = old.unionByName(self.new)
        finished = outcomes(self.progress)
        if self.members is not None:
            finished = finished.unionByName(group_outcomes(self.progress, self.draws))
        # What a member of a group has in flight completes with the member.
        held = finished.select("incarnation", "serial").unionByName(
            self.draws.select("incarnation", "serial")
        )
        done = self._cut(finished.unionByName(left_by_ended(entries, held, self.routed)))
        self.delivered = self._cut(
            settled(done, entries, sessions, self._settings.window_s, self._uuid, self._range.end)
        )
        self._tables.deliveries.append(self.delivered, self._range.app_id, self._range.end)
        return entries, done

    def _usage(self) -> None:
        parts = usage(self.published, self.delivered, self.connected, self._uuid, self._range.end)
        self._tables.usage.append(parts, self._range.app_id, self._range.end)

    def _remember(self, sessions: DataFrame, entries: DataFrame, done: DataFrame, before: DataFrame) -> None:
        """Replace `backlog` and the state."""
        left = entries.join(done.select("incarnation", "serial"), ["incarnation", "serial"], "left_anti")
        left = self._cut(left.join(self.left.select("incarnation", "tenant", "client_id"), "incarnation"))
        newest = [
            rows.agg(F.max(column).alias("at"))
            for rows, column in ((self.messages, "publish_timestamp"), (self.events, "event_timestamp"),
                                 (self.progress, "progress_timestamp"))
        ]  # fmt: skip
        as_of = reduce(DataFrame.unionByName, newest).agg(F.max("at").alias("as_of_timestamp"))
        waiting = left.groupBy("tenant", "client_id").agg(
            F.count("*").alias("messages"), F.min("publish_timestamp").alias("oldest_timestamp")
        )
        self._replace(self._tables.backlog, waiting.crossJoin(F.broadcast(as_of)))
        counted = self.new.groupBy("incarnation").agg((F.max("serial") + 1).alias("after"))
        numbers = sessions.join(counted, "incarnation", "left").select(
            "incarnation", F.coalesce("after", "next_serial").alias("next_serial")
        )
        kept = self.subscribed if self.members is None else self.subscribed.unionByName(self.members)
        draws = self.draws.join(done, ["incarnation", "serial"], "left_anti").select("incarnation", "serial")
        state = reduce(
            lambda one, other: one.unionByName(other, allowMissingColumns=True),
            (
                self.left.join(numbers, "incarnation", "left").withColumn("kind", F.lit("session")),
                kept.where(F.col("until") == FOREVER)
                .join(self.left.select("incarnation"), "incarnation", "left_semi")
                .select("incarnation", "topic_filter", "no_local")
                .withColumn("kind", F.lit("subscription")),
                left.select("incarnation", "serial", "publish_timestamp", "payload_bytes").withColumn(
                    "kind", F.lit("entry")
                ),
                draws.withColumn("kind", F.lit("draw")),
            ),
        )
        self._replace(self._tables.state, state)

    def _replace(self, table: LakeTable, rows: DataFrame) -> None:
        """Put rows in the place of what the table has for this journal."""
        whole = rows.withColumn("journal_uuid", F.lit(self._uuid)).select(*table.definition.columns.names)
        table.replace(whole, f"journal_uuid = '{self._uuid}'", self._range.app_id, self._range.end)
