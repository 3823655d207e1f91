"""Files that a task writes are those that Spark's own writer makes: partitions, types, values, statistics."""

from __future__ import annotations

import json
import string
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from headrace_spark.base.errors import BadOption
from headrace_spark.base.session import session_configuration
from headrace_spark.base.settings import SparkSettings
from headrace_spark.lake import table_files as module
from headrace_spark.lake.delta_commit import append_files, paths_of
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.table_files import CODEC_KEY, MESSAGES_LAYOUT, FileLayout, TableFiles, rows_in
from headrace_spark.records.decode import decode
from headrace_spark.records.schema import MESSAGES, arrow_schema
from spark.journals import MIDNIGHT_US, Made, message, mixed

UUID = "6f9619ff-8b86-d011-b42d-00c04fc964ff"
BY_LETTER = FileLayout(partitioned_by=("letter",), statistics=("number", "text"), unique=("number",))


def rows_of(made: Made) -> list[pa.RecordBatch]:
    return list(decode(made.batches([40, 70]), UUID, 0, 1 << 40, arrow_schema(MESSAGES)))


def strange() -> Made:
    """Every kind of message, tenants that no folder could be named after, and texts longer than statistics are."""
    made = mixed(300, 3)
    for n, tenant in enumerate(("", "it's \\ one", "größe=100%/a b", "a:b?[c]^{d}#*")):
        made.add(message(n, tenant=tenant, topic=f"{'t' * (30 + n)}é~{'z' * 9}", client_id="ü" * (31 + n)))
        made.add(message(n, tenant=tenant, topic=f"{'t' * (31 + n)}\U0010ffff", timestamp_us=MIDNIGHT_US - 1))
    return made


def write(table: Path, batches: list[pa.RecordBatch], layout: FileLayout = MESSAGES_LAYOUT) -> list[str]:
    table.mkdir(exist_ok=True)
    files = TableFiles(table, layout)
    for batch in batches:
        files.add(batch)
    return files.finish()


