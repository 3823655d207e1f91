"""How far the streams between the shards of a directory are at an offset of each journal, read from outside a broker.

A shard notes up to where it has taken another's journal, and up to where others have made durable what they took of
its own. A copy of several journals that are still written must be a cut of which every such note is true: a shard that
was ahead of its source would pass over what the source writes next, one that is behind what its source knows of it would
be refused (ADR 0016). What a group has lent to a session is drawn in the journal of its home: else that one numbers
another message so, which the session would be taken to have (ADR 0022).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from headrace.core.ports.journal import PageReader
from headrace.core.records.message import decode_copy
from headrace.core.records.record import (
    KIND_COPY,
    KIND_PROGRESS,
    KIND_STREAM,
    PROGRESS_WIDTH,
    SHARED_DRAWN,
    decode_progress,
)
from headrace.core.records.stream_record import (
    ANEW,
    FOLLOWED,
    LENT,
    OWNED,
    STARTED,
    TAKEN,
    StreamRecord,
    decode_stream_record,
)
from headrace.core.state.backlog import Backlog, BacklogSpace
from headrace.core.state.groups import GROUP_NUMBER_SHIFT
from headrace.journal.disk import DISK, Disk
from headrace.journal.reader import DIRECTORY, JournalReader
from headrace.journal.segment import split_records
from headrace.journal.snapshot import newest_snapshot

_KIND_AT: Final = 4
_SUBKIND_AT: Final = 5
_OF_ITSELF: Final = 0  # what a shard says of its own journal
_NEVER: Final = 1 << 62  # behind the end of every journal


@dataclass(slots=True)
class Steps:
    """One position as it grew, by the offset of the record that says so."""

    records: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    def note(self, record: int, position: int) -> None:
        if not self.positions or position > self.positions[-1]:
            self.records.append(record)
            self.positions.append(position)

    def begin_anew(self, record: int, position: int) -> None:
        """Note a position that went back: of no offset below the record that says so is anything asked any more."""
        self.records = [record]
        self.positions = [position]

    def below(self, end: int) -> int:
        """Return the position after all records below `end`."""
        at = bisect_right(self.records, end - 1)
        return self.positions[at - 1] if at else 0

    def first_above(self, limit: int) -> int | None:
        """Return the offset of the first record that says more than `limit`; None if none does."""
        at = bisect_right(self.positions, limit)
        return self.records[at] if at < len(self.records) else None


@dataclass(slots=True)
class _Waiting:
    """What of a group was drawn by nobody when a snapshot was taken."""

    returned: set[int]
    since: int  # and from this serial on

    def has(self, serial: int) -> bool:
        return serial in self.returned or serial >= self.since


class Draws:
    """Says where a shard's journal gives entries of its groups to members at QoS 2."""

    def __init__(self) -> None:
        self._start = 0  # nothing below it was read
        self._drawn: dict[tuple[int, int], int] = {}  # the offsets of the last draws, by group and serial
        self._groups: dict[int, _Waiting] = {}  # of the snapshot

    def begin(self, start: int) -> None:
        """Begin to read at this offset."""
        self._start = start

    def restore(self, entry: bytes) -> None:
        """Note the entry of a group in the snapshot."""
        value = msgspec.msgpack.decode(entry)
        backlog = Backlog(BacklogSpace(PageReader()))
        backlog.load(value[6])
        self._groups[value[3]] = _Waiting({serial for serial, _ in value[7]}, value[5] - int(backlog.count))

    def note(self, group: int, serial: int, offset: int) -> None:
        """Note that a record at `offset` gives an entry to a member."""
        self._drawn[group, serial] = offset

    def of(self, group: int, serial: int) -> int:
        """Return the offset of the record that gives an entry to a member: -1 if it lies before what was read, and one
        behind every end if there is none."""
        found = self._drawn.get((group, serial))
        if found is not None:
            return found
        waiting = self._groups.get(group)
        if waiting is not None:
            return _NEVER if waiting.has(serial) else -1
        return _NEVER if group >> GROUP_NUMBER_SHIFT >= self._start else -1  # made later, or gone before


