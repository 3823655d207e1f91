"""What `make readers` compares with: it sees what a reader reads differently, and leaves out none that it cannot have."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from faults.pipeline.readers import (
    BEYOND,
    DeltaRsReader,
    DuckDbReader,
    Reader,
    Rows,
    compare,
    main,
    rounded,
    value_of,
)
from spark.trino_server import java_for_trino

pytestmark = pytest.mark.spark
AT = datetime(1, 1, 1, tzinfo=UTC)
ROWS: list[dict[str, Any]] = [
    {
        "text": "ü\0",
        "bytes": b"\xff",
        "when": AT,
        "day": date(9999, 12, 31),
        "list": [{"a": "x"}, {"a": None}],
    },
    {
        "text": "",
        "bytes": b"",
        "when": None,
        "day": None,
        "list": [],
        "yes": True,
        "one": {"two": {"three": 1e308}},
    },
    {"number": -(1 << 63), "one": {"two": None}, "list": None},
]


class Altered:
    """A reader that has one value otherwise."""

    octets, items, moment = DuckDbReader.octets, DuckDbReader.items, DuckDbReader.moment
    apostrophe, unit_us = DuckDbReader.apostrophe, DuckDbReader.unit_us

    def __init__(self, column: str, value: object) -> None:
        self._change = {column: value}

    def ask(self, table: Path, query: str) -> Rows:
        rows = DuckDbReader().ask(table, query)
        return [rows[0] | self._change, *rows[1:]] if "*" in query.split() else rows


@pytest.fixture
def table(tmp_path: Path) -> Path:
    names = dict.fromkeys(name for row in ROWS for name in row)
    write_deltalake(tmp_path / "odd", pa.Table.from_pylist([dict.fromkeys(names) | row for row in ROWS]))
    return tmp_path / "odd"


def test_readers_that_say_the_same(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = compare(table, {"delta-rs": DeltaRsReader(), "duckdb": DuckDbReader()})
    assert all(each.is_alike and each.rows == 3 for each in found.values())
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in lines] == [
        ["odd", name, "3", "rows,"] for name in ("delta-rs", "duckdb")
    ]


@pytest.mark.parametrize(
    ("column", "value"), [("text", "ü"), ("bytes", b"\xfe"), ("day", None), ("list", [])]
)
def test_one_value_that_is_read_differently(
    table: Path, column: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    readers: dict[str, Reader] = {"delta-rs": DeltaRsReader(), "other": Altered(column, value)}
    found = compare(table, readers)
    assert f"{column}, digest" in found["other"].others
    assert not found["other"].is_alike
    assert f"    {column}, digest: " in capsys.readouterr().out


def test_a_reader_that_cannot_read_a_table_at_all(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (table / "_delta_log" / f"{1:020}.json").write_text("{ torn")
    assert not compare(table, {"delta-rs": DeltaRsReader()})["delta-rs"].is_alike
    assert "cannot read it" in capsys.readouterr().out


def test_what_trino_says_of_nested_values() -> None:
    def kind(name: str, *within: Any) -> dict[str, Any]:
        return {"rawType": name, "arguments": [{"kind": "any", "value": value} for value in within]}

    fields = [
        {"fieldName": {"name": name}, "typeSignature": of}
        for name, of in (
            ("b", kind("varbinary")),
            ("t", kind("timestamp with time zone", 6)),
            ("d", kind("date")),
        )
    ]
    said = [["/w==", "0001-01-01 00:00:00.000000 UTC", "9999-12-31"], None, [None, None, None]]
    found = value_of(kind("array", kind("row", *fields)), said)
    assert found == [
        {"b": b"\xff", "t": AT, "d": date(9999, 12, 31)},
        None,
        {"b": None, "t": None, "d": None},
    ]
    assert value_of(kind("double"), "Infinity") == float("inf")


def test_times_as_trino_rounds_them() -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)
    assert rounded([{"t": AT.replace(microsecond=1_499)}, last], 1000) == [
        {"t": AT.replace(microsecond=1000)},
        BEYOND,
    ]
    assert rounded(last, 1) == last
    kind = {"rawType": "timestamp with time zone", "arguments": [{"kind": "LONG", "value": 3}]}
    assert value_of(kind, f"{BEYOND} UTC") == BEYOND


@pytest.mark.parametrize(("version", "is_enough"), [("17.0.17", False), ("24", True), ("25.0.1", True)])
def test_a_java_that_is_too_old_is_said_and_trino_never_left_out(
    tmp_path: Path,
    version: str,
    is_enough: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "release").write_text(f'IMPLEMENTOR="any"\nJAVA_VERSION="{version}"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_for_trino() == (tmp_path / "bin" / "java" if is_enough else None)
    monkeypatch.setenv("READERS", "" if not is_enough else "presto")
    assert main() == 2
    assert ("READERS=spark,delta-rs,duckdb" if not is_enough else "presto") in capsys.readouterr().err


def test_arrow_alone_loses_a_file_without_a_greatest_value(tmp_path: Path) -> None:
    """As docs/how-to/measure-and-report.md says. Once DuckDB finds the row, `make readers` may have such names."""
    write_deltalake(tmp_path / "odd", pa.table({"topic": ["a", "\U0010ffff" * 33]}))
    log = tmp_path / "odd" / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:  # Spark's Delta says none where it cannot be cut to 32 characters
            statistics = json.loads(action["add"]["stats"])
            del statistics["maxValues"]["topic"]
            action["add"]["stats"] = json.dumps(statistics)
    log.write_text("\n".join(map(json.dumps, actions)))
    query = "SELECT count(*) AS found FROM rows WHERE topic = 'a'"
    assert DuckDbReader().ask(tmp_path / "odd", query) == [{"found": 0}]
    assert DeltaRsReader().ask(tmp_path / "odd", query) == [{"found": 1}]
