"""How far the streams between shards have come: a part of the fold, empty where there is one shard.

`taken` is by source shard the offset in its journal below which everything that is for this shard is in this journal;
`followed` is by following shard the offset in this journal below which that one needs nothing any more; `owners` is by
shard the newest epoch of those of its owners that were talked to. All of them only grow, so a record that comes a second
time changes nothing, and a copy below `taken` is one that is here already. But with a shard that was put back from an
older copy, and accepted (`headrace journal accept`), streams begin anew where that one is.

An offset says where in a journal, and not in which: one that was put back from an older copy grows past every position
there is. So a source remembers its own `starts`, the offset and the time of the record that each of its owners began
with, and a follower of which of them it has taken last (`sources`): no other history has a start of that place and time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mypy_extensions import i64

from headrace.core.records.message import Copy
from headrace.core.records.stream_record import ANEW, FOLLOWED, OWNED, STARTED, TAKEN, StreamRecord

NOBODY: Final = 1 << 62  # behind the end of every journal: nobody follows
STARTS_MAX: Final = 1000  # that are remembered; a follower knows one of the newest

Start = tuple[int, int]  # offset and time, in microseconds, of the record of an owner's start
NO_START: Final = (0, 0)  # none is known: what an older headrace has taken, or nothing


class _Position:
    """The position of one stream: it moves with each copy, so it is no integer of Python's."""

    def __init__(self, offset: i64) -> None:
        self.offset: i64 = offset


class Streams:
    """The durable positions of one shard's streams, in both directions."""

    def __init__(self) -> None:
        self._taken: dict[int, _Position] = {}
        self.followed: dict[int, int] = {}
        self.owners: dict[int, int] = {}
        self.starts: list[Start] = []
        self.sources: dict[int, Start] = {}

    def takes(self, copy: Copy) -> bool:
        """Return whether a copy is to take effect; from then on the position is behind it."""
        offset: i64 = copy.source_offset
        position = self._taken.get(copy.source)
        if position is None:
            position = self._taken[copy.source] = _Position(0)
        if offset < position.offset:
            return False
        position.offset = offset + 1
        return True

    @property
    def taken(self) -> Mapping[int, int]:
        """Return the positions by source shard, as they are now."""
        return {shard: int(position.offset) for shard, position in self._taken.items()}

    def taken_of(self, shard: int) -> i64:
        """Return the position in the journal of one source shard."""
        position = self._taken.get(shard)
        return 0 if position is None else position.offset

    def _take(self, shard: int, offset: int) -> None:
        self._taken[shard] = _Position(max(offset, int(self.taken_of(shard))))

    def apply(self, record: StreamRecord) -> None:
        """Move the positions that a record tells of; a subkind of a later version is passed over."""
        positions = self._of(record.subkind)
        if record.subkind == TAKEN:
            for shard, offset in record.positions():
                self._take(shard, offset)
        elif record.subkind == STARTED:
            numbers = record.numbers()
            for at in range(0, len(numbers) - 3, 4):
                start = (numbers[at + 1], numbers[at + 2])
                self.sources[numbers[at]] = max(start, self.sources.get(numbers[at], NO_START))
        elif record.subkind == ANEW:
            numbers = record.numbers()
            for at in range(0, len(numbers) - 3, 4):
                self.begin_anew(numbers[at], numbers[at + 1], numbers[at + 2])
        elif positions is not None:
            for shard, offset in record.positions():
                positions[shard] = max(offset, positions.get(shard, 0))

    def begin_anew(self, shard: int, taken: int, followed: int) -> None:
        """Go back with a shard that was put back to where both have the same of each other's journals."""
        self._taken[shard] = _Position(taken)
        self.followed[shard] = followed
        self.owners.pop(shard, None)
        self.sources.pop(shard, None)

    def _of(self, subkind: int) -> dict[int, int] | None:
        if subkind == OWNED:
            return self.owners
        return self.followed if subkind == FOLLOWED else None

    def floor(self, others: list[int]) -> int:
        """Return the offset in this journal from which on one of these shards may still ask for something."""
        return min(self.followed.get(shard, 0) for shard in others) if others else NOBODY

    # Starts

    def started(self, offset: int, timestamp_us: int) -> None:
        """Note that an owner of this shard has begun with the record at `offset`."""
        if not self.starts or offset > self.starts[-1][0]:
            self.starts.append((offset, timestamp_us))
            del self.starts[:-STARTS_MAX]

    def has_given(self, start: Start, offset: int) -> bool:
        """Return whether whoever was given something by the owner of this start, and by no later one, may have come to
        `offset`: this shard has had that owner, and the next one began no earlier. Who knows of no start is believed."""
        if start == NO_START:
            return True
        if any(start[0] < later < offset for later, _ in self.starts):
            return False
        return start in self.starts or not self.starts or start[0] < self.starts[0][0]

    # Snapshots

    def fields(self) -> list[list[list[int]]]:
        """Return rows of a shard and an offset, of both directions."""
        return [[list(row) for row in sorted(rows.items())] for rows in (self.taken, self.followed)]

    def restore(self, fields: list[list[list[int]]]) -> None:
        """Put back what `fields` gave."""
        self._taken = {row[0]: _Position(row[1]) for row in fields[0]}
        self.followed = {row[0]: row[1] for row in fields[1]}

    def start_fields(self, end: int) -> list[list[list[int]]]:
        """Return rows of the starts of this shard below `end`, and rows of a shard and the start it was taken of last."""
        starts = [list(start) for start in self.starts if start[0] < end]
        return [starts, [[shard, *start] for shard, start in sorted(self.sources.items())]]

    def restore_starts(self, fields: list[list[list[int]]]) -> None:
        """Put back what `start_fields` gave."""
        self.starts = [(row[0], row[1]) for row in fields[0]]
        self.sources = {row[0]: (row[1], row[2]) for row in fields[1]}

    def owner_rows(self) -> list[list[int]]:
        """Return rows of a shard and the newest epoch of its owners."""
        return [list(row) for row in sorted(self.owners.items())]

    def restore_owners(self, rows: list[list[int]]) -> None:
        """Put back what `owner_rows` gave."""
        self.owners = {row[0]: row[1] for row in rows}
