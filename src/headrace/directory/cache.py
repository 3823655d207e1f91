"""What was read of the directory lately: an LRU cache whose entries go when a change is about them. For threads.

An entry is put with the revision that the directory had before it was read. One that was read before changes which have
been applied since is not kept: it may be from before them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

Key = tuple[str, ...]  # a kind and names, the tenant first
MISSING: Final = object()


class Cache:
    """Entries by key, at most so many; the one that was asked for longest ago goes first."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries: OrderedDict[Key, object] = OrderedDict()
        self._applied = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> object:
        """Return an entry, or MISSING."""
        with self._lock:
            found = self._entries.get(key, MISSING)
            if found is not MISSING:
                self._entries.move_to_end(key)
            return found

    def put(self, key: Key, value: object, revision: int) -> bool:
        """Keep an entry that was read at this revision or later, unless changes behind it have been applied. Returns
        whether it is kept."""
        with self._lock:
            if revision < self._applied:
                return False
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self._entries_max:
                self._entries.popitem(last=False)
            return True

    def apply(self, revision: int, keys: Iterable[Key], tenants: Iterable[str]) -> None:
        """Forget these entries, and all of these tenants, as of a revision."""
        gone = set(tenants)
        with self._lock:
            self._applied = revision
            for key in keys:
                self._entries.pop(key, None)
            if gone:
                for key in [key for key in self._entries if key[1] in gone]:
                    del self._entries[key]

    def clear(self, revision: int) -> None:
        """Forget everything, as of a revision, which may be below what was applied: a directory was put back."""
        with self._lock:
            self._applied = revision
            self._entries.clear()
