"""How far the streams between the shards of a directory are at an offset of each journal, read from outside a broker.

A shard notes up to where it has taken another's journal, and up to where others have made durable what they took of
its own. A copy of several journals that are still written must be a cut of which every such note is true: a shard that
was ahead of its source would pass over what the source writes next, one that is behind what its source knows of it would
be refused (ADR 0016).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from headrace.core.records.message import decode_copy
from headrace.core.records.record import KIND_COPY, KIND_STREAM
from headrace.core.records.stream_record import (
    FOLLOWED,
    OWNED,
    STARTED,
    TAKEN,
    StreamRecord,
    decode_stream_record,
)
from headrace.journal.disk import DISK, Disk
from headrace.journal.reader import DIRECTORY, JournalReader
from headrace.journal.segment import split_records
from headrace.journal.snapshot import newest_snapshot

_KIND_AT: Final = 4
_OF_ITSELF: Final = 0  # what a shard says of its own journal


@dataclass(slots=True)
class Steps:
    """One position as it grew, by the offset of the record that says so."""

    records: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    def note(self, record: int, position: int) -> None:
        if not self.positions or position > self.positions[-1]:
            self.records.append(record)
            self.positions.append(position)

    def below(self, end: int) -> int:
        """Return the position after all records below `end`."""
        at = bisect_right(self.records, end - 1)
        return self.positions[at - 1] if at else 0

    def first_above(self, limit: int) -> int | None:
        """Return the offset of the first record that says more than `limit`; None if none does."""
        at = bisect_right(self.positions, limit)
        return self.records[at] if at < len(self.records) else None


class Positions:
    """The positions of one shard: what it has taken of others, what others have followed of it, and the newest starts of
    others that it has heard of, each of which is a record of theirs."""

    def __init__(self) -> None:
        self.owned: dict[int, Steps] = {}
        self.taken: dict[int, Steps] = {}
        self.followed: dict[int, Steps] = {}

    def note(self, subkind: int, shard: int, record: int, position: int) -> None:
        """Note what a record says; `record` -1 stands for a snapshot."""
        of = {TAKEN: self.taken, FOLLOWED: self.followed, OWNED: self.owned}.get(subkind)
        if of is not None:
            of.setdefault(shard, Steps()).note(record, position)

    @classmethod
    def read(cls, reader: JournalReader, end: int, disk: Disk = DISK) -> Positions:
        """Read the positions of a shard up to `end`: the newest snapshot's, and what is behind it. Raises CorruptBatch,
        OffsetOutOfRange."""
        found = cls()
        snapshot = newest_snapshot(reader.data_dir / DIRECTORY, None, disk)
        start = reader.start_offset()
        if snapshot is not None and snapshot.position <= end:
            start = snapshot.position
            for entry in snapshot.entries():
                found._restore(entry)
        for batch in reader.scan(start, end):
            for number, record in enumerate(split_records(batch.body)):
                found._apply(bytes(record), batch.base_offset + number)
        return found

    def _restore(self, entry: bytes) -> None:
        subkinds = next((kinds for name, kinds in _ENTRIES if entry[1 : 1 + len(name)] == name), ())
        fields = msgspec.msgpack.decode(entry)[1:] if subkinds else []
        for subkind, rows in zip(
            subkinds, fields, strict=False
        ):  # behind them stands what later versions say
            for shard, position, *_ in rows:
                self.note(subkind, shard, -1, position)

    def _apply(self, record: bytes, offset: int) -> None:
        if record[_KIND_AT] == KIND_COPY:
            copy = decode_copy(record, 0, len(record))
            self.note(TAKEN, copy.source, offset, copy.source_offset + 1)
        elif record[_KIND_AT] == KIND_STREAM:
            self._apply_said(decode_stream_record(record, 0, len(record)), offset)

    def _apply_said(self, said: StreamRecord, offset: int) -> None:
        if said.subkind == STARTED:
            numbers = said.numbers()
            for at in range(0, len(numbers) - 3, 4):
                self.note(OWNED, numbers[at], offset, numbers[at + 1])
            return
        for shard, position in said.positions():
            self.note(said.subkind, shard, offset, position)


# Names of entries, behind the byte that says how many fields there are, and of what their rows tell.
_ENTRIES: Final = (
    (msgspec.msgpack.encode("streams"), (TAKEN, FOLLOWED)),
    (msgspec.msgpack.encode("owners"), (OWNED,)),
    (msgspec.msgpack.encode("starts"), (_OF_ITSELF, OWNED)),
)


def consistent_ends(shards: Sequence[Positions], ends: Sequence[int]) -> list[int]:
    """Return the largest ends, at most these, at which every note is true: nobody has taken more of a journal than it
    has, nobody is said to have taken more than it has taken, and everybody that was heard of has started: one that starts
    again at an offset below would be taken for an owner of before.

    If `ends` were read one after the other, nothing is left out that was durable before the first was read.
    """
    found = list(ends)
    while True:
        cut = [min([end, *_untrue(shards, found, shard)]) for shard, end in enumerate(found)]
        if cut == found:
            return found
        found = cut


def _untrue(shards: Sequence[Positions], ends: Sequence[int], shard: int) -> Iterator[int]:
    """Yield the offsets of a shard's first notes that are not true at these ends."""
    for source, steps in shards[shard].taken.items():
        if (record := steps.first_above(ends[source])) is not None:
            yield record
    for follower, steps in shards[shard].followed.items():
        has_taken = shards[follower].taken.get(shard, Steps()).below(ends[follower])
        if (record := steps.first_above(has_taken)) is not None:
            yield record
    for other, steps in shards[shard].owned.items():
        if (record := steps.first_above(ends[other] - 1)) is not None:
            yield record
