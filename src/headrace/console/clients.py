"""Clients that are connected, on a terminal: a line for each."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from headrace.console.units import duration
from headrace.services.audit import clean

_LINE = "{:>11} {:>9} {:>9} {:>5} {:<9} {:<24} {:<16} {}"
HEADER = _LINE.format(
    "connected", "in flight", "keepalive", "shard", "protocol", "address", "user", "tenant client"
)


def line(row: Mapping[str, Any]) -> str:
    """Return a row for people: nothing in it can move the cursor or begin a line."""
    return _LINE.format(
        duration(max(0.0, time.time() - row["connected_at_us"] / 1_000_000)),
        row["in_flight"],
        row["keep_alive_s"] or "-",
        row["shard"],
        f"{row['transport']} {row['version']}",
        clean(row["address"]) or "-",
        clean(row["user"]) or "-",
        f"{clean(row['tenant'])} {clean(row['client_id'])}",
    )
