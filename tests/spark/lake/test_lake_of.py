"""The lake of a job is chosen by what its location is; upkeep behind a URL outlives what foils it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.base.settings import UpkeepSettings
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.lake_of import lake_of, tending
from headrace_spark.lake.tables import REPEATS
from headrace_spark.lake.url_lake import UrlLake

pytestmark = pytest.mark.spark


def test_a_folder_and_a_url(spark: SparkSession, tmp_path: Path) -> None:
    assert isinstance(lake_of(spark, tmp_path), Lake)
    lake = lake_of(spark, LakeUrl(f"file:{tmp_path}"))
    assert isinstance(lake, UrlLake)
    lake.require_held()  # nobody asked for a lease


def test_upkeep_that_fails_is_done_the_next_time(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake = lake_of(spark, LakeUrl(f"file:{tmp_path}"))
    table = lake.table_of(REPEATS)
    table.create()
    settings = UpkeepSettings(
        interval_s=0.001, small_files_max=1, file_bytes=1 << 20, vacuum_retention_s=3600
    )
    tend = tending(spark, settings, lake, [table.path])
    tend()
    log = tmp_path / "repeats" / "_delta_log"
    next(log.glob("*.json")).write_text("broken")
    jvm = spark._jvm
    assert jvm is not None
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    for checksum in log.glob("*.crc"):
        checksum.unlink()
    tend()
    assert "upkeep: file:" in caplog.text
