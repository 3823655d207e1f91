"""The lake of a job: a folder, or what a URL names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from headrace_spark.base.errors import LakeUnreachable
from headrace_spark.base.lake_url import Location
from headrace_spark.base.logs import LOG
from headrace_spark.base.settings import UpkeepSettings
from headrace_spark.lake.hadoop_files import said_plainly
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.upkeep import Upkeep
from headrace_spark.lake.url_lake import UrlLake

AnyLake = Lake | UrlLake


def lake_of(spark: SparkSession, location: Location) -> AnyLake:
    return Lake(location) if isinstance(location, Path) else UrlLake(spark, location)


def tending(
    spark: SparkSession,
    settings: UpkeepSettings,
    lake: AnyLake,
    tables: Sequence[Location],
    replaced: Sequence[Location] = (),
) -> Callable[[], None]:
    """Return what tends the tables of a job between its batches (`Upkeep`).

    Behind a URL, upkeep that another commit or the store has foiled is done the next time.
    """
    if isinstance(lake, Lake):
        return Upkeep(spark, settings, lake.marks(), tables, replaced).tend
    marks = lake.marks()
    with said_plainly(lake.root):
        upkeep = Upkeep(spark, settings, marks, tables, replaced, lake.tables)

    def tend() -> None:
        try:
            with said_plainly(lake.root):
                upkeep.tend()
        except LakeUnreachable as error:
            for table in (*tables, *replaced):
                marks.touch_here(table.name)
            LOG.warning("upkeep: %s", error)

    return tend
