"""What of a Delta table a stream has still to read: by its position and the statistics in the table's log.

Delta's source says nothing of that in its progress.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable as DeltaLog

from headrace_spark.base.figures import Lag
from headrace_spark.lake.table_position import TablePosition


@dataclass(frozen=True)
class Added:
    """A file that a commit added: its rows, its bytes, and when."""

    rows: int
    bytes: int
    at_ms: int


class TableBacklog:
    """Looks at one table again and again: a commit is read once. Commits that take rows away count for nothing."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._added: dict[int, list[Added]] = {}
        """Version -> the files that it added, in the order of its log."""
        self._first_look: tuple[int, list[Added]] = (-1, [])

    def rows(self, position: TablePosition | None) -> int:
        """Return how many rows are behind the position; all that the table has if there is none."""
        return sum(file.rows for file in self._files(position))

    def lag(self, position: TablePosition | None, now_s: float) -> Lag:
        """Return the rows behind a position with their bytes, and the age of the oldest file that has any."""
        files = [file for file in self._files(position) if file.rows]
        since_s = min((file.at_ms / 1000 for file in files), default=now_s)
        rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
        return Lag(rows, size, max(0.0, now_s - since_s))

    def _files(self, position: TablePosition | None) -> list[Added]:
        if position is None:
            return _snapshot(DeltaLog(self._table))
        self._follow(position.version)
        left = self._at(position)[max(0, position.index + 1) :]
        later = [files for version, files in self._added.items() if version > position.version]
        return [*left, *chain.from_iterable(later)]

    def _at(self, position: TablePosition) -> list[Added]:
        """Return the files that the index of the position counts."""
        if not position.is_first_look:
            return self._added.get(position.version, [])
        if self._first_look[0] != position.version:
            log = DeltaLog(self._table, version=position.version)
            self._first_look = position.version, _snapshot(log)
        return self._first_look[1]

    def _follow(self, since: int) -> None:
        self._added = {version: files for version, files in self._added.items() if version >= since}
        version = max(self._added, default=since - 1) + 1
        while (commit := self._table / "_delta_log" / f"{version:020}.json").exists():
            self._added[version] = _added(commit)
            version += 1


def _added(commit: Path) -> list[Added]:
    actions = [json.loads(line) for line in commit.read_text(encoding="utf-8").splitlines()]
    if any(action["remove"].get("dataChange") for action in actions if "remove" in action):
        return []
    adds = [action["add"] for action in actions if "add" in action]
    return [_file(add) for add in adds if add.get("dataChange")]


def _file(add: dict[str, Any]) -> Added:
    rows = int(json.loads(add.get("stats") or "{}").get("numRecords", 0))
    return Added(rows, add["size"], add["modificationTime"])


def _snapshot(log: DeltaLog) -> list[Added]:
    """Return the files of a version, in the order in which a stream reads them at first."""
    files = pa.table(log.get_add_actions(flatten=True)).to_pylist()
    ordered = sorted(files, key=lambda file: (file["modification_time"], file["path"]))
    return [
        Added(file["num_records"] or 0, file["size_bytes"], _milliseconds(file["modification_time"]))
        for file in ordered
    ]


def _milliseconds(time: datetime | int) -> int:
    """Return a time in milliseconds since 1970: deltalake gives times as numbers, and in newer releases as times."""
    if isinstance(time, int):
        return time
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
