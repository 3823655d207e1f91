"""The job `metrics`: messages, events and progress -> `traffic`, `devices`, `connections`, `deliveries`, `usage`,
`backlog`.

It works through ranges of the journal (`headrace_spark.source.journal_range`). Parts are appended once, by Delta's
transaction; `devices` and `connections` are merged by key and compared by offset, never added to; `backlog` is
replaced. The job's own `metrics_state` comes last, and gets what the range changed (`headrace_spark.metrics.remembered`):
what it holds is what the next range starts from, so a range that was cut off anywhere is done again from the same state
to the same end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.journal.epochs import EPOCH_MAX
from headrace_spark.base.errors import BadOption, LakeConflict, LakeUnreachable, QueryFailed
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.base.logs import LOG
from headrace_spark.base.progress import Progress, Report
from headrace_spark.base.session import is_local
from headrace_spark.base.settings import RunSettings
from headrace_spark.lake.delta_commit import Step, append_marks
from headrace_spark.lake.durable import SyncedTable
from headrace_spark.lake.hadoop_files import said_plainly
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.lake_of import AnyLake, lake_of, tending
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.restored import WRITTEN, Restores
from headrace_spark.lake.table_files import CODEC, CODEC_KEY, TableFiles
from headrace_spark.lake.tables import (
    BACKLOG,
    CONNECTIONS,
    DELIVERIES,
    DEVICES,
    METRICS_STATE,
    TRAFFIC,
    USAGE,
    TableDefinition,
)
from headrace_spark.lake.upkeep import compact
from headrace_spark.metrics.counting import Counting, Events
from headrace_spark.metrics.division import divided
from headrace_spark.metrics.packing import PACKED
from headrace_spark.metrics.queues import Followed
from headrace_spark.metrics.remembered import remembered
from headrace_spark.metrics.session_rows import (
    backlog_rows,
    connection_rows,
    followed_of,
    in_us,
    state_rows,
)
from headrace_spark.metrics.sessions import EVENTS_READ, KINDS, Sessions, behind_hole
from headrace_spark.metrics.settling import FOUND, Notes, Settling
from headrace_spark.metrics.traffic import NEWER
from headrace_spark.metrics.usage import usage_rows
from headrace_spark.records.schema import EVENTS, arrow_schema
from headrace_spark.source.journal import commit, first_time_us, journals_of, register, registered_offset
from headrace_spark.source.journal_range import ALONE, JournalRange, Place, Ranges
from headrace_spark.source.lag import records_left
from headrace_spark.source.log_reader import DividedFrom, LogReader
from headrace_spark.source.options import check_consumer
from headrace_spark.source.ranges import JournalOffset

JOB: Final = "metrics"
STATE_FILES_MAX: Final = 128
_STATE_FILE_BYTES: Final = 32 << 20
_EVENTS_TOGETHER: Final = 10_000
_LOCAL: Final = (
    "local[N] is needed for a lake behind a URL: workers of this job write files that the driver copies"
)


@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings):
    """`[pipeline.metrics]`: what the job `metrics` is told."""

    consumer: str
    window_s: int
    topic_levels: int
    records_per_trigger_max: int
    bytes_per_trigger_max: int
    fail_on_data_loss: bool


class Tables:
    """The tables of one lake that this job writes."""

    def __init__(self, lake: AnyLake) -> None:
        self.traffic = lake.table_of(TRAFFIC)
        self.devices = lake.table_of(DEVICES)
        self.connections = lake.table_of(CONNECTIONS)
        self.deliveries = lake.table_of(DELIVERIES)
        self.usage = lake.table_of(USAGE)
        self.backlog = lake.table_of(BACKLOG)
        self.state = lake.table_of(METRICS_STATE)
        self.folder = lake.root if isinstance(lake, Lake) else lake.scratch
        """Where workers write files, of which each table has its own below it."""
        self.parts = (self.traffic, self.deliveries, self.usage)
        self.merged = (self.devices, self.connections)
        self.all = (*self.parts, self.devices, self.connections, self.backlog, self.state)
        self._restores = [
            Restores(table.tables, table.path, WRITTEN, is_replaced=table not in self.parts)
            for table in self.all
        ]

    def require_unrestored(self) -> None:
        """Raise LakeConflict if Delta's RESTORE has taken rows out of a table, before or since the last look: it keeps
        the transactions by which the table says that they are counted."""
        for table, restores in zip(self.all, self._restores, strict=True):
            if (before := restores.lost()) is not None:
                raise LakeConflict(
                    f"Delta's RESTORE has taken rows out of table {table.path}, which would be missing for ever. To have "
                    f"them back: RESTORE TABLE delta.`{table.path}` TO VERSION AS OF {before}. Or remove all tables of "
                    f"job {JOB} to count what the journal still has"
                )


def check(settings: Settings) -> None:
    """Check that the job can run. Raises BadOption, JournalMissing, LakeConflict."""
    check_consumer(settings.consumer)
    journals_of(settings)
    if isinstance(settings.lake, LakeUrl):
        if not is_local(settings.spark.master):
            raise BadOption("pipeline.master", settings.spark.master, _LOCAL)
        return
    for table in Tables(Lake(settings.lake)).all:
        table.log()


def run(spark: SparkSession, settings: Settings, stop: Event, report: Report) -> Progress:
    """Run the job until it has done its work or is to stop. Raises PipelineError."""
    journals = journals_of(settings)
    lake = lake_of(spark, settings.lake)
    began = monotonic()
    with lake.holding(JOB):
        tables = Tables(lake)
        for table in tables.all:
            table.create()
        tables.require_unrestored()
        owner = lake.owner(JOB, tables.state.path)
        places = [Place(shard, len(journals)) for shard in range(len(journals))]
        turns = deque(
            begun(settings, tables, journal, owner, place)
            for journal, place in zip(journals, places, strict=True)
        )
        ends = {ranges.journal.uuid: ranges.position() or 0 for ranges in turns}
        progress = Progress(0, sum(ends.values()), 0, 0.0, ends=dict(ends))
        tend = tending(spark, settings.upkeep, lake, [table.path for table in tables.all])
        report(progress)
        on_disk = [SyncedTable(table.folder) for table in tables.all] if isinstance(lake, Lake) else []
        retire(spark, tables, turns)
        while not stop.is_set():
            ranges, found = next_range(turns, settings)
            if found is None:
                if not settings.follow or stop.wait(settings.trigger_s):
                    break
                continue
            at = monotonic()
            lake.require_held()
            tables.require_unrestored()
            found = count(spark, settings, lake, tables, found, ranges)
            if found.before is not None:
                retire(spark, tables, turns)
            for synced in on_disk:
                synced.sync()
            journal = found.journal
            commit(journal, settings.consumer, JournalOffset(journal.uuid, journal.epoch, found.end), owner)
            ends[journal.uuid] = found.end
            lag = sum(records_left(each, ends[each.uuid]) for each in journals)
            rows, now = progress.rows + found.end - found.start, monotonic()
            progress = Progress(rows, sum(ends.values()), lag, now - began, (now - at,), ends=dict(ends))
            report(progress)
            tend_state(spark, settings, tables, journal.uuid)
            tend()
        return progress


def begun(settings: Settings, tables: Tables, journal: LogReader, owner: str, place: Place = ALONE) -> Ranges:
    """Return where the job stands in a journal, of which it is a registered consumer then. Raises LakeConflict."""
    before = journal.divided_from()
    if before is not None and not has_ended(tables.state, before):
        before = None
    ranges = Ranges(JOB, journal, tables.state, (*tables.parts, tables.backlog), tables.merged, place, before)
    ranges.require_together(registered_offset(journal, settings.consumer))
    start = ranges.position()
    register(journal, settings.consumer, journal.complete_offset() if start is None else start, owner)
    return ranges


def has_ended(state: LakeTable, divided: DividedFrom) -> bool:
    """Return whether the job has counted a journal up to where it was divided, and no further: a broker that went on with
    it all the same has another one. It may have counted the last record in a later epoch than that was written in."""
    head = f"{JOB}-{divided.uuid}-"
    for epoch in state.epochs_told(head, EPOCH_MAX):
        if (done := state.last_version(f"{head}{epoch}")) is not None:
            return epoch >= divided.epoch and done == divided.end_offset
    return False


def retire(spark: SparkSession, tables: Tables, turns: Iterable[Ranges]) -> None:
    """Take the rows of a journal that was divided out of the tables that say what is now, once all of its parts have
    begun with what they know of it: nobody is online there any more, and nothing waits."""
    for before in {ranges.before for ranges in turns if ranges.before is not None}:
        files = tables.state.files(before.uuid)
        parts = [ranges for ranges in turns if ranges.before == before]
        if not (files or tables.backlog.files(before.uuid)) or any(one.position() is None for one in parts):
            continue
        sessions = Sessions(remembered(files))
        sessions.apply({"kind": "broker_started", "event_timestamp": began_us(parts, before, sessions)})
        changed = connection_rows(sessions, before.uuid)
        writer = Writer(spark, tables, before.uuid, f"{JOB}-{before.uuid}-divided", before.end_offset)
        writer.connect(changed)
        used = usage_rows(Notes(), changed, before.uuid, before.end_offset)
        writer.append(tables.usage, writer.files(USAGE, [used]))
        writer.replace(tables.backlog, [])
        writer.replace(tables.state, [], parts[0].notes())


def began_us(parts: Iterable[Ranges], before: DividedFrom, sessions: Sessions) -> int:
    """Return when the broker began with the parts of a journal that was divided. What they have below its end are copies,
    as old as they were there. Where nothing is left behind it, nobody is taken to have stayed."""
    times = [first_time_us(one.journal, before.end_offset) for one in parts]
    newest_us = int(sessions.remembered.connected_us.max(initial=0))
    return min((at for at in times if at is not None), default=newest_us)


def next_range(turns: deque[Ranges], settings: Settings) -> tuple[Ranges, JournalRange | None]:
    """Return the next range of the first journal in turn that has any, which is the last in turn then. Raises DataLoss,
    LakeConflict."""
    limits = settings.records_per_trigger_max, settings.bytes_per_trigger_max, settings.fail_on_data_loss
    for _ in range(len(turns)):
        ranges = turns[0]
        turns.rotate(-1)
        if (found := ranges.next(*limits)) is not None:
            return ranges, found
    return turns[0], None


def planned(spark: SparkSession, state: LakeTable, found: JournalRange) -> JournalRange:
    """Return the range with the end that the state has for it, which the first driver that begins it puts there.

    So two drivers write the same range, each table once. Raises TableMoved if another one has put its end there in the
    same moment.
    """
    app_id = f"{found.app_id}/plan"
    end = state.last_version(app_id)
    if end is not None and end > found.start:
        return replace(found, end=end)
    append_marks(spark, state.path, Step(app_id, found.end, end), {})
    return found


def tend_state(spark: SparkSession, settings: Settings, tables: Tables, journal_uuid: str) -> None:
    """Make the files of the state few again: every range adds some, and the next one reads them all."""
    if len(tables.state.files(journal_uuid)) > STATE_FILES_MAX:
        upkeep = replace(settings.upkeep, file_bytes=_STATE_FILE_BYTES, small_files_max=0)
        with said_plainly(tables.state.path):
            compact(spark, tables.state.path, upkeep, tables.state.tables)


def count(
    spark: SparkSession,
    settings: Settings,
    lake: AnyLake,
    tables: Tables,
    found: JournalRange,
    ranges: Ranges,
) -> JournalRange:
    """Work on one range, and return it; what Spark or the store fails at (an executor that is lost) is done again. Raises
    QueryFailed, TableMoved."""
    failures = 0
    while True:
        try:
            fixed = found if isinstance(lake, Lake) else planned(spark, tables.state, found)
            Work(spark, settings, tables, fixed, ranges).do()
            return fixed
        except (PySparkException, Py4JJavaError, LakeUnreachable) as error:
            failure, failures = QueryFailed.from_spark(error), failures + 1
            if failure.is_ours or failures > settings.restarts_max:
                raise failure from None
            lake.require_held()
            LOG.warning(
                "offsets %d to %d are counted again: %s",
                found.start,
                found.end,
                failure,
                extra={"fields": {"reason": "query"}},
            )


class Writer:
    """Writes rows of one journal into the tables, under the end of one range."""

    def __init__(self, spark: SparkSession, tables: Tables, uuid: str, app_id: str, end: int) -> None:
        self._spark = spark
        self._tables = tables
        self._uuid = uuid
        self._app_id = app_id
        self._end = end
        self.codec = spark.conf.get(CODEC_KEY) or CODEC

    def append(self, table: LakeTable, actions: list[str], also: Mapping[str, int] | None = None) -> None:
        table.add_files(self._spark, actions, self._app_id, self._end, None, also)

    def replace(self, table: LakeTable, actions: list[str], also: Mapping[str, int] | None = None) -> None:
        table.add_files(self._spark, actions, self._app_id, self._end, self._uuid, also)

    def connect(self, changed: pa.RecordBatch) -> None:
        """Write the connections that began or ended."""
        if changed.num_rows:
            rows = self._spark.createDataFrame(pa.Table.from_batches([changed]))
            key = ("journal_uuid", "connected_offset", "tenant", "date")
            # One that has ended stays so: a driver that stood still may write what it knew then.
            self.merge(self._tables.connections, rows, key, "old.disconnected_timestamp is null")

    def merge(
        self, table: LakeTable, rows: DataFrame, key: tuple[str, ...], condition: str | None = None
    ) -> None:
        """Put rows in the place of those with the same key, where the condition holds. Columns that are not ours keep
        what they have."""
        same = " and ".join(f"old.{name} = new.{name}" for name in key)
        merge = table.delta(self._spark).alias("old").merge(rows.alias("new"), same)
        ours: dict[str, str | Column] = {
            name: F.col(f"new.{name}") for name in table.definition.columns.names
        }
        merge.whenMatchedUpdate(condition, ours).whenNotMatchedInsert(values=ours).execute()

    def files(self, definition: TableDefinition, batches: Iterable[pa.RecordBatch]) -> list[str]:
        """Write rows into files and return their actions. Written here: rows of sessions and tenants are few."""
        layout = definition.layout.compressed(self.codec)
        files = TableFiles(self._tables.folder / definition.name, layout)
        for batch in batches:
            if batch.num_rows:
                files.add(batch)
        return files.finish()


class Work:
    """The work on one range of the journal."""

    def __init__(
        self, spark: SparkSession, settings: Settings, tables: Tables, found: JournalRange, ranges: Ranges
    ) -> None:
        self._ranges = ranges
        self._spark = spark
        self._settings = settings
        self._tables = tables
        self._range = found
        self._uuid = found.journal.uuid
        self._writer = Writer(spark, tables, self._uuid, found.app_id, found.end)
        self._partitions = found.partitions(spark.sparkContext.defaultParallelism)
        self._token = found.journal.token

    def do(self) -> None:
        """Write every table, the state last."""
        before = self._range.before
        files = self._tables.state.files(self._uuid if before is None else before.uuid)
        known, is_behind_hole = remembered(files), self._range.is_behind_hole
        if before is not None:
            known = divided(known, self._ranges.place)
        if is_behind_hole:  # what waited may have been acknowledged there
            known, files = behind_hole(known), []
        sessions = Sessions(known, self._ranges.place)
        for rows in self._events().to_batches(_EVENTS_TOGETHER):
            for row in rows.to_pylist():
                sessions.apply(row)
        followed = followed_of(sessions)
        whole = before is not None or is_behind_hole or known.is_mostly_out_of_date
        found = self._settled(followed, files, whole).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            notes = Notes()
            for note, waiting in found.where("note is not null").select("note", "waiting").collect():
                notes.add(note, waiting)
            last = found.where("note is null").drop("note", "waiting")
            self._write(sessions, followed, notes, last, whole)
        finally:
            found.unpersist()

    def _events(self) -> pa.Table:
        """Return the events in journal order, times in microseconds."""
        schema = StructType([EVENTS[name] for name in EVENTS_READ])
        read = Events(self._partitions, self._token, arrow_schema(schema))
        rows = self._numbers(len(self._partitions)).mapInArrow(read, schema)
        found = rows.where(F.col("kind").isin(*KINDS)).toArrow()
        ordered = found.sort_by([("journal_offset", "ascending"), ("item", "ascending")])
        return in_us(ordered, "event_timestamp")

    def _numbers(self, count: int) -> DataFrame:
        """Return a frame of so many numbers, with a task for each."""
        return self._spark.range(0, count, 1, count)

    def _settled(self, followed: Followed, state_files: list[Path], whole: bool) -> DataFrame:
        """Return what one pass over the range, with one shuffle, finds: `settling.FOUND`."""
        settings, tasks = self._settings, self._spark.sparkContext.defaultParallelism
        paths = [str(path) for path in state_files]
        groups = [group for first in range(tasks) if (group := paths[first::tasks])]
        counting = Counting(
            self._partitions,
            groups,
            self._token,
            followed,
            settings.window_s,
            settings.topic_levels,
            self._range.before is not None,
        )
        settling = Settling(
            self._tables.folder,
            followed,
            settings.window_s,
            self._uuid,
            self._range.end,
            whole,
            self._writer.codec,
        )
        packed = self._numbers(len(self._partitions) + len(groups)).mapInArrow(counting, PACKED)
        # More tasks than processors: what has much in it is not known before.
        together = packed.repartition(2 * tasks, "family", "key").sortWithinPartitions(*PACKED.names[:4])
        return together.mapInArrow(settling, FOUND)

    def _write(
        self, sessions: Sessions, followed: Followed, notes: Notes, last: DataFrame, whole: bool
    ) -> None:
        """Write the tables, the state last; the others at once, each of which costs Spark more planning than work."""
        tables, writer, uuid, end, waiting = (
            self._tables,
            self._writer,
            self._uuid,
            self._range.end,
            notes.all_waiting,
        )
        changed = connection_rows(sessions, uuid)
        used = usage_rows(notes, changed, uuid, end)
        backlog = backlog_rows(followed, waiting, notes.newest_us, uuid)
        writes = [
            lambda: writer.merge(tables.devices, last, ("tenant", "client_id", "topic"), NEWER),
            lambda: writer.connect(changed),
            lambda: writer.append(tables.traffic, notes.files[TRAFFIC.name]),
            lambda: writer.append(tables.deliveries, notes.files[DELIVERIES.name]),
            lambda: writer.append(tables.usage, writer.files(USAGE, [used])),
            lambda: writer.replace(tables.backlog, writer.files(BACKLOG, [backlog])),
        ]
        with ThreadPoolExecutor(len(writes)) as pool:
            for write in [pool.submit(write) for write in writes]:
                write.result()
        state = writer.files(METRICS_STATE, state_rows(sessions, waiting, uuid, end, whole))
        add = writer.replace if whole else writer.append
        add(tables.state, [*state, *notes.files[METRICS_STATE.name]], self._ranges.notes())
