"""Batch reads of `headrace`: all columns, ranges, partitions, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.core.records.record import Progress
from headrace_spark.records.schema import MESSAGES, arrow_schema
from headrace_spark.source.selection import microseconds
from spark.conftest import Writer
from spark.journals import mixed

pytestmark = pytest.mark.spark


def read(spark: SparkSession, journal: Writer, **options: Any) -> DataFrame:
    return spark.read.format("headrace").options(**options).load(str(journal.data_dir))


def collected(frame: DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = frame.orderBy("journal_offset").toArrow().to_pylist()
    return rows


def test_a_read_equals_what_was_written(spark: SparkSession, journal: Writer) -> None:
    journal.write(mixed(3000))
    frame = read(spark, journal, partitions=4)
    assert frame.schema.names == MESSAGES.names
    assert collected(frame) == journal.rows()


def test_a_range_and_some_columns(spark: SparkSession, journal: Writer) -> None:
    journal.write(mixed(1000))
    frame = read(spark, journal, startingOffsets=101, endingOffsets=777, columns="journal_offset,payload")
    expected = [row for row in journal.rows() if 101 <= row["journal_offset"] < 777]
    assert collected(frame) == [{k: row[k] for k in ("journal_offset", "payload")} for row in expected]


def test_the_older_name_reads_the_same(spark: SparkSession, journal: Writer) -> None:
    journal.write(mixed(200))
    older = spark.read.format("headrace-journal").load(str(journal.data_dir))
    assert collected(older) == collected(read(spark, journal)) == journal.rows()


def test_a_small_read_is_cut_where_that_is_asked_for(spark: SparkSession, journal: Writer) -> None:
    journal.write(mixed(1000))
    assert read(spark, journal).rdd.getNumPartitions() == 1
    cut = read(spark, journal, minPartitions=5)
    assert cut.rdd.getNumPartitions() == 5
    assert collected(cut) == journal.rows()


def test_offsets_in_json_know_the_words_of_kafka(spark: SparkSession, journal: Writer) -> None:
    journal.write(mixed(100))

    def count(start: int, end: int) -> int:
        offsets = {"startingOffsets": start, "endingOffsets": end}
        given = {name: json.dumps({journal.uuid: offset}) for name, offset in offsets.items()}
        return read(spark, journal, **given).count()

    assert count(-2, -1) == len(journal.rows())
    assert count(-1, -1) == 0


def test_sql_reads_a_view_and_says_why_not_a_table(spark: SparkSession, journal: Writer) -> None:
    journal.write(mixed(100))
    spark.sql(f"CREATE TEMPORARY VIEW readings USING headrace OPTIONS (path '{journal.data_dir}')")
    assert spark.sql("SELECT count(*) AS n FROM readings").collect()[0]["n"] == len(journal.rows())
    spark.catalog.dropTempView("readings")
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE readings USING headrace OPTIONS (path '{journal.data_dir}')")


def test_an_empty_range_is_an_empty_table(spark: SparkSession, journal: Writer) -> None:
    journal.write(mixed(10))
    assert read(spark, journal, startingOffsets="latest").count() == 0


def test_sql_over_the_journal(spark: SparkSession, journal: Writer) -> None:
    journal.write(mixed(500))
    frame = read(spark, journal).where("tenant = 'tenant-1' and qos > 0").groupBy("tenant").count()
    expected = sum(row["tenant"] == "tenant-1" and row["qos"] > 0 for row in journal.rows())
    assert frame.collect()[0]["count"] == expected


@pytest.mark.parametrize(
    "condition",
    [
        "topic = 't'",
        "tenant in ('tenant-1', 'x') and topic like 'plant/%'",
        "journal_offset between 100 and 300 and qos = 1",
        "publish_timestamp >= '2025-10-10T01:00:00Z' and publish_timestamp < '2025-10-10T03:00:00Z'",
        "date = '2025-10-11'",
        "topic = 't' or qos = 2",
        "not topic = 't'",
    ],
)
def test_filters_change_nothing_but_the_work(
    spark: SparkSession, journal: Writer, tmp_path: Path, condition: str
) -> None:
    journal.write(mixed(3000, 5))
    plain = spark.createDataFrame(pa.Table.from_pylist(journal.rows(), arrow_schema(MESSAGES)))
    for cache in (str(tmp_path / "cache"), str(tmp_path / "cache"), "none"):
        frame = read(spark, journal, partitions=3, cache=cache, pushFilters=True).where(condition)
        assert collected(frame) == collected(plain.where(condition))


def test_one_frame_serves_several_queries(spark: SparkSession, journal: Writer) -> None:
    journal.write(mixed(300, 9))
    frame = read(spark, journal)
    one, other = frame.where("topic = 't'"), frame.where("topic <> 't'")
    assert 0 < one.count() < len(journal.rows())
    assert frame.count() == len(journal.rows())
    assert collected(one.union(other)) == journal.rows()


def test_events_and_progress_are_schemas_of_the_same_journal(spark: SparkSession, journal: Writer) -> None:
    journal.write(mixed(600, 6))
    events = read(spark, journal, schema="events").groupBy("kind").count().toArrow().to_pylist()
    kinds = {row["kind"]: row["count"] for row in events}
    retained = [row for row in journal.rows() if row["retain"]]
    assert kinds["retained_set"] == sum(bool(row["payload"]) for row in retained)
    assert kinds["retained_cleared"] == sum(not row["payload"] for row in retained)
    acked = read(spark, journal, schema="progress", columns="kind,serial,journal_offset")
    entries = [record.values() for record in journal.made.records if isinstance(record, Progress)]
    assert acked.count() == sum(len(values) for values in entries) // 2


def test_options_select_as_filters_do(spark: SparkSession, journal: Writer) -> None:
    journal.write(mixed(800, 7))
    stamps = sorted(row["publish_timestamp"] for row in journal.rows())
    middle, late = stamps[200], stamps[500]
    frame = read(
        spark,
        journal,
        tenant="tenant-0",
        topicFilter="plant/+/#",
        startingTimestamp=middle.isoformat(),
        endingTimestamp=late.isoformat(),
    )
    assert frame.count() > 0
    times = [record.timestamp_us for record in journal.made.records]
    first = next(i for i, us in enumerate(times) if us >= microseconds(middle))
    last = next(i for i, us in enumerate(times) if us >= microseconds(late))
    assert collected(frame) == [
        row
        for row in journal.rows()
        if first <= row["journal_offset"] < last
        and row["tenant"] == "tenant-0"
        and row["topic"].startswith("plant/")
    ]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"startingOffset": 5}, "startingoffset.*no such option"),
        ({"endingOffsets": 99_999}, "the journal ends at 10"),
        ({"startingOffsets": 99_999}, "the journal ends at 10"),
        ({"columns": "topic,color"}, "unknown: color"),
        ({"partitions": "many"}, "a number above 0"),
    ],
)
def test_bad_options_are_named(
    spark: SparkSession, journal: Writer, options: dict[str, Any], problem: str
) -> None:
    journal.write(mixed(10))
    with pytest.raises(PySparkException, match=problem):
        read(spark, journal, **options).collect()


def test_a_directory_without_a_journal_is_named(spark: SparkSession, journal: Writer) -> None:
    with pytest.raises(PySparkException, match="holds no journal"):
        read(spark, journal).collect()
