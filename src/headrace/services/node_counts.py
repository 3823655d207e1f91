"""How many there are of something on all workers of a node: one file, mapped by all of them, with a table for each.

A worker writes its own table and reads those of the others, so a limit of the node costs neither a message nor a lock,
and a worker that hangs holds up nobody. What two workers let in at the same moment can be one too many for each of them.
What a worker had counts until it starts again and empties its table. A table: ENTRIES pairs of u64 in the order of the
machine, key (never 0) and count; a key stands at its remainder, or at the first free place behind that. Runs on the loop.
"""

from __future__ import annotations

import mmap
import os
from hashlib import blake2b
from pathlib import Path
from typing import Final

from headrace.journal.disk import Disk

ENTRIES: Final = 1 << 15
_FULL: Final = ENTRIES * 3 // 4
_ZEROS_MIN: Final = _FULL // 8  # that are worth making the table anew
_PAIR_BYTES: Final = 16
_TABLE_BYTES: Final = ENTRIES * _PAIR_BYTES


class NodeCounts:
    """The counts of one worker, and sums over the others. Beyond three quarters of ENTRIES different keys a worker counts
    for itself."""

    def __init__(self, path: Path, worker: int, workers: int) -> None:
        """Open the file, which the first worker makes, with our table empty. Raises OSError, also where the disk has no
        room for it: a page of it that could not be had later would end the process (SIGBUS)."""
        size = workers * _TABLE_BYTES
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
        self._mine = worker * ENTRIES
        self._others = [other * ENTRIES for other in range(workers) if other != worker]
        self._places: dict[int, int] = {}  # of our keys, in words
        self._zeros = 0  # of them, those we have none of any more
        self._empty()

    def set(self, key: int, count: int) -> None:
        """Say that we have so many of `key` now."""
        place = self._places.get(key)
        if place is None:
            if not count:
                return
            if len(self._places) >= _FULL and self._zeros >= _ZEROS_MIN:
                self._forget_zeros()
            if len(self._places) >= _FULL:
                return
            place = self._place(key)
        self._zeros += (count == 0) - (self._words[place + 1] == 0)
        self._words[place + 1] = count

    def others(self, key: int) -> int:
        """Return how many the other workers have of `key`."""
        return sum(self._find(table, key) for table in self._others)

    def close(self) -> None:
        """Have nothing any more, and let go of the file."""
        self._empty()
        self._words.release()
        self._file.close()

    def _find(self, table: int, key: int) -> int:
        words = self._words
        for step in range(ENTRIES):
            place = 2 * (table + (key + step) % ENTRIES)
            found = words[place]
            if found == key:
                return words[place + 1]
            if not found:
                return 0
        return 0

    def _place(self, key: int) -> int:
        """Give a key its place in our table, which has a free one."""
        words, at = self._words, key % ENTRIES
        while words[2 * (self._mine + at)]:
            at = (at + 1) % ENTRIES
        place = self._places[key] = 2 * (self._mine + at)
        words[place] = key
        self._zeros += 1
        return place

    def _forget_zeros(self) -> None:
        """Make room where most keys are of those who have gone. For a moment the others see too few."""
        left = {key: self._words[place + 1] for key, place in self._places.items()}
        self._empty()
        for key, count in left.items():
            if count:
                self.set(key, count)

    def _empty(self) -> None:
        self._places.clear()
        self._zeros = 0
        start = self._mine * _PAIR_BYTES
        self._file[start : start + _TABLE_BYTES] = bytes(_TABLE_BYTES)


def key_of(*names: str) -> int:
    """Return the key of what has these names."""
    digest = blake2b("\0".join(names).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1
