"""The page docs/reference/readers.md says what `make readers` has found, and no more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from faults.pipeline.every_table import NAMES
from faults.pipeline.readers_page import RESULT, page
from faults.pipeline.shown import COLUMNS

pytestmark = pytest.mark.spark
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "readers.md"


def test_the_page_is_made_from_the_result() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(json.loads(RESULT.read_text(encoding="utf-8"))), (
        "stale: python -m faults.pipeline.readers_page > docs/reference/readers.md"
    )


def test_the_result_has_every_table_and_every_column_that_is_looked_at() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    assert tuple(result["compared"]) == NAMES
    assert {table: tuple(columns) for table, columns in result["shown"].items()} == {
        table: tuple(names) for table, names in COLUMNS.items()
    }


def test_what_differs_is_on_the_page() -> None:
    same = {"rows": 2, "figures": 9, "others": [], "error": ""}
    compared = {
        "clean": {
            "spark": same,
            "duckdb": same | {"others": ["topic, least"]},
            "trino": same | {"error": "a | b"},
        }
    }
    seen = {"type": "`double`", "least": "1", "greatest": "2|3"}
    other, same_but_for_its_type = seen | {"least": "1.0"}, seen | {"type": "DOUBLE"}
    columns = {
        "tank": {"Spark": seen, "DuckDB": {"error": "OverflowError: no"}},
        "levels": {"Spark": seen, "DuckDB": same_but_for_its_type, "Trino": other},
        "qos": {"Spark": seen, "DuckDB": same_but_for_its_type},
    }
    shown = {"clean": columns}
    lines = page(
        {"compared": compared, "versions": {"duckdb": "2"}, "zone": "UTC", "shown": shown}
    ).splitlines()
    assert "| `clean` | 2 | 9 | the same | other: topic, least | cannot read it: a \\| b |" in lines
    assert "Not in this run: delta-rs." in lines
    assert "| `clean.tank` | Spark | DuckDB |" in lines
    assert "| `clean.levels` | Spark; DuckDB / Trino |  |" in lines
    assert not [line for line in lines if line.startswith("| `clean.qos`")]
    assert "| Spark | `'double'` | `1` | `2\\|3` |  |" in lines
    assert "| DuckDB | OverflowError: no |  |  |  |" in lines
