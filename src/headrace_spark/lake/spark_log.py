"""The log of a Delta table behind a URL, read by Delta in Spark's Java, in the shape of `lake.table_log`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace_spark.base.lake_url import LakeUrl, Location
from headrace_spark.lake.hadoop_files import HadoopFiles, said_plainly
from headrace_spark.lake.table_log import DATE, NewTable, commit_name, missing_in

_BOUNDS: Final = (("min", "minValues"), ("max", "maxValues"), ("null_count", "nullCount"))


@dataclass(frozen=True)
class Metadata:
    id: str
    configuration: dict[str, str]
    partition_columns: list[str]


@dataclass(frozen=True)
class Protocol:
    min_writer_version: int


@dataclass(frozen=True)
class Schema:
    text: str

    def to_json(self) -> str:
        """Return the columns as Spark writes them."""
        return self.text


class SparkTables:
    """Opens tables wherever Spark has a client for the store."""

    look_s = 5.0

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._files = HadoopFiles(spark)

    def open(self, table: Location, version: int | None = None) -> SparkLog | None:
        """Return the newest or that version, None where there is no table. Raises LakeUnreachable."""
        with said_plainly(table):
            log = delta_log(self._spark, table)
            none = self._jvm.scala.Option.empty()
            snapshot = log.update(False, none, none)
            if snapshot.version() < 0:
                return None
            if version is not None:
                snapshot = log.getSnapshotAt(version, none, none, False)
            return SparkLog(self._spark, table, snapshot)

    def exists(self, table: Location) -> bool:
        return self.open(table) is not None

    def read(self, table: Location, file: str, columns: Sequence[str]) -> pa.Table:
        """Return columns of a file, by the path in its action."""
        with said_plainly(table):
            found: pa.Table = self._spark.read.parquet(f"{table}/{unquote(file)}").select(*columns).toArrow()
            return found

    def scan(
        self, table: Location, columns: Sequence[str], since: date | None = None, version: int | None = None
    ) -> pa.Table:
        """Return columns of all rows, or of those with that `date` and later, of the newest version or that one. Raises
        LakeUnreachable."""
        with said_plainly(table):
            reader = self._spark.read.format("delta")
            rows = (reader if version is None else reader.option("versionAsOf", version)).load(str(table))
            if since is not None:
                rows = rows.where(F.col(DATE) >= F.lit(since))
            found: pa.Table = rows.select(*columns).toArrow()
            return found

    def fetched(self, table: Location, file: str, folder: Path) -> Path:
        """Return a copy of a file, by the path in its action: it is made once. Raises LakeUnreachable."""
        name = unquote(file)
        copy = folder / name
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            part = copy.with_name(f"{copy.name}.part")
            self._files.fetch(LakeUrl(f"{table}/{name}"), part)
            part.replace(copy)
        return copy

    def show(self, table: Location, file: str, folder: Path) -> None:
        """Copy a file that was written below `folder` to where the table is. Raises LakeUnreachable."""
        name = unquote(file)
        self._files.put(folder / name, LakeUrl(f"{table}/{name}"))

    def commit(self, table: Location, version: int) -> bytes | None:
        """Return a commit as it is written, None where there is none. Raises LakeUnreachable."""
        return self._files.read_bytes(LakeUrl(str(table)) / commit_name(version))

    def create(self, table: Location, new: NewTable) -> None:
        """Make a table unless there is one. Raises LakeUnreachable."""
        with said_plainly(table):
            builder = DeltaTable.createIfNotExists(self._spark).location(str(table)).addColumns(new.columns)
            for key, value in new.properties.items():
                builder = builder.property(key, value)
            builder.comment(new.about).partitionedBy(*new.partitioned_by).execute()

    def add_columns(self, table: Location, columns: StructType) -> None:
        """Add columns to a table. Raises LakeUnreachable."""
        log = self.open(table)
        missing = [] if log is None else missing_in(log, columns).fields
        if missing:
            named = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in missing)
            with said_plainly(table):
                name = str(table).replace("`", "``")
                self._spark.sql(f"ALTER TABLE delta.`{name}` ADD COLUMNS ({named})")

    @property
    def _jvm(self) -> Any:
        return self._spark._jvm


class SparkLog:
    """One version of a Delta table, as Spark reads its log."""

    def __init__(self, spark: SparkSession, table: Location, snapshot: Any) -> None:
        self._spark = spark
        self._table = table
        self._snapshot = snapshot
        self._about: dict[str, Any] = json.loads(snapshot.metadata().json())["metaData"]

    def version(self) -> int:
        return int(self._snapshot.version())

    def metadata(self) -> Metadata:
        about = self._about
        return Metadata(
            str(about["id"]), dict(about.get("configuration", {})), list(about["partitionColumns"])
        )

    def protocol(self) -> Protocol:
        found = json.loads(self._snapshot.protocol().json())["protocol"]
        return Protocol(int(found["minWriterVersion"]))

    def schema(self) -> Schema:
        return Schema(str(self._about["schemaString"]))

    def transaction_version(self, app_id: str) -> int | None:
        with said_plainly(self._table):
            found = self._snapshot.transactions().get(app_id)
            return int(found.get()) if found.isDefined() else None

    def applications(self) -> set[str]:
        """Return the names of all that have a transaction."""
        with said_plainly(self._table):
            names = self._snapshot.transactions().keysIterator()
            found: set[str] = set()
            while names.hasNext():
                found.add(str(names.next()))
            return found

    def get_add_actions(self, flatten: bool = False) -> pa.Table:
        """Return the `add` actions; `flatten` is how it always is."""
        with said_plainly(self._table):
            files = DataFrame(self._snapshot.allFiles().toDF(), self._spark)
            rows = files.select("path", "size", "modificationTime", "partitionValues", "stats").collect()
        flat = [_flat(row.asDict()) for row in rows]
        names = dict.fromkeys(name for file in flat for name in file)
        return pa.table({name: [file.get(name) for file in flat] for name in names})

    def history(self, limit: int | None = None) -> Sequence[Mapping[str, Any]]:
        """Return the commits, newest first."""
        with said_plainly(self._table):
            found = DeltaTable.forPath(self._spark, str(self._table))
            rows = (found.history() if limit is None else found.history(limit)).collect()
        return [row.asDict() for row in rows]


def delta_log(spark: SparkSession, table: Location) -> Any:
    """Return Delta's own object for a table's log, there or not."""
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, str(table))


def _flat(file: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's action with a column for each of its bounds and partitions, as delta-rs gives it."""
    stats = json.loads(file["stats"] or "{}")
    found = {"path": file["path"], "size_bytes": file["size"], "modification_time": file["modificationTime"]}
    found["num_records"] = stats.get("numRecords")
    found |= {f"partition.{name}": value for name, value in (file["partitionValues"] or {}).items()}
    for short, long in _BOUNDS:
        found |= {f"{short}.{name}": value for name, value in stats.get(long, {}).items()}
    return found
