"""Consumers of a broker's journals, through its admin HTTP."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import quote

from headrace.console.admin import AdminClient, AdminRefused


def removed_there(admin: AdminClient, name: str, force: bool) -> list[tuple[str, int]]:
    """Have a broker remove a consumer from all its shards; returns what stands before a line about each ("" where there
    is one), and the offset. Raises Unreachable, and AdminRefused, also where no shard knows it."""
    shards = [shard["shard"] for shard in admin.get("/v1/journal/shards")["shards"]]
    removed: list[tuple[str, int]] = []
    unknown: AdminRefused | None = None
    for shard in shards:
        path = f"/v1/journal/shards/{shard}/consumers/{quote(name, safe='')}?force={str(force).lower()}"
        try:
            found = admin.ask("DELETE", path)
        except AdminRefused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            unknown = error
            continue
        removed.append((f"shard {shard}: " if len(shards) > 1 else "", found["offset"]))
    if not removed and unknown is not None:
        raise unknown
    return removed
