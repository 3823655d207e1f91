"""The rows that a stream has still to read are counted from the table's log."""

from __future__ import annotations

from pathlib import Path
from time import time

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from headrace_spark.base.figures import Lag
from headrace_spark.base.lake_url import Location
from headrace_spark.lake.table_backlog import TableBacklog
from headrace_spark.lake.table_log import Folders, TableLog
from headrace_spark.lake.table_position import TablePosition


def append(table: Path, rows: int) -> None:
    write_deltalake(table, pa.table({"n": list(range(rows))}), mode="append")


def at(version: int, index: int = -1, is_first_look: bool = False) -> TablePosition:
    return TablePosition("t", version, index, is_first_look)


def test_rows_behind_a_position(tmp_path: Path) -> None:
    for rows in (5, 7, 11):
        append(tmp_path, rows)
    backlog = TableBacklog(tmp_path)
    assert backlog.rows(None) == 23
    assert [backlog.rows(at(version)) for version in (0, 1, 2, 3)] == [23, 18, 11, 0]
    assert backlog.rows(at(1, 0)) == 11
    append(tmp_path, 2)
    assert backlog.rows(at(1, 0)) == 13
    assert backlog.rows(at(4)) == 0


def test_a_text_with_the_line_breaks_of_other_alphabets_is_one_line_of_the_log(tmp_path: Path) -> None:
    for version in range(2):
        write_deltalake(tmp_path / "t", pa.table({"topic": [f"{version}\u2028\u2029\x85"]}), mode="append")
    assert TableBacklog(tmp_path / "t").rows(at(1)) == 1


def test_the_first_look_takes_the_files_that_are_there_in_order(tmp_path: Path) -> None:
    for rows in (5, 7, 11):
        append(tmp_path, rows)
    backlog = TableBacklog(tmp_path)
    assert [backlog.rows(at(2, index, True)) for index in (-1, 0, 1, 2)] == [23, 18, 11, 0]
    append(tmp_path, 2)
    assert backlog.rows(at(2, 1, True)) == 13


def test_what_adds_no_rows_counts_for_nothing(tmp_path: Path) -> None:
    for rows in (5, 7):
        append(tmp_path, rows)
    DeltaTable(tmp_path).optimize.compact()
    DeltaTable(tmp_path).delete("n < 3")
    assert TableBacklog(tmp_path).rows(at(1)) == 7


def test_bytes_and_age_of_what_is_left(tmp_path: Path) -> None:
    for rows in (5, 7, 11):
        append(tmp_path, rows)
    backlog = TableBacklog(tmp_path)
    whole = backlog.lag(None, time() + 60)
    assert (whole.messages, round(whole.seconds / 60)) == (23, 1)
    left = backlog.lag(at(2), time() + 60)
    assert (left.messages, round(left.seconds / 60)) == (11, 1)
    size = sum(file.stat().st_size for file in tmp_path.glob("*.parquet"))
    assert 0 < left.bytes < whole.bytes == size
    assert backlog.lag(at(3), time()) == Lag(0, 0, 0.0)


class Far(Folders):
    """Tables of which one look is expensive."""

    look_s = 3600.0

    def __init__(self) -> None:
        self.looks = 0

    def open(self, table: Location, version: int | None = None) -> TableLog | None:
        self.looks += 1
        return super().open(table, version)


def test_a_table_far_away_is_not_read_again_with_every_look_before_the_first_batch(tmp_path: Path) -> None:
    append(tmp_path, 5)
    tables = Far()
    backlog = TableBacklog(tmp_path, tables)
    assert [backlog.rows(None) for _ in range(3)] == [5, 5, 5]
    assert tables.looks == 1
    assert backlog.rows(at(0)) == 5  # a position is looked for at once
