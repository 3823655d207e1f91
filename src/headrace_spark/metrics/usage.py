"""What each tenant has used, for quotas and bills: the rows that the job `metrics` adds to table `usage`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace_spark.lake.tables import USAGE, as_dates, as_times
from headrace_spark.metrics.sessions import Connection
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
    notes: Notes, connections: Iterable[Connection], journal_uuid: str, up_to_offset: int
) -> pa.RecordBatch:
    """Return the rows of `usage`. Connections count when they have ended, in the hour of their end."""
    used: dict[tuple[int, str | None], dict[str, Any]] = {}
    for (hour_us, tenant, measure), value in notes.used.items():
        _add(used, hour_us, tenant, **{measure: value})
    for one in connections:
        if one.disconnected_us is not None:
            hour_us = one.disconnected_us // HOUR_US * HOUR_US
            seconds = (one.disconnected_us - one.connected_us) / 1_000_000
            _add(used, hour_us, one.tenant, connections=1, connected_s=seconds)
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


def _add(
    used: dict[tuple[int, str | None], dict[str, Any]], hour_us: int, tenant: str | None, **measures: float
) -> None:
    row = used.setdefault((hour_us, tenant), {})
    for name, value in measures.items():
        row[name] = row.get(name, 0) + value
