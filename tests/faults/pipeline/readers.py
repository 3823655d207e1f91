"""Every table of a lake as four readers have it: Spark, delta-rs, DuckDB through Arrow, and Trino.

    python -m faults.pipeline.readers [RESULT]

Each reads the rows, and is asked for aggregates of every column, which a reader may answer by the statistics of the log.
What they say must be the same. `READERS=spark,duckdb` names those that are asked. Trino needs a newer Java, at JAVA_HOME.
RESULT is a file that gets what was found, and what each of them shows of the same values (`shown`): the page
docs/reference/readers.md is made from it, by `readers_page`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from faults.pipeline import every_table, shown
from faults.pipeline.every_table import NAMES, lake_in
from faults.pipeline.plain_spark import plain_spark
from headrace_spark.lake.table_log import dataset_of
from spark.trino_server import JAVA_MIN, VERSION, Trino, java_for_trino, trino_server

Rows = list[dict[str, Any]]
Said = dict[str, str]
"""Figures by their names: what a reader says of a table."""
COUNT, DIGEST = "rows", "digest of the rows"
BEYOND: Final = "+10000-01-01 00:00:00.000"
"""How Trino shows the last millisecond of the year 9999 when it is rounded up."""
SOUGHT: Final = (
    "tenant",
    "topic",
    "client_id",
    "message_id",
    "publish_timestamp",
    "window_start",
    "event_timestamp",
)


class Reader(Protocol):
    """Asks about the table `rows` by SQL; its own words where there is none for all four."""

    octets: str
    """Bytes of a binary value."""
    items: str
    """Items of a list."""
    moment: str
    """A time of this text."""
    apostrophe: str
    """Within a text."""
    unit_us: int
    """What it rounds times to."""

    def ask(self, table: Path, query: str) -> Rows: ...


class SparkReader:
    """Spark with Delta, and nothing of headrace."""

    octets, items, moment = "octet_length({})", "size({})", "TIMESTAMP '{}+00:00'"
    apostrophe, unit_us = "\\'", 1

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def ask(self, table: Path, query: str) -> Rows:
        self._spark.read.format("delta").load(str(table)).createOrReplaceTempView("rows")
        found: Rows = self._spark.sql(query).toArrow().to_pylist()
        return found


class DeltaRsReader:
    octets, items = "length(encode({}, 'hex')) / 2", "cardinality({})"
    moment = "arrow_cast('{}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    apostrophe, unit_us = "''", 1

    def ask(self, table: Path, query: str) -> Rows:
        found = QueryBuilder().register("rows", DeltaTable(table)).execute(query).read_all()
        rows: Rows = pa.table(found).to_pylist()
        return rows


class DuckDbReader:
    """Without its extension for Delta, which is no part of its wheel."""

    octets, items, moment = "octet_length({})", "len({})", "TIMESTAMPTZ '{}+00:00'"
    apostrophe, unit_us = "''", 1

    def ask(self, table: Path, query: str) -> Rows:
        with duckdb.connect() as connection:
            connection.register("rows", dataset_of(table))
            found: Rows = connection.sql(query).to_arrow_table().to_pylist()
            return found


class TrinoReader:
    octets, items, moment = "length({})", "cardinality({})", "TIMESTAMP '{} UTC'"
    apostrophe, unit_us = "''", 1000

    def __init__(self, trino: Trino) -> None:
        self._trino = trino
        trino.ask("CREATE SCHEMA delta.lake WITH (location = 'local:///_schema')")
        for name in NAMES:
            trino.ask(f"CALL delta.system.register_table('lake', '{name}', 'local:///{name}')")

    def ask(self, table: Path, query: str) -> Rows:
        columns, rows = self._trino.ask(query.replace("FROM rows", f"FROM delta.lake.{table.name}"))
        names = [column["name"] for column in columns]
        kinds = [column["typeSignature"] for column in columns]
        return [dict(zip(names, map(value_of, kinds, row), strict=True)) for row in rows]

    def show(self, table: Path, names: Sequence[str]) -> dict[str, tuple[str, list[Any]]]:
        """Return of each column its type, as Trino names it, and the values as its JSON has them."""
        asked = ", ".join(f'"{name}"' for name in names)
        columns, rows = self._trino.ask(f"SELECT {asked} FROM delta.lake.{table.name}")
        return {each["name"]: (each["type"], [row[at] for row in rows]) for at, each in enumerate(columns)}


def value_of(kind: Mapping[str, Any], said: Any) -> Any:
    """A value of Trino's JSON."""
    if said is None:
        return None
    match kind["rawType"], [argument["value"] for argument in kind["arguments"]]:
        case "array", [item]:
            return [value_of(item, each) for each in said]
        case "row", fields:
            named = zip(fields, said, strict=True)
            return {at["fieldName"]["name"]: value_of(at["typeSignature"], each) for at, each in named}
        case "varbinary", _:
            return b64decode(said)
        case "double", _:
            return float(said)
        case "date", _:
            return date.fromisoformat(said)
        case "timestamp with time zone", _ if said.startswith(BEYOND):
            return BEYOND
        case "timestamp with time zone", _:
            return datetime.fromisoformat(said.removesuffix(" UTC")).replace(tzinfo=UTC)
    return said


