"""Filters without wildcards that other shards want: a keyed hash of each, and how many such filters a slot has.

A hash that two filters share sends a shard a copy too many, which it drops; none is ever sent too few. Open addressing
with linear probing, in segments so that the growth of one is a bounded piece of work: 12 bytes an entry, half to four
fifths of them used. An entry is the hash and a tag: the slot in the lower 16 bits, above it the count, 0 where the
entry is free. A count that has reached its end stays there until the slot is swept.
"""

from __future__ import annotations

from typing import Final

from librt.vecs import vec
from mypy_extensions import i32, i64, mypyc_attr

SLOTS_MAX: Final = 1 << 16
SEGMENTS: Final = 256
ENTRY_BYTES: Final = 12
_SEGMENT_BITS: Final = 8
_SLOT_MASK: Final = 0xFFFF
_ONE: Final = 1 << 16
_COUNT_MAX: Final = 0x7FFF
_LEAST: Final = 8  # entries of a segment
_POSITIVE: Final = (1 << 54) - 1
_NOWHERE: Final = -1


@mypyc_attr(acyclic=True)
class _Segment:
    """A part of the table of filters, by the lowest bits of the hashes."""

    def __init__(self) -> None:
        self.keys: vec[i64] = vec[i64]()
        self.tags: vec[i32] = vec[i32]()
        self.used: i64 = 0

    def add(self, key: i64, tag: i32) -> None:
        """Count one more filter of this hash in the slot of the tag."""
        if 5 * (self.used + 1) > 4 * len(self.keys):
            self.rebuild(max(_LEAST, len(self.keys) + len(self.keys) // 2), _NOWHERE)
        at = self.find(key, i64(tag) & _SLOT_MASK)
        if self.tags[at] == 0:
            self.keys[at] = key
            self.tags[at] = tag
            self.used += 1
        elif self.tags[at] >> 16 < _COUNT_MAX:
            self.tags[at] += _ONE

    def remove(self, key: i64, slot: i64) -> None:
        """Count one filter less."""
        if len(self.keys) == 0:
            return
        at = self.find(key, slot)
        count: i64 = i64(self.tags[at]) >> 16
        if count == 1:
            self._close(at)
        elif 0 < count < _COUNT_MAX:
            self.tags[at] -= _ONE

    def find(self, key: i64, slot: i64) -> i64:
        """Return the place of this hash and slot, or the free one where it would be."""
        size: i64 = len(self.keys)
        at: i64 = _home(key, size)
        while self.tags[at] != 0:
            if self.keys[at] == key and i64(self.tags[at]) & _SLOT_MASK == slot:
                return at
            at += 1
            if at == size:
                at = 0
        return at

    def slots(self, key: i64) -> list[int] | None:
        """Return the slots that have this hash, None if there are none: that is what most messages find where their
        subscribers are at home with their publishers, and it makes no list."""
        size: i64 = len(self.keys)
        found: list[int] | None = None
        if size == 0:
            return found
        at: i64 = _home(key, size)
        while self.tags[at] != 0:
            if self.keys[at] == key:
                slot = int(i64(self.tags[at]) & _SLOT_MASK)
                if found is None:
                    found = [slot]
                else:
                    found.append(slot)
            at += 1
            if at == size:
                at = 0
        return found

    def _close(self, hole: i64) -> None:
        """Free an entry: the entries behind it that are not at home move up, so that no search ends before them."""
        size: i64 = len(self.keys)
        at: i64 = hole
        while True:
            at += 1
            if at == size:
                at = 0
            if self.tags[at] == 0:
                break
            home: i64 = _home(self.keys[at], size)
            if _distance(home, at, size) >= _distance(hole, at, size):
                self.keys[hole] = self.keys[at]
                self.tags[hole] = self.tags[at]
                hole = at
        self.tags[hole] = 0
        self.used -= 1

    def rebuild(self, size: i64, without: i64) -> None:
        """Put all entries into a table of this size, but for those of the slot `without`."""
        keys, tags = self.keys, self.tags
        self.keys = vec[i64]([0] * int(size))
        self.tags = vec[i32]([0] * int(size))
        self.used = 0
        for place in range(len(keys)):
            slot: i64 = i64(tags[place]) & _SLOT_MASK
            if tags[place] != 0 and slot != without:
                at = self.find(keys[place], slot)
                self.keys[at] = keys[place]
                self.tags[at] = tags[place]
                self.used += 1

    def sweep(self, slot: i64) -> None:
        """Take out the entries of a slot, and let go of room that nobody needs."""
        if self.used == 0:
            return
        self.rebuild(len(self.keys), slot)
        if 3 * self.used < len(self.keys):
            self.rebuild(max(_LEAST, self.used + self.used // 2 + 1), _NOWHERE)


class HashedFilters:
    """The whole table of filters without wildcards that other shards want."""

    def __init__(self) -> None:
        self._segments = [_Segment() for _ in range(SEGMENTS)]

    def add(self, key: i64, slot: i64) -> None:
        """Count one more filter of this hash in a slot."""
        self._of(key).add(key, i32(slot | _ONE))

    def remove(self, key: i64, slot: i64) -> None:
        """Count one filter less; nothing happens where there is none."""
        self._of(key).remove(key, slot)

    def slots(self, key: i64) -> list[int] | None:
        """Return the slots that have this hash, None if there are none."""
        return self._of(key).slots(key)

    def sweep(self, slot: i64, segment: int) -> None:
        """Take the entries of a slot out of one segment."""
        self._segments[segment].sweep(slot)

    @property
    def entries(self) -> int:
        """Return how many entries are used."""
        return int(sum([segment.used for segment in self._segments]))

    @property
    def bytes(self) -> int:
        """Return the bytes that all entries take, used and free."""
        return ENTRY_BYTES * sum([len(segment.keys) for segment in self._segments])

    def _of(self, key: i64) -> _Segment:
        return self._segments[key & (SEGMENTS - 1)]


def _home(key: i64, size: i64) -> i64:
    """Return where the search for a hash begins."""
    return ((key >> _SEGMENT_BITS) & _POSITIVE) % size


def _distance(start: i64, end: i64, size: i64) -> i64:
    """Return how many steps it is from one entry on to the other."""
    steps: i64 = end - start
    return steps if steps >= 0 else steps + size
