"""A file that all workers of a node map, with a table for each: numbers by key that one worker writes and all can read.

Nobody asks, locks or waits for anybody, and a worker that hangs holds up none. A table: so many pairs of u64 in the order
of the machine, key (never 0) and number; a key stands at its remainder, or at the first free place behind that. Runs on
the loop.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
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
        self._path = path
        self._entries = entries
        self.full = entries * 3 // 4
        self._bytes = workers * entries * _PAIR_BYTES
        self._file, self._identity = self._mapped(path, 0)
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

    def renew(self) -> bool:
        """Map the file anew if another program has removed it, which is returned: with what the tables of all hold, where
        nobody has done so before, else with what ours holds. Raises OSError, and all is as it was."""
        with suppress(FileNotFoundError):
            found = os.stat(self._path)
            if (found.st_dev, found.st_ino) == self._identity:
                return False
        self._put_back()
        mapped, self._identity = self._mapped(self._path, 0)
        start = self._mine * _PAIR_BYTES
        end = start + self._entries * _PAIR_BYTES
        mapped[start:end] = self._file[start:end]
        self.close()
        self._file = mapped
        self._words = memoryview(mapped).cast("Q")
        return True

    def _put_back(self) -> None:
        """Put a file with what the one that was removed holds in its place, unless there is one: it comes whole, or not
        at all. Raises OSError."""
        written = self._path.with_name(f"{self._path.name}.new-{self._mine // self._entries}")
        written.unlink(missing_ok=True)
        try:
            copy, _ = self._mapped(written, os.O_EXCL)
            copy[:] = self._file[:]
            copy.close()
            with suppress(FileExistsError):
                os.link(written, self._path)
        finally:
            written.unlink(missing_ok=True)

    def _mapped(self, path: Path, flags: int) -> tuple[mmap.mmap, tuple[int, int]]:
        """Map a file, which is made if it is not there; returns the mapping, and which file it is. Raises OSError."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
        try:
            Disk().allocate(descriptor, 0, self._bytes)
            found = os.fstat(descriptor)
            if found.st_size < self._bytes:
                os.ftruncate(descriptor, self._bytes)
            return mmap.mmap(descriptor, self._bytes), (found.st_dev, found.st_ino)
        except OSError as error:
            raise OSError(error.errno, f"{path}: {error.strerror}") from None
        finally:
            os.close(descriptor)

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
