"""The tables of a lake by their names in a catalog of Spark's: Hive's metastore, Unity, Glue, or what a session names.

A name says where a table lies and nothing more; rows are written to the place, whoever has the name. So a table is there
before its name, and a name that says another place is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace_spark.base.errors import BadOption, LakeConflict, first_line
from headrace_spark.base.lake_url import Location
from headrace_spark.base.settings import SparkSettings
from headrace_spark.lake.hadoop_files import said_plainly
from headrace_spark.lake.table_log import Tables

_IMPLEMENTATION: Final = "spark.sql.catalogImplementation"
OPTION: Final = "pipeline.database"
_LOOK_S: Final = 5.0
_LEVELS_MAX: Final = 2


def with_catalog(settings: SparkSettings, database: str) -> SparkSettings:
    """Return the settings of a session whose catalog outlives it: Hive's metastore, unless somebody named another one.
    Raises BadOption."""
    if "`.`" in quoted(database) or _IMPLEMENTATION in settings.extra:
        return settings
    return replace(settings, extra={_IMPLEMENTATION: "hive", **settings.extra})


class Catalog:
    """Registers tables in one database of a catalog: `database`, or `catalog.database`."""

    def __init__(self, spark: SparkSession, database: str, tables: Tables) -> None:
        self._spark = spark
        self._database = quoted(database)
        self._tables = tables
        self._missing: dict[str, Location] = {}
        self._looked = float("-inf")

    def begin(self, tables: Iterable[Location]) -> None:
        """Make the database if it is missing, and look at the names of these tables. Raises LakeConflict, BadOption."""
        try:
            self._spark.sql(f"CREATE DATABASE IF NOT EXISTS {self._database}")
        except (PySparkException, Py4JJavaError) as error:
            raise BadOption(OPTION, self._database, first_line(error)) from None
        self._missing = {table.name: table for table in tables}
        self.register_new()

    def register_new(self) -> None:
        """Register the tables that are there by now and have no name yet; looks now and then. Raises LakeConflict."""
        if not self._missing or monotonic() < self._looked + _LOOK_S:
            return
        self._looked = monotonic()
        self.finish()

    def finish(self) -> None:
        """Register what is there. Raises LakeConflict, LakeUnreachable."""
        with said_plainly(f"{OPTION}={self._database}"):
            for name, table in list(self._missing.items()):
                if self._has(name, table):
                    del self._missing[name]

    def _has(self, name: str, table: Location) -> bool:
        """Return whether the catalog has the table by its name, which it gets as soon as it is there. Raises
        LakeConflict."""
        known = self.location(name)
        if known is None and self._tables.open(table) is not None:
            self._register(name, table)
            known = self.location(name)
        if known is not None and not _is_at(known, table):
            raise LakeConflict(
                f"{self._database}.`{name}` is a table in {known}, not {table}: give another {OPTION}, or remove that "
                "name from the catalog"
            )
        return known is not None

    def location(self, name: str) -> str | None:
        """Return where the catalog says that a table lies, None if it knows none of that name."""
        full = f"{self._database}.`{name}`"
        if not self._spark.catalog.tableExists(full):
            return None
        found = self._spark.sql(f"DESCRIBE DETAIL {full}").select("location").first()
        return None if found is None else _normal(str(found[0]))

    def _register(self, name: str, table: Location) -> None:
        place = str(table).replace("\\", "\\\\").replace("'", "\\'")
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self._database}.`{name}` USING delta LOCATION '{place}'"
        )


def quoted(database: str) -> str:
    """Return a name of one or two levels, as SQL takes it. Raises BadOption."""
    levels = database.split(".")
    if len(levels) > _LEVELS_MAX or not all(levels):
        raise BadOption(OPTION, database, "DATABASE or CATALOG.DATABASE is needed")
    return ".".join("`" + level.replace("`", "``") + "`" for level in levels)


def _is_at(known: str, table: Location) -> bool:
    """Return whether what a catalog says is the place of a table; it adds the host that a cluster has by default."""
    found, wanted = urlsplit(known), urlsplit(_normal(str(table)))
    is_host = wanted.netloc in ("", found.netloc)
    return (found.scheme, found.path) == (wanted.scheme, wanted.path) and is_host


def _normal(place: str) -> str:
    """Return a place as both write it: Spark puts `file:` before a path, with one slash or three."""
    path = place.removeprefix("file:")
    return f"/{path.lstrip('/')}" if path.startswith("/") else path
