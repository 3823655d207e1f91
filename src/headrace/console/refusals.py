"""Who was refused lately on a terminal: a line for each."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from headrace.console.units import duration
from headrace.services.audit import clean

_LINE = "{:>11} {:>7} {:<14} {:<24} {:<24} {}"
HEADER = _LINE.format("ago", "times", "event", "reason", "source", "client user detail")


def line(row: Mapping[str, Any]) -> str:
    """Return a row for people: nothing in it can move the cursor or begin a line."""
    ago = duration(max(0.0, time.time() - row["last_us"] / 1_000_000))
    names = " ".join(clean(row[name]) or "-" for name in ("client_id", "user", "detail"))
    return _LINE.format(ago, row["count"], row["event"], row["reason"], clean(row["source"]), names)
