"""Commits of a Delta table that put rows in the place of others: an overwrite, a MERGE, an UPDATE.

Which of their rows are new the log does not tell, since files are written anew with the rows that stay. So a stream that
takes appended rows passes over such a commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from headrace_spark.base.errors import LakeConflict
from headrace_spark.base.lake_url import Location
from headrace_spark.lake.table_log import Tables

_ONLY_TAKES: Final = ("DELETE", "TRUNCATE")
_RESTORE: Final = "RESTORE"  # has a look of its own (`headrace_spark.lake.restored`)
_MERGE: Final = "MERGE"
_BROUGHT: Final = (
    ("numTargetRowsInserted", "num_target_rows_inserted"),
    ("numTargetRowsUpdated", "num_target_rows_updated"),
)
"""What a MERGE says of itself: as Spark writes it, and as delta-rs does."""


def changed_by(commit: bytes) -> str | None:
    """Return what a commit says that it was if it takes rows away and may bring others; None if it does not."""
    about: Mapping[str, Any] = {}
    kinds = set()
    for line in commit.splitlines():
        for kind, action in json.loads(line).items():
            if kind == "commitInfo":
                about = action
            elif kind in ("add", "remove") and action.get("dataChange"):
                kinds.add(kind)
    operation = str(about.get("operation", "change"))
    if kinds != {"add", "remove"} or operation == _RESTORE or operation.startswith(_ONLY_TAKES):
        return None
    if operation == _MERGE and _only_deletes(about.get("operationMetrics") or {}):
        return None
    return operation


def _only_deletes(metrics: Mapping[str, Any]) -> bool:
    brought = [next((metrics[name] for name in names if name in metrics), None) for names in _BROUGHT]
    return all(value is not None and int(value) == 0 for value in brought)


def require_appended(tables: Tables, table: Location, first: int, last: int) -> None:
    """Raise LakeConflict if one of these versions puts rows in the place of others."""
    for version in range(max(0, first), last + 1):
        operation = changed_by(tables.commit(table, version) or b"")
        if operation is not None:
            raise not_appended(table, version, operation)


def not_appended(table: Location, version: int, operation: str) -> LakeConflict:
    """Return the error for a version whose rows would not leave."""
    return LakeConflict(
        f"version {version} of table {table} is no append ({operation}): it puts rows in the place of others, and which "
        "of them are new is not known, so none of them is published. Append those that are to leave, and start the job "
        "with pipeline.publish.skip_changes=true, which passes over such versions"
    )
