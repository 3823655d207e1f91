"""Upkeep: the same rows in fewer files; readers of old versions are served until the retention is over."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import time
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from headrace_spark.base.errors import LakeConflict
from headrace_spark.base.settings import UpkeepSettings
from headrace_spark.lake import table_files
from headrace_spark.lake.delta_commit import append_files
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.table_files import path_in_log
from headrace_spark.lake.upkeep import FileMarks, Upkeep
from headrace_spark.records.decode import decode
from headrace_spark.records.schema import MESSAGES, arrow_schema
from spark.journals import Made, message

pytestmark = pytest.mark.spark

UUID = "6f9619ff-8b86-d011-b42d-00c04fc964ff"
STATISTICS = {"delta.dataSkippingStatsColumns": "topic,journal_uuid,journal_epoch,journal_offset"}


def write(lake: Lake, tenant: str, offset: int, epoch: int = 0) -> None:
    made = Made()
    made.add(message(0, tenant=tenant))
    schema = arrow_schema(MESSAGES)
    batches = decode(made.batches([], epoch, offset), UUID, 0, 1 << 40, schema)
    rows: Any = pa.Table.from_batches(batches, schema)
    write_deltalake(
        lake.messages, rows, mode="append", partition_by=["tenant", "date"], configuration=STATISTICS
    )


def test_small_files_become_one_and_old_ones_go(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for offset in range(4):
        write(lake, "it's \\ one", offset)
    for offset in range(4, 8):
        write(lake, "mixed", offset, epoch=offset // 6)
    write(lake, "few", 8)
    before, state = DeltaTable(lake.messages), lake.table.state()
    rows = before.to_pyarrow_table().sort_by("journal_offset")
    assert state is not None

    def tend(interval_s: float, retention_s: float) -> DeltaTable:
        settings = UpkeepSettings(
            interval_s=interval_s, small_files_max=3, file_bytes=1 << 20, vacuum_retention_s=retention_s
        )
        Upkeep(spark, settings, FileMarks(lake.checkpoints), [lake.messages]).tend()
        return DeltaTable(lake.messages)

    assert tend(0, 3600).version() == before.version()
    assert tend(1e-9, 3600).file_uris() == before.file_uris()  # the first time is only remembered
    after = tend(1e-9, 3600)
    assert (len(before.file_uris()), len(after.file_uris())) == (9, 3)
    assert after.to_pyarrow_table().sort_by("journal_offset") == rows
    found = lake.table.state()
    assert found is not None
    assert (found.rows, found.ends) == (state.rows, state.ends)
    # Who was reading goes on, until the files have been out of use for long enough.
    assert before.to_pyarrow_table().sort_by("journal_offset") == rows
    assert tend(3600, 0).version() == after.version()
    tend(1e-9, 0)
    # A mark that a clock has made which was put back since holds nothing off.
    mark = lake.checkpoints / "upkeep-messages"
    os.utime(mark, (time() + 86_400,) * 2)
    tend(3600, 0)
    assert mark.stat().st_mtime < time() + 3600
    # All that is left on the disk is what the table consists of; a log checkpoint is no data.
    assert len(list(lake.messages.glob("tenant=*/**/*.parquet"))) == 3
    assert DeltaTable(lake.messages).to_pyarrow_table().num_rows == 9


@pytest.mark.parametrize(
    "spelled",
    [
        pytest.param(path_in_log, id="as now", marks=pytest.mark.deep),
        pytest.param(partial(quote, safe="/="), id="as by an older headrace"),
    ],
)
def test_no_file_of_a_tenant_named_beyond_ascii_goes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelled: Callable[[str], str]
) -> None:
    monkeypatch.setattr(table_files, "path_in_log", spelled)
    tenants = ["größe 水", "🚰", "a\u3000b\xa0", "\x85", "it's %C3", "plain"]
    rows = pa.RecordBatch.from_pylist([{"x": number, "tenant": name} for number, name in enumerate(tenants)])
    DeltaTable.create(tmp_path / "odd", rows.schema, partition_by=["tenant"])
    files = table_files.TableFiles(tmp_path / "odd", table_files.FileLayout(("tenant",), (), ()))
    files.add(rows)
    append_files(spark, tmp_path / "odd", files.finish(), "any", 1)
    settings = UpkeepSettings(interval_s=1e-9, small_files_max=9, file_bytes=1 << 20, vacuum_retention_s=0)
    for _ in range(3):
        Upkeep(spark, settings, FileMarks(tmp_path / "marks"), [tmp_path / "odd"]).tend()
    found = DeltaTable(tmp_path / "odd")
    assert sorted(found.to_pyarrow_table()["tenant"].to_pylist()) == sorted(tenants)
    assert len(list((tmp_path / "odd").glob("tenant=*/*.parquet"))) == len(found.file_uris()) == len(tenants)
    seen = spark.read.format("delta").load(str(tmp_path / "odd")).toArrow()
    assert sorted(seen["x"].to_pylist()) == list(range(len(tenants)))


def test_files_of_which_rows_were_deleted_get_no_other_name(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion vector belongs to the name of its file: without it the rows would be there again."""
    monkeypatch.setattr(table_files, "path_in_log", partial(quote, safe="/="))
    odd = tmp_path / "odd"
    rows = pa.RecordBatch.from_pylist([{"x": number, "tenant": "größe"} for number in range(20)])
    DeltaTable.create(odd, rows.schema, partition_by=["tenant"])
    files = table_files.TableFiles(odd, table_files.FileLayout(("tenant",), (), ()))
    files.add(rows)
    append_files(spark, odd, files.finish(), "any", 1)
    spark.sql(f"ALTER TABLE delta.`{odd}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM delta.`{odd}` WHERE x = 7")
    settings = UpkeepSettings(interval_s=1e-9, small_files_max=9, file_bytes=1 << 20, vacuum_retention_s=0)
    for _ in range(3):
        Upkeep(spark, settings, FileMarks(tmp_path / "marks"), [odd]).tend()
    seen = spark.read.format("delta").load(str(odd)).toArrow()
    assert sorted(seen["x"].to_pylist()) == [number for number in range(20) if number != 7]


def test_the_log_is_kept_for_as_long_as_old_files_are(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    write(lake, "t", 0)

    def kept(retention_s: float) -> str:
        settings = UpkeepSettings(
            interval_s=60, small_files_max=3, file_bytes=1 << 20, vacuum_retention_s=retention_s
        )
        Upkeep(spark, settings, FileMarks(lake.checkpoints), [lake.messages])
        return DeltaTable(lake.messages).metadata().configuration["delta.logRetentionDuration"]

    assert kept(3600) == "interval 604800 seconds"
    assert kept(1e6) == "interval 1000000 seconds"
    assert DeltaTable(lake.messages).version() == 2
    by_hand = {"delta.logRetentionDuration": "interval 2 days"}
    DeltaTable(lake.messages).alter.set_table_properties(by_hand)
    assert kept(3600) == "interval 2 days"


def test_a_log_that_cannot_be_read_is_named(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    write(lake, "t", 0)
    (lake.messages / "_delta_log" / f"{0:020}.json").write_text("{ torn")
    settings = UpkeepSettings(interval_s=60, small_files_max=3, file_bytes=1 << 20, vacuum_retention_s=3600)
    with pytest.raises(LakeConflict, match="messages is no Delta table that can be read"):
        Upkeep(spark, settings, FileMarks(lake.checkpoints), [lake.messages])
