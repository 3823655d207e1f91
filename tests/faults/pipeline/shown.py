"""What readers show of the same rows, each in its own types: a column's type, null, the least and the greatest value.

    python -m faults.pipeline.shown LAKE RESULT

`readers` compares values once they are alike; this says what a program gets to see before. The process is in a zone that
is not UTC, as whoever looks at a lake may be. Without Trino, which needs a server: `readers` adds it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from operator import methodcaller
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from faults.pipeline.plain_spark import plain_spark
from headrace_spark.lake.table_log import dataset_of

ZONE: Final = "Asia/Kolkata"
COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "messages": (
        *("publish_timestamp", "date", "tenant", "qos", "payload_format_indicator", "message_expiry_s"),
        *("retain", "content_type", "payload", "correlation_data", "user_properties"),
    ),
    "clean": ("event_timestamp", "tank", "levels", "reading"),
}
"""Of each table the columns of which something differs, or might."""
KEY: Final = ("journal_uuid", "journal_offset")
SHOWN_MAX: Final = 90
_TO_PANDAS: Final = methodcaller("to_pandas")
"""Of a table of Arrow, as deltalake's own does: that one reads files through Python, which may abort the process."""
Columns = dict[str, tuple[str, list[Any]]]
"""By column its type, as the reader names it, and the values."""
Reader = Callable[[Path, Sequence[str]], Columns]


def spark_rows(spark: SparkSession) -> Reader:
    def read(table: Path, names: Sequence[str]) -> Columns:
        rows = spark.read.format("delta").load(str(table)).select(*names)
        found = rows.collect()
        return {
            name: (rows.schema[name].dataType.simpleString(), [row[name] for row in found]) for name in names
        }

    return read


def spark_pandas(spark: SparkSession) -> Reader:
    def read(table: Path, names: Sequence[str]) -> Columns:
        return of_frame(spark.read.format("delta").load(str(table)).select(*names).toPandas())

    return read


def of_frame(frame: Any) -> Columns:
    return {name: (str(frame[name].dtype), frame[name].tolist()) for name in frame.columns}


def delta_rs(table: Path, names: Sequence[str]) -> Columns:
    query = f"SELECT {', '.join(names)} FROM rows"
    found = pa.table(QueryBuilder().register("rows", DeltaTable(table)).execute(query).read_all())
    return {name: (str(found.schema.field(name).type), found[name].to_pylist()) for name in names}


def pandas(table: Path, names: Sequence[str]) -> Columns:
    return of_frame(_TO_PANDAS(dataset_of(table).to_table(list(names))))


def duckdb_rows(table: Path, names: Sequence[str]) -> Columns:
    with duckdb.connect() as connection:
        connection.register("rows", dataset_of(table))
        found = connection.sql(f"SELECT {', '.join(names)} FROM rows")
        kinds = [str(kind) for kind in found.types]
        rows = found.fetchall()
    return {name: (kinds[at], [row[at] for row in rows]) for at, name in enumerate(names)}


def chosen(table: Path, names: Sequence[str]) -> dict[str, dict[str, tuple[Any, ...]]]:
    """Return the rows that are shown, by their keys: of each column one that is null, the least and the greatest."""
    found = delta_rs(table, (*KEY, *names))
    keys = list(zip(*(found[name][1] for name in KEY), strict=True))
    where: dict[str, dict[str, tuple[Any, ...]]] = {}
    for name in names:
        values = found[name][1]
        there = sorted(
            (order(value), key) for value, key in zip(values, keys, strict=True) if value is not None
        )
        null = min((key for value, key in zip(values, keys, strict=True) if value is None), default=None)
        where[name] = {"least": there[0][1], "greatest": there[-1][1]} | ({"null": null} if null else {})
    return where


def order(value: Any) -> tuple[Any, str]:
    """Return what values of one column are ordered by: numbers by their size, others as they are shown."""
    return (value if isinstance(value, int | float) else 0), repr(value)


def look(reader: Reader, table: Path, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return what a reader shows of each column: its type, and the values of the chosen rows; an error in the place of
    both."""
    where, shown = chosen(table, names), {}
    for name in names:
        try:
            found = reader(table, (*KEY, name))
        except Exception as error:  # whatever a reader ends with
            shown[name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"[:SHOWN_MAX]}
            continue
        keys = zip(*(found[part][1] for part in KEY), strict=True)
        values = dict(zip(keys, found[name][1], strict=True))
        shown[name] = {"type": found[name][0]} | {
            what: short(repr(values[key])) for what, key in where[name].items()
        }
    return shown


def short(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def add(result: dict[str, Any], name: str, reader: Reader, lake: Path) -> None:
    """Add to a result what one more reader shows, by table and column."""
    for table, names in COLUMNS.items():
        columns = result["shown"].setdefault(table, {})
        for column, seen in look(reader, lake / table, names).items():
            columns.setdefault(column, {})[name] = seen


def main() -> int:
    os.environ["TZ"] = ZONE
    time.tzset()
    names = ("pyspark", "delta-spark", "deltalake", "pyarrow", "pandas", "duckdb")
    result: dict[str, Any] = {
        "zone": ZONE,
        "versions": {name: version(name) for name in names},
        "shown": {},
    }
    lake = Path(sys.argv[1])
    with plain_spark() as spark:
        add(result, "Spark", spark_rows(spark), lake)
        add(result, "Spark, `toPandas`", spark_pandas(spark), lake)
    add(result, "deltalake, Arrow", delta_rs, lake)
    add(result, "deltalake, `to_pandas`", pandas, lake)
    add(result, "DuckDB", duckdb_rows, lake)
    text = json.dumps(result, indent=1, ensure_ascii=False)
    Path(sys.argv[2]).write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
