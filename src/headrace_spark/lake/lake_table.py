"""One Delta table of a lake, made from its definition and checked against it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.types import DataType, StructType

from headrace_spark.base.lake_url import Location
from headrace_spark.lake.applications import epochs_told
from headrace_spark.lake.delta_commit import (
    append_files,
    has_version,
    paths_in,
    paths_of,
    remove_files,
    require,
)
from headrace_spark.lake.messages import KEPT_LOG, is_plain
from headrace_spark.lake.own_columns import require_own_columns
from headrace_spark.lake.table_log import Folders, NewTable, TableLog, Tables
from headrace_spark.lake.tables import TableDefinition

_NOTED_WITHIN: Final = 100
"""So many commits of upkeep lie between two of a job at most."""


class LakeTable:
    """The Delta table `<lake>/<name>`. What is asked about it is read from the Delta log; in a folder without Spark.

    `tables`: how the log is read. `scratch`: where files are before they are put behind a URL.
    """

    def __init__(
        self,
        lake: Location,
        definition: TableDefinition,
        tables: Tables | None = None,
        scratch: Path | None = None,
    ) -> None:
        self.definition = definition
        self.path = (lake.absolute() if isinstance(lake, Path) else lake) / definition.name
        self.tables = tables or Folders()
        self._scratch = scratch

    def log(self) -> TableLog | None:
        """Return the table's log, None where there is no such table. Raises LakeConflict if it lacks a column of
        its definition."""
        log = self.tables.open(self.path)
        if log is None:
            return None
        what = self.definition
        require_own_columns(self.tables, self.path, log, what.columns, what.added)
        return log

    def columns(self) -> dict[str, DataType]:
        """Return the type of each column; empty where there is no table."""
        log = self.log()
        found = () if log is None else StructType.fromJson(json.loads(log.schema().to_json()))
        return {field.name: field.dataType for field in found}

    def last_version(self, app_id: str) -> int | None:
        """Return the last transaction of that application in the table."""
        log = self.log()
        return None if log is None else log.transaction_version(app_id)

    def epochs_told(self, head: str, newest: int) -> Iterator[int]:
        """Yield the epochs, the newest first, for which there may be an application (`applications.epochs_told`)."""
        log = self.log()
        return iter(()) if log is None else epochs_told(log, self.path, head, newest)

    def rows_added(self) -> int:
        """Return the number of rows that the last commit added."""
        log = self.log()
        metrics = log.history(1)[0]["operationMetrics"] if log is not None else {}
        return int(metrics["numOutputRows"])

    def create(self) -> None:
        """Create the table if it is missing; one of an older headrace gets the columns that are new. Raises
        LakeConflict, LakeUnreachable."""
        what = self.definition
        if self._scratch is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
        if self.log() is None:
            self.tables.create(
                self.path, NewTable(what.columns, what.partitioned_by, what.about, _ours(what))
            )
        elif what.added:
            self.tables.add_columns(self.path, what.columns)

    def read(self, spark: SparkSession) -> DataFrame:
        return spark.read.format("delta").load(str(self.path))

    def delta(self, spark: SparkSession) -> DeltaTable:
        return DeltaTable.forPath(spark, str(self.path))

    def is_plain(self) -> bool:
        """Return whether the table is as this headrace makes it, so that files may be added that Spark did not
        write."""
        log = self.log()
        return log is not None and is_plain(log, self.definition.layout, _ours(self.definition))

    def files(self, journal_uuid: str) -> list[Path]:
        """Return the files that have the rows of one journal, of a table that is partitioned by it; on this machine.
        Raises LakeUnreachable."""
        log = self.log()
        rows = [] if log is None else pa.table(log.get_add_actions(flatten=True)).to_pylist()
        paths = [row["path"] for row in rows if row["partition.journal_uuid"] == journal_uuid]
        if self._scratch is not None:
            self._forget(paths)
        return [self.tables.fetched(self.path, path, self.folder) for path in paths]

    def _forget(self, paths: Sequence[str]) -> None:
        """Remove the copies of files that the table no longer has."""
        kept = {self.folder / unquote(path) for path in paths}
        for copy in self.folder.rglob("*.parquet"):
            if copy not in kept:
                copy.unlink(missing_ok=True)

    @property
    def folder(self) -> Path:
        """Return the folder in which files of the table are written: its own, or one of this process."""
        if isinstance(self.path, Path):
            return self.path
        assert self._scratch is not None
        return self._scratch / self.definition.name

    def add_files(
        self,
        spark: SparkSession,
        actions: Sequence[str],
        app_id: str,
        version: int,
        instead_of: str | None = None,
        also: Mapping[str, int] | None = None,
    ) -> None:
        """Add files once, by their `add` actions: a transaction that the table has already is skipped.

        `instead_of`: the journal whose files go for them, of a table that is partitioned by it. `also`: versions of
        further applications, which a table does not get that Spark writes.
        """
        log = self.tables.open(self.path)
        assert log is not None  # it was made before
        if has_version(log, app_id, version):
            remove_files(self.folder, actions)
        elif self.is_plain():
            partition = None if instead_of is None else {"journal_uuid": instead_of}
            require(self.folder, actions)
            for path in paths_in(actions):
                self.tables.show(self.path, path, self.folder)
            append_files(spark, self.path, actions, app_id, version, partition, also, self.tables)
            if self._scratch is not None:
                remove_files(self.folder, actions)
        else:
            # A feature of Delta that somebody has switched on asks more of a writer: Spark writes the same rows anew.
            rows = rows_of_files(spark, self.folder, actions, self.definition.columns)
            if instead_of is None:
                self.append(rows, app_id, version)
            else:
                self.replace(rows, f"journal_uuid = '{instead_of}'", app_id, version)
            remove_files(self.folder, actions)

    def last_note(self) -> dict[str, Any]:
        """Return what was noted with the last `append` that noted anything; empty if the log no longer says."""
        log = self.log()
        for commit in log.history(_NOTED_WITHIN) if log is not None else ():
            if commit.get("userMetadata"):
                found: dict[str, Any] = json.loads(commit["userMetadata"])
                return found
        return {}

    def append(self, rows: DataFrame, app_id: str, version: int, note: str = "") -> None:
        """Add rows once: a transaction that the table has already is skipped by Delta. `note`: JSON, for the log."""
        writer = rows.write.format("delta").mode("append")
        if note:
            writer = writer.option("userMetadata", note)
        if self.definition.grows:
            writer = writer.option("mergeSchema", "true")
        self._once(writer, app_id, version)

    def replace(self, rows: DataFrame, where: str, app_id: str, version: int) -> None:
        """Put rows in the place of those that `where` is true for, once."""
        writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", where)
        self._once(writer, app_id, version)

    def _once(self, writer: DataFrameWriter, app_id: str, version: int) -> None:
        writer.option("txnAppId", app_id).option("txnVersion", version).save(str(self.path))


def rows_of_files(spark: SparkSession, table: Path, actions: Sequence[str], schema: StructType) -> DataFrame:
    """Return the rows of files that are in no commit, by their `add` actions."""
    paths = [str(path) for path in paths_of(table, actions)]
    return spark.read.schema(schema).parquet(*paths) if paths else spark.createDataFrame([], schema)


def _ours(definition: TableDefinition) -> dict[str, str]:
    """Return what is set of Delta's properties."""
    return {"delta.dataSkippingStatsColumns": ",".join(definition.statistics), **KEPT_LOG}
