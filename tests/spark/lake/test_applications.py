"""The epochs that a table tells of are found without trying all of them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import SparkSession

from headrace_spark.lake.applications import epochs_told
from headrace_spark.lake.spark_log import SparkTables

NEWEST = (1 << 31) - 1
TOLD = [1, 5, 700_000, 1 << 30]


def wrote(table: Path, app_id: str, version: int) -> None:
    properties = CommitProperties(app_transactions=[Transaction(app_id, version)])
    write_deltalake(table, pa.table({"a": [version]}), mode="append", commit_properties=properties)


def filled(table: Path, checkpoint_after: int | None) -> DeltaTable:
    """Each epoch has a commit, and so have others with similar names; a checkpoint lies behind some."""
    for number, epoch in enumerate(TOLD):
        wrote(table, f"job-u-{epoch}", number)
        wrote(table, f"job-u-x-{epoch + 1}", number)
        wrote(table, f"another-job-u-{epoch + 2}", number)
        wrote(table, "job-u-", number)
        if number == checkpoint_after:
            DeltaTable(table).create_checkpoint()
            for commit in sorted((table / "_delta_log").glob("0*.json"))[:-1]:
                commit.unlink()
    return DeltaTable(table)


@pytest.mark.parametrize("checkpoint_after", [None, 0, 2, 3])
def test_they_are_found_in_commits_and_in_checkpoints(tmp_path: Path, checkpoint_after: int | None) -> None:
    log = filled(tmp_path / "t", checkpoint_after)
    assert list(epochs_told(log, tmp_path / "t", "job-u-", NEWEST)) == [NEWEST, *reversed(TOLD)]
    assert list(epochs_told(log, tmp_path / "t", "job-u-", 700_000)) == [700_000, 5, 1]
    assert list(epochs_told(log, tmp_path / "t", "job-v-", 3)) == [3]


def test_a_checkpoint_that_lacks_a_part_does_not_count(tmp_path: Path) -> None:
    log = filled(tmp_path / "t", None)
    DeltaTable(tmp_path / "t").create_checkpoint()
    whole = next((tmp_path / "t" / "_delta_log").glob("*.checkpoint.parquet"))
    whole.rename(whole.with_name(f"{whole.name[:20]}.checkpoint.0000000002.0000000002.parquet"))
    assert list(epochs_told(log, tmp_path / "t", "job-u-", NEWEST)) == [NEWEST, *reversed(TOLD)]


def test_the_newest_one_is_told_without_a_look(tmp_path: Path) -> None:
    log = filled(tmp_path / "t", None)
    assert next(epochs_told(log, tmp_path / "not there", "job-u-", 3)) == 3


@pytest.mark.spark
def test_spark_finds_the_same(spark: SparkSession, tmp_path: Path) -> None:
    filled(tmp_path / "t", 2)
    log = SparkTables(spark).open(tmp_path / "t")
    assert log is not None
    assert list(epochs_told(log, tmp_path / "t", "job-u-", NEWEST)) == [NEWEST, *reversed(TOLD)]
