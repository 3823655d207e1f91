"""A lake with every table that a job makes, of two shards, with what is odd in names and payloads, and after upkeep.

python -m faults.pipeline.every_table FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from random import Random
from threading import Event
from typing import Any, Final

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from broker_process import make_broker
from headrace.data.layout import Layout
from headrace.mqtt.properties import Properties
from headrace_spark.base.session import close_session, open_session
from headrace_spark.devices.outbox import OUTBOX
from headrace_spark.devices.outgoing import COLUMNS
from headrace_spark.jobs import module_of
from headrace_spark.lake.table_log import dataset_of
from headrace_spark.lake.tables import TABLES
from spark.conftest import QUICK, Writer, settings_of
from spark.histories import History
from spark.journals import MIDNIGHT_US, Made, message

REPLAYED: Final = "again"
NAMES: Final = ("messages", *(table.name for table in TABLES), "event_snapshot", "outbox", REPLAYED)
TENDED, TURNS = 1, 3
"""Of the turns the one in which upkeep is due; it is remembered of a table in the first, and the last comes after it."""
_START_S: Final = 600
JOBS: Final = ("archive", "clean", "metrics", "compact-events")
TENANTS: Final = (
    *(
        "default",
        "a b",
        "Größe 水 🚰",
        "x=1%2F",
        'it\'s \\ "one"',
        "a/b:c?d#e&f",
        "null",
        "~",
        " x ",
        "tab\there\u2028",
    ),
)
CLIENTS: Final = ("device-1", "a/b", "50%", "größe", "'", "🚰" * 40, "\U0010ffff", "\U000fffff" * 33, "\t")
TOPICS: Final = (
    *(
        "plant/1/t",
        "plant/line 1/température",
        "plant/" + "a" * 40,
        "plant/" + "\uffff" * 40,
        "tank/1",
        "tank/ 水",
    ),
    *(
        "camera/1",
        "levels/%2F/x=1",
        "late/1",
        "nowhere/1",
        "/",
        "a//b",
        "a'b\\c\u2028\x85",
        "\U0010ffff",
        "\U000fffff" * 40,
    ),
)
SCHEMAS: Final = """
[[schema]]
name = "reading"
topics = ["plant/#"]
event_time = "at"
rescue = true
fields = { device = "string", at = "timestamp_us", value = "double", count = "long", fine = "boolean", day = "date", \
seen = "timestamp", took = "timestamp_s", tags = ["string"], places = [{ lat = "double", name = "string" }], \
position = { lat = "double", at = { x = "long", day = "date" } } }

[[schema]]
name = "tank"
topics = ["tank/#"]
payload = "double"

[[schema]]
name = "levels"
topics = ["levels/#"]
payload = ["long"]
lenient = true

