"""A queue that is fair to where its entries come from, and to whom they are about.

Whoever comes new is among the next few, however many wait: turns go to the source that has waited longest of those who
had none yet, to a user (the one who had none for longest, and of its sources the newest), to the newest source, and to
those who had turns before, one after the other; within a source round robin over users. So neither many entries of one
source, nor many sources at one user, nor many of both that came before keep a newcomer waiting. While many more come for
each turn, all about one user, nothing tells that user's own from the others but where it is at home: a user's entries
from there have a turn of their own.

Bounded in entries and bytes. A source may take as much as is left for all others together, so whoever comes new finds
room however much one source has sent; where many sources have filled it, who waited longest makes room. Pure: no clock,
no thread.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")
_OLDEST, _USER, _NEWEST, _SERVED, _HOME = range(5)
_TURNS = 5


class _Source(Generic[Item]):
    def __init__(self) -> None:
        self.users: OrderedDict[str, deque[tuple[Item, int]]] = OrderedDict()
        self.entries = 0
        self.bytes = 0


class FairQueue(Generic[Item]):
    """Entries that wait for their turn, which goes round the sources and the users."""

    def __init__(self, entries_max: int, bytes_max: int) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._sources: dict[str, _Source[Item]] = {}
        self._fresh: OrderedDict[str, None] = OrderedDict()  # sources that had no turn yet, the newest last
        self._served: OrderedDict[str, None] = OrderedDict()  # the others; who had the last turn is last
        self._users: OrderedDict[str, dict[str, int]] = OrderedDict()  # -> entries by source, the newest last
        self._home: OrderedDict[tuple[str, str], None] = (
            OrderedDict()
        )  # source and user that is at home there
        self._turn = 0
        self.entries = 0
        self.bytes = 0

    def has_room(self, source: str, size: int) -> bool:
        held = self._sources.get(source)
        entries, taken = (0, 0) if held is None else (held.entries, held.bytes)
        return entries < self._entries_max - self.entries and taken + size <= self._bytes_max - self.bytes

    def put(self, source: str, user: str, item: Item, size: int, *, at_home: bool = False) -> None:
        """Put an item behind the others of its user. `has_room` was asked."""
        held = self._sources.get(source)
        if held is None:
            held = self._sources[source] = _Source()
            self._fresh[source] = None
        held.users.setdefault(user, deque()).append((item, size))
        about = self._users.get(user)
        if about is None:
            about = self._users[user] = {}
            self._users.move_to_end(user, last=False)
        about[source] = about.get(source, 0) + 1
        if at_home:
            self._home.setdefault((source, user))
        self._count(held, 1, size)

    def take(self) -> Item:
        """Return whose turn it is. Raises KeyError if nobody waits."""
        if not self.entries:
            raise KeyError("nobody waits")
        while True:
            turn, self._turn = self._turn, (self._turn + 1) % _TURNS
            if turn == _USER:
                user = next(iter(self._users))
                return self._take_from(next(reversed(self._users[user])), user)
            if turn == _HOME and self._home:
                return self._take_from(*next(iter(self._home)))
            if turn == _SERVED and self._served:
                return self._take_from(next(iter(self._served)))
            if turn in (_OLDEST, _NEWEST) and self._fresh:
                waiting = self._fresh if turn == _OLDEST else reversed(self._fresh)
                return self._take_from(next(iter(waiting)))

    def displaced(self) -> Item | None:
        """Remove and return who has waited longest of those who had no turn yet. None if all of them had one."""
        return self._take_from(next(iter(self._fresh))) if self._fresh else None

    def oldest_of(self, source: str) -> Item | None:
        """Return whose turn it is next in this source; it stays."""
        held = self._sources.get(source)
        return None if held is None else next(iter(held.users.values()))[0][0]

    def drop_oldest_of(self, source: str) -> None:
        self._take_from(source)

    def _take_from(self, source: str, user: str | None = None) -> Item:
        held = self._sources[source]
        if user is None:
            user = next(iter(held.users))
        waiting = held.users[user]
        item, size = waiting.popleft()
        was_home = self._home.pop((source, user), False) is None
        if waiting:
            held.users.move_to_end(user)
            if was_home:
                self._home[source, user] = None
        else:
            del held.users[user]
        self._note_turn(source, user)
        self._count(held, -1, -size)
        self._fresh.pop(source, None)
        self._served.pop(source, None)
        if held.entries:
            self._served[source] = None
        else:
            del self._sources[source]
        return item

    def _note_turn(self, source: str, user: str) -> None:
        about = self._users[user]
        about[source] -= 1
        if not about[source]:
            del about[source]
        if about:
            self._users.move_to_end(user)
        else:
            del self._users[user]

    def _count(self, held: _Source[Item], entries: int, size: int) -> None:
        held.entries += entries
        held.bytes += size
        self.entries += entries
        self.bytes += size
