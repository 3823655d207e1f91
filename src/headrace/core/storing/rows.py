"""What the journal says of a session's queue in a store: the fold of STORED, LET_GO and of what is finished.

A queue is rows in order, each in one place. Those in a store are *extents*: entries without a gap in one stream, that of
one generation. An older stream is kept as long as something waits in it that the journal has let go of; whatever else it
held is put again into the next one::

    extent, generation 3   | extent, generation 4
    1 2 3 ... let go ...   | let go ... 58 59 | 60 61 62 in the journal too | 63 ... not put yet
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

EXTENTS_MAX: Final = 16  # streams of one queue; then the journal keeps what comes until one has been read


class Extent:
    """Entries without a gap in the stream of one generation; none while `up_to` is `first` - 1."""

    def __init__(self, generation: i64, first: i64, up_to: i64) -> None:
        self.generation = generation
        self.first = first
        self.up_to = up_to

    def is_empty(self) -> bool:
        return self.up_to < self.first


class StoredRows:
    """The extents of a queue, oldest first, the highest generation that was used, and up to where the journal was let
    go."""

    def __init__(self) -> None:
        self.extents: list[Extent] = []
        self.generation: i64 = 0
        self.let_go: i64 = 0
        self.placed = 0  # the store, by the digest of its name; 0: that of the session's type
        self.tried: i64 = 0  # the highest generation that was tried since the start; not in the fold
        self.store = ""  # what the store is called, while one is connected to; not in the fold

    def stored(self, generation: i64, first: i64, up_to: i64) -> list[Extent]:
        """Note that the stream of a generation holds what is between two serial numbers. Returns the extents that hold
        nothing any more because of that: what they held is in the new one."""
        extents = self.extents
        if extents and extents[-1].generation == generation:
            extents[-1].up_to = up_to
            return []
        dropped: list[Extent] = []
        while extents and extents[-1].first >= first:
            dropped.append(extents.pop())
        if extents:
            extents[-1].up_to = min(extents[-1].up_to, first - 1)
        extents.append(Extent(generation, first, up_to))
        self.generation = max(self.generation, generation)
        return dropped

    def place(self, digest: int) -> None:
        """Note which store the queue lies in from now on. What another one has of it is a copy, which is left there."""
        if self.placed not in (0, digest):
            self.extents = []
        self.placed = digest

    def note_let_go(self, up_to: i64) -> None:
        """Note that the journal need not keep anything up to a serial number."""
        self.let_go = max(self.let_go, up_to)

    def consumed(self, floor: i64) -> list[Extent]:
        """Note that everything below a serial number is finished. Returns the extents that nobody needs any more."""
        count = 0
        for extent in self.extents:
            if extent.up_to >= floor:
                break
            count += 1
        done = self.extents[:count]
        del self.extents[:count]
        return done

    def at(self, serial: i64) -> Extent | None:
        """Return the extent that an entry lies in."""
        for extent in self.extents:
            if extent.first <= serial <= extent.up_to:
                return extent
        return None

    def held(self, floor: i64) -> tuple[int, int]:
        """Return how many entries from a serial number on a store has, and how many of them the journal was let go
        of."""
        held: i64 = 0
        alone: i64 = 0
        for extent in self.extents:
            first = max(extent.first, floor)
            held += max(0, extent.up_to - first + 1)
            alone += max(0, min(extent.up_to, self.let_go) - first + 1)
        return int(held), int(alone)

    def is_full(self) -> bool:
        """Return whether no other stream may be begun."""
        return len(self.extents) >= EXTENTS_MAX

    def fields(self) -> list[object]:
        """Return the rows as they stand in a snapshot."""
        flat = [[int(found.generation), int(found.first), int(found.up_to)] for found in self.extents]
        return [int(self.generation), int(self.let_go), flat, self.placed]

    def load(self, fields: list[object]) -> None:
        """Take over the `fields` of another one."""
        generation, let_go, flat = fields[:3]
        placed = fields[3] if len(fields) > 3 else 0  # an entry of before has no more
        assert isinstance(placed, int)
        assert isinstance(generation, int)
        assert isinstance(let_go, int)
        assert isinstance(flat, list)
        self.placed = placed
        self.generation = generation
        self.let_go = let_go
        self.extents = [Extent(numbers[0], numbers[1], numbers[2]) for numbers in flat]