class Positions:
    """The positions of one shard: what it has taken of others, what others have followed of it, and the newest starts of
    others that it has heard of, each of which is a record of theirs; what groups of others have lent to it, and where its
    own were drawn from."""

    def __init__(self) -> None:
        self.owned: dict[int, Steps] = {}
        self.taken: dict[int, Steps] = {}
        self.followed: dict[int, Steps] = {}
        self.draws = Draws()
        self.lent: list[tuple[int, int, int, int]] = []  # record, home, group, serial
        # By home that was put back, the offset that stands for its groups of before: what they lent nobody has drawn.
        self._of_before: set[tuple[int, int]] = set()

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
        found.draws.begin(start)
        for batch in reader.scan(start, end):
            for number, record in enumerate(split_records(batch.body)):
                found._apply(bytes(record), batch.base_offset + number)
        return found

    def _restore(self, entry: bytes) -> None:
        if any(entry[1 : 1 + len(name)] == name for name in _GROUPS):
            self.draws.restore(entry)
            return
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
        elif record[_KIND_AT] == KIND_PROGRESS and record[_SUBKIND_AT] == SHARED_DRAWN:
            values = decode_progress(record, 0, len(record)).values()
            for at in range(0, len(values), PROGRESS_WIDTH[SHARED_DRAWN]):
                if values[at + 3] >> 16 == 2:  # `Draw.choice`
                    self.draws.note(values[at], values[at + 1], offset)

    def _apply_said(self, said: StreamRecord, offset: int) -> None:
        if said.subkind == STARTED:
            numbers = said.numbers()
            for at in range(0, len(numbers) - 3, 4):
                self.note(OWNED, numbers[at], offset, numbers[at + 1])
            return
        if said.subkind == LENT:
            numbers = said.numbers()
            for at in range(0, len(numbers) - 5, 6):
                if (numbers[at], numbers[at + 1] >> GROUP_NUMBER_SHIFT) not in self._of_before:
                    self.lent.append((offset, numbers[at], numbers[at + 1], numbers[at + 2]))
            return
        if said.subkind == ANEW:
            numbers = said.numbers()
            for at in range(0, len(numbers) - 3, 4):
                self._begin_anew(offset, *numbers[at : at + 4])
            return
        for shard, position in said.positions():
            self.note(said.subkind, shard, offset, position)

    def _begin_anew(self, record: int, shard: int, taken: int, followed: int, gap: int) -> None:
        self.taken.setdefault(shard, Steps()).begin_anew(record, taken)
        self.followed.setdefault(shard, Steps()).begin_anew(record, followed)
        self.owned.pop(shard, None)
        self.lent = [loan for loan in self.lent if loan[1] != shard]
        self._of_before.add((shard, gap))


# Names of entries, behind the byte that says how many fields there are, and of what their rows tell.
_ENTRIES: Final = (
    (msgspec.msgpack.encode("streams"), (TAKEN, FOLLOWED)),
    (msgspec.msgpack.encode("owners"), (OWNED,)),
    (msgspec.msgpack.encode("starts"), (_OF_ITSELF, OWNED)),
)
_GROUPS: Final = (msgspec.msgpack.encode("group"), msgspec.msgpack.encode("dissolved"))


def consistent_ends(shards: Sequence[Positions], ends: Sequence[int]) -> list[int]:
    """Return the largest ends, at most these, at which every note is true: nobody has taken more of a journal than it
    has, nobody is said to have taken more than it has taken, and everybody that was heard of has started: one that starts
    again at an offset below would be taken for an owner of before. Nobody has been lent what was given to nobody.

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
    for record, home, group, serial in shards[shard].lent:
        if shards[home].draws.of(group, serial) >= ends[home]:
            yield record
