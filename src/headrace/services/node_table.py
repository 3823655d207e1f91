"""A file that all workers of a node map, with a table for each: numbers by key that one worker writes and all can read.

Nobody asks, locks or waits for anybody, and a worker that hangs holds up none. A table: so many pairs of u64 in the order
of the machine, key (never 0) and number; a key stands at its remainder, or at the first free place behind that. Runs on
the loop.
"""

from __future__ import annotations

import mmap
import os
from hashlib import blake2b
from pathlib import Path
from typing import Final

from headrace.journal.disk import Disk

ENTRIES: Final = 1 << 15
FULL: Final = ENTRIES * 3 // 4  # so many keys a worker may have in a table of the usual size
_PAIR_BYTES: Final = 16


class NodeTable:
    """The table of one worker, and sight of the others'. All have `entries`, and `full` keys at most."""

    def __init__(self, path: Path, worker: int, workers: int, entries: int = ENTRIES) -> None:
        """Open the file, which the first worker makes; our table is as our process before has left it. Raises OSError,
        also where the disk has no room for it: a page of it that could not be had later would end the process
        (SIGBUS)."""
        self._entries = entries
        self.full = entries * 3 // 4
        size = workers * entries * _PAIR_BYTES
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            Disk().allocate(descriptor, 0, size)
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            self._file = mmap.mmap(descriptor, size)
        except OSError as error:
            raise OSError(error.errno, f"{path}: {error.strerror}") from None
        finally:
            os.close(descriptor)
        self.workers = workers
        self._words = memoryview(self._file).cast("Q")
        self._mine = worker * entries
        self._others = [other * entries for other in range(workers) if other != worker]
        self._places: dict[int, int] = {}  # of our keys, in words
        self._read()

    def __len__(self) -> int:
        """Return how many keys we have."""
        return len(self._places)

    def __contains__(self, key: int) -> bool:
        return key in self._places

    def mine(self, key: int) -> int:
        """Return our number of `key`, 0 if there is none."""
        place = self._places.get(key)
        return 0 if place is None else self._words[place + 1]

    def of_others(self, key: int) -> list[int]:
        """Return the number that each other worker has of `key`."""
        return [self._find(table, key) for table in self._others]

    def put(self, key: int, number: int) -> None:
        """Write our number of a key. One that is new needs room: fewer than `full` others."""
        place = self._places.get(key)
        self._words[(self._place(key) if place is None else place) + 1] = number

    def all_of_mine(self) -> dict[int, int]:
        """Return our numbers by key."""
        return {key: self._words[place + 1] for key, place in self._places.items()}

    def keep(self, numbers: dict[int, int]) -> None:
        """Have these numbers and no others. For a moment the other workers see too few."""
        self._places.clear()
        start = self._mine * _PAIR_BYTES
        size = self._entries * _PAIR_BYTES
        self._file[start : start + size] = bytes(size)
        for key, number in numbers.items():
            self.put(key, number)

    def close(self) -> None:
        """Let go of the file; our numbers stay in it."""
        self._words.release()
        self._file.close()

    def _read(self) -> None:
        """Find the keys that our table has."""
        for place in range(2 * self._mine, 2 * (self._mine + self._entries), 2):
            key = self._words[place]
            if key:
                self._places[key] = place

    def _find(self, table: int, key: int) -> int:
        words, entries = self._words, self._entries
        for step in range(entries):
            place = 2 * (table + (key + step) % entries)
            found = words[place]
            if found == key:
                return words[place + 1]
            if not found:
                return 0
        return 0

    def _place(self, key: int) -> int:
        """Give a key its place in our table, which has a free one."""
        words, entries = self._words, self._entries
        at = key % entries
        while words[2 * (self._mine + at)]:
            at = (at + 1) % entries
        place = self._places[key] = 2 * (self._mine + at)
        words[place] = key
        return place


def key_of(*names: str) -> int:
    """Return the key of what has these names."""
    digest = blake2b("\0".join(names).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1
