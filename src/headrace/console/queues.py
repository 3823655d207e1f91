"""Topic queues on a terminal, and what a broker is to remove: a queue, or a consumer cluster."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

from headrace.console.admin import AdminClient, AdminRefused
from headrace.console.units import count, duration, size
from headrace.errors import NotThere
from headrace.services.audit import clean

_LINE = "{:>9} {:>9} {:>9} {:>9} {:>11} {:>9} {:>11}  {}"
HEADER = _LINE.format(
    "unread", "clusters", "consumers", "kept", "bytes", "oldest", "begun by", "tenant topic"
)


def line(row: Mapping[str, Any]) -> str:
    """Return the row of a queue for people: nothing in it can move the cursor or begin a line."""
    oldest = "-" if row["oldest_s"] is None else duration(row["oldest_s"])
    figures = (count(row["unfinished"]), row["clusters"], row["consumers"])
    kept = (count(row["messages"]), size(row["bytes"]), oldest)
    return _LINE.format(
        *figures, *kept, clean(row["device"]) or "-", f"{clean(row['tenant'])} {clean(row['topic'])}"
    )


def pairs(row: Mapping[str, Any]) -> list[str]:
    """Return a line for each field of a row."""
    return [f"{name:<12} {'-' if value in (None, '') else clean(str(value))}" for name, value in row.items()]


def removed(admin: AdminClient, what: str, named: Mapping[str, str]) -> dict[str, Any]:
    """Have a broker remove one of `what`, "queues" or "clusters", and return what that was. Raises NotThere with the
    name, Unreachable, AdminRefused."""
    try:
        found = admin.ask("DELETE", f"/v1/{what}?{urlencode(named, quote_via=quote, safe='')}")
    except AdminRefused as error:
        if error.status == HTTPStatus.NOT_FOUND:
            raise NotThere(error.detail) from None
        raise
    return dict(found)
