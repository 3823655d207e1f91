"""What the owner of a shard has to append to its partition: a batch, a MARK or a FLOOR, until it is confirmed.

An entry becomes the values of one Kafka record, or of several if it is a batch that is too large for one. They are made
when it is sent, and made anew under the epoch of then when it has to be sent again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.journal.segment import batch_range_at
from headrace.storage.kafka.envelope import (
    BATCH,
    HEADER_SIZE,
    PART_HEADER_SIZE,
    Epoch,
    Floor,
    Mark,
    Part,
    pack,
    pack_floor,
    pack_mark,
    pack_part,
)
from headrace.storage.kafka.log_fold import Floored, Marked, Taken, Verdict

PART_OVERHEAD = HEADER_SIZE + PART_HEADER_SIZE


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """A batch as a segment file holds it, header and body, whose records are those from `base_offset` up to
    `end_offset`."""

    data: bytes
    base_offset: int
    end_offset: int

    @classmethod
    def of(cls, data: bytes) -> BatchEntry:
        """Return the entry of a batch, whose header says which records it has."""
        return cls(data, *batch_range_at(data, 0))

    def values(self, seed: int, epoch: Epoch, next_offset: int, bytes_max: int) -> list[bytes]:
        """Return the values of its records, none of which is larger than `bytes_max`."""
        if HEADER_SIZE + len(self.data) <= bytes_max:
            return [pack(seed, BATCH, epoch, self.data)]
        return [pack_part(seed, epoch, n, part) for n, part in enumerate(self.parts(bytes_max))]

    def parts(self, bytes_max: int) -> Iterator[Part]:
        """Yield its parts, for records of this size at most."""
        room = bytes_max - PART_OVERHEAD
        for at in range(0, len(self.data), room):
            yield Part(self.base_offset, len(self.data), self.data[at : at + room])

    def piece(self, number: int, bytes_max: int) -> bytes:
        """Return the piece in the part of this number."""
        room = bytes_max - PART_OVERHEAD
        return self.data[number * room : (number + 1) * room]

    def end(self, next_offset: int) -> int:
        """Return the record offset that comes next behind it."""
        return self.end_offset

    def is_of(self, verdict: Verdict) -> bool:
        """Return whether a record that took effect, and has our epoch, is this one."""
        if not isinstance(verdict, Taken):
            return False
        return (verdict.batch.base_offset, verdict.batch.end_offset) == (self.base_offset, self.end_offset)


@dataclass(frozen=True, slots=True)
class MarkEntry:
    """A MARK that is to be appended; `manifest` and `snapshot` are those of `envelope.Mark`."""

    snapshot: int
    manifest: int

    def values(self, seed: int, epoch: Epoch, next_offset: int, bytes_max: int) -> list[bytes]:
        """Return the value of its record."""
        return [pack_mark(seed, epoch, Mark(next_offset, self.snapshot, self.manifest))]

    def end(self, next_offset: int) -> int:
        """Return `next_offset`: it takes none."""
        return next_offset

    def is_of(self, verdict: Verdict) -> bool:
        """Return whether a record that took effect, and has our epoch, is this one."""
        if not isinstance(verdict, Marked):
            return False
        return (verdict.mark.snapshot, verdict.mark.manifest) == (self.snapshot, self.manifest)


@dataclass(frozen=True, slots=True)
class FloorEntry:
    """A FLOOR that is to be appended; `floor` and `mark` are those of `envelope.Floor`."""

    floor: int
    mark: int

    def values(self, seed: int, epoch: Epoch, next_offset: int, bytes_max: int) -> list[bytes]:
        """Return the value of its record."""
        return [pack_floor(seed, epoch, Floor(next_offset, self.floor, self.mark))]

    def end(self, next_offset: int) -> int:
        """Return `next_offset`: it takes none."""
        return next_offset

    def is_of(self, verdict: Verdict) -> bool:
        """Return whether a record that took effect, and has our epoch, is this one."""
        return isinstance(verdict, Floored) and verdict.floor.mark == self.mark


Entry = BatchEntry | MarkEntry | FloorEntry
