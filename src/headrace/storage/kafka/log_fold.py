"""What a partition says, record by record: who owns the shard, and which batches its journal has.

Kafka has no conditional append: whoever was told once that the shard is his may append, also when somebody else owns it
by now, and a client's library may append a record twice. So the *readers* decide, all of them by this fold and by nothing
else, and what is void for one is void for all and for ever:

- OWNED takes effect if it names the owner of the place where it stands. So of two workers that claim the shard of the
  same owner the first has it, and a record that comes a second time names an owner who is not the owner any more.
- A batch, a MARK or a FLOOR takes effect if it has the epoch of the owner, which is the newest OWNED that took effect,
  and begins at the next record offset. So what an owner of before has under way takes no effect behind its successor's
  OWNED, and nothing takes effect twice.
- A batch in parts takes effect with the last one, if they come in order with no other record that takes effect between.

The fold of a log begins at Kafka offset 0, with nobody as the owner, or at a MARK that its owner knew to be confirmed: a
manifest of a snapshot says so, or a FLOOR further on. A MARK that is void looks like any other, so none else will do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.journal.errors import CorruptFile, JournalError, UnsupportedFormat
from headrace.journal.segment import (
    BATCH_HEADER_SIZE,
    Batch,
    batch_range_at,
    batch_size_at,
    seed_of,
    unpack_batch,
)
from headrace.storage.kafka.envelope import (
    BATCH,
    FLOOR,
    HEADER_SIZE,
    LEVEL,
    MAGIC,
    MARK,
    NO_OWNER,
    OWNED,
    PART,
    Envelope,
    Epoch,
    Floor,
    Mark,
    floor_of,
    mark_of,
    owned_of,
    part_of,
    unpack,
)

_TOLD_APART_BY: Final = (
    HEADER_SIZE + BATCH_HEADER_SIZE
)  # bytes: envelope and, of a batch, its header with its checksum


class MissingRecords(JournalError):
    """Records of the partition that were to be read next are not there: somebody has deleted them."""

    def __init__(self, wanted: int, found: int) -> None:
        super().__init__(wanted, found)
        self.wanted = wanted
        self.found = found

    def __str__(self) -> str:
        return f"Kafka offset {self.wanted} was to be read next, and the partition goes on at {self.found}"


@dataclass(frozen=True, slots=True)
class Void:
    """The verdict on a record that takes no effect, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class NewOwner:
    """The verdict on an OWNED that took effect: from here on this epoch counts."""

    epoch: Epoch
    worker: str


@dataclass(frozen=True, slots=True)
class Taken:
    """The verdict on a batch that took effect, and the epoch of who wrote it. `data` is the batch as a segment file holds
    it, header and body."""

    batch: Batch
    epoch: Epoch
    data: bytes


@dataclass(frozen=True, slots=True)
class TakenPart:
    """The verdict on a part in its place, of a batch whose last part is still to come."""

    epoch: Epoch
    number: int


@dataclass(frozen=True, slots=True)
class Marked:
    """The verdict on a MARK that took effect."""

    mark: Mark
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Floored:
    """The verdict on a FLOOR that took effect."""

    floor: Floor
    epoch: Epoch


Verdict = Void | NewOwner | Taken | TakenPart | Marked | Floored


class Standing(NamedTuple):
    """A place that a fold has come to, between two batches: what `LogFold` says under these names."""

    tail: int
    owner: Epoch
    next_offset: int
    last: bytes


_FOREIGN: Final = Void("it is no record of this journal")
_OF_ANOTHER: Final = Void("its owner is not the owner")
_TOO_LATE: Final = Void("it names an owner who is not the owner")
_ELSEWHERE: Final = Void("it does not begin at the next record offset")
_DAMAGED: Final = Void("it does not pass its checks")
_OUT_OF_ORDER: Final = Void("it is not the next part of a batch")


