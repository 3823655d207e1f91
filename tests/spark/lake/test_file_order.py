"""The order in which a table got its files is that of its log, whatever the files are called or how large they are."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from headrace_spark.lake.file_order import FileOrder
from headrace_spark.lake.table_log import Folders
from headrace_spark.lake.table_position import TablePosition


def append(table: Path, count: int, partition_by: list[str] | None = None) -> list[str]:
    """Append so many rows, and return the names of the files that came."""
    before = set(table.rglob("*.parquet"))
    rows = pa.table({"n": list(range(count)), "p": ["größe +%"] * count})
    write_deltalake(table, rows, mode="append", partition_by=partition_by)
    return [path.name for path in table.rglob("*.parquet") if path not in before]


def at(version: int, index: int = -1, is_first_look: bool = False) -> TablePosition:
    return TablePosition("t", version, index, is_first_look)


def test_files_are_in_the_order_of_their_commits(tmp_path: Path) -> None:
    commits = [append(tmp_path, count, ["p"]) for count in (10, 10_000, 5, 1)]
    order = FileOrder(Folders(), tmp_path)
    flat = [name for names in commits for name in names]
    assert list(order.between(None, at(3, is_first_look=True))) == flat
    assert list(order.between(at(1, 0, True), at(4))) == flat
    assert list(order.between(at(1), at(3, 0))) == [name for names in commits[1:] for name in names]
    assert list(order.between(at(2), at(4))) == [name for names in commits[2:] for name in names]
    append(tmp_path, 3)
    assert len(order.between(at(2), at(5))) == 3


def test_files_of_which_no_commit_tells_come_first_by_time(tmp_path: Path) -> None:
    commits = [append(tmp_path, count) for count in (10, 10_000, 5)]
    DeltaTable(tmp_path).create_checkpoint()
    commits.append(append(tmp_path, 1))
    for version in (0, 1):
        (tmp_path / "_delta_log" / f"{version:020d}.json").unlink()
    found = FileOrder(Folders(), tmp_path).between(None, at(3, is_first_look=True))
    assert list(found) == [name for names in commits for name in names]
