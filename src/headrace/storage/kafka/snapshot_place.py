"""Where the snapshots of a shard in Kafka go, and what may be deleted once they are there.

A snapshot begins with a MARK that is confirmed, so that its manifest names a place in the journal's partition from
which a reader may go on. Two full ones are kept, with the changes behind them. What neither they nor anybody's queue
needs is let go: FLOOR says so, and when it is confirmed the owner deletes up to the MARK that it names.
"""

from __future__ import annotations

from typing import Final, Protocol

from headrace.storage.kafka.chains import CHAINS_KEPT, FULL
from headrace.storage.kafka.entry import Entry, FloorEntry, MarkEntry
from headrace.storage.kafka.envelope import Epoch
from headrace.storage.kafka.snapshot_topic import SnapshotTopic, SnapshotWriter, described

BEGINNING: Final = (0, 0)  # the first place of every journal, which needs no MARK

Marks = list[tuple[int, int]]  # the record offset that comes next there, and the Kafka offset of the MARK


class MarkedJournal(Protocol):
    """What is used of a shard's journal (`storage.KafkaStorage`)."""

    @property
    def away(self) -> str:
        """Return why Kafka takes nothing now; "" if it does."""

    @property
    def epoch(self) -> Epoch:
        """Return the epoch under which the shard is owned."""

    async def confirmed(self, entry: Entry) -> int:
        """Append an entry, and return its Kafka offset once it is confirmed. Raises OSError."""

    def drop_below(self, offset: int) -> None:
        """Note that nobody reads what lies before a record offset any more."""


class KafkaPlace:
    """The partition of a shard's snapshots, as `storage.embedded.snapshotting.Place`. `marks` are those MARKs that are
    confirmed, ascending, from the place on that the partition was last deleted up to."""

    def __init__(self, journal: MarkedJournal, topic: SnapshotTopic, marks: Marks) -> None:
        self.marks = marks
        self._journal = journal
        self._topic = topic
        self._names: dict[int, bytes] = {}  # of those that changes may follow, by their position
        self._writer: SnapshotWriter | None = None
        self._newest = (0, -1)  # of the newest snapshot: its position, and the Kafka offset of its manifest
        self._fulls: list[tuple[int, int]] = []  # of those that are kept: what they need, their first record

    @property
    def full(self) -> str:
        return self._journal.away

    def mark_entry(self) -> MarkEntry:
        """Return a MARK that names the newest snapshot."""
        return MarkEntry(*self._newest)

    async def prepare(self) -> None:
        if self._journal.away:
            raise OSError(self._journal.away)
        await self._journal.confirmed(self.mark_entry())

    def writer(self, position: int, parent: int | None) -> SnapshotWriter:
        follows = FULL if parent is None else self._names[parent]
        mark = self.marks[-1][1]
        about = described(position, follows, mark, tuple(self.marks))
        self._writer = self._topic.begin(self._journal.epoch, about)
        return self._writer

    async def release(self, needed: int, is_full: bool) -> None:
        writer = self._writer
        assert writer is not None, "it was written"
        position = writer.manifest.position
        self._newest = position, writer.last
        self._names = {position: writer.manifest.name}
        if is_full:
            self._fulls = [*self._fulls[1 - CHAINS_KEPT :], (needed, writer.first)]
            if len(self._fulls) == CHAINS_KEPT:
                await self._let_go(*self._fulls[0])

    async def _let_go(self, needed: int, first: int) -> None:
        """Let go what lies before a record offset in the journal, and before a Kafka offset in the snapshots."""
        kept = max((number for number, (offset, _) in enumerate(self.marks) if offset <= needed), default=0)
        if kept > 0:
            offset, mark = self.marks[kept]
            await self._journal.confirmed(FloorEntry(needed, mark))
            del self.marks[:kept]
            self._journal.drop_below(offset)
        self._topic.delete(first)
