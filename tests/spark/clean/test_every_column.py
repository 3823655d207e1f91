"""Every column of `messages` and of `clean`, `quarantine` and `repeats` has what was sent, whatever that was.

Messages of all kinds are drawn with the rows that they must become: those of `messages` from what was drawn, those of
`clean` by a judge of its own, which reads JSON with Python. HEADRACE_ODD_MESSAGES says how many are drawn for each
journal, HEADRACE_ODD_SEED the first seed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from threading import Event as ThreadEvent
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from headrace.core.records.message import FrameMessage, Message, copy_of
from headrace.mqtt.properties import Properties
from headrace_spark.jobs import clean
from headrace_spark.records.decode import decode
from headrace_spark.records.schema import MESSAGES, arrow_schema
from headrace_spark.source.local import LocalJournal
from spark.conftest import Shards, Writer, settings_of
from spark.journals import EPOCH, MIDNIGHT_US, Made, message
from spark.odd_values import FILE, KINDS, PAIRS, TYPES, Draw

pytestmark = pytest.mark.spark

STATISTICS = {"delta.dataSkippingStatsColumns": "topic,journal_uuid,journal_epoch,journal_offset"}
COUNT = int(os.environ.get("HEADRACE_ODD_MESSAGES", "600"))
SEED = int(os.environ.get("HEADRACE_ODD_SEED", "1"))
U32 = 0xFFFFFFFF
WRONG, MISSING = object(), None


def no_number(text: str) -> Any:
    raise ValueError(text)


def judged(name: str, payload: bytes) -> tuple[str | None, Any]:
    """Return the reason of a payload, or None and its value: what the columns of `clean` must say."""
    kind = KINDS[name]
    if kind is None:
        return None, payload
    try:
        text = payload.decode().removeprefix("\ufeff")
    except UnicodeDecodeError:
        return "not_utf8", None
    try:
        found = json.loads(text, parse_float=Decimal, parse_constant=no_number)
    except ValueError:
        return "not_json", None
    if name == "whole" and not isinstance(found, dict):
        return "wrong_type", None
    value = valued(kind, found)
    if value is WRONG or (name != "whole" and value is None):
        return "wrong_type", None
    if name == "whole":
        for field in ("s", "tms"):
            if value[field] is None:
                return f"missing:{field}", None
    return None, value


def valued(kind: Any, found: Any) -> Any:
    if found is None:
        return None
    if isinstance(kind, dict):
        if not isinstance(found, dict):
            return WRONG
        fields = {name: valued(of, found.get(name)) for name, of in kind.items()}
        return WRONG if WRONG in fields.values() else fields
    if isinstance(kind, list):
        items = [valued(kind[0], item) for item in found] if isinstance(found, list) else [WRONG]
        return WRONG if any(item is WRONG for item in items) else items
    try:
        return SCALAR[kind](found)
    except (AssertionError, ValueError, OverflowError):
        return WRONG


def text_of(found: Any) -> str:
    assert isinstance(found, str)
    found.encode()
    return found


def long_of(found: Any) -> int:
    assert isinstance(found, int)
    assert not isinstance(found, bool)
    assert -(1 << 63) <= found < 1 << 63
    return found


def double_of(found: Any) -> float:
    assert isinstance(found, int | Decimal)
    assert not isinstance(found, bool)
    number = float(found)
    assert abs(number) < float("inf")
    return number


def boolean_of(found: Any) -> bool:
    assert isinstance(found, bool)
    return found


def since_1970(per_second: int) -> Callable[[Any], datetime]:
    def time_of(found: Any) -> datetime:
        number = Fraction(double_of(found) if per_second == 1 else long_of(found))
        return EPOCH + timedelta(microseconds=round(number * (1_000_000 // per_second)))

    return time_of


def date_of(found: Any) -> date:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", text_of(found), re.ASCII)
    return date.fromisoformat(found)


def time_of(found: Any) -> datetime:
    assert re.match(r"\d{4}-\d\d-\d\d($|[T ]\d\d:\d\d)", text_of(found), re.ASCII)
    at = datetime.fromisoformat(found)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)


SCALAR: dict[str, Callable[[Any], Any]] = {
    "string": text_of,
    "long": long_of,
    "double": double_of,
    "boolean": boolean_of,
    "date": date_of,
    "timestamp": time_of,
    "timestamp_s": since_1970(1),
    "timestamp_ms": since_1970(1000),
    "timestamp_us": since_1970(1_000_000),
}


class Sent:
    """Messages as they were drawn: the records of a journal, and the row of `messages` for each."""

    def __init__(self, seed: int) -> None:
        self.draw = Draw(seed)
        self.made = Made()
        self.rows: list[dict[str, Any]] = []

    def fill(self, count: int) -> None:
        for _ in range(count):
            (self.frame if self.draw.random() < 0.1 else self.publish)()
            if self.draw.random() < 0.1:
                self.made.add(copy_of(message(payload=b"of another shard"), 1, self.draw.randrange(100)))

    def _common(self) -> dict[str, Any]:
        draw = self.draw
        name = draw.choice((*KINDS, "whole", "whole", "nowhere"))
        at_us = MIDNIGHT_US + draw.choice((0, 1, draw.randrange(86_400_000_000), 86_399_999_999))
        received = EPOCH + timedelta(microseconds=at_us)
        return {
            "tenant": draw.choice(("default", "größe", "t")),
            "topic": f"{name}/{draw.choice(('', 'a b', 'ü', '%', 'x' * 300))}",
            "client_id": draw.choice(("d", "a/b", "a%2Fb", "ü", "c" * 0x8001)),
            "payload": draw.payload(KINDS.get(name)),
            "publish_timestamp": received,
            "date": received.date(),
            "message_expiry_s": draw.choice((None, 0, 1, 0x7FFFFFFF, 0x80000000, U32 - 1, U32)),
            "incarnation": 0,
        }

    def frame(self) -> None:
        row = self._common() | {"qos": 1, "protocol": "frame", "user_properties": []}
        row |= dict.fromkeys(("retain", "dup", "will", "mqtt5"), False)
        tenant, origin = row["tenant"], (row["tenant"] + row["client_id"]).encode()
        self._add(
            FrameMessage(
                round((row["publish_timestamp"] - EPOCH) / timedelta(microseconds=1)),
                self.draw.choice((0, 0x7FFF, 0xFFFF, U32)),
                tenant,
                origin,
                len(tenant.encode()),
                row["topic"].encode(),
                expiry(row),
                row["payload"],
            ),
            row,
            None,
        )

    def publish(self) -> None:
        draw, row = self.draw, self._common()
        mqtt5 = draw.random() < 0.7
        row |= {name: draw.random() < 0.5 for name in ("retain", "dup", "will")}
        row |= {"qos": draw.randrange(3), "mqtt5": mqtt5, "protocol": "mqtt"}
        row["incarnation"] = draw.choice((0, 1, 1 << 40, (1 << 63) - 1))
        properties, own = Properties(), None
        for name, values in PROPERTIES.items():
            row[name] = draw.choice(values) if mqtt5 else None
            setattr(properties, name, row[name])
        pairs = [draw.choice(PAIRS) for _ in range(draw.randrange(4))] if mqtt5 else []
        if not mqtt5:
            row["message_expiry_s"] = None
        own = next((value for name, value in pairs if name == "message-id"), None)
        properties.user_properties = pairs
        row["user_properties"] = [{"name": name, "value": value} for name, value in pairs]
        tenant, origin = row["tenant"], (row["tenant"] + row["client_id"]).encode()
        flags = row["qos"] | row["retain"] << 2 | row["dup"] << 3 | mqtt5 << 4 | row["will"] << 5
        self._add(
            Message(
                round((row["publish_timestamp"] - EPOCH) / timedelta(microseconds=1)),
                flags,
                draw.choice((0, 0x8000, 0xFFFF)),
                row["incarnation"],
                tenant,
                origin,
                len(tenant.encode()),
                row["topic"].encode(),
                properties.encode() if mqtt5 else b"",
                expiry(row),
                row["payload"],
            ),
            row,
            own,
        )

    def _add(self, record: Message, row: dict[str, Any], own: str | None) -> None:
        row |= {"journal_offset": len(self.made.records)}
        client = row["client_id"].replace("%", "%25").replace("/", "%2F")
        row["message_id"] = f"client:{row['tenant']}/{client}/{own}" if own else None
        self.made.add(record)
        self.rows.append(row)

    def written_to(self, writer: Writer) -> list[dict[str, Any]]:
        """Write the records and return the rows of `messages`, all columns."""
        writer.write(self.made)
        for row in self.rows:
            row |= {"journal_uuid": writer.uuid, "journal_epoch": writer.epoch}
            row["message_id"] = (
                row["message_id"] or f"journal:{writer.uuid}:{writer.epoch}:{row['journal_offset']}"
            )
        return [{name: row.get(name) for name in MESSAGES.names} for row in self.rows]


def expiry(row: dict[str, Any]) -> int:
    return -1 if row["message_expiry_s"] is None else int(row["message_expiry_s"])


PROPERTIES: dict[str, tuple[Any, ...]] = {
    "payload_format_indicator": (None, 0, 1),
    "content_type": (None, "", "application/json", "é" * 3000),
    "response_topic": (None, "a", "ü"),
    "correlation_data": (None, b"", b"\0\xff" * 100),
}


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["journal_uuid"], row["journal_epoch"], row["journal_offset"]


def table(lake: Path, name: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    rows = DeltaTable(lake / name).to_pyarrow_table().to_pylist()
    found = {place(row): row for row in rows}
    assert len(found) == len(rows)
    return found


def repeats_of(rows: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    firsts: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row["publish_timestamp"], place(row))):
        firsts.setdefault(row["message_id"], row)
    return {place(row) for row in rows if firsts[row["message_id"]] is not row}


def cleaned(lake: Path, row: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the table that a row of `messages` goes to when it is no repeat, and the columns that it has there."""
    name = row["topic"].partition("/")[0]
    if name not in KINDS:
        return "quarantine", {"schema": None, "reason": "no_schema", "payload": row["payload"]}
    reason, value = judged(name, row["payload"])
    if reason is not None:
        return "quarantine", {"schema": name, "reason": reason, "payload": row["payload"]}
    own = {"schema": name, "payload": value if name == "raw" else None}
    own |= {schema: None for schema in KINDS if schema != "raw"}
    own["event_timestamp"] = value["tms"] if name == "whole" else row["publish_timestamp"]
    own["late"] = row["publish_timestamp"] - own["event_timestamp"] > timedelta(seconds=300)
    return "clean", own if name == "raw" else own | {name: value}


