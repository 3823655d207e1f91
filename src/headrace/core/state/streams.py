"""How far the streams between shards have come: a part of the fold, empty where there is one shard.

`taken` is by source shard the offset in its journal below which everything that is for this shard is in this journal;
`followed` is by following shard the offset in this journal below which that one needs nothing any more; `owners` is by
shard the newest epoch of those of its owners that were talked to. All of them only grow, so a record that comes a second
time changes nothing, and a copy below `taken` is one that is here already.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from headrace.core.records.message import Copy
from headrace.core.records.stream_record import FOLLOWED, OWNED, TAKEN, StreamRecord

NOBODY: Final = 1 << 62  # behind the end of every journal: nobody follows


class Streams:
    """The durable positions of one shard's streams, in both directions."""

    def __init__(self) -> None:
        self.taken: dict[int, int] = {}
        self.followed: dict[int, int] = {}
        self.owners: dict[int, int] = {}

    def takes(self, copy: Copy) -> bool:
        """Return whether a copy is to take effect; from then on the position is behind it."""
        offset: i64 = copy.source_offset
        source = copy.source
        if offset < self.taken.get(source, 0):
            return False
        self.taken[source] = offset + 1
        return True

    def apply(self, record: StreamRecord) -> None:
        """Move the positions that a record tells of; a subkind of a later version is passed over."""
        positions = self._of(record.subkind)
        if positions is not None:
            for shard, offset in record.positions():
                positions[shard] = max(offset, positions.get(shard, 0))

    def _of(self, subkind: int) -> dict[int, int] | None:
        if subkind == TAKEN:
            return self.taken
        if subkind == OWNED:
            return self.owners
        return self.followed if subkind == FOLLOWED else None

    def floor(self, others: list[int]) -> int:
        """Return the offset in this journal from which on one of these shards may still ask for something."""
        return min(self.followed.get(shard, 0) for shard in others) if others else NOBODY

    # Snapshots

    def fields(self) -> list[list[list[int]]]:
        """Return rows of a shard and an offset, of both directions."""
        return [[list(row) for row in sorted(rows.items())] for rows in (self.taken, self.followed)]

    def restore(self, fields: list[list[list[int]]]) -> None:
        """Put back what `fields` gave."""
        self.taken = {row[0]: row[1] for row in fields[0]}
        self.followed = {row[0]: row[1] for row in fields[1]}

    def owner_rows(self) -> list[list[int]]:
        """Return rows of a shard and the newest epoch of its owners."""
        return [list(row) for row in sorted(self.owners.items())]

    def restore_owners(self, rows: list[list[int]]) -> None:
        """Put back what `owner_rows` gave."""
        self.owners = {row[0]: row[1] for row in rows}
