"""Upkeep of Delta tables by the job that writes them: small files made into large ones, and old files removed.

Compaction adds no rows and takes none away, and says so in the log (`dataChange` false), so streams that read
the table do not see it, and whoever reads an older version still finds its files: these go with a vacuum, when
they have been out of use for `vacuum_retention_s`.

`messages` says how far it goes by the statistics of its files, which hold only where a file comes from one
epoch of one journal (`headrace_spark.lake.lake`). A partition with files of several is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import time
from typing import Any, Final

import pyarrow as pa
from delta.tables import DeltaTable
from deltalake import DeltaTable as DeltaLog
from pyspark.sql import SparkSession

from headrace_spark.base.settings import UpkeepSettings

_SIZE: Final = "spark.databricks.delta.optimize.maxFileSize"
_SMALL: Final = "spark.databricks.delta.optimize.minFileSize"
_CHECK: Final = "spark.databricks.delta.retentionDurationCheck.enabled"
_HOUR_S: Final = 3600


class Upkeep:
    """Tends the tables of one job. `marks`: a folder that remembers when each was last tended."""

    def __init__(
        self, spark: SparkSession, settings: UpkeepSettings, marks: Path, tables: list[Path]
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._marks = marks
        self._tables = tables

    def tend(self) -> None:
        """Do what is due; nothing most of the time. Runs between batches, beside the query that writes."""
        for table in self._tables:
            mark = self._marks / f"upkeep-{table.name}"
            if self._settings.interval_s and self._due(mark):
                compact(self._spark, table, self._settings)
                vacuum(self._spark, table, self._settings)
                mark.touch()

    def _due(self, mark: Path) -> bool:
        """Return whether the table is due, not before a first interval has passed: a new table has nothing to tend."""
        try:
            return time() - mark.stat().st_mtime >= self._settings.interval_s
        except FileNotFoundError:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
            return False


def compact(spark: SparkSession, table: Path, settings: UpkeepSettings) -> int:
    """Rewrite the partitions that have many small files; -> how many there were."""
    log = DeltaLog(table)
    partitions = list(_crowded(log, settings))
    if partitions:
        spark.conf.set(_SIZE, settings.file_bytes)
        spark.conf.set(_SMALL, settings.file_bytes // 2)
        where = " or ".join(f"({_predicate(values)})" for values in partitions)
        DeltaTable.forPath(spark, str(table)).optimize().where(where).executeCompaction()
    return len(partitions)


def vacuum(spark: SparkSession, table: Path, settings: UpkeepSettings) -> None:
    """Remove the files that no version of the last `vacuum_retention_s` seconds needs."""
    spark.conf.set(_CHECK, "false")  # the configuration asks for an hour at least
    DeltaTable.forPath(spark, str(table)).vacuum(settings.vacuum_retention_s / _HOUR_S)


def _crowded(log: DeltaLog, settings: UpkeepSettings) -> Iterator[dict[str, Any]]:
    """The partitions with more than `small_files_max` small files, all from one epoch of one journal."""
    names = log.metadata().partition_columns
    files = pa.table(log.get_add_actions(flatten=True)).to_pylist()
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for file in files:
        groups.setdefault(tuple(file[f"partition.{name}"] for name in names), []).append(file)
    for values, group in groups.items():
        small = [file for file in group if file["size_bytes"] < settings.file_bytes // 2]
        if len(small) > settings.small_files_max and len({_origin(file) for file in small}) == 1:
            yield dict(zip(names, values, strict=True))


def _origin(file: dict[str, Any]) -> tuple[Any, ...]:
    if "min.journal_epoch" not in file:
        return ()
    return tuple(
        file[f"{bound}.{name}"] for bound in ("min", "max") for name in ("journal_uuid", "journal_epoch")
    )


def _predicate(values: dict[str, Any]) -> str:
    return " and ".join(
        f"`{name}` is null" if value is None else f"`{name}` = {_literal(str(value))}"
        for name, value in values.items()
    )


def _literal(text: str) -> str:
    """A Spark SQL string; tenants are named by people."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
