"""Where a page begins, as text and as numbers, and which shard the next one is of."""

from __future__ import annotations

import asyncio

import pytest

from headrace.errors import ShardAway
from headrace.services.paging import Place, Rows, ShardRows

PLACES = [Place(), Place(7), Place(7, 3), Place(shard=2), Place(7, 3, 2), Place(10**18, 10**18, 10**18)]


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_place_is_read_as_it_was_written(place: Place) -> None:
    assert Place.parse(str(place)) == place


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "x",
        "1.x",
        "-1.0",
        "1.-2",
        "1.2.3.4",
        "0.0.0.-1",
        "1.-1.-1",
        "-1.0.-1",
        "²",
        "1.²",
        "1. 2",
        "1" * 21,
        f"{1 << 62}.0",
        f"0.{1 << 62}",
        f"{1 << 64}.0.0",
    ],
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not the `next` of a page"):
        Place.parse(text)


class Counted:
    """Lists the numbers up to `end`."""

    def __init__(self, end: int) -> None:
        self._end = end

    async def page(self, wanted: str, limit: int, place: Place) -> tuple[Rows, Place | None]:
        last = min(place.number + limit, self._end)
        rows: Rows = [{wanted: number} for number in range(place.number, last)]
        return rows, Place(last) if last < self._end else None


def test_a_shard_that_is_away_is_left_out_with_a_word() -> None:
    away = {2: "shard 2: journal failed"}
    rows = ShardRows({1: Counted(1), 3: Counted(1)}, away)
    assert asyncio.run(rows.page("n", 2, Place())) == ([{"n": 0}], Place(shard=2))
    for begun in (Place(shard=2), Place(1, shard=2)):
        with pytest.raises(ShardAway, match="shard 2: journal failed") as raised:
            asyncio.run(rows.page("n", 2, begun))
        assert raised.value.shard == 2
    assert asyncio.run(rows.page("n", 2, Place(shard=3))) == ([{"n": 0}], None)


def test_a_page_of_a_shard_that_goes_away_meanwhile_is_not_taken_for_all_of_it() -> None:
    away: dict[int, str] = {}

    class Going(Counted):
        async def page(self, wanted: str, limit: int, place: Place) -> tuple[Rows, Place | None]:
            away[0] = "it goes"
            return [], None

    with pytest.raises(ShardAway, match="it goes"):
        asyncio.run(ShardRows({0: Going(3)}, away).page("n", 2, Place()))


def test_one_shard_comes_behind_the_other_and_a_page_is_of_one() -> None:
    rows = ShardRows({5: Counted(3), 1: Counted(0), 2: Counted(2)})
    found: list[tuple[Rows, str]] = []
    place: Place | None = Place()
    while place is not None:
        page, place = asyncio.run(rows.page("n", 2, place))
        found.append((page, str(place)))
    assert found == [
        ([], "2.0.-1"),
        ([{"n": 0}, {"n": 1}], "5.0.-1"),
        ([{"n": 0}, {"n": 1}], "5.2.-1"),
        ([{"n": 2}], "None"),
    ]
    assert asyncio.run(rows.page("n", 2, Place(shard=6))) == ([], None)
    assert asyncio.run(rows.page("n", 2, Place(1, shard=4))) == ([{"n": 0}, {"n": 1}], Place(2, shard=5))
