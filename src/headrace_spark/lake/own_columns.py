"""Whether a Delta table has the columns that headrace reads and writes, which it does by name.

Columns that somebody has added are his: no job looks at them, and rows of a job have null there. A column of ours that
was dropped, renamed or given another type is missed before anything is read or written.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Final

from deltalake.exceptions import DeltaError
from pyspark.sql.types import StructType

from headrace_spark.base.errors import LakeConflict, PipelineError
from headrace_spark.base.lake_url import Location
from headrace_spark.lake.table_log import TableLog, Tables, types_of

_LOOKED_AT: Final = 100
"""So many commits may lie behind the one that has changed the columns: jobs of ours write none then."""


def require_own_columns(
    tables: Tables, table: Location, log: TableLog, columns: StructType, added: Collection[str] = ()
) -> None:
    """Raise LakeConflict if a table lacks one of these columns, or has it with another type, and say what brings it back.

    `added`: columns that tables of an older headrace have not.
    """
    wrong = differences(log, columns, added)
    if wrong:
        raise LakeConflict(
            f"table {table} has another schema than this headrace writes: {', '.join(wrong)}. "
            f"{_way_back(tables, table, log.version(), columns, added)}"
        )


def differences(log: TableLog, columns: StructType, added: Collection[str] = ()) -> list[str]:
    """Return in words what a table lacks of these columns, by name."""
    found = types_of(log)
    wanted = {field.name: field.dataType.simpleString() for field in columns}
    missing = [name for name in wanted if name not in found and name not in added]
    retyped = [name for name in wanted if name in found and found[name] != wanted[name]]
    words = [f"no column {name}" for name in missing]
    words += [f"column {name} is {found[name]}, not {wanted[name]}" for name in retyped]
    return sorted(words)


def _way_back(
    tables: Tables, table: Location, version: int, columns: StructType, added: Collection[str]
) -> str:
    before = _last_whole(tables, table, version, columns, added)
    if before is None:
        return "Use another lake, or move the table away"
    return (
        f"To have the columns back: RESTORE TABLE delta.`{table}` TO VERSION AS OF {before}. A column that was renamed "
        "may be renamed back instead. Or use another lake"
    )


def _last_whole(
    tables: Tables, table: Location, version: int, columns: StructType, added: Collection[str]
) -> int | None:
    """Return the newest version that had the columns; None if none had that is in the log still."""
    for changed in range(version, max(0, version - _LOOKED_AT), -1):
        commit = tables.commit(table, changed)
        if commit is None:
            return None
        if not any("metaData" in json.loads(line) for line in commit.splitlines()):
            continue
        try:
            before = tables.open(table, changed - 1)
        except (DeltaError, PipelineError):
            return None
        if before is not None and not differences(before, columns, added):
            return changed - 1
    return None
