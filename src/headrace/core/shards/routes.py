"""Which other shards want a topic: the table of routes of one shard.

Runs on the loop. A *slot* holds what one shard has announced on one connection, from its hello to its end: slots are
never mixed, and what a new connection announces begins in an empty one. Filters without wildcards are hashes
(`hashed`); the key is that of Python's own hash of bytes, new in each process, so that nobody can choose filters that
meet. Those with wildcards are in a tree of their own, apart from the subscriptions of the sessions here: what other
shards subscribe does not disturb the routes that publishers here remember.

A route may be too wide, never too narrow: the shard that gets the copy matches it again.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from headrace.core.shards.hashed import SEGMENTS, SLOTS_MAX, HashedFilters
from headrace.core.state.subscription_tree import Entry, SubscriptionTree

_NOBODY: Final[list[int]] = []
SWEPT_AT_ONCE: Final = 200  # filters with wildcards that are taken out at a time


class _Wide(Entry):
    """A slot, as the trees of filters with wildcards hold it."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.open = True
        self.filters: set[tuple[str, str]] = set()  # tenant and filter

    def holder(self) -> object:
        return self


def _first(entries: list[_Wide]) -> _Wide:
    return entries[0]


class _OfTenant:
    """What other shards want of one tenant."""

    def __init__(self, name: str) -> None:
        self.salt: i64 = hash(name.encode("utf-8"))
        self.wide: SubscriptionTree[_Wide] = SubscriptionTree(_first)

    def key(self, topic: bytes) -> i64:
        """Return the hash of a topic of this tenant."""
        return hash(topic) ^ self.salt


class Routes:
    """The routes of all other shards."""

    def __init__(self) -> None:
        self.changes: i64 = 0  # of what `match` may return
        self.hashed = HashedFilters()
        self._tenants: dict[str, _OfTenant] = {}
        self._slots: list[_Wide | None] = []
        self._free: list[int] = []
        self._closed: list[_Wide] = []  # to be swept
        self._segment = 0  # of the first of them, the next one to be swept

    def open(self) -> int:
        """Return an empty slot. Raises OverflowError when all are taken."""
        self.changes += 1
        if self._free:
            slot = self._free.pop()
            self._slots[slot] = _Wide(slot)
            return slot
        slot = len(self._slots)
        if slot == SLOTS_MAX:
            raise OverflowError("too many connections of other shards")
        self._slots.append(_Wide(slot))
        return slot

    def close(self, slot: int) -> None:
        """Forget the routes of a slot, from now on; `sweep` frees what they take."""
        wide = self._slots[slot]
        if wide is not None and wide.open:
            self.changes += 1
            wide.open = False
            self._closed.append(wide)

    def add(self, slot: int, tenant: str, topic_filter: str) -> None:
        """Note that the shard of this slot wants a filter, which it has not announced yet."""
        wide = self._slots[slot]
        if wide is None or not wide.open:
            return
        self.changes += 1
        found = self._tenants.get(tenant)
        if found is None:
            found = self._tenants[tenant] = _OfTenant(tenant)
        if is_wide(topic_filter):
            wide.filters.add((tenant, topic_filter))
            found.wide.add(topic_filter, wide)
        else:
            self.hashed.add(found.key(topic_filter.encode("utf-8")), slot)

    def remove(self, slot: int, tenant: str, topic_filter: str) -> None:
        """Note that the shard of this slot wants a filter no more, which it has announced."""
        wide = self._slots[slot]
        found = self._tenants.get(tenant)
        if wide is None or not wide.open or found is None:
            return
        self.changes += 1
        if is_wide(topic_filter):
            wide.filters.discard((tenant, topic_filter))
            found.wide.remove(topic_filter, wide)
        else:
            self.hashed.remove(found.key(topic_filter.encode("utf-8")), slot)

    def match(self, tenant: str, topic: bytes) -> list[int]:
        """Return the slots whose shards want a topic, each once. The list is not to be changed: nobody's is one."""
        found = self._tenants.get(tenant)
        if found is None:
            return _NOBODY
        exact = self.hashed.slots(found.key(topic))
        if exact is None and not found.wide.count:
            return _NOBODY
        slots = [] if exact is None else exact
        if self._closed and slots:
            slots = [slot for slot in slots if self._is_open(slot)]
        if found.wide.count:
            for wide in found.wide.match(topic):
                if wide.open and wide.slot not in slots:
                    slots.append(wide.slot)
        return slots

    def _is_open(self, slot: int) -> bool:
        wide = self._slots[slot]
        return wide is not None and wide.open

    def sweep(self) -> bool:
        """Free a bounded part of what closed slots take; True if there is more."""
        if not self._closed:
            return False
        wide = self._closed[0]
        for _ in range(min(SWEPT_AT_ONCE, len(wide.filters))):
            tenant, topic_filter = wide.filters.pop()
            self._tenants[tenant].wide.remove(topic_filter, wide)
        if wide.filters:
            return True
        self.hashed.sweep(wide.slot, self._segment)
        self._segment += 1
        if self._segment == SEGMENTS:
            self._segment = 0
            self._closed.pop(0)
            self._slots[wide.slot] = None
            self._free.append(wide.slot)
        return len(self._closed) > 0


def is_wide(topic_filter: str) -> bool:
    """Return whether a filter has a wildcard."""
    return "+" in topic_filter or "#" in topic_filter
