"""A list of the admin HTTP as an iterator: the next page is asked for when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeVar

import msgspec

Row = TypeVar("Row")


class Pages(Iterator[Row], Generic[Row]):
    """Yields the rows of all pages. `unanswered` are the shards so far of which the list has nothing, since they did not
    answer. `page` gives the JSON of the page that begins at a place, "" the first one; what it raises the iterator does,
    and asks for that page again if it is asked once more."""

    def __init__(self, page: Callable[[str], Any], kind: type[Row]) -> None:
        self.unanswered: list[int] = []
        self._page = page
        self._kind = kind
        self._rows: Iterator[Row] = iter(())
        self._following: str | None = ""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Row:
        for row in self._rows:
            return row
        while self._following is not None:
            found = self._page(self._following)
            self._rows = iter(msgspec.convert(found["rows"], list[self._kind]))  # type: ignore[name-defined]
            self._following = found["next"]
            self.unanswered += found.get("unanswered", ())
            for row in self._rows:
                return row
        raise StopIteration
