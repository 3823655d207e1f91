"""The table `messages` of a lake: how far it has which journal, by its Delta log.

Schema in `headrace_spark.records.schema`, by tenant and date.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from headrace_spark.base.errors import LakeConflict
from headrace_spark.base.lake_url import Location
from headrace_spark.lake.applications import epochs_told, require_own_epochs
from headrace_spark.lake.own_columns import require_own_columns
from headrace_spark.lake.restored import BATCH, Restores
from headrace_spark.lake.table_files import MESSAGES_LAYOUT, TEXT_KEPT, FileLayout
from headrace_spark.lake.table_log import Folders, TableLog, Tables
from headrace_spark.records.schema import ADDED_TO_MESSAGES, MESSAGES

PARTITIONED_BY: Final = MESSAGES_LAYOUT.partitioned_by
_STATISTICS: Final = "delta.dataSkippingStatsColumns"
_PLAIN_WRITER: Final = 2
LOG_RETENTION: Final = "delta.logRetentionDuration"
LOG_RETENTION_S: Final = 7 * 24 * 3600
"""Spark's own is a month; the time of a commit grows with the log."""
_CHECKPOINTS: Final = "delta.checkpointInterval"
_COMMITS_A_CHECKPOINT: Final = 100
"""Spark's own is ten; a checkpoint names every file that was there in the last week, which is 100 000 after so many
commits of a file each, and takes Delta many times as long as a commit."""
KEPT_LOG: Final = {
    LOG_RETENTION: f"interval {LOG_RETENTION_S} seconds",
    _CHECKPOINTS: str(_COMMITS_A_CHECKPOINT),
}
_PROPERTIES: Final = {
    "headrace.schema": "messages/1",
    _STATISTICS: ",".join(MESSAGES_LAYOUT.statistics),
    **KEPT_LOG,
}
# What may be set by hand and asks nothing of who writes files.
_HARMLESS: Final = {
    "delta.appendOnly",
    _CHECKPOINTS,
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
        """Return the end for the newest epoch of that journal."""
        return max(
            (end for end in self.ends if uuid.startswith(end.uuid_start)),
            key=lambda end: end.epoch,
            default=None,
        )


class MessagesTable:
    """The table `messages` of one lake. `tables`: how the table's log is read."""

    def __init__(self, location: Location, tables: Tables | None = None) -> None:
        self.location = location
        self._tables = tables or Folders()
        self._restores = Restores(self._tables, location, {BATCH})

    def create(self, spark: SparkSession) -> None:
        """Create the table if it is missing; one of an older headrace gets the columns that are new."""
        if self.log() is not None:
            self._tables.add_columns(self.location, MESSAGES)
            return
        builder = DeltaTable.createIfNotExists(spark).location(str(self.location)).addColumns(MESSAGES)
        for key, value in _PROPERTIES.items():
            builder = builder.property(key, value)
        builder.partitionedBy(*PARTITIONED_BY).execute()

    def state(self) -> TableState | None:
        """Return what the table holds, or None where there is no such table. Raises LakeConflict."""
        log = self.log()
        return None if log is None else TableState(log.version(), *self._content(log))

    def is_plain(self) -> bool:
        """Return whether the table is as this headrace makes it, so that files may be added that Spark did not
        write."""
        log = self.log()
        return log is not None and is_plain(log, MESSAGES_LAYOUT, _PROPERTIES)

    def last_batch(self, query_id: str) -> int | None:
        """Return the last micro-batch of that query in the table (Delta's transaction id of a streaming query)."""
        log = self.log()
        return None if log is None else log.transaction_version(query_id)

    def require_unrestored(self) -> None:
        """Raise LakeConflict if Delta's RESTORE has taken rows out of the table that are still missing."""
        if (before := self.lost_by_restore()) is not None:
            raise LakeConflict(
                f"Delta's RESTORE has taken rows out of table {self.location}, which would be missing for ever. To have "
                f"them back: RESTORE TABLE delta.`{self.location}` TO VERSION AS OF {before}. Or use another lake"
            )

    def lost_by_restore(self) -> int | None:
        """Return the version from which Delta's RESTORE has taken rows since; None if nothing is missing.

        RESTORE keeps the transactions by which an archive says how far it has come. Looked at are those behind the last
        batch of an archive, and from then on those that come.
        """
        return self._restores.lost()

    def require_own_epochs(self, uuid: str, epoch: int) -> None:
        """Require that no batch has spoken of a journal in an epoch above its own, `epoch`. Raises LakeConflict."""
        if (log := self.log()) is not None:
            require_own_epochs(log, self.location, archive_id(uuid, ""), uuid, epoch)

    def archived(self, uuid: str, epoch: int) -> JournalEnd | None:
        """Return how far the table has a journal, by the transactions of the batches, in the newest epoch up to
        `epoch`.

        None where no batch of an archive has said so: its rows alone tell then (`state`).
        """
        log = self.log()
        if log is not None:
            for found in epochs_told(log, self.location, archive_id(uuid, ""), epoch):
                end = log.transaction_version(archive_id(uuid, found))
                if end is not None:
                    return JournalEnd(uuid, found, end)
        return None

    def log(self) -> TableLog | None:
        """Return the log of the table, if there is one. Raises LakeConflict if it lacks a column of ours."""
        log = self._tables.open(self.location)
        if log is None:
            return None
        require_own_columns(self._tables, self.location, log, MESSAGES, ADDED_TO_MESSAGES)
        return log

    def _content(self, log: TableLog) -> tuple[int, tuple[JournalEnd, ...]]:
        """Return rows, and the end of each epoch of each journal."""
        actions = pa.table(log.get_add_actions(flatten=True))
        if actions.num_rows == 0:
            return 0, ()
        rows = 0
        ends: dict[tuple[str, int], int] = {}
        for file in actions.to_pylist():
            if any(file.get(name) is None for name in ("num_records", *_BOUNDS)):
                raise LakeConflict(
                    f"table {self.location} has files without statistics: it cannot say how far it goes. Use another "
                    "lake, or restore the table as it was before somebody wrote it"
                )
            rows += file["num_records"]
            for uuid, epoch, last in self._lasts(file):
                ends[uuid, epoch] = max(last + 1, ends.get((uuid, epoch), 0))
        return rows, tuple(JournalEnd(uuid, epoch, offset) for (uuid, epoch), offset in sorted(ends.items()))

    def _lasts(self, file: Mapping[str, Any]) -> list[tuple[str, int, int]]:
        """Return journal, epoch and greatest offset of what a file has: by its statistics; where it has several of
        them, as after `OPTIMIZE`, by its rows."""
        uuid, epoch = file["min.journal_uuid"][:TEXT_KEPT], file["min.journal_epoch"]
        if (file["max.journal_uuid"][:TEXT_KEPT], file["max.journal_epoch"]) == (uuid, epoch):
            return [(uuid, epoch, file["max.journal_offset"])]
        columns = ["journal_uuid", "journal_epoch", "journal_offset"]
        found = self._tables.read(self.location, file["path"], columns)
        groups = found.group_by(columns[:2]).aggregate([(columns[2], "max")])
        return [
            (row["journal_uuid"][:TEXT_KEPT], row["journal_epoch"], row["journal_offset_max"])
            for row in groups.to_pylist()
        ]


def archive_id(uuid: str, epoch: int | str) -> str:
    """Return the application of Delta's transactions by which an archive says how far it has come: their version is an
    offset, and the table has all messages below it."""
    return f"archive-{uuid}-{epoch}"


def has_plain_files(log: TableLog) -> bool:
    """Return whether the table's log says nothing of a file but what every writer of Delta knows."""
    return bool(log.protocol().min_writer_version <= _PLAIN_WRITER)


def is_plain(log: TableLog, layout: FileLayout, properties: Mapping[str, str]) -> bool:
    """Return whether a table has what it was made with, and nothing of Delta that asks more of a writer.

    Constraints or column mapping, that somebody has switched on since, would.
    """
    about = log.metadata()
    set_by_hand = {key for key in about.configuration if key.startswith("delta.")} - properties.keys()
    return bool(
        has_plain_files(log)
        and tuple(about.partition_columns) == layout.partitioned_by
        and about.configuration.get(_STATISTICS) == properties[_STATISTICS]
        and not set_by_hand - _HARMLESS
        and "delta.invariants" not in log.schema().to_json()
    )
