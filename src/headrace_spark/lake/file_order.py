"""In which order a Delta table got its rows: by commit, and within one by the order in which its log names the files.

Spark packs the files of a micro-batch into tasks by their sizes, so the order of its rows tells nothing of that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa

from headrace_spark.base.lake_url import Location
from headrace_spark.lake.table_log import Tables
from headrace_spark.lake.table_position import TablePosition

COMMITS_MAX: Final = 1_000
"""So many commits are read for the rows that a table had at first; files that are older are in the order of their
times, which is that of their commits where one clock made them."""


class FileOrder:
    """The order of the files of one table. A commit is read once."""

    def __init__(self, tables: Tables, table: Location) -> None:
        self._tables = tables
        self._table = table
        self._commits: dict[int, list[str]] = {}

    def between(self, begin: TablePosition | None, end: TablePosition) -> Sequence[str]:
        """Return the names of files, without folders, that a stream may read between two positions, oldest first.

        Without a `begin`, or where that is within the rows that the table had at first, these are all files.
        """
        if begin is not None and not begin.is_first_look:
            return self._of(range(begin.version, end.version + 1))
        since = max(0, end.version - COMMITS_MAX)
        known = self._of(range(since, end.version + 1))
        return list(dict.fromkeys([*self._older(set(known), end), *known]))

    def _of(self, versions: range) -> list[str]:
        self._commits = {version: names for version, names in self._commits.items() if version in versions}
        for version in versions:
            if (
                version not in self._commits
                and (commit := self._tables.commit(self._table, version)) is not None
            ):
                self._commits[version] = _added(commit)
        return [name for version in versions for name in self._commits.get(version, ())]

    def _older(self, known: set[str], end: TablePosition) -> list[str]:
        """Return the files of which no commit tells that was read, by time."""
        log = self._tables.open(self._table, end.version if end.is_first_look else None)
        rows: list[dict[str, Any]] = (
            [] if log is None else pa.table(log.get_add_actions(flatten=True)).to_pylist()
        )
        rows.sort(key=lambda file: (file["modification_time"], file["path"]))
        return [name for file in rows if (name := _name(file["path"])) not in known]


def _added(commit: bytes) -> list[str]:
    actions = (json.loads(line) for line in commit.splitlines())
    return [_name(action["add"]["path"]) for action in actions if "add" in action]


def _name(path: str) -> str:
    return unquote(path).rpartition("/")[2]
