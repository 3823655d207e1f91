"""A page says where the next one begins; a list names the shard that is away and goes on behind it."""

from __future__ import annotations

import asyncio

import pytest

from headrace.api.pages import listing, page, page_of
from headrace.errors import ShardAway
from headrace.services.paging import Place, Rows, ShardRows


class Two:
    """Two rows of a shard, of which a page has one."""

    async def page(self, wanted: str, limit: int, place: Place) -> tuple[Rows, Place | None]:
        row: Rows = [{"wanted": wanted, "limit": limit, "number": place.number}]
        return row, None if place.number else Place(1)


def test_a_page_has_its_rows_and_where_the_next_one_begins() -> None:
    assert page_of([], None) == {"rows": [], "next": None}
    assert page_of([{"a": 1}], Place(7, 3)) == {"rows": [{"a": 1}], "next": "7.3"}
    rows: ShardRows[str] = ShardRows({0: Two()})
    first = asyncio.run(page(rows, "x", {"limit": 5, "from": Place()}))
    assert first == {"rows": [{"wanted": "x", "limit": 5, "number": 0}], "next": "1.-1"}
    last = asyncio.run(listing(rows, "x", {"limit": 5, "from": Place(1)}))
    assert last == {"rows": [{"wanted": "x", "limit": 5, "number": 1}], "next": None, "unanswered": []}


def test_a_shard_that_is_away_is_named_in_a_listing_and_raised_by_a_page() -> None:
    rows: ShardRows[str] = ShardRows({1: Two()}, {0: "its journal has failed"})
    asked = {"limit": 5, "from": Place()}
    assert asyncio.run(listing(rows, "x", asked)) == {"rows": [], "next": "1.0.-1", "unanswered": [0]}
    with pytest.raises(ShardAway):
        asyncio.run(page(rows, "x", asked))
