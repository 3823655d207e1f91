"""What of a Delta table a stream has still to read: by its position and the statistics in the table's log.

Delta's source says nothing of that in its progress.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from time import monotonic
from typing import Any

import pyarrow as pa

from headrace_spark.base.errors import LakeConflict
from headrace_spark.base.figures import Lag
from headrace_spark.base.lake_url import Location
from headrace_spark.lake.changes import changed_by
from headrace_spark.lake.table_log import Folders, TableLog, Tables
from headrace_spark.lake.table_position import TablePosition


@dataclass(frozen=True)
class Added:
    """A file that a commit added: its rows, its bytes, and when."""

    rows: int
    bytes: int
    at_ms: int


class TableBacklog:
    """Looks at one table again and again: a commit is read once. Commits that take rows away count for nothing.

    `tables`: how the table's log is read; there is a look at it at most every `look_s` of it.
    """

    def __init__(self, table: Location, tables: Tables | None = None) -> None:
        self._table = table
        self._tables = tables or Folders()
        self._looked = float("-inf")  # on the monotonic clock
        self._added: dict[int, list[Added]] = {}
        """Version -> the files that it added, in the order of its log."""
        self._changed: dict[int, str] = {}
        """Version -> what put rows in the place of others."""
        self._first_look: tuple[int, list[Added]] = (-1, [])
        self._whole: tuple[float, list[Added]] = (float("-inf"), [])
        """When the whole table was looked at, on the monotonic clock, and its files."""

    def rows(self, position: TablePosition | None) -> int:
        """Return how many rows are behind the position; all that the table has if there is none."""
        return sum(file.rows for file in self._files(position))

    def lag(self, position: TablePosition | None, now_s: float) -> Lag:
        """Return the rows behind a position with their bytes, and the age of the oldest file that has any."""
        files = [file for file in self._files(position) if file.rows]
        since_s = min((file.at_ms / 1000 for file in files), default=now_s)
        rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
        return Lag(rows, size, max(0.0, now_s - since_s))

    def changed(self, position: TablePosition | None) -> tuple[int, str] | None:
        """Return the first version behind the position that puts rows in the place of others, of which a stream that
        takes appended rows sees none, and the operation that it was; None if there is none."""
        if position is None:
            return None  # what is there will be read
        self._follow(position.version)
        behind = [version for version in self._changed if version > position.read_version]
        return (min(behind), self._changed[min(behind)]) if behind else None

    def _files(self, position: TablePosition | None) -> list[Added]:
        if position is None:
            return self._all()
        self._follow(position.version)
        left = self._at(position)[max(0, position.index + 1) :]
        later = [files for version, files in self._added.items() if version > position.version]
        return [*left, *chain.from_iterable(later)]

    def _all(self) -> list[Added]:
        if monotonic() >= self._whole[0] + self._tables.look_s:
            self._whole = monotonic(), _snapshot(self._log())
        return self._whole[1]

    def _at(self, position: TablePosition) -> list[Added]:
        """Return the files that the index of the position counts."""
        if not position.is_first_look:
            return self._added.get(position.version, [])
        if self._first_look[0] != position.version:
            self._first_look = position.version, _snapshot(self._log(position.version))
        return self._first_look[1]

    def _follow(self, since: int) -> None:
        self._added = {version: files for version, files in self._added.items() if version >= since}
        self._changed = {version: what for version, what in self._changed.items() if version >= since}
        if monotonic() < self._looked + self._tables.look_s:
            return
        self._looked = monotonic()
        version = max(self._added, default=since - 1) + 1
        while (commit := self._tables.commit(self._table, version)) is not None:
            self._added[version] = _added(commit)
            if (operation := changed_by(commit)) is not None:
                self._changed[version] = operation
            version += 1

    def _log(self, version: int | None = None) -> TableLog:
        log = self._tables.open(self._table, version)
        if log is None:
            raise LakeConflict(f"table {self._table} is gone")
        return log


def _added(commit: bytes) -> list[Added]:
    actions = [json.loads(line) for line in commit.splitlines()]  # bytes: a text has other ends of lines, too
    if any(action["remove"].get("dataChange") for action in actions if "remove" in action):
        return []
    adds = [action["add"] for action in actions if "add" in action]
    return [_file(add) for add in adds if add.get("dataChange")]


def _file(add: dict[str, Any]) -> Added:
    rows = int(json.loads(add.get("stats") or "{}").get("numRecords", 0))
    return Added(rows, add["size"], add["modificationTime"])


def _snapshot(log: TableLog) -> list[Added]:
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
