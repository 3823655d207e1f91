"""Batch reads of `headrace-journal`: all columns, ranges, partitions, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace_spark.schema import MESSAGES
from spark.conftest import Writer
from spark.journals import mixed

pytestmark = pytest.mark.spark


def read(spark: SparkSession, journal: Writer, **options: Any) -> DataFrame:
    return spark.read.format("headrace-journal").options(**options).load(str(journal.data_dir))


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


def test_an_empty_range_is_an_empty_table(spark: SparkSession, journal: Writer) -> None:
    journal.write(mixed(10))
    assert read(spark, journal, startingOffsets="latest").count() == 0


def test_sql_over_the_journal(spark: SparkSession, journal: Writer) -> None:
    journal.write(mixed(500))
    frame = read(spark, journal).where("tenant = 'tenant-1' and qos > 0").groupBy("tenant").count()
    expected = sum(row["tenant"] == "tenant-1" and row["qos"] > 0 for row in journal.rows())
    assert frame.collect()[0]["count"] == expected


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
