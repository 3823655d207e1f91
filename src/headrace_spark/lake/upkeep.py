"""Upkeep of Delta tables by the job that writes them: small files made into large ones, and old files removed.

Compaction adds no rows and takes none away, and says so in the log (`dataChange` false), so streams that read
the table do not see it, and whoever reads an older version still finds its files: these go with a vacuum, when
they have been out of use for `vacuum_retention_s`. The commits of a table's log are kept for as long, a week at least:
the time of the next one grows with their number.

A file of `messages` that comes from several journals, because two brokers have the same tenant, says by its rows how far
it goes, others by their statistics (`headrace_spark.lake.lake`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from time import time
from typing import Any, Final, Protocol
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from headrace_spark.base.lake_url import Location
from headrace_spark.base.logs import LOG
from headrace_spark.base.settings import UpkeepSettings
from headrace_spark.lake.delta_commit import rename_files
from headrace_spark.lake.messages import LOG_RETENTION, LOG_RETENTION_S, has_plain_files
from headrace_spark.lake.table_files import path_in_log
from headrace_spark.lake.table_log import Folders, TableLog, Tables

_SIZE: Final = "spark.databricks.delta.optimize.maxFileSize"
_SMALL: Final = "spark.databricks.delta.optimize.minFileSize"
_CHECK: Final = "spark.databricks.delta.retentionDurationCheck.enabled"
_HOUR_S: Final = 3600
_BY_US: Final = re.compile(r"interval \d+ seconds")


class Marks(Protocol):
    """Remembers when what was done."""

    def age_s(self, name: str) -> float | None:
        """Return how long ago it was, None if it never was."""

    def touch(self, name: str) -> None: ...


class FileMarks:
    """Remembers times as those of empty files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def age_s(self, name: str) -> float | None:
        try:
            return time() - (self._folder / f"upkeep-{name}").stat().st_mtime
        except FileNotFoundError:
            return None

    def touch(self, name: str) -> None:
        with suppress(
            FileNotFoundError
        ):  # the lake was moved since, which the job will notice: nothing is made here
            self._folder.mkdir(exist_ok=True)
            (self._folder / f"upkeep-{name}").touch()


class Upkeep:
    """Tends the tables of one job, before the query that writes them starts and while it runs.

    `marks` remember when each was last tended. `replaced`: tables whose files are few, or soon out of use; they are not
    compacted. `opened`: how their logs are read.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: UpkeepSettings,
        marks: Marks,
        tables: Sequence[Location],
        replaced: Sequence[Location] = (),
        opened: Tables | None = None,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._marks = marks
        self._tables = tables
        self._replaced = replaced
        self._opened = opened or Folders()
        if settings.interval_s:
            for table in filter(self._opened.exists, [*tables, *replaced]):
                limit_log(spark, table, settings, self._opened)

    def tend(self) -> None:
        """Do what is due; nothing most of the time. Runs between batches, beside the query that writes."""
        for table in [*self._tables, *self._replaced]:
            if self._settings.interval_s and self._due(table):
                if table in self._tables:
                    compact(self._spark, table, self._settings, self._opened)
                vacuum(self._spark, table, self._settings, self._opened)
                self._marks.touch(table.name)

    def _due(self, table: Location) -> bool:
        """Return whether the table is due, not before a first interval has passed: a new table has nothing to tend."""
        age_s = self._marks.age_s(table.name)
        if age_s is None and self._opened.exists(table):
            self._marks.touch(table.name)
        # Of less than nothing where the clock was put back since: the mark would hold upkeep off until it is reached.
        is_over = age_s is not None and not 0 <= age_s < self._settings.interval_s
        return is_over and self._opened.exists(table)


def limit_log(spark: SparkSession, table: Location, settings: UpkeepSettings, opened: Tables) -> None:
    """Set how long the log is kept, unless somebody has done so by hand. No query may be writing the table.

    Raises LakeConflict.
    """
    log = opened.open(table)
    if log is None:
        return
    found = log.metadata().configuration.get(LOG_RETENTION)
    wanted = f"interval {max(LOG_RETENTION_S, round(settings.vacuum_retention_s))} seconds"
    if found != wanted and (found is None or _BY_US.fullmatch(found)):
        name = str(table).replace("`", "``")
        spark.sql(f"ALTER TABLE delta.`{name}` SET TBLPROPERTIES ('{LOG_RETENTION}' = '{wanted}')")


def compact(spark: SparkSession, table: Location, settings: UpkeepSettings, opened: Tables) -> int:
    """Rewrite the partitions that have many small files; -> how many there were."""
    log = opened.open(table)
    partitions = [] if log is None else list(_crowded(log, settings))
    if partitions:
        spark.conf.set(_SIZE, settings.file_bytes)
        spark.conf.set(_SMALL, settings.file_bytes // 2)
        where = " or ".join(f"({_predicate(values)})" for values in partitions)
        DeltaTable.forPath(spark, str(table)).optimize().where(where).executeCompaction()
    return len(partitions)


def vacuum(spark: SparkSession, table: Location, settings: UpkeepSettings, opened: Tables) -> None:
    """Remove the files that no version of the last `vacuum_retention_s` seconds needs.

    Delta takes a file for one of these unless its path is spelled in the log as Hadoop spells it. An older headrace
    spelled names beyond ASCII otherwise: such files get other names first. Where that cannot be, behind a URL or where a
    feature of Delta, such as deletion vectors, knows more of a file than its rows, none is removed.
    """
    log = opened.open(table)
    misspelt = _misspelt(log)
    if log is not None and misspelt and not (isinstance(table, Path) and has_plain_files(log)):
        LOG.warning("%s is not vacuumed, which would remove %d files that it needs", table, len(misspelt))
        return
    if misspelt and isinstance(table, Path):
        rename_files(spark, table, misspelt)
    spark.conf.set(_CHECK, "false")  # the configuration asks for an hour at least
    DeltaTable.forPath(spark, str(table)).vacuum(settings.vacuum_retention_s / _HOUR_S)


def _misspelt(log: TableLog | None) -> dict[str, str]:
    """Return other paths for files that Delta would not find again by those in the log."""
    paths = [] if log is None else pa.table(log.get_add_actions(flatten=True))["path"].to_pylist()
    names = {path: unquote(path) for path in paths}
    return {
        path: path_in_log(f"{name.rpartition('/')[0]}/part-{uuid4()}{''.join(Path(name).suffixes[-2:])}")
        for path, name in names.items()
        if path != path_in_log(name)
    }


def _crowded(log: TableLog, settings: UpkeepSettings) -> Iterator[dict[str, Any]]:
    """Yield the partitions with more than `small_files_max` small files."""
    names = log.metadata().partition_columns
    files = pa.table(log.get_add_actions(flatten=True)).to_pylist()
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for file in files:
        groups.setdefault(tuple(file[f"partition.{name}"] for name in names), []).append(file)
    for values, group in groups.items():
        small = [file for file in group if file["size_bytes"] < settings.file_bytes // 2]
        if len(small) > settings.small_files_max:
            yield dict(zip(names, values, strict=True))


def _predicate(values: dict[str, Any]) -> str:
    return " and ".join(
        f"`{name}` is null" if value is None else f"`{name}` = {_literal(str(value))}"
        for name, value in values.items()
    )


def _literal(text: str) -> str:
    """Return a Spark SQL string; tenants are named by people."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
