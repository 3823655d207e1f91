"""A table is made from its definition, written once for each transaction, and refused where it is another."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql.types import BooleanType

from headrace_spark.base.errors import LakeConflict
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.table_files import TableFiles
from headrace_spark.lake.tables import BACKLOG, CLEAN, QUARANTINE, REPEATS
from headrace_spark.records.schema import arrow_schema


@pytest.mark.spark
def test_rows_are_added_once_for_each_transaction(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable(tmp_path, REPEATS)
    assert (table.log(), table.columns(), table.last_version("app")) == (None, {}, None)
    table.create()
    rows = spark.createDataFrame([("t",)], "tenant string").selectExpr(
        *(
            f"cast({'tenant' if f.name == 'tenant' else 'null'} as {f.dataType.simpleString()}) as {f.name}"
            for f in REPEATS.columns
        )
    )
    for version in (3, 3, 4, 2):
        table.append(rows, "app", version)
    assert (DeltaTable(table.folder).to_pyarrow_table().num_rows, table.last_version("app")) == (2, 4)
    assert (table.rows_added(), table.read(spark).count()) == (1, 2)
    table.create()
    assert DeltaTable(table.folder).metadata().description == REPEATS.about


@pytest.mark.spark
@pytest.mark.parametrize("is_plain", [True, False])
def test_files_take_the_place_of_those_of_their_journal_once(
    spark: SparkSession, tmp_path: Path, is_plain: bool
) -> None:
    table = LakeTable(tmp_path, BACKLOG)
    table.create()
    if not is_plain:
        spark.sql(f"alter table delta.`{table.path}` add constraint some check (messages > 0)")
    assert table.is_plain() == is_plain

    def written(journal: str, messages: int) -> list[str]:
        files = TableFiles(table.folder, BACKLOG.layout)
        files.add(BACKLOG.rows(journal, messages=pa.array([messages])))
        return files.finish()

    def held() -> list[tuple[str, int]]:
        rows = DeltaTable(table.folder).to_pyarrow_table().to_pylist()
        assert {path.parent.name for path in table.files("u")} <= {"journal_uuid=u"}
        return sorted((row["journal_uuid"], row["messages"]) for row in rows)

    table.add_files(spark, written("other", 9), "app", 1)
    for version, messages in ((2, 1), (3, 2), (3, 3), (2, 4)):
        table.add_files(spark, written("u", messages), "app", version, "u")
    assert held() == [("other", 9), ("u", 2)]
    assert (table.last_version("app"), len(table.files("u"))) == (3, 1)
    table.add_files(spark, [], "app", 4, "u")
    assert held() == [("other", 9)]
    assert not table.files("u")


def test_a_table_of_another_schema_is_refused(tmp_path: Path) -> None:
    other = arrow_schema(REPEATS.columns)
    write_deltalake(tmp_path / "quarantine", other.empty_table())
    lacking = (
        "another schema than this headrace writes: no column payload, no column reason, no column schema"
    )
    with pytest.raises(LakeConflict, match=f"{lacking}. Use another lake, or move the table away"):
        LakeTable(tmp_path, QUARANTINE).log()
    write_deltalake(tmp_path / "repeats", arrow_schema(CLEAN.columns).empty_table())
    assert LakeTable(tmp_path, REPEATS).columns()["late"] == BooleanType()  # theirs, and nobody minds
