"""A lake: a folder of Delta tables and of the checkpoints of the queries that write them.

    <lake>/messages                          Delta table, schema in `headrace_spark.records.schema`, by tenant and date
    <lake>/_checkpoints/archive-<consumer>   Spark's checkpoint of the archive query
    <lake>/_checkpoints/<journal uuid>.lock  held while somebody archives that journal into this lake
    <lake>/_checkpoints/upkeep-<table>       when it was last compacted and vacuumed: the file's time
    <lake>/_checkpoints/<job>.lock           held while somebody runs that job on this lake

What a table holds is read from its Delta log without starting Spark.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from delta.tables import DeltaTable
from deltalake import DeltaTable as DeltaLog
from deltalake import Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from headrace_spark.base.errors import LakeConflict
from headrace_spark.lake.checkpoint import Checkpoint
from headrace_spark.lake.log_check import require_written
from headrace_spark.lake.table_files import MESSAGES_LAYOUT, TEXT_KEPT, FileLayout
from headrace_spark.records.schema import ADDED_TO_MESSAGES, MESSAGES

PARTITIONED_BY: Final = MESSAGES_LAYOUT.partitioned_by
_STATISTICS: Final = "delta.dataSkippingStatsColumns"
_PLAIN_WRITER: Final = 2
_RESTORE: Final = "RESTORE"
_BATCH: Final = "STREAMING UPDATE"
_LOOKED_AT: Final = 100
"""So many commits of upkeep and by hand lie behind the last batch at most."""
LOG_RETENTION: Final = "delta.logRetentionDuration"
LOG_RETENTION_S: Final = 7 * 24 * 3600
"""Spark's own is a month; the time of a commit grows with the log."""
KEPT_LOG: Final = {LOG_RETENTION: f"interval {LOG_RETENTION_S} seconds"}
_PROPERTIES: Final = {
    "headrace.schema": "messages/1",
    _STATISTICS: ",".join(MESSAGES_LAYOUT.statistics),
    **KEPT_LOG,
}
# What may be set by hand and asks nothing of who writes files.
_HARMLESS: Final = {
    "delta.appendOnly",
    "delta.checkpointInterval",
    "delta.deletedFileRetentionDuration",
    LOG_RETENTION,
}


_BOUNDS: Final = (
    *("min.journal_uuid", "max.journal_uuid", "min.journal_epoch", "max.journal_epoch"),
    "max.journal_offset",
)


@dataclass(frozen=True)
class JournalEnd:
    """Says how far a table goes for one epoch of one journal: it has all messages below `offset` that it will ever
    get."""

    uuid_start: str
    """As much of the uuid as Delta's statistics keep."""
    epoch: int
    offset: int


@dataclass(frozen=True)
class TableState:
    version: int
    rows: int
    ends: tuple[JournalEnd, ...]

    def end(self, uuid: str) -> JournalEnd | None:
        """The end for the newest epoch of that journal."""
        return max(
            (end for end in self.ends if uuid.startswith(end.uuid_start)),
            key=lambda end: end.epoch,
            default=None,
        )


class Lake:
    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.messages = self.root / "messages"
        self.checkpoints = self.root / "_checkpoints"

    def checkpoint(self, job: str, consumer: str) -> Checkpoint:
        return Checkpoint(self.checkpoints / f"{job}-{consumer}")

    def create_messages(self, spark: SparkSession) -> None:
        """Create the table if it is missing; one of an older headrace gets the columns that are new."""
        if (log := self._log()) is not None:
            add_columns(log, MESSAGES)
            return
        builder = DeltaTable.createIfNotExists(spark).location(str(self.messages)).addColumns(MESSAGES)
        for key, value in _PROPERTIES.items():
            builder = builder.property(key, value)
        builder.partitionedBy(*PARTITIONED_BY).execute()

    def state(self) -> TableState | None:
        """What `messages` holds, or None where there is no such table. Raises LakeConflict."""
        log = self._log()
        return None if log is None else TableState(log.version(), *_content(log, self.messages))

    def owner(self, job: str, table: Path) -> str:
        """The owner of a consumer's position, which is that of a table: the same wherever the lake is moved to."""
        return f"{job}:{DeltaLog(table).metadata().id} in {table}"

    def is_plain(self) -> bool:
        """Return whether `messages` is as this headrace makes it, so that files may be added that Spark did not write."""
        log = self._log()
        return log is not None and is_plain(log, MESSAGES_LAYOUT, _PROPERTIES)

    def last_batch(self, query_id: str) -> int | None:
        """The last micro-batch of that query in the table (Delta's transaction id of a streaming query)."""
        log = self._log()
        return None if log is None else log.transaction_version(query_id)

    def lost_by_restore(self) -> int | None:
        """The version of `messages` from which Delta's RESTORE has taken rows since; None if nothing is missing.

        RESTORE keeps the transactions by which an archive says how far it has come. Only those behind the last batch of
        an archive are looked at.
        """
        log = self._log()
        before = None
        for commit in () if log is None else log.history(_LOOKED_AT):
            if commit.get("operation") == _RESTORE:
                before = int(commit["version"]) - 1
            elif commit.get("operation") == _BATCH:
                break
        if log is None or before is None:
            return None
        return None if _rows(log) >= _rows(DeltaLog(self.messages, version=before)) else before

    def archived(self, uuid: str, epoch: int) -> JournalEnd | None:
        """Up to where `messages` has a journal, by the transactions of the batches, in the newest epoch up to `epoch`.

        None where no batch of an archive has said so: its rows alone tell then (`state`).
        """
        log = self._log()
        if log is not None:
            for found in range(epoch, -1, -1):
                end = log.transaction_version(archive_id(uuid, found))
                if end is not None:
                    return JournalEnd(uuid, found, end)
        return None

    def _log(self) -> DeltaLog | None:
        """Raises LakeConflict if a table of another schema lies there."""
        log = open_log(self.messages)
        if log is None:
            return None
        found, expected = types_of(log), _types(MESSAGES)
        if found | {name: expected[name] for name in ADDED_TO_MESSAGES - found.keys()} != expected:
            different = sorted(set(found.items()) ^ set(expected.items()))
            raise LakeConflict(
                f"table {self.messages} has another schema than this headrace writes: {different}"
            )
        return log

    @contextmanager
    def archiving(self, uuid: str) -> Iterator[None]:
        """Hold the lake for one journal: two queries of different checkpoints would write its messages twice."""
        with self._locked(uuid, f"archiving journal {uuid} into {self.root}"):
            yield

    @contextmanager
    def holding(self, job: str) -> Iterator[None]:
        """Hold the tables of one job, of which only one process may run. Raises LakeConflict."""
        with self._locked(job, f"running job {job} on {self.root}"):
            yield

    @contextmanager
    def _locked(self, name: str, doing: str) -> Iterator[None]:
        path = self.checkpoints / f"{name}.lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            opened = path.open("w")
        except OSError as error:
            raise LakeConflict(
                f"{error.filename} cannot be written: {error.strerror}. Give a lake that this user may write"
            ) from None
        with opened as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LakeConflict(f"another process is {doing}") from None
            yield


