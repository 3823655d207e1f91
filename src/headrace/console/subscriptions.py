"""Subscriptions on a terminal: a line for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.services.audit import clean

_LINE = "{:>3} {:<9} {:>5} {:<24} {}"
HEADER = _LINE.format("qos", "state", "shard", "options", "tenant client filter")
_OPTIONS = {"no_local": "no local", "retain_as_published": "as published"}


def line(row: Mapping[str, Any]) -> str:
    """Return a row for people: nothing in it can move the cursor or begin a line."""
    options = ", ".join(name for key, name in _OPTIONS.items() if row[key]) or "-"
    names = f"{clean(row['tenant'])} {clean(row['client_id'])} {clean(row['filter'])}"
    return _LINE.format(row["qos"], row["state"], row["shard"], options, names)
