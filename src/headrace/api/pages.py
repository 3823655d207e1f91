"""Lists of the admin HTTP: what a page of one is, and how it is made of what lists rows."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from headrace.api.resource import Values
from headrace.errors import ShardAway
from headrace.services.paging import Place, Rows, ShardRows

T = TypeVar("T")
W = TypeVar("W")


class Page(msgspec.Struct, Generic[T]):
    """A page of a list; `next` is where the next one begins."""

    rows: list[T]
    next: str | None


class Listing(Page[T], Generic[T]):
    """A page that names its shard in `unanswered` if that does not answer."""

    unanswered: list[int]


def page_of(rows: Rows, following: Place | None) -> dict[str, object]:
    """Return a page of these rows."""
    return {"rows": rows, "next": None if following is None else str(following)}


async def page(rows: ShardRows[W], wanted: W, values: Values) -> dict[str, object]:
    """Return the page of all shards of a worker that a request asks for. Raises ShardAway."""
    return page_of(*await rows.page(wanted, values["limit"], values["from"]))


async def listing(rows: ShardRows[W], wanted: W, values: Values) -> dict[str, object]:
    """Return a page that names its shard if that is away."""
    try:
        return {**await page(rows, wanted, values), "unanswered": []}
    except ShardAway as error:
        return {"rows": [], "next": str(Place(shard=error.shard + 1)), "unanswered": [error.shard]}