def archive_id(uuid: str, epoch: int) -> str:
    """The application of Delta's transactions by which an archive says how far it has come: their version is an offset,
    and the table has all messages below it."""
    return f"archive-{uuid}-{epoch}"


def is_plain(log: DeltaLog, layout: FileLayout, properties: Mapping[str, str]) -> bool:
    """Return whether a table has what it was made with, and nothing of Delta that asks more of a writer.

    Constraints or column mapping, that somebody has switched on since, would.
    """
    protocol, about = log.protocol(), log.metadata()
    set_by_hand = {key for key in about.configuration if key.startswith("delta.")} - properties.keys()
    return (
        protocol.min_writer_version <= _PLAIN_WRITER
        and tuple(about.partition_columns) == layout.partitioned_by
        and about.configuration.get(_STATISTICS) == properties[_STATISTICS]
        and not set_by_hand - _HARMLESS
        and "delta.invariants" not in log.schema().to_json()
    )


def open_log(table: Path) -> DeltaLog | None:
    """Return the log of a Delta table, None where there is none. Raises LakeConflict if it is not whole."""
    try:
        log = DeltaLog(table)
    except TableNotFoundError:
        return None
    except DeltaError as error:
        raise unreadable(table, error) from None
    require_written(table, log.version())
    return log


def unreadable(table: Path, error: DeltaError) -> LakeConflict:
    """Return the error for something that lies where a table should, and is none."""
    reason = str(error).splitlines()[0]
    return LakeConflict(
        f"{table} is no Delta table that can be read ({reason}). Use another lake, or move it away"
    )


def types_of(log: DeltaLog) -> dict[str, str]:
    """Column -> its type in Spark's words."""
    return _types(StructType.fromJson(json.loads(log.schema().to_json())))


def add_columns(log: DeltaLog, columns: StructType) -> None:
    """Give a table the columns that it lacks; its rows have null in them. Raises LakeConflict."""
    there = types_of(log)
    missing = StructType([field for field in columns if field.name not in there])
    if not missing.fields:
        return
    try:
        log.alter.add_columns(list(Schema.from_json(missing.json()).fields))
    except DeltaError as error:
        raise LakeConflict(
            f"table {log.table_uri} lacks the columns {', '.join(missing.names)}, and they cannot be added: "
            f"{str(error).splitlines()[0]}"
        ) from None


def _types(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema}


def _rows(log: DeltaLog) -> int:
    files = pa.table(log.get_add_actions(flatten=True))
    return sum(rows or 0 for rows in files["num_records"].to_pylist()) if files.num_rows else 0


def _content(log: DeltaLog, table: Path) -> tuple[int, tuple[JournalEnd, ...]]:
    """Rows, and the end of each epoch of each journal."""
    actions = pa.table(log.get_add_actions(flatten=True))
    if actions.num_rows == 0:
        return 0, ()
    rows = 0
    ends: dict[tuple[str, int], int] = {}
    for file in actions.to_pylist():
        if any(file.get(name) is None for name in ("num_records", *_BOUNDS)):
            raise LakeConflict(f"table {table} has files without statistics: it cannot say how far it goes")
        rows += file["num_records"]
        for uuid, epoch, last in _lasts(table, file):
            ends[uuid, epoch] = max(last + 1, ends.get((uuid, epoch), 0))
    return rows, tuple(JournalEnd(uuid, epoch, offset) for (uuid, epoch), offset in sorted(ends.items()))


def _lasts(table: Path, file: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Journal, epoch and greatest offset of what a file has: by its statistics; where it has several of them, as after
    `OPTIMIZE`, by its rows."""
    uuid, epoch = file["min.journal_uuid"][:TEXT_KEPT], file["min.journal_epoch"]
    if (file["max.journal_uuid"][:TEXT_KEPT], file["max.journal_epoch"]) == (uuid, epoch):
        return [(uuid, epoch, file["max.journal_offset"])]
    columns = ["journal_uuid", "journal_epoch", "journal_offset"]
    found = pq.ParquetFile(table / unquote(file["path"])).read(columns)
    groups = found.group_by(columns[:2]).aggregate([(columns[2], "max")])
    return [
        (row["journal_uuid"][:TEXT_KEPT], row["journal_epoch"], row["journal_offset_max"])
        for row in groups.to_pylist()
    ]
