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

Place = tuple[int, int]

BEGINNING: Final[Place] = (0, 0)


@dataclass(frozen=True, slots=True)
class Release:
    """What may go: the journal up to the MARK of `floor`, if that is not None, and the snapshots below a Kafka offset of
    theirs."""

    floor: FloorEntry | None
    snapshots_below: int


class Keeping:
    """What one owner of a shard knows of what is kept. `places` are those that stand, ascending."""

    def __init__(self, places: Sequence[Place] = (BEGINNING,)) -> None:
        """Begin with the places of the newest manifest, or with the beginning of the log where there is none."""
        self.places = list(places)
        self._fulls: list[tuple[int, int]] = []  # of this owner: what each needs, its first record

    def on_mark(self, next_offset: int, offset: int) -> None:
        """Note that a MARK is confirmed at a Kafka offset."""
        self.places.append((next_offset, offset))

    def on_floor(self, mark: int) -> int:
        """Note that a FLOOR is confirmed which names the MARK at a Kafka offset. Returns the record offset below which
        nobody reads any more."""
        self.places = [place for place in self.places if place[1] >= mark]
        return self.places[0][0]

    def on_full(self, needed: int, first: int) -> Release | None:
        """Note that a full snapshot is there: the broker needed the records from `needed` on when it was taken, and
        `first` is the Kafka offset of its first record. Returns what may go. The older of two is kept, for the newest may
        turn out to be damaged."""
        self._fulls = [*self._fulls[1 - CHAINS_KEPT :], (needed, first)]
        if len(self._fulls) < CHAINS_KEPT:
            return None
        needed, first = self._fulls[0]
        below = [place for place in self.places if place[0] <= needed]
        is_progress = len(below) > 1
        return Release(FloorEntry(needed, below[-1][1]) if is_progress else None, first)


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
