"""Which ids the tables have: files are read once, and again only when one of their ids comes again."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace_spark.clean import known_ids
from headrace_spark.clean.known_ids import KnownIds
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.tables import CLEAN, QUARANTINE

pytestmark = pytest.mark.spark

TODAY = date(2026, 11, 22)


class Ids:
    """Tables `clean` and `quarantine`, and what is known of their ids."""

    def __init__(self, spark: SparkSession, lake: Path) -> None:
        self.spark = spark
        self.tables = [LakeTable(lake, definition) for definition in (CLEAN, QUARANTINE)]
        for table in self.tables:
            table.create()
        self.known = KnownIds(self.tables)

    def rows(self, *ids: str, day: date = TODAY) -> DataFrame:
        """Rows of which the ids matter; each id is at the offset that its number says."""
        rows = [(name, int(name.rpartition(":")[2]), day) for name in ids]
        made = self.spark.createDataFrame(rows, "message_id string, journal_offset long, date date")
        named = {"tenant": F.lit("a b/c%"), "journal_uuid": F.lit("u"), "journal_epoch": F.lit(0)}
        return made.withColumns(named | {"journal_epoch": F.lit(0).cast("long")})

    def add(self, *ids: str, day: date = TODAY, to: int = 0) -> None:
        rows = self.rows(*ids, day=day).coalesce(1)
        rows.write.format("delta").mode("append").save(str(self.tables[to].path))

    def among(self, *ids: str, days: int = 2) -> tuple[set[str], int]:
        """-> the ids that are known of these, and how many files were read for that."""
        before = self.known.files_read
        found = self.known.among(self.rows(*ids), TODAY - timedelta(days=days))
        wanted = {row["message_id"] for row in found.collect()} & set(ids)
        return wanted, self.known.files_read - before


@pytest.fixture
def ids(spark: SparkSession, tmp_path: Path) -> Ids:
    return Ids(spark, tmp_path / "lake")


def test_a_file_is_read_once_and_when_an_id_comes_again(ids: Ids) -> None:
    assert ids.among("client:1") == (set(), 0)
    ids.add("client:1", "client:2", "journal:3")
    ids.add("client:4", to=1)
    ids.add("journal:5")  # the log says that it has no id of a publisher
    ids.add("client:6", day=TODAY - timedelta(days=3))
    assert ids.among("client:9", "client:6", "journal:3") == (set(), 2)
    assert ids.among("client:9") == (set(), 0)
    assert ids.among("client:2", "client:9") == ({"client:2"}, 1)
    assert ids.among("client:2", "client:4") == ({"client:2", "client:4"}, 2)
    ids.add("client:7")
    assert ids.among("client:7", "client:9") == ({"client:7"}, 2)
    assert ids.among("client:6", days=3) == ({"client:6"}, 2)


def test_compacted_files_and_what_was_deleted(ids: Ids) -> None:
    ids.add("client:1")
    ids.add("client:2")
    assert ids.among("client:9") == (set(), 2)
    table = ids.tables[0].delta(ids.spark)
    table.optimize().executeCompaction()
    assert ids.among("client:9") == (set(), 1)
    table.delete("message_id = 'client:1'")
    assert ids.among("client:1", "client:2") == ({"client:2"}, 2)


def test_what_does_not_fit_is_read_each_time(ids: Ids, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_ids, "IDS_MAX", 2)
    ids.add("client:1", "client:2")
    ids.add("client:3", day=TODAY - timedelta(days=1))
    assert ids.among("client:3") == ({"client:3"}, 2)
    assert ids.among("client:1", "client:3") == ({"client:1", "client:3"}, 2)
    assert ids.among("client:9") == (set(), 1)


def test_rows_that_a_deletion_vector_hides_are_not_known(ids: Ids) -> None:
    ids.add("client:1", "client:2")
    path = ids.tables[0].path
    ids.spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    ids.tables[0].delta(ids.spark).delete("message_id = 'client:1'")
    assert ids.among("client:1", "client:2")[0] == {"client:2"}
