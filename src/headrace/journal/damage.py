"""What is still readable in a segment, and what is not: every piece in order, none left out.

Damage is a stretch of bytes and the offsets that lay in it. Behind it whole batches are looked for byte by
byte; their checksums say that they are batches of this journal, so reading goes on there.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.journal.disk import Disk
from headrace.journal.errors import CorruptJournal
from headrace.journal.search import find_batches
from headrace.journal.segment import SEGMENT_HEADER_SIZE, Batch
from headrace.journal.walk import Walk


class Damage:
    """A stretch that is lost: offsets from `first_offset` up to `end_offset` cannot be read; they lay between the two
    positions."""

    def __init__(
        self, path: str, position: int, end_position: int, first_offset: int, end_offset: int, reason: str
    ) -> None:
        self.path = path
        self.position = position
        self.end_position = end_position
        self.first_offset = first_offset
        self.end_offset = end_offset
        self.reason = reason

    @property
    def records(self) -> int:
        return self.end_offset - self.first_offset

    def __str__(self) -> str:
        return (
            f"{self.path}, bytes {self.position} up to {self.end_position}: {self.reason}; "
            f"offsets {self.first_offset} up to {self.end_offset} ({self.records} records) cannot be read"
        )

    def error(self) -> CorruptJournal:
        return CorruptJournal(self.path, self.position, self.first_offset, self.end_offset, self.reason)


def survey(
    disk: Disk, fd: int, path: str, seed: int, base_offset: int, end_offset: int
) -> Iterator[Batch | Damage]:
    """Yield all batches of the segment and all damage between them. `end_offset`: it should reach at least so far; an
    unfinished batch behind that is no damage."""
    offset, position = base_offset, SEGMENT_HEADER_SIZE
    behind: Iterator[tuple[int, Batch]] | None = None  # one search for all of the damage
    while True:
        walk = Walk(disk, fd, seed, offset, position)
        yield from walk
        offset, position = walk.next_offset, walk.position
        if not walk.is_damaged and offset >= end_offset:
            return
        behind = behind or find_batches(disk, fd, seed, position, offset)
        found = next(
            ((at, batch) for at, batch in behind if at >= position and batch.base_offset >= offset), None
        )
        if found is None:
            if offset < end_offset:
                yield Damage(path, position, disk.size(fd), offset, end_offset, walk.stop)
            return
        at, batch = found
        yield Damage(path, position, at, offset, batch.base_offset, walk.stop)
        offset, position = batch.base_offset, at


def pieces(
    disk: Disk, fd: int, path: str, seed: int, base_offset: int, end_offset: int, is_last: bool
) -> Iterator[Batch | Damage]:
    """Do as `survey`, of what belongs to the segment. Behind `end_offset` is the next segment, and what cannot be cut
    there is damage; in the last one whole batches belong to it up to the first damage, of which nobody was told."""
    for piece in survey(disk, fd, path, seed, base_offset, end_offset):
        if piece.end_offset <= end_offset:
            yield piece
        elif is_last:
            if isinstance(piece, Damage) and piece.first_offset >= end_offset:
                return
            yield piece
        elif isinstance(piece, Batch):
            if piece.base_offset < end_offset:
                what = "a batch that reaches into the next segment"
                yield Damage(path, 0, disk.size(fd), piece.base_offset, end_offset, what)
        elif piece.first_offset < end_offset:
            piece.end_offset = end_offset
            yield piece


def first_damage(
    disk: Disk, fd: int, path: str, seed: int, base_offset: int, end_offset: int
) -> Damage | None:
    """Read until there is some damage and return it, None if all checksums hold."""
    pieces = survey(disk, fd, path, seed, base_offset, end_offset)
    return next((piece for piece in pieces if isinstance(piece, Damage)), None)
