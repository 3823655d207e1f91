"""The page `docs/reference/tables.md`, made from the definitions of the tables.

python -m headrace_spark.lake.table_reference > docs/reference/tables.md
"""

from __future__ import annotations

from typing import Final

from headrace_spark.lake.tables import TABLES, TableDefinition

_HEAD: Final = """\
# Tables that jobs make
Made from `src/headrace_spark/lake/tables.py` by `python -m headrace_spark.lake.table_reference`. Columns may be added; a
column never changes its meaning, and [your own columns](delta-table.md) are yours. Times are UTC, sizes bytes. The table
`messages`: [delta-table.md](delta-table.md). What writes the others and how to ask them:
[clean](../how-to/clean-messages.md), [metrics](../how-to/measure-and-report.md). What holds after a crash:
[exactly once](exactly-once.md). What Spark, deltalake, DuckDB and Trino show of the same values: [readers](readers.md).
"""


def reference() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *(_section(table) for table in TABLES)])


def _section(table: TableDefinition) -> str:
    partitions = ", ".join(f"`{name}`" for name in table.partitioned_by)
    rows = [
        f"| `{field.name}` | {field.dataType.simpleString()} | {field.metadata['comment']} |"
        for field in table.columns
    ]
    lines = [
        f"## `{table.name}`",
        f"{table.about} Partitioned by {partitions}.",
        "",
        "| column | type | |",
        "|---|---|---|",
    ]
    return "\n".join([*lines, *rows, ""])


if __name__ == "__main__":
    print(reference(), end="")
