"""Topic queues and consumer clusters on a terminal: asks the broker page by page, and prints a line for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from headrace.console.admin import AdminClient
from headrace.console.units import count, duration, size
from headrace.services.audit import clean

_LINE = "{:>9} {:>9} {:>9} {:>9} {:>11} {:>12} {:>9} {:>11}  {}"
HEADER = _LINE.format(
    "lag", "in flight", "consumers", "waiting", "acked/s", "oldest", "kept", "bytes", "tenant topic cluster"
)


def rows(
    admin: AdminClient,
    wanted: Mapping[str, str | None],
    what: str = "clusters",
    unanswered: list[int] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of `GET /v1/clusters`, or of another list, for these parameters, all pages. Into `unanswered` go the
    shards that a list without them names. Raises Unreachable, AdminRefused."""
    asked = {name: value for name, value in wanted.items() if value is not None}
    following: str | None = ""
    while following is not None:
        page = admin.get(f"/v1/{what}?{urlencode(asked | ({'from': following} if following else {}))}")
        yield from page["rows"]
        if unanswered is not None:
            unanswered += page["unanswered"]
        following = page["next"]


def line(row: dict[str, Any]) -> str:
    """Return a row for people: nothing in it can move the cursor or begin a line."""
    oldest = "-" if row["oldest_s"] is None else duration(row["oldest_s"])
    kept = (oldest, count(row["messages"]), size(row["bytes"]))
    names = f"{clean(row['tenant'])} {clean(row['topic'])}"
    if row["cluster"] is None:
        return _LINE.format("-", "-", "-", "-", "-", *kept, names)
    return _LINE.format(
        count(row["lag"]),
        count(row["in_flight"]),
        row["consumers"],
        row["waiting"],
        f"{row['acked_per_s']:.1f}",
        *kept,
        f"{names} {clean(row['cluster'])}",
    )
