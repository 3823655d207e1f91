"""What each tenant has used, for quotas and bills: the rows that the job `metrics` adds to table `usage`."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.homes import MEMBER_PREFIX
from headrace_spark.lake.tables import USAGE, as_dates, as_times
from headrace_spark.metrics.settling import HOUR_US, Notes

MEASURES: Final = (
    "messages_in",
    "bytes_in",
    "messages_out",
    "bytes_out",
    "messages_dropped",
    "connections",
    "connected_s",
)
"""Every one is a sum."""


def usage_rows(
    notes: Notes, connections: pa.RecordBatch, journal_uuid: str, up_to_offset: int
) -> pa.RecordBatch:
    """Return the rows of `usage`. Connections (rows of that table) count when they have ended, in the hour of their
    end."""
    used: dict[tuple[int, str | None], dict[str, Any]] = {}
    for (hour_us, tenant, measure), value in notes.used.items():
        _add(used, hour_us, tenant, **{measure: value})
    for row in _ended(connections).to_pylist():
        _add(
            used,
            row["hour_us"],
            row["tenant"],
            connections=row["count_all"],
            connected_s=row["us_sum"] / 1_000_000,
        )
    hours = np.array([hour_us for hour_us, _ in used], np.int64)
    measures = {name: pa.array([row.get(name, 0) for row in used.values()]) for name in MEASURES}
    return USAGE.rows(
        journal_uuid,
        hour_start=as_times(hours),
        tenant=pa.array([tenant for _, tenant in used], pa.string()),
        up_to_offset=pa.array(np.full(len(used), up_to_offset)),
        date=as_dates(hours),
        **measures,
    )


def _ended(connections: pa.RecordBatch) -> pa.Table:
    """Return hour_us, tenant, count_all, us_sum of the connections of clients that have ended. An older headrace began
    some for stand-ins of clients that other shards have."""
    has_ended = connections["disconnected_timestamp"].is_valid()
    stands_in = pc.starts_with(connections["client_id"], MEMBER_PREFIX).fill_null(False)
    rows = connections.filter(pc.and_not(has_ended, stands_in))
    until = rows["disconnected_timestamp"].cast(pa.int64()).to_numpy()
    since = rows["connected_timestamp"].cast(pa.int64()).to_numpy()
    connected_us = np.maximum(until - since, 0)  # a clock that was set back takes nothing off a bill
    columns = {"hour_us": until // HOUR_US * HOUR_US, "tenant": rows["tenant"], "us": connected_us}
    groups = pa.table(columns).group_by(["hour_us", "tenant"], use_threads=False)
    return groups.aggregate([([], "count_all"), ("us", "sum")])


def _add(
    used: dict[tuple[int, str | None], dict[str, Any]], hour_us: int, tenant: str | None, **measures: float
) -> None:
    row = used.setdefault((hour_us, tenant), {})
    for name, value in measures.items():
        row[name] = row.get(name, 0) + value
