"""A small lake with known figures, written without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.tables import BACKLOG, CONNECTIONS, DELIVERIES, TRAFFIC, USAGE, TableDefinition
from headrace_spark.records.schema import arrow_schema

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
EVIL = '<script>alert("x")</script>'


def fill(lake: Path, definition: TableDefinition, *rows: dict[str, Any]) -> None:
    table = LakeTable(lake, definition)
    table.create()
    common = {"date": NOW.date(), "journal_uuid": "u", "up_to_offset": 1, "tenant": "default"}
    schema = arrow_schema(definition.columns)
    whole = [{name: (common | row).get(name) for name in schema.names} for row in rows]
    write_deltalake(table.folder, pa.Table.from_pylist(whole, schema), mode="append")


def small_lake(tmp_path: Path) -> Path:
    """150 messages of one day, 100 deliveries, three connections, a backlog; no quarantine."""
    at = NOW - 10 * MINUTE
    published = {
        "window_start": at,
        "topic_prefix": "plant/1",
        "client_id": "a",
        "messages": 60,
        "payload_bytes": 600,
    }
    fill(
        tmp_path,
        TRAFFIC,
        published,
        published,
        published
        | {"window_start": at + 5 * MINUTE, "topic_prefix": EVIL, "client_id": EVIL, "messages": 30}
        | {"protocol": "frame"},
        published
        | {"date": NOW.date() - timedelta(days=1), "messages": 1000, "window_start": at - timedelta(days=1)},
    )
    done = {"window_start": at, "client_id": "app", "outcome": "acked", "payload_bytes": 0}
    fill(
        tmp_path,
        DELIVERIES,
        done | {"latency_ms": 1.0, "messages": 98},
        done | {"latency_ms": 500.0, "messages": 1},
        done | {"latency_ms": None, "messages": 0},
        done | {"outcome": "expired", "messages": 1},
    )
    fill(
        tmp_path,
        CONNECTIONS,
        {"client_id": "a", "connected_timestamp": NOW - timedelta(hours=1), "incarnation": 1},
        {
            "client_id": "b",
            "connected_timestamp": NOW - timedelta(hours=2),
            "disconnected_timestamp": NOW - timedelta(hours=1),
        },
        {
            "client_id": "c",
            "connected_timestamp": NOW - timedelta(days=3),
            "disconnected_timestamp": NOW - timedelta(days=2),
        },
    )
    used = {"hour_start": NOW.replace(minute=0), "messages_in": 60, "bytes_in": 600, "messages_out": 99}
    used |= {"bytes_out": 990, "messages_dropped": 1, "connections": 2, "connected_s": 1800.0}
    fill(tmp_path, USAGE, used, used, used | {"tenant": EVIL, "messages_in": 121})
    fill(
        tmp_path, BACKLOG, {"client_id": "app", "messages": 7, "oldest_timestamp": at, "as_of_timestamp": NOW}
    )
    return tmp_path
