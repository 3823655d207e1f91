"""Filters that other shards look for and nobody here wants any more: they are withdrawn a minute later.

So a client that comes back finds its filters announced. What clients can have wanted and left in that minute is bounded
by memory: beyond it the oldest are withdrawn at once.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from headrace.core.state.subscription_tree import memory_of

BYTES_MAX: Final = 16 << 20  # of memory that these filters take, about, in each shard
AT_ONCE: Final = 5000  # filters that are withdrawn in one call of the timer

Filter = tuple[str, str]  # tenant and filter


class Withdrawing:
    """The filters of one shard that are to be withdrawn, the oldest first."""

    def __init__(self) -> None:
        self._until_ms: OrderedDict[Filter, int] = OrderedDict()
        self._bytes = 0

    def filters(self) -> list[Filter]:
        """Return all of them."""
        return list(self._until_ms)

    def put(self, key: Filter, until_ms: int) -> list[Filter]:
        """Have a filter withdrawn at this time, which no other one is behind. Returns those that are to be withdrawn
        now, since they are too many."""
        self._until_ms[key] = until_ms
        self._bytes += memory_of(key[1])
        early: list[Filter] = []
        while self._bytes > BYTES_MAX:
            early.append(self._pop())
        return early

    def take(self, key: Filter) -> bool:
        """Keep a filter that somebody wants again; False: it is not among these."""
        if self._until_ms.pop(key, -1) < 0:
            return False
        self._bytes -= memory_of(key[1])
        return True

    def due(self, now_ms: int) -> list[Filter]:
        """Return some filters whose time has come."""
        due: list[Filter] = []
        while self._until_ms and len(due) < AT_ONCE:
            if next(iter(self._until_ms.values())) > now_ms:
                break
            due.append(self._pop())
        return due

    def _pop(self) -> Filter:
        key, _ = self._until_ms.popitem(False)
        self._bytes -= memory_of(key[1])
        return key
