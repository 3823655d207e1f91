"""What waits for a session on a terminal: a line for each message."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from headrace.console.units import duration, size
from headrace.services.audit import clean

_SHOWN: Final = 80  # characters of a text
_LINE = "{:>10} {:<8} {:>3} {:>9} {:>11}  {}"
HEADER = _LINE.format("serial", "state", "qos", "size", "age", "topic payload")


def line(row: Mapping[str, Any]) -> str:
    """Return a row for people: nothing in it can move the cursor or begin a line."""
    if row["absent"]:
        return _LINE.format(row["serial"], row["state"], row["qos"], "-", "-", f"({row['absent']})")
    age = max(0.0, time.time() - row["received_at_us"] / 1_000_000)
    expired = " (expired)" if row["is_expired"] else ""
    about = f"{clean(row['topic'])} {_content(row)}{expired}"
    return _LINE.format(row["serial"], row["state"], row["qos"], size(row["size"]), duration(age), about)


def _content(row: Mapping[str, Any]) -> str:
    """Return the beginning of a payload: as it is where it is text, else in base64."""
    text = row["payload"] if row["text"] is None else clean(row["text"])
    return f"{text[:_SHOWN]}..." if len(text) > _SHOWN or row["is_cut"] else str(text)
