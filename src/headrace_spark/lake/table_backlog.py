"""How many rows of a Delta table a stream has still to read: by its position and the statistics in the table's log.

Delta's source says nothing of that in its progress.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable as DeltaLog

from headrace_spark.lake.table_position import TablePosition


class TableBacklog:
    """Looks at one table again and again: a commit is read once. Commits that take rows away count for nothing."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._added: dict[int, list[int]] = {}
        """Version -> rows of each file that it added, in the order of its log."""
        self._first_look: tuple[int, list[int]] = (-1, [])

    def rows(self, position: TablePosition | None) -> int:
        """Rows behind the position; all that the table has if there is none."""
        if position is None:
            return sum(_snapshot(DeltaLog(self._table)))
        self._follow(position.version)
        left = self._at(position)[max(0, position.index + 1) :]
        return sum(left) + sum(
            sum(rows) for version, rows in self._added.items() if version > position.version
        )

    def _at(self, position: TablePosition) -> list[int]:
        """Rows of the files that the index of the position counts."""
        if not position.is_first_look:
            return self._added.get(position.version, [])
        if self._first_look[0] != position.version:
            log = DeltaLog(self._table, version=position.version)
            self._first_look = position.version, _snapshot(log)
        return self._first_look[1]

    def _follow(self, since: int) -> None:
        self._added = {version: rows for version, rows in self._added.items() if version >= since}
        version = max(self._added, default=since - 1) + 1
        while (commit := self._table / "_delta_log" / f"{version:020}.json").exists():
            self._added[version] = _added(commit)
            version += 1


def _added(commit: Path) -> list[int]:
    actions = [json.loads(line) for line in commit.read_text(encoding="utf-8").splitlines()]
    if any(action["remove"].get("dataChange") for action in actions if "remove" in action):
        return []
    adds = [action["add"] for action in actions if "add" in action]
    return [_rows(add) for add in adds if add.get("dataChange")]


def _rows(add: dict[str, Any]) -> int:
    return int(json.loads(add.get("stats") or "{}").get("numRecords", 0))


def _snapshot(log: DeltaLog) -> list[int]:
    """Rows of the files of a version, in the order in which a stream reads them at first."""
    files = pa.table(log.get_add_actions(flatten=True)).to_pylist()
    ordered = sorted(files, key=lambda file: (file["modification_time"], file["path"]))
    return [file["num_records"] or 0 for file in ordered]