@dataclass(frozen=True)
class Look:
    """What a reader says of a table: its rows, its answers, and how many rows it found of those that have a value."""

    rows: Rows
    answers: Mapping[str, Any]
    found: Mapping[str, str]

    @classmethod
    def at(cls, reader: Reader, table: Path) -> Look:
        rows = reader.ask(table, "SELECT * FROM rows")
        schema = pa.schema(DeltaTable(table).schema().to_arrow())
        wanted = {"rows, counted": "count(*)"} | dict(aggregates(reader, schema))
        asked = ", ".join(f"{how} AS a{number}" for number, how in enumerate(wanted.values()))
        (answer,) = reader.ask(table, f"SELECT {asked} FROM rows")
        answers = dict(zip(wanted, answer.values(), strict=True))
        return cls(rows, answers, dict(chosen_rows(reader, table, rows)))

    def said(self, unit_us: int) -> Said:
        """In figures, with times rounded to that unit."""
        rows: Rows = rounded(self.rows, unit_us)
        names = sorted({name for row in self.rows for name in row})
        said: Said = {COUNT: f"{len(rows)}", DIGEST: digest([row[name] for name in names] for row in rows)}
        for name in names:
            said[f"{name}, not null"] = f"{sum(row[name] is not None for row in rows)}"
            said[f"{name}, digest"] = digest(row[name] for row in rows)
        said |= {name: text_of(rounded(value, unit_us)) for name, value in self.answers.items()}
        return said | dict(self.found)


