"""What a Delta table's log says, and who reads it: delta-rs where the table is a folder; Spark, behind a URL
(`headrace_spark.lake.spark_log`).

`TableLog` is delta-rs's own shape, as far as lakes need it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable as DeltaLog
from deltalake import Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow.dataset import Dataset
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyspark.sql.types import StructType

from headrace_spark.base.errors import LakeConflict, first_line
from headrace_spark.base.lake_url import Location
from headrace_spark.lake.log_check import require_written

DATE: Final = "date"
"""The column by which tables are partitioned that people look at by the day."""


class TableLog(Protocol):
    """One version of a Delta table, by its log."""

    def version(self) -> int: ...

    def metadata(self) -> Any:
        """Return `id`, `configuration` and `partition_columns`."""

    def protocol(self) -> Any:
        """Return what has `min_writer_version`."""

    def schema(self) -> Any:
        """Return the columns: `to_json()` gives them as Spark writes them."""

    def transaction_version(self, app_id: str) -> int | None: ...

    def get_add_actions(self, flatten: bool = False) -> Any:
        """Return the files, as an Arrow table or what becomes one: `path`, `size_bytes`, `num_records`, `partition.C`,
        `min.C`, `max.C`."""

    def history(self, limit: int | None = None) -> Sequence[Mapping[str, Any]]:
        """Return what the newest commits say of themselves, newest first: `version`, `operation`, `userMetadata`,
        ..."""


@dataclass(frozen=True)
class NewTable:
    """What a table is made with: its columns, what they are for, and Delta's properties."""

    columns: StructType
    partitioned_by: tuple[str, ...]
    about: str
    properties: Mapping[str, str]


class Tables(Protocol):
    """Opens the logs of tables in one kind of place."""

    look_s: float
    """So long may an answer be used again that is only shown to people, in seconds."""

    def open(self, table: Location, version: int | None = None) -> TableLog | None:
        """Return the newest or that version, None where there is no table. Raises LakeConflict if it is not whole."""

    def exists(self, table: Location) -> bool:
        """Return whether there is a table, in one look."""

    def read(self, table: Location, file: str, columns: Sequence[str]) -> pa.Table:
        """Return columns of a file, by the path in its action."""

    def scan(
        self, table: Location, columns: Sequence[str], since: date | None = None, version: int | None = None
    ) -> pa.Table:
        """Return columns of all rows, or of those with that `date` and later, of the newest version or that one."""

    def fetched(self, table: Location, file: str, folder: Path) -> Path:
        """Return a file on this machine, by the path in its action: itself, or a copy below `folder`."""

    def show(self, table: Location, file: str, folder: Path) -> None:
        """Put a file that was written below `folder` where the table is, by the path in its action."""

    def commit(self, table: Location, version: int) -> bytes | None:
        """Return a commit as it is written; None where it is no longer in the log, or not yet."""

    def create(self, table: Location, new: NewTable) -> None:
        """Make a table unless there is one."""

    def add_columns(self, table: Location, columns: StructType) -> None:
        """Give a table the columns that it lacks; its rows have null in them. Raises LakeConflict."""


def dataset_of(folder: Path, version: int | None = None) -> Dataset:
    """Return the rows of a table, of its newest version or that one, as Arrow reads them, by its own file system:
    deltalake's is Python, and a thread of Arrow that calls it while the interpreter ends aborts the process."""
    files = SubTreeFileSystem(str(folder), LocalFileSystem())
    return DeltaLog(folder, version=version).to_pyarrow_dataset(filesystem=files)


class Folders:
    """Opens the logs of tables in folders of this machine."""

    look_s = 0.0

    def open(self, table: Location, version: int | None = None) -> TableLog | None:
        folder = Path(str(table))
        return open_log(folder) if version is None else DeltaLog(folder, version=version)

    def exists(self, table: Location) -> bool:
        return log_folder(Path(str(table))).is_dir()

    def read(self, table: Location, file: str, columns: Sequence[str]) -> pa.Table:
        return pq.ParquetFile(Path(str(table)) / unquote(file)).read(list(columns))

    def scan(
        self, table: Location, columns: Sequence[str], since: date | None = None, version: int | None = None
    ) -> pa.Table:
        kept = None if since is None else pc.field(DATE) >= pa.scalar(since)
        return dataset_of(Path(str(table)), version).to_table(columns=list(columns), filter=kept)

    def fetched(self, table: Location, file: str, folder: Path) -> Path:
        return Path(str(table)) / unquote(file)

    def show(self, table: Location, file: str, folder: Path) -> None:
        """Do nothing: it was written there."""

    def commit(self, table: Location, version: int) -> bytes | None:
        with suppress(FileNotFoundError):
            return (Path(str(table)) / commit_name(version)).read_bytes()
        return None

    def create(self, table: Location, new: NewTable) -> None:
        DeltaLog.create(
            Path(str(table)),
            Schema.from_json(new.columns.json()),
            mode="ignore",
            partition_by=list(new.partitioned_by),
            description=new.about,
            configuration=dict(new.properties),
        )

    def add_columns(self, table: Location, columns: StructType) -> None:
        if (log := open_log(Path(str(table)))) is not None:
            add_columns(log, columns)


def log_folder(table: Path) -> Path:
    """Return where the log of a table in a folder lies."""
    return table / "_delta_log"


def commit_name(version: int) -> str:
    """Return the place of a commit in the folder of its table."""
    return f"_delta_log/{version:020}.json"


def types_of(log: TableLog) -> dict[str, str]:
    """Return the type of each column in Spark's words."""
    columns = StructType.fromJson(json.loads(log.schema().to_json()))
    return {field.name: field.dataType.simpleString() for field in columns}


def missing_in(log: TableLog, columns: StructType) -> StructType:
    """Return the columns that a table lacks."""
    there = types_of(log)
    return StructType([field for field in columns if field.name not in there])


def add_columns(log: DeltaLog, columns: StructType) -> None:
    """Give a table the columns that it lacks; its rows have null in them. Raises LakeConflict."""
    missing = missing_in(log, columns)
    if not missing.fields:
        return
    try:
        log.alter.add_columns(list(Schema.from_json(missing.json()).fields))
    except DeltaError as error:
        raise LakeConflict(
            f"table {log.table_uri} lacks the columns {', '.join(missing.names)}, and they cannot be added: "
            f"{first_line(error)}"
        ) from None


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


def unreadable(table: Location, error: Exception) -> LakeConflict:
    """Return the error for something that lies where a table should, and is none."""
    reason = first_line(error)
    return LakeConflict(
        f"{table} is no Delta table that can be read ({reason}). Use another lake, or move it away"
    )
