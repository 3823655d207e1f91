"""What is kept of a shard in Kafka, and where one begins to read it: the places that a reader may begin at, and what may
be deleted up to which of them. Decided here, without I/O; done by `snapshot_place` and by the owner.

A place is a MARK that is confirmed: the record offset that comes next there, and its Kafka offset. The beginning of the
log is one without a MARK. Each manifest has the places that stood when it was written; whatever is deleted is
deleted up to one that stands. So the newest snapshot whose last manifest has a place that is not deleted has all that
its own state refers to behind that place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.storage.kafka.chains import CHAINS_KEPT, Whole
from headrace.storage.kafka.entry import FloorEntry
from headrace.storage.kafka.envelope import Floor, Mark

Place = tuple[int, int]

BEGINNING: Final[Place] = (0, 0)


@dataclass(frozen=True, slots=True)
class Release:
    """What may go: the journal up to the MARK of `floor`, if that is not None, and the snapshots below a Kafka offset of
    theirs. `kept_from`: the record offset at that MARK, from which on everything stays."""

    floor: FloorEntry | None
    snapshots_below: int
    kept_from: int = 0


class Keeping:
    """What one owner of a shard knows of what is kept. `places` are those that stand, ascending."""

    def __init__(self, places: Sequence[Place] = (BEGINNING,)) -> None:
        """Begin with the places of the newest manifest, or with the beginning of the log where there is none."""
        self._fulls: list[tuple[int, int]] = []  # of this owner: what each needs, its first record
        self.begin_with(places)

    def begin_with(self, places: Sequence[Place]) -> None:
        """Take the places of a manifest for those that stand. The last one is that of the MARK behind all that it has."""
        self.places = list(places)
        self.witness = self.places[-1]

    def read_from(self, tail: int) -> None:
        """Begin to read at a Kafka offset: of the places from there on, those count that are read (`on_passed`)."""
        self.places = [place for place in self.places if place[1] < tail]

    @property
    def is_witnessed(self) -> bool:
        """Return whether the MARK behind all that the manifest has was read, or others have deleted up to one behind it:
        else Kafka has lost it since it was looked at."""
        if not self.places:
            return False
        return self.witness in self.places or self.witness[1] < self.places[0][1]

    def on_mark(self, next_offset: int, offset: int) -> None:
        """Note that a MARK is confirmed at a Kafka offset."""
        self.places.append((next_offset, offset))

    def on_floor(self, mark: int) -> int:
        """Note that a FLOOR is confirmed which names the MARK at a Kafka offset. Returns the record offset below which
        nobody reads any more."""
        self.places = [place for place in self.places if place[1] >= mark]
        return self.places[0][0]

    def on_passed(self, offset: int, found: Mark | Floor) -> None:
        """Note a MARK or a FLOOR at a Kafka offset, of an owner before: others may have written them, and deleted, since
        the manifest was written that this owner has begun with."""
        if isinstance(found, Mark):
            if not self.places or offset > self.places[-1][1]:
                self.places.append((found.next_offset, offset))
            return
        self.places = [place for place in self.places if place[1] >= found.mark]
        if not self.places or self.places[0][1] > found.mark:
            self.places.insert(
                0, (found.floor, found.mark)
            )  # the MARK was not read: it names a lower offset, if any

    def on_full(self, needed: int, first: int, consumed: int | None = None) -> Release | None:
        """Note that a full snapshot is there: the broker needed the records from `needed` on when it was taken, and
        `first` is the Kafka offset of its first record. Returns what may go. The older of two is kept, for the newest may
        turn out to be damaged; and so is what registered consumers have not read, which is all from `consumed` on."""
        self._fulls = [*self._fulls[1 - CHAINS_KEPT :], (needed, first)]
        if len(self._fulls) < CHAINS_KEPT:
            return None
        needed, first = self._fulls[0]
        if consumed is not None:
            needed = min(needed, consumed)
        below = [place for place in self.places if place[0] <= needed]
        is_progress = len(below) > 1
        if not is_progress:
            return Release(None, first)
        return Release(FloorEntry(needed, below[-1][1]), first, below[-1][0])


def place_to_begin(places: Sequence[Place], start: int, position: int) -> Place | None:
    """Return the oldest place at or behind the Kafka offset `start`, where the partition begins; None if none is left
    that has everything from the record offset `position` on: somebody else has deleted, and what is between is nowhere.
    """
    found = next((place for place in places if place[1] >= start), None)
    return found if found is not None and found[0] <= position else None


def newest_chain(chains: Sequence[list[Whole]], start: int) -> list[Whole]:
    """Return the chain to begin with, of those that stand, the one that reaches furthest first (`ChainFold.chains`); []
    if there is none whose records behind it are all there. `start` is where the journal's partition begins."""
    for chain in chains:
        manifest = chain[-1].manifest
        if place_to_begin(manifest.index, start, manifest.position) is not None:
            return chain
    return []
