"""Retained messages on a terminal: a line for each."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from headrace.console.units import duration, size
from headrace.services.audit import clean

_LINE = "{:>3} {:>9} {:>11} {:>11} {:>5} {:<24} {}"
HEADER = _LINE.format("qos", "size", "age", "expires in", "shard", "from", "tenant topic")


def line(row: Mapping[str, Any]) -> str:
    """Return a row for people: nothing in it can move the cursor or begin a line."""
    now_us, expires_at_us = time.time() * 1_000_000, row["expires_at_us"]
    return _LINE.format(
        row["qos"],
        size(row["size"]),
        _seconds(now_us - row["received_at_us"]),
        "-" if expires_at_us is None else _seconds(expires_at_us - now_us),
        row["shard"],
        clean(row["client_id"]) or "-",
        f"{clean(row['tenant'])} {clean(row['topic'])}",
    )


def _seconds(micros: float) -> str:
    return duration(max(0.0, micros / 1_000_000))
