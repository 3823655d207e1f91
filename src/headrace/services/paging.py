"""Lists of what the shards of a node hold, a page at a time: where a page begins, as text and as numbers, and which shard
it is of. Runs on the loop.

A page is of one shard. What is listed has a number in its shard, which it keeps for as long as it is there: so what is
there during a whole walk is met once, whatever comes and goes between two pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Generic, Protocol, Self, TypeVar

from headrace.errors import NotThere, ShardAway

LIMIT_MAX: Final = 1000  # rows of a page
# The highest number of a place: a number of the journal, with room for the walk to add to it in 64 bits.
NUMBER_MAX: Final = (1 << 62) - 1
_DIGITS_MAX: Final = len(str(NUMBER_MAX))
_SHARD_PARTS: Final = 3

W = TypeVar("W", contravariant=True)
T = TypeVar("T")
Rows = list[dict[str, object]]
Away = Mapping[int, str]  # why a shard of this worker is not here now
NOBODY_AWAY: Final[Away] = {}


@dataclass(frozen=True, slots=True)
class Place:
    """The place where a page goes on: what has this number in the shard, or the next one there is. `inner` is for the
    list: behind which part of it, -1 for none."""

    number: int = 0
    inner: int = -1
    shard: int = 0

    def __str__(self) -> str:
        shard = f"{self.shard}." if self.shard else ""
        return f"{shard}{self.number}.{self.inner}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the place that `str` has written. Raises ValueError for what it has not."""
        parts = text.split(".")
        if len(parts) == _SHARD_PARTS - 1:  # of the first shard
            parts.insert(0, "0")
        numbers = parts[:-1] if parts[-1] == "-1" else parts
        if len(parts) != _SHARD_PARTS or not all(is_number(number) for number in numbers):
            raise ValueError(f"{text} is not the `next` of a page")
        shard, number, inner = map(int, parts)
        return cls(number, inner, shard)


class Paged(Protocol[W]):
    """What lists the rows of one shard."""

    async def page(self, wanted: W, limit: int, place: Place) -> tuple[Rows, Place | None]:
        """Return (at most `limit` rows from `place` on, where the next page goes on or None)."""


class ShardRows(Generic[W]):
    """Lists what all shards of a worker hold, one shard after the other. `away`: those of its shards that nobody has now,
    each with the reason; they are not in `shards`."""

    def __init__(self, shards: Mapping[int, Paged[W]], away: Away = NOBODY_AWAY) -> None:
        self._shards = shards
        self._away = away

    async def page(self, wanted: W, limit: int, place: Place) -> tuple[Rows, Place | None]:
        """Return (at most `limit` rows from `place` on, where the next page goes on or None), as the shard does. Raises
        ShardAway where that is away, or goes away meanwhile: what it has is not left out without a word."""
        numbers = sorted({number for number in (*self._shards, *self._away) if number >= place.shard})
        if not numbers:
            return [], None
        number = numbers[0]
        begun = place if number == place.shard else Place()
        rows: Rows = []
        following: Place | None = None
        if number not in self._away:
            rows, following = await self._shards[number].page(wanted, limit, begun)
        if number in self._away:
            raise ShardAway(number, self._away[number])
        if following is not None:
            return rows, replace(following, shard=number)
        return rows, Place(shard=numbers[1]) if len(numbers) > 1 else None


class ByHome(Generic[T]):
    """What all shards of a worker show, each thing found in the shard where its name is at home, as `home` says of a
    tenant and a name. `away` as in `ShardRows`."""

    def __init__(
        self, shards: Mapping[int, T], home: Callable[[str, str], int], away: Away = NOBODY_AWAY
    ) -> None:
        self._shards = shards
        self._home = home
        self._away = away

    def of(self, tenant: str, name: str) -> T:
        """Return the shard where a name is at home. Raises NotThere if that is another worker's, ShardAway."""
        shard = self._home(tenant, name)
        if shard in self._away:
            raise ShardAway(shard, self._away[shard])
        if shard not in self._shards:
            raise NotThere(f"{name!r} of tenant {tenant} is at home in shard {shard}, which is not here")
        return self._shards[shard]


def is_number(text: str) -> bool:
    """Return whether a text is a number of ASCII digits, and none that is higher than any there is."""
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX and int(text) <= NUMBER_MAX
