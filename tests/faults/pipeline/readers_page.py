"""The page docs/reference/readers.md, of what `make readers` has found.

python -m faults.pipeline.readers_page > docs/reference/readers.md
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

RESULT: Final = Path(__file__).parents[3] / "benchmarks" / "results" / "readers.json"
PARTS: Final = ("type", "least", "greatest", "null")
NAMED: Final[Mapping[str, str]] = {
    "pyspark": "Spark",
    "delta-spark": "Delta",
    "deltalake": "deltalake",
    "pyarrow": "PyArrow",
    "pandas": "pandas",
    "duckdb": "DuckDB",
    "trino": "Trino",
}
HEAD: Final = """\
# What each reader shows
Made from [readers.json](../../benchmarks/results/readers.json), which `make readers` writes, by
`python -m faults.pipeline.readers_page`. That the tables say what was sent, and the report too, is another test:
`tests/spark/test_what_was_sent.py` has real clients publish odd messages through a broker whose journal is trimmed,
copied, divided into shards and restored from a backup, and compares every column of every table, and every number of the
report, with what was noted where it was sent. How to open the tables:
[measure-and-report](../how-to/measure-and-report.md).
"""


def page(result: Mapping[str, Any]) -> str:
    """Return the whole page."""
    parts = [HEAD, *values_alike(result["compared"]), "", *differing(result["shown"]), "", *shown(result)]
    return "\n".join(parts)


def values_alike(compared: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    """Yield the lines on whether readers have the same values."""
    ran = list(dict.fromkeys(name for found in compared.values() for name in found))
    without = [name for name in ("spark", "delta-rs", "duckdb", "trino") if name not in ran]
    yield "## The same values"
    yield f"Each reader read every row of {len(compared)} tables, with odd names and payloads and after upkeep,"
    yield f"and was asked for aggregates of every column. They ran: {', '.join(ran)}."
    if without:
        yield f"Not in this run: {', '.join(without)}."
    yield ""
    yield f"| table | rows | figures | {' | '.join(ran)} |"
    yield f"|---|---:|---:|{'---|' * len(ran)}"
    for table, found in compared.items():
        first = next(iter(found.values()))
        said = (verdict(found.get(name)) for name in ran)
        yield f"| `{table}` | {first['rows']} | {first['figures']} | {' | '.join(said)} |"


def verdict(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "not asked"
    if found["error"]:
        return f"cannot read it: {plain(found['error'])}"
    others = found["others"]
    return f"other: {plain(', '.join(others))}" if others else "the same"


def differing(shown: Mapping[str, Mapping[str, Mapping[str, Mapping[str, str]]]]) -> Iterator[str]:
    """Yield a table of the columns that not all readers show alike: who shows the same, and who cannot show it."""
    yield "## What is shown differently"
    yield "Of each column readers on one side of a `/` show the same values. All other columns below are shown alike."
    yield ""
    yield "| column | shown alike by | not shown by |"
    yield "|---|---|---|"
    for table, columns in shown.items():
        for column, readers in columns.items():
            alike: dict[tuple[str | None, ...], list[str]] = {}
            for name, seen in readers.items():
                if "error" not in seen:
                    alike.setdefault(tuple(seen.get(part) for part in PARTS[1:]), []).append(name)
            without = [name for name, seen in readers.items() if "error" in seen]
            if without or len(alike) > 1:
                groups = " / ".join("; ".join(names) for names in alike.values())
                yield f"| `{table}.{column}` | {groups} | {'; '.join(without)} |"


def shown(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table for each column that was looked at."""
    versions = ", ".join(f"{NAMED[name]} {which}" for name, which in result["versions"].items())
    yield "## What a program gets to see of them"
    yield f"With {versions}; the process in the zone {result['zone']}."
    yield "Of each column the least value, the greatest and one that is null, where there is one: as Python's `repr` of"
    yield "what the reader hands out, of Trino as its JSON has it."
    for table, columns in result["shown"].items():
        for column, readers in columns.items():
            yield from ("", f"### `{table}.{column}`", "| reader | type | least | greatest | null |")
            yield "|---|---|---|---|---|"
            for name, seen in readers.items():
                yield f"| {name} | {' | '.join(cells(seen))} |"
    yield ""


def cells(seen: Mapping[str, str]) -> Iterable[str]:
    if "error" in seen:
        return (plain(seen["error"]), "", "", "")
    return (f"`{plain(seen[part])}`" if part in seen else "" for part in PARTS)


def plain(text: str) -> str:
    """Return a text that ends no cell of a table and no code in it."""
    return text.replace("`", "'").replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    print(page(json.loads(RESULT.read_text(encoding="utf-8"))), end="")