def added(table: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """By partition, what the last commit says of its one file."""
    log = sorted((table / "_delta_log").glob("*.json"))[-1]
    actions = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    found = [action["add"] for action in actions if "add" in action]
    of_partition = {tuple(add["partitionValues"].values()): add for add in found}
    assert len(of_partition) == len(found)
    return of_partition


@pytest.mark.spark
def test_they_are_as_spark_would_have_written_them(spark: SparkSession, tmp_path: Path) -> None:
    batches = rows_of(strange())
    ours, theirs = Lake(tmp_path / "ours"), Lake(tmp_path / "theirs")
    for lake in (ours, theirs):
        lake.table.create(spark)
    append_files(spark, ours.messages, write(ours.messages, batches), "query", 0)
    frame = spark.createDataFrame(pa.Table.from_batches(batches)).coalesce(1)
    frame.write.format("delta").mode("append").save(str(theirs.messages))

    one, other = added(ours.messages), added(theirs.messages)
    assert one.keys() == other.keys()
    assert {key: json.loads(add["stats"]) for key, add in one.items()} == {
        key: json.loads(add["stats"]) for key, add in other.items()
    }
    folders = [
        sorted(str(path.parent) for path in lake.messages.rglob("*=*/*.parquet")) for lake in (ours, theirs)
    ]
    assert [name.replace("ours", "theirs") for name in folders[0]] == folders[1]
    for key, add in one.items():
        schemas = [
            pq.read_schema(lake.messages / unquote(file["path"])).remove_metadata()
            for lake, file in ((ours, add), (theirs, other[key]))
        ]
        assert schemas[0].equals(schemas[1])
    tables = [
        DeltaTable(lake.messages).to_pyarrow_table().sort_by("journal_offset") for lake in (ours, theirs)
    ]
    assert tables[0].num_rows == sum(batch.num_rows for batch in batches)
    assert tables[0].equals(tables[1])
    read = [
        spark.read.format("delta").load(str(lake.messages)).orderBy("journal_offset").collect()
        for lake in (ours, theirs)
    ]
    assert read[0] == read[1]


@pytest.mark.spark
@pytest.mark.parametrize("codec", ["zstd", "snappy", "gzip", "uncompressed"])
def test_they_are_compressed_as_spark_compresses(spark: SparkSession, tmp_path: Path, codec: str) -> None:
    batches = rows_of(mixed(300, 3))
    paths = paths_of(tmp_path, write(tmp_path, batches, MESSAGES_LAYOUT.compressed(codec)))
    frame = spark.createDataFrame(pa.Table.from_batches(batches)).coalesce(1)
    frame.write.option("compression", codec).parquet(str(tmp_path / "theirs"))
    theirs = next((tmp_path / "theirs").glob("*.parquet"))
    found = {pq.ParquetFile(path).metadata.row_group(0).column(0).compression for path in (*paths, theirs)}
    assert found == {codec.upper()}
    assert {"".join(path.suffixes[-2:]) for path in paths} == {"".join(theirs.suffixes[-2:])}
    names = ", ".join(f"'{path}'" for path in paths)
    for rows in (spark.read.parquet(*map(str, paths)).count(), duckdb_rows(names)):
        assert rows == sum(batch.num_rows for batch in batches)


def duckdb_rows(names: str) -> int:
    found = duckdb.connect().execute(f"select count(payload) from read_parquet([{names}])").fetchone()
    assert found is not None
    return int(found[0])


def test_zstd_unless_spark_is_told_otherwise(tmp_path: Path) -> None:
    about = session_configuration(SparkSettings())
    assert (about[CODEC_KEY], MESSAGES_LAYOUT.codec.name) == ("zstd", "zstd")
    assert session_configuration(SparkSettings(extra={CODEC_KEY: "snappy"}))[CODEC_KEY] == "snappy"
    with pytest.raises(BadOption, match="lzo"):
        MESSAGES_LAYOUT.compressed("lzo")


def letters(letter: str | None, *numbers: int | None) -> pa.RecordBatch:
    texts = [None if number is None else f"text {number}" for number in numbers]
    return pa.RecordBatch.from_pydict(
        {"letter": pa.array([letter] * len(numbers), pa.string()), "number": pa.array(numbers), "text": texts}
    )


def add_of(action: str) -> dict[str, Any]:
    add: dict[str, Any] = json.loads(action)["add"]
    return add


def test_a_file_of_each_partition_with_its_statistics(tmp_path: Path) -> None:
    both = pa.Table.from_batches([letters("a", 3, None), letters(None, 7)]).combine_chunks().to_batches()
    found = write(tmp_path, [letters("a", 5), *both, letters("a", 1)], BY_LETTER)
    by_letter = {add_of(action)["partitionValues"]["letter"]: action for action in found}
    assert by_letter.keys() == {"a", None}
    add = add_of(by_letter["a"])
    assert json.loads(add["stats"]) == {
        "numRecords": 4,
        "minValues": {"number": 1, "text": "text 1"},
        "maxValues": {"number": 5, "text": "text 5"},
        "nullCount": {"number": 1, "text": 1},
    }
    path = tmp_path / add["path"]
    assert (path.stat().st_size, rows_in(by_letter["a"]), path.parent.name) == (add["size"], 4, "letter=a")
    assert pq.read_table(path, partitioning=None).to_pydict() == {
        "number": [5, 3, None, 1],
        "text": ["text 5", "text 3", None, "text 1"],
        "letter": ["a"] * 4,
    }
    assert add_of(by_letter[None])["path"].startswith("letter=__HIVE_DEFAULT_PARTITION__/")


def test_what_is_only_null_has_no_least_value(tmp_path: Path) -> None:
    rows = letters("a", 1).set_column(1, "number", pa.array([None], pa.int64()))
    (action,) = write(tmp_path, [rows], BY_LETTER)
    stats = json.loads(add_of(action)["stats"])
    assert (stats["minValues"], stats["nullCount"]["number"]) == ({"text": "text 1"}, 1)


def test_very_many_partitions_get_a_file_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILES_OPEN_MAX", 4)
    batches = [letters(string.ascii_letters[n % 50], *range(n, n + 4)) for n in range(500)]
    found = write(tmp_path, batches, BY_LETTER)
    assert len(found) == 50
    assert sum(rows_in(action) for action in found) == 2000


def test_row_groups_and_open_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUFFER_BYTES", 400)
    monkeypatch.setattr(module, "FILES_OPEN_MAX", 2)
    batches = [letters("abc"[n % 3], *range(n, n + 4)) for n in range(30)]
    found = write(tmp_path, batches, BY_LETTER)
    assert len(found) > 3
    rows = pa.concat_tables(
        pq.read_table(tmp_path / add_of(action)["path"], partitioning=None) for action in found
    )
    assert sorted(rows["number"].to_pylist()) == sorted(n + i for n in range(30) for i in range(4))
    write(tmp_path / "one", [letters("a", *range(4)) for _ in range(30)], BY_LETTER)
    (path,) = (tmp_path / "one").rglob("*.parquet")
    assert 1 < pq.ParquetFile(path).num_row_groups < 30


def test_what_is_abandoned_leaves_no_file(tmp_path: Path) -> None:
    files = TableFiles(tmp_path, BY_LETTER)
    files.add(letters("a", 1))
    files.add(letters("b", 1))
    files.abandon()
    assert list(tmp_path.rglob("*.parquet")) == []


def test_partition_values_are_texts(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pydict({"letter": [date(2026, 11, 22)], "number": [1], "text": ["t"]})
    (action,) = write(tmp_path, [rows], BY_LETTER)
    assert add_of(action)["partitionValues"] == {"letter": "2026-11-22"}
