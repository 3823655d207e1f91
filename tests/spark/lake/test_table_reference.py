"""The reference of the tables says what the definitions say."""

from __future__ import annotations

from pathlib import Path

from headrace_spark.lake.table_reference import reference
from headrace_spark.lake.tables import TABLES

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "tables.md"


def test_the_page_is_what_the_definitions_give() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), (
        "stale: python -m headrace_spark.lake.table_reference > docs/reference/tables.md"
    )


def test_definitions_are_whole() -> None:
    assert len({table.name for table in TABLES}) == len(TABLES)
    for table in TABLES:
        names = set(table.columns.names)
        assert names.issuperset(table.partitioned_by)
        assert names.issuperset(table.statistics)
        assert all(field.metadata["comment"] for field in table.columns)
