"""Files become part of a table once for each transaction, beside whatever else is committed meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from delta.tables import DeltaTable as SparkTable
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from headrace_spark.base.errors import LakeConflict
from headrace_spark.lake.delta_commit import append_files, has_version
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.table_files import rows_in
from spark.journals import mixed
from spark.lake.test_table_files import rows_of, write

pytestmark = pytest.mark.spark


def test_once_for_each_transaction_also_without_files(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.table.create(spark)
    actions = write(lake.messages, rows_of(mixed(50, 1)))
    assert not has_version(DeltaTable(lake.messages), "query", 0)
    append_files(spark, lake.messages, actions, "query", 0)
    append_files(spark, lake.messages, [], "query", 1)  # nothing but events in these offsets
    assert [has_version(DeltaTable(lake.messages), "query", batch) for batch in range(3)] == [
        True,
        True,
        False,
    ]
    assert not has_version(DeltaTable(lake.messages), "other", 0)
    with pytest.raises(LakeConflict, match="has version 1 of query by now"):
        append_files(spark, lake.messages, write(lake.messages, rows_of(mixed(9, 2))), "query", 1)
    state = lake.table.state()
    assert state is not None
    assert (state.version, state.rows) == (2, sum(map(rows_in, actions)))
    assert (lake.table.last_batch("query"), lake.table.last_batch("other")) == (1, None)
    last = DeltaTable(lake.messages).history(1)[0]
    assert (last["operation"], last["operationParameters"]["queryId"]) == ("STREAMING UPDATE", "query")


def test_a_compaction_in_between_conflicts_with_nothing(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.table.create(spark)
    for batch in range(3):
        append_files(spark, lake.messages, write(lake.messages, rows_of(mixed(50, batch))), "query", batch)
        SparkTable.forPath(spark, str(lake.messages)).optimize().executeCompaction()
    rows = sum(len(mixed(50, batch).rows("")) for batch in range(3))
    assert DeltaTable(lake.messages).to_pyarrow_table().num_rows == rows
    assert lake.table.last_batch("query") == 2


def test_it_goes_on_from_what_is_in_the_folder(spark: SparkSession, tmp_path: Path) -> None:
    """What Delta knows is the newest version only where no other process has committed, and nobody put back a copy."""
    lake = Lake(tmp_path)
    lake.table.create(spark)
    append_files(spark, lake.messages, write(lake.messages, rows_of(mixed(9, 1))), "query", 0)
    shutil.copytree(lake.messages, tmp_path / "older")
    append_files(spark, lake.messages, [], "query", 1)
    by_another = DeltaTable(lake.messages)
    by_another.alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 3 days"})
    append_files(spark, lake.messages, [], "query", 2)
    assert DeltaTable(lake.messages).version() == 4
    shutil.rmtree(lake.messages)
    shutil.copytree(tmp_path / "older", lake.messages)  # which has other times than those that Delta knows
    append_files(spark, lake.messages, [], "query", 1)
    assert (DeltaTable(lake.messages).version(), lake.table.last_batch("query")) == (2, 1)


def test_a_file_that_the_driver_does_not_see_is_not_added(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.table.create(spark)
    actions = write(lake.messages, rows_of(mixed(50, 1)))
    next(lake.messages.rglob("part-*.parquet")).unlink()
    with pytest.raises(LakeConflict, match="the lake must lie under the same path on every machine"):
        append_files(spark, lake.messages, actions, "query", 0)
    assert (DeltaTable(lake.messages).version(), lake.table.last_batch("query")) == (0, None)