class Sources:
    """A journal, and those of two shards: the rows that they must become, and the batches of each."""

    def __init__(self, folder: Path) -> None:
        self.rows: list[dict[str, Any]] = []
        self.tables: list[pa.Table] = []
        schema = arrow_schema(MESSAGES)
        for number, writer in enumerate((Writer(folder / "one"), *Shards(folder / "shards", 2).writers)):
            drawn = Sent(SEED + number)
            drawn.fill(COUNT)
            self.rows += drawn.written_to(writer)
            batches = list(LocalJournal(writer.data_dir).scan(0, len(drawn.made.records)))
            self.tables.append(
                pa.Table.from_batches(decode(batches, writer.uuid, 0, 1 << 40, schema), schema)
            )


def test_every_column_of_messages_has_what_was_sent(tmp_path: Path) -> None:
    sources = Sources(tmp_path)
    found = [row for read in sources.tables for row in read.to_pylist()]
    assert len(found) == len(sources.rows)
    for row, wanted in zip(found, sources.rows, strict=True):
        assert row == wanted


def test_every_column_of_clean_has_what_was_sent(spark: SparkSession, tmp_path: Path) -> None:
    lake, sources = tmp_path / "lake", Sources(tmp_path)
    sent = sources.rows
    for rows in sources.tables:
        write_deltalake(
            lake / "messages", rows, mode="append", partition_by=["tenant", "date"], configuration=STATISTICS
        )
    (tmp_path / "schemas.toml").write_text(FILE, encoding="utf-8")
    settings = settings_of("clean", lake, lake, topic_schemas=str(tmp_path / "schemas.toml"), restarts_max=0)
    clean.run(spark, settings, ThreadEvent(), lambda _: None)
    tables = {name: table(lake, name) for name in ("clean", "quarantine", "repeats")}
    assert sum(map(len, tables.values())) == len(sent)
    repeated = repeats_of(sent)
    assert tables["repeats"].keys() == repeated
    for row in sent:
        name, own = ("repeats", {}) if place(row) in repeated else cleaned(lake, row)
        found = tables[name].get(place(row))
        assert found is not None, (name, own, row["payload"])
        whole = found.get("whole")
        if whole is not None:
            rescued = json.loads(whole.pop("_rescued") or "{}", parse_float=Decimal)
            given = json.loads(row["payload"].decode().removeprefix("\ufeff"), parse_float=Decimal)
            assert rescued == {key: value for key, value in given.items() if key not in TYPES}
        wanted = {column: row[column] for column in found if column in row} | own
        assert found == wanted, row["payload"]
    reasons = {row["reason"] for row in tables["quarantine"].values()}
    assert reasons >= {"no_schema", "not_utf8", "not_json", "wrong_type", "missing:s", "missing:tms"}
    assert {row["schema"] for row in tables["clean"].values()} == set(KINDS)
