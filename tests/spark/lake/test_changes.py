"""Commits that put rows in the place of others are told from those that only add, take away or move rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace_spark.base.errors import LakeConflict
from headrace_spark.lake.changes import changed_by, require_appended
from headrace_spark.lake.table_backlog import TableBacklog
from headrace_spark.lake.table_log import Folders
from headrace_spark.lake.table_position import TablePosition

ROWS = pa.table({"n": [1, 2, 3], "payload": ["a", "b", "c"]})
NEW = pa.table({"n": [3, 4], "payload": ["x", "y"]})


def merge(table: Path) -> None:
    merging = DeltaTable(table).merge(NEW, "old.n = new.n", "new", "old")
    merging.when_matched_update_all().when_not_matched_insert_all().execute()


def merge_away(table: Path) -> None:
    DeltaTable(table).merge(NEW, "old.n = new.n", "new", "old").when_matched_delete().execute()


CHANGES: dict[str, Callable[[Path], object]] = {
    "overwrite": lambda table: write_deltalake(table, NEW, mode="overwrite"),
    "overwrite of some": lambda table: write_deltalake(table, NEW, mode="overwrite", predicate="n >= 3"),
    "merge": merge,
    "update": lambda table: DeltaTable(table).update({"payload": "'z'"}, predicate="n = 2"),
}
OTHERS: dict[str, Callable[[Path], object]] = {
    "append": lambda table: write_deltalake(table, NEW, mode="append"),
    "delete of a row": lambda table: DeltaTable(table).delete("n = 2"),
    "delete of all": lambda table: DeltaTable(table).delete(),
    "merge that only deletes": merge_away,
    "compaction": lambda table: DeltaTable(table).optimize.compact(),
    "properties": lambda table: DeltaTable(table).alter.set_table_properties({"delta.appendOnly": "false"}),
}


@pytest.mark.parametrize("name", [*CHANGES, *OTHERS])
def test_what_puts_rows_in_the_place_of_others(tmp_path: Path, name: str) -> None:
    for _ in range(2):
        write_deltalake(tmp_path, ROWS, mode="append")
    (CHANGES | OTHERS)[name](tmp_path)
    assert DeltaTable(tmp_path).version() == 2
    commit = Folders().commit(tmp_path, 2)
    assert commit is not None
    assert (changed_by(commit) is not None) == (name in CHANGES)
    backlog = TableBacklog(tmp_path)
    behind, beyond, first = (
        TablePosition("t", 2, -1, False),
        TablePosition("t", 3, -1, False),
        TablePosition("t", 1, 1, True),
    )
    assert (backlog.changed(behind) is not None) == (name in CHANGES)
    assert (backlog.changed(first) is not None) == (name in CHANGES)
    assert backlog.changed(beyond) is backlog.changed(None) is None
    require_appended(Folders(), tmp_path, 0, 1)
    if name in CHANGES:
        with pytest.raises(LakeConflict, match=r"version 2 of table .* is no append .*skip_changes"):
            require_appended(Folders(), tmp_path, 1, 2)