def rounded(value: Any, unit_us: int) -> Any:
    match value:
        case datetime():
            with suppress(OverflowError):  # into the year 10000
                value += timedelta(microseconds=unit_us // 2)
                return value.replace(microsecond=value.microsecond // unit_us * unit_us)
            return BEYOND
        case dict():
            return {name: rounded(each, unit_us) for name, each in value.items()}
        case list():
            return [rounded(each, unit_us) for each in value]
    return value


def chosen_rows(reader: Reader, table: Path, rows: Rows) -> Iterator[tuple[str, str]]:
    """Which rows of a value are found, for which a reader looks in the files that may have it: by their partition, or by
    the least and the greatest value that the log says of them."""
    for name in [name for name in SOUGHT if rows and name in rows[0]]:
        counts = Counter(row[name] for row in rows if row[name] is not None)
        values = sorted(value for value in counts if value != BEYOND)
        for number, value in enumerate(values):
            if name != "tenant" and 0 < number < len(values) - 1:
                continue
            if isinstance(value, datetime):
                sought = reader.moment.format(value.replace(tzinfo=None).isoformat(" "))
            else:
                text = value.replace("\\", "\\\\") if "\\" in reader.apostrophe else value
                sought = f"'{text.replace(chr(39), reader.apostrophe)}'"
            (answer,) = reader.ask(table, f'SELECT count(*) AS found FROM rows WHERE "{name}" = {sought}')
            is_right = answer["found"] == counts[value]
            what = value if name == "tenant" else "its greatest" if number else "its least"
            yield f"{name} = {what}", "all" if is_right else f"{answer['found']} of {counts[value]}"


def aggregates(reader: Reader, schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """What is asked about each column, fields of structs as well."""
    for path, kind in leaves([((field.name,), field.type) for field in schema]):
        name, column = ".".join(path), ".".join(f'"{part}"' for part in path)
        yield f"{name}, counted", f"count({column})"
        if pa.types.is_list(kind):
            yield f"{name}, sum of items", f"sum({reader.items.format(column)})"
            continue
        if pa.types.is_boolean(kind):
            yield f"{name}, true", f"sum(CASE WHEN {column} THEN 1 ELSE 0 END)"
            continue
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            length = "length({})" if pa.types.is_string(kind) else reader.octets
            yield f"{name}, sum of lengths", f"sum({length.format(column)})"
        yield f"{name}, least", f"min({column})"
        yield f"{name}, greatest", f"max({column})"


def leaves(
    fields: list[tuple[tuple[str, ...], pa.DataType]],
) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    for path, kind in fields:
        if pa.types.is_struct(kind):
            yield from leaves([((*path, field.name), field.type) for field in kind])
        else:
            yield path, kind


def text_of(value: Any) -> str:
    match value:
        case bytes():
            return value.hex()
        case Decimal():  # as DuckDB adds up numbers
            return str(value)
        case datetime() | date():
            return value.isoformat()
        case dict():
            return text_of([[name, value[name]] for name in sorted(value)])
        case list():
            return f"[{', '.join(map(text_of, value))}]"
    return repr(value)


def digest(values: Iterable[Any]) -> str:
    """Of values in whatever order."""
    return sha256("\n".join(sorted(map(text_of, values))).encode(errors="surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True)
class Compared:
    """What one reader said of one table beside the first one: how many rows and figures, which figures differ; `error`
    where it cannot read the table."""

    rows: int = 0
    figures: int = 0
    others: tuple[str, ...] = ()
    error: str = ""

    @property
    def is_alike(self) -> bool:
        return not (self.others or self.error)


def compare(table: Path, readers: Mapping[str, Reader]) -> dict[str, Compared]:
    """Print a line for each reader, and each figure of which one says something else than the first, or finds less than
    it shows; return the same by reader."""
    first: Look | None = None
    unit_us = 1
    compared: dict[str, Compared] = {}
    for name, reader in readers.items():
        try:
            look = Look.at(reader, table)
        except Exception as error:  # whatever a reader ends with
            print(f"{table.name:16} {name:8} cannot read it: {str(error).splitlines()[0]}", flush=True)
            compared[name] = Compared(error=str(error).splitlines()[0])
            continue
        if first is None:
            first, unit_us = look, reader.unit_us
        both_us = max(unit_us, reader.unit_us)
        said, expected = look.said(both_us), first.said(both_us) | dict.fromkeys(look.found, "all")
        others = [what for what in expected | said if said.get(what) != expected.get(what)]
        verdict = f"{len(others)} DIFFERENT" if others else "the same" if look is not first else said[DIGEST]
        print(f"{table.name:16} {name:8} {said[COUNT]:>6} rows, {len(said)} figures, {verdict}", flush=True)
        for what in others:
            print(f"    {what}: {expected.get(what)}, but {name} says {said.get(what)}", flush=True)
        compared[name] = Compared(int(said[COUNT]), len(said), tuple(others))
    return compared


@contextmanager
def spark_reader(_folder: Path, _lake: Path) -> Iterator[Reader]:
    with plain_spark() as spark:
        yield SparkReader(spark)


@contextmanager
def trino_reader(folder: Path, lake: Path) -> Iterator[Reader]:
    java = java_for_trino()
    assert java is not None
    (folder / "trino").mkdir()
    with trino_server(folder / "trino", java, lake) as trino:
        yield TrinoReader(trino)


READERS: Final[Mapping[str, Callable[[Path, Path], AbstractContextManager[Reader]]]] = {
    "spark": spark_reader,
    "delta-rs": lambda *_: nullcontext(DeltaRsReader()),
    "duckdb": lambda *_: nullcontext(DuckDbReader()),
    "trino": trino_reader,
}


def main() -> int:
    chosen = (os.environ.get("READERS") or ",".join(READERS)).split(",")
    unknown = [name for name in chosen if name not in READERS]
    if unknown:
        print(f"READERS={','.join(chosen)}: there are {', '.join(READERS)}", file=sys.stderr)
        return 2
    if "trino" in chosen and java_for_trino() is None:
        without = ",".join(name for name in READERS if name != "trino")
        print(
            f"Trino is left out: JAVA_HOME names no Java {JAVA_MIN} or later. Set it, or READERS={without} to do without",
            file=sys.stderr,
        )
        return 2
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        subprocess.run([sys.executable, "-m", every_table.__name__, name], check=True)
        lake = lake_in(Path(name))
        readers = {each: running.enter_context(READERS[each](Path(name), lake)) for each in chosen}
        found = {table: compare(lake / table, readers) for table in NAMES}
        alike = [all(each.is_alike for each in of_table.values()) for of_table in found.values()]
        print(f"{len(NAMES)} tables, {len(readers)} readers: {alike.count(False) or 'none'} read differently")
        if sys.argv[1:]:
            trino = readers.get("trino")
            record(Path(sys.argv[1]), lake, found, trino if isinstance(trino, TrinoReader) else None)
    return 0 if all(alike) else 1


def record(
    result: Path, lake: Path, found: Mapping[str, Mapping[str, Compared]], trino: TrinoReader | None
) -> None:
    """Write what was found into a file, with what each reader shows, in a process of its own in another zone."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shown.json"
        subprocess.run([sys.executable, "-m", shown.__name__, str(lake), str(file)], check=True)
        said = json.loads(file.read_text(encoding="utf-8"))
    if trino is not None:
        said["versions"]["trino"] = VERSION
        shown.add(said, "Trino", trino.show, lake)
    compared = {table: {name: asdict(one) for name, one in each.items()} for table, each in found.items()}
    text = json.dumps({"compared": compared} | said, indent=1, ensure_ascii=False)
    result.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