class LogFold:
    """The fold of a partition up to a Kafka offset: everything below `tail` has been taken. `owner` is the epoch that
    counts there, `next_offset` the record offset that comes next. `is_foreign`: before the first owner there is a record
    of another journal."""

    def __init__(self, uuid: bytes) -> None:
        """Begin at Kafka offset 0 of the journal with these 16 bytes as its name, which has no owner yet."""
        self.seed = seed_of(uuid)
        self.tail = 0
        self.owner = NO_OWNER
        self.next_offset = 0
        self.is_foreign = False
        self.last = b""  # how the record below `tail` begins: enough to tell it from every other one
        self._pieces: list[bytes] = []
        self._size = 0

    def begin_at_mark(self, offset: int, value: bytes) -> None:
        """Begin instead at the MARK `value` at a Kafka offset, of which a manifest or a FLOOR says that it was confirmed.
        Raises CorruptFile if none is there."""
        found = unpack(self.seed, value)
        mark = mark_of(found.content) if found is not None and found.kind == MARK else None
        if found is None or mark is None:
            raise CorruptFile(f"Kafka offset {offset} should hold the MARK of a snapshot, and does not")
        self._refuse_newer(found)
        self.owner = found.epoch
        self.next_offset = mark.next_offset
        self._note(offset, value)

    @property
    def standing(self) -> Standing:
        """Return where the fold has come to."""
        return Standing(self.tail, self.owner, self.next_offset, self.last)

    @property
    def is_within(self) -> bool:
        """Return whether parts were taken of a batch that is not whole yet: no other fold may begin there."""
        return bool(self._pieces)

    def begin_behind(self, standing: Standing) -> None:
        """Begin instead where an earlier fold of this log came to, between two batches: a cache kept that. What it stands
        on must be looked at first: `is_last`."""
        self.tail, self.owner, self.next_offset, self.last = standing

    def is_last(self, value: bytes) -> bool:
        """Return whether `value` is the record that was taken last. Where it is another one, Kafka has lost records that
        it had acknowledged, and has put others in their places."""
        return value[:_TOLD_APART_BY] == self.last

    def append(self, offset: int, value: bytes, next_offset: int) -> None:
        """Note that the owner's own record came to stand at `tail`, which its report says: there is nothing to decide.
        The next record offset is `next_offset` from there on."""
        assert offset == self.tail, "who appends there knows everything before it"
        self._pieces = []
        self.next_offset = next_offset
        self._note(offset, value)

    def append_part(self, offset: int, value: bytes, piece: bytes, size: int) -> None:
        """Note likewise the owner's own part, whose batch of `size` bytes goes on behind it."""
        assert offset == self.tail, "who appends there knows everything before it"
        self._pieces.append(piece)
        self._size = size
        self._note(offset, value)

    def take(self, offset: int, value: bytes | None) -> Verdict:
        """Take the record at a Kafka offset, which is `tail`, and say what it is. Raises MissingRecords if there is a
        gap, UnsupportedFormat if the owner writes what a newer headrace alone can read."""
        if offset != self.tail:
            raise MissingRecords(self.tail, offset)
        data = b"" if value is None else value
        found = unpack(self.seed, data)
        verdict = _FOREIGN if found is None else self._judge(offset, found)
        if found is None and self.owner == NO_OWNER:
            self.is_foreign = self.is_foreign or data.startswith(MAGIC)
        self._note(offset, data)
        return verdict

    def _note(self, offset: int, value: bytes) -> None:
        self.tail = offset + 1
        self.last = value[:_TOLD_APART_BY]

    def _judge(self, offset: int, found: Envelope) -> Verdict:
        if found.kind == OWNED:
            return self._owned(offset, found)
        if found.epoch != self.owner:
            return _OF_ANOTHER
        self._refuse_newer(found)
        if found.kind == PART:
            return self._part(found)
        if found.kind == BATCH:
            return self._batch(found.content)
        return self._place(found)

    def _refuse_newer(self, found: Envelope) -> None:
        if found.level > LEVEL:
            raise UnsupportedFormat(
                f"the journal in Kafka is of level {found.level}, this headrace reads up to {LEVEL}"
            )

    # Owners

    def _owned(self, offset: int, found: Envelope) -> Verdict:
        owned = owned_of(found.content)
        if owned is None:
            return _DAMAGED
        if not self._succeeds(owned.previous):
            return _TOO_LATE
        self._refuse_newer(found)
        self.owner = self._epoch_of(offset, found.epoch.bits)
        self._pieces = []
        return NewOwner(self.owner, owned.worker)

    def _succeeds(self, previous: Epoch) -> bool:
        return previous == self.owner

    def _epoch_of(self, offset: int, bits: bytes) -> Epoch:
        return Epoch(offset, bits)

    # Batches

    def _batch(self, data: bytes) -> Verdict:
        if not self._is_batch(data) or batch_range_at(data, 0)[0] != self.next_offset:
            return _ELSEWHERE
        batch = unpack_batch(data, 0, self.seed)
        if batch is None:
            return _DAMAGED
        self._pieces = []
        self.next_offset = batch.end_offset
        return Taken(batch, self.owner, data)

    def _is_batch(self, data: bytes) -> bool:
        return batch_size_at(data, 0) == len(data)

    def _part(self, found: Envelope) -> Verdict:
        part = part_of(found.content)
        if part is None:
            return _DAMAGED
        if part.base_offset != self.next_offset:
            return _ELSEWHERE
        if found.number != len(self._pieces) or (self._pieces and part.size != self._size):
            return _OUT_OF_ORDER
        self._size = part.size
        self._pieces.append(part.piece)
        if not self._is_whole():
            return TakenPart(self.owner, found.number)
        whole = b"".join(self._pieces)
        self._pieces = []
        return self._batch(whole)

    def _is_whole(self) -> bool:
        return sum(map(len, self._pieces)) >= self._size

    # Places

    def _place(self, found: Envelope) -> Verdict:
        """Take a MARK or a FLOOR. What kind else there may be is of a level that is refused."""
        mark = mark_of(found.content) if found.kind == MARK else None
        floor = floor_of(found.content) if found.kind == FLOOR else None
        place = mark or floor
        if place is None:
            return _DAMAGED
        if place.next_offset != self.next_offset:
            return _ELSEWHERE
        self._pieces = []
        if mark is not None:
            return Marked(mark, self.owner)
        assert floor is not None
        return Floored(floor, self.owner)


class Beginning:
    """Finds where a reader that has the partition alone, and no snapshot, may begin: the oldest MARK of which a FLOOR
    further on says that it was confirmed. A FLOOR says so whether or not it takes effect."""

    def __init__(self, uuid: bytes) -> None:
        """Begin to look at the oldest record that the partition has."""
        self._seed = seed_of(uuid)
        self._marks: set[int] = set()

    def take(self, offset: int, value: bytes | None) -> int | None:
        """Look at the record at a Kafka offset. Returns the Kafka offset of the MARK to begin at once it is known."""
        found = None if value is None else unpack(self._seed, value)
        if found is None:
            return None
        if found.kind == MARK:
            self._marks.add(offset)
        if found.kind != FLOOR:
            return None
        floor = floor_of(found.content)
        return floor.mark if floor is not None and floor.mark in self._marks else None
