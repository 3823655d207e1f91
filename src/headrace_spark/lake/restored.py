"""What Delta's RESTORE has taken out of a table: it keeps the transactions by which a job says what it has written, so
the rows would be missing for ever.
"""

from __future__ import annotations

import json
from collections.abc import Container
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


def lost_by_restore(tables: Tables, table: Location, ours: Container[str]) -> int | None:
    """Return the version from which RESTORE has taken rows since; None if nothing is missing.

    Only what lies behind the last commit of a job is looked at. `ours`: the operations of these.
    """
    log = tables.open(table)
    before = None if log is None else _before_restore(tables, table, log.version(), ours)
    if log is None or before is None:
        return None
    then = tables.open(table, before)
    return None if then is None or rows_of(log) >= rows_of(then) else before


def _before_restore(tables: Tables, table: Location, version: int, ours: Container[str]) -> int | None:
    """Return the version in front of the oldest RESTORE behind the last commit of a job; None if there is none."""
    before = None
    for looked_at in range(version, max(-1, version - _LOOKED_AT), -1):
        operation = _operation(tables.commit(table, looked_at))
        if operation == _RESTORE:
            before = looked_at - 1
        elif operation in ours:
            break
    return before


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
