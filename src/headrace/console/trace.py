"""A trace on a terminal: asks the broker for it, and prints a line for each packet and event until its time is over."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from headrace.console.admin import AdminClient
from headrace.errors import HeadraceError
from headrace.services.audit import clean

POLL_S = 0.25
_FIRST = ("time", "client", "address", "dir", "packet", "event", "topic", "bytes")


def follow(
    admin: AdminClient,
    kind: str,
    pattern: str,
    seconds: float,
    as_json: bool,
    write: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Write rows until the broker says that it is over. Whoever interrupts this ends the trace. Raises Unreachable,
    AdminRefused."""
    asked = {"kind": kind, "pattern": pattern, "seconds": seconds}
    path = f"/v1/traces/{admin.ask('POST', '/v1/traces', asked)['id']}"
    try:
        while True:
            answer = admin.get(path)
            for row in answer["rows"]:
                write(json.dumps(row) if as_json else line(row))
            if answer["left_out"]:
                left_out = answer["left_out"]
                write(json.dumps({"left_out": left_out}) if as_json else f"... {left_out} more were left out")
            if answer["over"]:
                return
            pause(POLL_S)
    finally:
        with suppress(HeadraceError):
            admin.ask("DELETE", path)


def line(row: dict[str, Any]) -> str:
    """Return a row for people: nothing in it can move the cursor or begin a line."""
    when = datetime.fromtimestamp(row["time"], UTC).strftime("%H:%M:%S.%f")[:-3]
    words = [when, clean(row["client"]) or "-", clean(row["address"]) or "-"]
    if "event" in row:
        words += ["*", clean(row["event"])]
    else:
        words += [">" if row["dir"] == "in" else "<", clean(row["packet"])]
    if "topic" in row:
        words.append(clean(row["topic"]))
    words += [
        f"{name}={clean(_text(value))}"
        for name, value in row.items()
        if name not in _FIRST and value not in ("", False, 0)
    ]
    if "bytes" in row:
        words.append(f"{row['bytes']} bytes")
    return " ".join(words)


def _text(value: object) -> str:
    return "yes" if value is True else str(value)
