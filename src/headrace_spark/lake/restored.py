"""What Delta's RESTORE has taken out of a table: it keeps the transactions by which a job says what it has written, so
the rows would be missing for ever.
"""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from typing import Any, Final

import pyarrow as pa

from headrace_spark.base.lake_url import Location
from headrace_spark.lake.table_log import TableLog, Tables

BATCH: Final = "STREAMING UPDATE"
"""The operation of a transaction that this headrace commits itself; what Spark's writer and a merge commit is:"""
WRITTEN: Final = frozenset({BATCH, "WRITE", "MERGE"})
_RESTORE: Final = "RESTORE"
_LOOKED_AT: Final = 100
"""So many commits of upkeep and by hand lie behind the last one of a job at most."""


class Restores:
    """Misses what RESTORE takes out of one table, before a job begins and while it writes: its next commit hides that.

    `ours`: the operations of the job's commits. `is_replaced`: rows are put in the place of others, so that their number
    says nothing.
    """

    def __init__(
        self, tables: Tables, table: Location, ours: Container[str], is_replaced: bool = False
    ) -> None:
        self._tables = tables
        self._table = table
        self._ours = ours
        self._is_replaced = is_replaced
        self._looked: int | None = None
        """Up to which version nothing is missing."""

    def lost(self) -> int | None:
        """Return the version from which RESTORE has taken rows; None if nothing is missing.

        The first look is at what lies behind the last commit of a job, each further one at what came since.
        """
        log = self._tables.open(self._table)
        version = -1 if log is None else log.version()
        if self._looked is None:
            found = lost_by_restore(self._tables, self._table, self._ours, self._is_replaced)
        else:
            versions = _restores(self._tables, self._table, self._looked + 1, version)
            found = _lost(self._tables, self._table, versions, None, self._is_replaced)
        if found is None:
            self._looked = version
        return found


def brought_back(tables: Tables, table: Location, first: int, last: int) -> int | None:
    """Return the newest of these versions that is a RESTORE which only brings rows back: a stream over the table takes
    them for new ones. It passes over one that takes rows out, too."""
    for version in reversed(_restores(tables, table, first, last)):
        lines = (tables.commit(table, version) or b"").splitlines()
        kinds = {
            kind for line in lines for kind, about in json.loads(line).items() if about.get("dataChange")
        }
        if kinds == {"add"}:
            return version
    return None


def _restores(tables: Tables, table: Location, first: int, last: int) -> list[int]:
    versions = range(max(0, first), last + 1)
    return [version for version in versions if _operation(tables.commit(table, version)) == _RESTORE]


def lost_by_restore(
    tables: Tables, table: Location, ours: Container[str], is_replaced: bool = False
) -> int | None:
    """Return the version from which RESTORE has taken rows since; None if nothing is missing.

    Only what lies behind the last commit of a job is looked at. `ours`: the operations of these. `is_replaced`: as
    `Restores` takes it.
    """
    log = tables.open(table)
    if log is None:
        return None
    versions = _restores_behind(tables, table, log.version(), ours)
    return _lost(tables, table, versions, log, is_replaced)


def _restores_behind(tables: Tables, table: Location, version: int, ours: Container[str]) -> list[int]:
    """Return the versions behind the last commit of a job that are a RESTORE."""
    found: list[int] = []
    for looked_at in range(version, max(-1, version - _LOOKED_AT), -1):
        operation = _operation(tables.commit(table, looked_at))
        if operation == _RESTORE:
            found.insert(0, looked_at)
        elif operation in ours:
            break
    return found


def _lost(
    tables: Tables, table: Location, versions: Sequence[int], now: TableLog | None, is_replaced: bool
) -> int | None:
    """Return the version in front of the first RESTORE of these, if what that had is not there behind the last one.
    `now`: what is there now, in whose place rows may have come back by hand."""
    if not versions or not versions[0]:
        return None
    before, after = tables.open(table, versions[0] - 1), tables.open(table, versions[-1])
    if before is None or after is None:
        return None
    if is_replaced:
        is_whole = _files_of(after) == _files_of(before)
    else:
        is_whole = rows_of(now or after) >= rows_of(before)
    return None if is_whole else versions[0] - 1


def _files_of(log: TableLog) -> set[str]:
    files = pa.table(log.get_add_actions(flatten=True))
    return set(files["path"].to_pylist()) if files.num_rows else set()


def _operation(commit: bytes | None) -> str:
    """Return what a commit says that it was; "" where the log no longer has it, or it does not say."""
    for line in (commit or b"").splitlines():
        about: dict[str, Any] | None = json.loads(line).get("commitInfo")
        if about is not None:
            return str(about.get("operation", ""))
    return ""


def rows_of(log: TableLog) -> int:
    """Return how many rows a version has, by its statistics."""
    files = pa.table(log.get_add_actions(flatten=True))
    return sum(rows or 0 for rows in files["num_records"].to_pylist()) if files.num_rows else 0