[[schema]]
name = "picture"
topics = ["camera/#"]
"""
MENDED: Final = """
[[schema]]
name = "added"
topics = ["nowhere/#"]
"""
READINGS: Final[tuple[dict[str, Any], ...]] = (
    {
        "device": "d\0é😀",
        "at": -62_135_596_800_000_000,
        "value": 1.7976931348623157e308,
        "count": (1 << 63) - 1,
    },
    {"device": "", "at": 253_402_300_799_999_999, "value": 5e-324, "count": -(1 << 63), "day": "0001-01-01"},
    {"device": "\u2028'\"\\", "at": -1, "value": -1.7976931348623157e308, "fine": True, "day": "9999-12-31"},
    {"at": 0, "device": None, "value": 10**30, "tags": [], "position": {}, "places": [], "fine": False},
    {"at": MIDNIGHT_US + 1, "tags": [None, "", "a,b"], "position": {"lat": 0.1, "at": {"x": 7}}, "count": 0},
    {
        "at": 999_999,
        "places": [{"lat": 1e-300}, {}, {"name": "ü"}],
        "seen": "1582-10-10T00:00:00Z",
        "took": -0.5,
    },
    {
        "at": 1,
        "seen": "1969-12-31T23:59:59.999999Z",
        "day": "1582-10-10",
        "x\n": {"ü": [1, None]},
        "took": 1e9,
    },
    {"at": 2, "seen": "9999-12-31T23:59:59.999999Z", "position": {"at": None}, "value": 1e16},
)
PAYLOADS: Final = (
    *(json.dumps(reading).encode() for reading in READINGS),
    *(
        b"",
        b"\x00",
        b"\xff\xfe",
        bytes(range(256)),
        b"{}",
        b"null",
        b'{"device": "\xff"}',
        b'{"at": 1, "device": "\\ud800"}',
    ),
    *(
        b"[]",
        b"[1.0, 9223372036854775807, null]",
        b"[1e400]",
        b"1e400",
        b"-0.0",
        b"17976931348623157",
        b"0.1",
        b"true",
    ),
    *("größe".encode(), b"\xef\xbb\xbf1.5", b"x" * 5000, b'{"at": 1, "value": 1e400}', b'{"at": 9e99}'),
)
COMMANDS: Final[tuple[dict[str, Any], ...]] = (
    {"topic": "to/1", "payload": b"\x00\xff", "qos": 2, "retain": True, "message_expiry_s": 4_294_967_295},
    {"topic": "to/ 水", "payload": b"", "user_properties": [("a", ""), ("größe", "10 m²"), ("a", "2")]},
    {"topic": "to/x=1%2F", "content_type": "", "response_topic": "an/swer", "correlation_data": b"\xff"},
    {
        "topic": "to/" + "\uffff" * 40,
        "payload": b"x" * 5000,
        "payload_format_indicator": 0,
        "correlation_data": b"",
    },
    {"topic": "to/+", "payload": b"\xff" * 300, "content_type": "text/plain", "user_properties": []},
    {"topic": "to/0", "qos": 0},
    {"topic": None, "payload": b"nowhere", "correlation_data": b"\x00", "user_properties": [("'", "🚰")]},
    {"topic": "to/2", "message_expiry_s": -(1 << 63), "retain": False},
)


def odd(turn: int, shard: int) -> Made:
    """Every payload to every other topic; some with an id of their publisher, which comes again in the next turn."""
    draw, made = Random(10 * turn + shard), Made()
    tenants, clients = cycle(TENANTS), cycle(CLIENTS)
    for number, payload in enumerate(PAYLOADS * 4):
        properties = Properties()
        properties.payload_format_indicator = draw.choice((None, 0, 1))
        properties.content_type = draw.choice((None, "", "application/json", "ü" * 40))
        properties.response_topic = draw.choice((None, "answers/ü"))
        properties.correlation_data = draw.choice((None, b"", bytes(range(256))))
        pairs: list[list[tuple[str, str]]] = [
            [],
            [("message-id", f"m {number // 2}")],
            [("", ""), ("größe", "'")],
        ]
        properties.user_properties = draw.choice(pairs)
        made.add(
            message(
                # Of two days, and between milliseconds.
                number * draw.choice((1, 1_000_000_001)) + turn * 86_400_000_000,
                tenant=next(tenants),
                client_id=next(clients),
                # Most readings to where they are read as such.
                topic=draw.choice(TOPICS[:4] if payload.startswith(b"{") and draw.random() < 0.8 else TOPICS),
                qos=draw.randrange(3),
                retain=draw.random() < 0.3,
                version=5,
                properties=properties.encode(),
                expiry_s=draw.choice((-1, 0, 4_294_967_294)),
                payload=payload,
            )
        )
    return made


def lake_in(folder: Path) -> Path:
    return folder / "lake"


class EveryTable:
    """Two shards and one lake in a folder."""

    def __init__(self, folder: Path) -> None:
        self.lake = lake_in(folder)
        self._folder = folder
        self._data = folder / "data"
        self._shards = [Writer(each) for each in Layout.make(self._data, 2).directories()]
        self._schemas = folder / "schemas.toml"
        self._schemas.write_text(SCHEMAS)

    def write(self) -> None:
        """Run every job, in turns. Raises AssertionError where a table is missing, empty, or was never compacted."""
        broker = make_broker(self._folder / "broker").start(_START_S)
        spark = open_session(self._settings("archive").spark)
        try:
            for turn in range(TURNS):
                self._publish_to_journals(turn)
                if turn == TENDED:
                    self._let_tend(*NAMES[1:])
                for job in JOBS:
                    self._run(spark, job)
                if turn == TENDED:  # not before `clean` has read the files
                    self._let_tend("messages")
                    self._run(spark, "archive")
                self._send(spark, broker.port)
                if not turn:
                    self._schemas.write_text(SCHEMAS + MENDED)
                    self._run(spark, "mend")
            self._run(spark, "replay", name=REPLAYED, table=REPLAYED, offsets_per_slice=400)
        finally:
            close_session(spark)
            broker.end()
        self._require()

    def _publish_to_journals(self, turn: int) -> None:
        for shard, writer in enumerate(self._shards):
            if not turn:  # sessions are known by their place in the journal
                writer.write(History(shard, 1000, TENANTS, CLIENTS).made)
            writer.write(odd(turn, shard))

    def _send(self, spark: SparkSession, port: int) -> None:
        own = {field.name: field for field in OUTBOX if field.name in COLUMNS}
        rows = [tuple(command.get(name) for name in own) for command in COMMANDS]
        commands = spark.createDataFrame(rows, type(OUTBOX)(list(own.values())))
        commands.write.format("delta").mode("append").save(str(self.lake / "commands"))
        self._run(spark, "publish", table="commands", url=f"tcp://127.0.0.1:{port}")

    def _let_tend(self, *names: str) -> None:
        for name in names:
            with suppress(FileNotFoundError):  # nobody tends what `replay` has written
                os.utime(self.lake / "_checkpoints" / f"upkeep-{name}", (0, 0))

    def _settings(self, job: str, **changes: Any) -> Any:
        if job in ("clean", "mend"):
            changes |= {"topic_schemas": str(self._schemas), "payload_bytes_max": 4096}
        found = settings_of(job, self._data, self.lake, **changes)
        # Whatever can be compacted is, and what that leaves goes at once.
        upkeep = replace(found.upkeep, small_files_max=1, vacuum_retention_s=0)
        spark = replace(found.spark, master="local[2]", extra=QUICK)
        # A busy machine may be slow to start a worker of Python; what is tried here is the reading.
        return replace(found, restarts_max=5, upkeep=upkeep, spark=spark)

    def _run(self, spark: SparkSession, job: str, **changes: Any) -> None:
        settings = self._settings(job, **changes)
        module_of(job).check(settings)
        module_of(job).run(spark, settings, Event(), lambda _: None)

    def _require(self) -> None:
        done = {}
        for name in NAMES:
            table = DeltaTable(self.lake / name)
            done[name] = {commit["operation"] for commit in table.history()}
            assert dataset_of(self.lake / name).count_rows(), f"there is nothing in {name}"
        compacted = {name for name, operations in done.items() if "OPTIMIZE" in operations}
        assert {"messages", "clean", "quarantine", "traffic", "deliveries"} <= compacted, f"only {compacted}"
        vacuumed = {name for name, operations in done.items() if "VACUUM END" in operations}
        assert compacted | {"outbox", "event_snapshot"} <= vacuumed, f"only {vacuumed}"


if __name__ == "__main__":
    EveryTable(Path(sys.argv[1])).write()
