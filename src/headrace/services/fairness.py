"""A queue that is fair to where its entries come from: round robin over sources, and over users within a source.

Bounded in entries and bytes. A source may take as much as is left for all others together, so whoever comes new finds
room however much one source has sent. Pure: no clock, no thread.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class _Source(Generic[Item]):
    def __init__(self) -> None:
        self.users: OrderedDict[str, deque[tuple[Item, int]]] = OrderedDict()
        self.entries = 0
        self.bytes = 0


class FairQueue(Generic[Item]):
    """Entries that wait for their turn."""

    def __init__(self, entries_max: int, bytes_max: int) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._sources: OrderedDict[str, _Source[Item]] = OrderedDict()
        self.entries = 0
        self.bytes = 0

    def has_room(self, source: str, size: int) -> bool:
        held = self._sources.get(source)
        entries, taken = (0, 0) if held is None else (held.entries, held.bytes)
        return entries < self._entries_max - self.entries and taken + size <= self._bytes_max - self.bytes

    def put(self, source: str, user: str, item: Item, size: int) -> None:
        """The last of its user. `has_room` was asked."""
        held = self._sources.setdefault(source, _Source())
        held.users.setdefault(user, deque()).append((item, size))
        self._count(held, 1, size)

    def take(self) -> Item:
        """Whose turn it is. Raises KeyError if nobody waits."""
        source = next(iter(self._sources), None)
        if source is None:
            raise KeyError("nobody waits")
        return self._take_from(source)

    def oldest_of(self, source: str) -> Item | None:
        """Whose turn it is next in this source; it stays."""
        held = self._sources.get(source)
        return None if held is None else next(iter(held.users.values()))[0][0]

    def drop_oldest_of(self, source: str) -> None:
        self._take_from(source)

    def _take_from(self, source: str) -> Item:
        held = self._sources[source]
        user, waiting = next(iter(held.users.items()))
        item, size = waiting.popleft()
        if waiting:
            held.users.move_to_end(user)
        else:
            del held.users[user]
        self._count(held, -1, -size)
        if held.entries:
            self._sources.move_to_end(source)
        else:
            del self._sources[source]
        return item

    def _count(self, held: _Source[Item], entries: int, size: int) -> None:
        held.entries += entries
        held.bytes += size
        self.entries += entries
        self.bytes += size
