"""Every column of a table of commands is what its messages have, whatever is in it; a row that is no message is put aside
as it was, and costs no other one anything.

Rows are drawn by a seed: HEADRACE_ODD_SEED says which, HEADRACE_ODD_MESSAGES how many.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from threading import Event
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from broker_process import BrokerProcess
from headrace_spark.jobs import publish
from headrace_spark.source.local import LocalJournal
from spark.conftest import settings_of
from spark.odd_values import PAIRS, Draw
from spark.story import read

pytestmark = pytest.mark.spark
COUNT: Final = int(os.environ.get("HEADRACE_ODD_MESSAGES", "300"))
SEED: Final = int(os.environ.get("HEADRACE_ODD_SEED", "1"))
U32: Final = 0xFFFFFFFF
GOOD: Final[dict[str, tuple[Any, ...]]] = {
    "topic": ("odd/1", "odd/ü", "odd/%2F", "odd/ 'x'\\", "odd/" + "\U0010fffd" * 40),
    "payload": (None, b"", b"\0\xff", b"1" * 5000),
    "qos": (None, 1, 2),
    "retain": (None, True, False),
    "message_expiry_s": (None, 1, 0x80000000, U32 - 1, U32),
    "payload_format_indicator": (None, 0),
    "content_type": (None, "", "application/json", "é" * 3000),
    "response_topic": (None, "answers/ü"),
    "correlation_data": (None, b"", b"\0\xff" * 100),
    "user_properties": (None, [], PAIRS[:3], PAIRS[4:8], PAIRS[9:]),
}
BAD: Final[dict[str, tuple[Any, ...]]] = {
    "topic": (None, "", "odd/+", "#", "odd\0", "x" * 65_536),
    "qos": (0, 3, -1, 127),
    "message_expiry_s": (-1, U32 + 1, -(1 << 63)),
    "payload_format_indicator": (2, -1),
    "content_type": ("é" * 32_768, "\0"),
    "response_topic": ("odd/+", "#"),
    "correlation_data": (bytes(65_536),),
    "user_properties": ([("a", "x" * 65_536)],),
}
TYPES: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("payload", pa.binary()),
        ("qos", pa.int8()),
        ("retain", pa.bool_()),
        ("message_expiry_s", pa.int64()),
        ("payload_format_indicator", pa.int8()),
        ("content_type", pa.string()),
        ("response_topic", pa.string()),
        ("correlation_data", pa.binary()),
        ("user_properties", pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))),
    ]
)
OWN: Final = ("producer-id", "producer-sequence", "producer-owner")
Row = dict[str, Any]


def drawn(draw: Draw) -> tuple[Row, bool]:
    """Return a row, and whether it is a message."""
    row = {name: draw.choice(values) for name, values in GOOD.items()}
    is_bad = draw.random() < 0.2
    if is_bad:
        name = draw.choice(tuple(BAD))
        row[name] = draw.choice(BAD[name])
    pairs = row["user_properties"]
    row["user_properties"] = pairs and [{"name": name, "value": value} for name, value in pairs]
    return row, not is_bad


def comparable(rows: Iterable[Row]) -> list[str]:
    return sorted(repr([row[name] for name in TYPES.names]) for row in rows)


def meant(row: Row) -> Row:
    """Return a row with what it need not say."""
    defaults = {"payload": b"", "qos": 1, "retain": False, "user_properties": []}
    return row | {name: value for name, value in defaults.items() if row[name] is None}


def as_message(row: Row) -> Row:
    """Return what `messages` must say of a row."""
    whole = meant(row)
    pairs = [pair for pair in whole["user_properties"] if pair["name"] not in OWN]
    return whole | {"user_properties": pairs}


def test_every_column_leaves_as_it_stands_in_the_table(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    draw = Draw(SEED)
    rows = [drawn(draw) for _ in range(COUNT)]
    lake = tmp_path / "lake"
    for part in range(3):
        table = pa.Table.from_pylist([row for row, _ in rows[part::3]], TYPES)
        write_deltalake(lake / "commands", table, mode="append")
    url = f"tcp://127.0.0.1:{broker.port}"
    settings = settings_of("publish", lake, lake, table="commands", url=url)
    publish.check(settings)
    publish.run(spark, settings, Event(), lambda _: None)
    require_messages(broker, [row for row, is_good in rows if is_good])
    put_aside = DeltaTable(lake / "dead_letters").to_pyarrow_table().to_pylist()
    assert len(put_aside) == sum(not is_good for _, is_good in rows)
    assert all(row["reason"] for row in put_aside)
    bad = [row for row, is_good in rows if not is_good]
    for name in ("topic", "message_expiry_s", "content_type", "response_topic", "correlation_data"):
        assert sorted(repr(row[name]) for row in put_aside) == sorted(repr(row[name]) for row in bad), name
    for name in ("payload", "qos", "retain", "user_properties"):
        assert sorted(repr(row[name]) for row in put_aside) == sorted(
            repr(meant(row)[name]) for row in bad
        ), name


def require_messages(broker: BrokerProcess, sent: list[Row]) -> None:
    found = [row for row in read(LocalJournal(broker.data_dir)) if row["topic"].startswith("odd")]
    for row in found:
        own = row["user_properties"][-2:]
        assert [pair["name"] for pair in own] == ["producer-id", "producer-sequence"]
        assert own[0]["value"] == row["client_id"]
        row["user_properties"] = row["user_properties"][:-2]
        assert (row["mqtt5"], row["dup"], row["will"], row["protocol"]) == (True, False, False, "mqtt")
        named = [pair["value"] for pair in row["user_properties"] if pair["name"] == "message-id"][:1]
        is_named = bool(named and named[0])
        assert row["message_id"].startswith("client:default/" if is_named else "journal:")
        assert not is_named or row["message_id"].endswith(f"/{named[0]}")
    assert comparable(found) == comparable(map(as_message, sent))
