"""Where the snapshots of a shard in Kafka go, and what may be deleted once they are there.

Behind everything that a snapshot has a MARK is confirmed before its manifest is written: whoever begins with it looks
whether that MARK stands in the journal's partition, and knows then that the journal has all of it still. Two full ones
are kept, with the changes behind them. What neither they, nor anybody's queue, nor a registered consumer needs is let go:
FLOOR says so, and when it is confirmed the owner deletes up to the MARK that it names (`keeping`).

Consumers register at any moment, and ask nobody. So they are looked for once more when FLOOR is confirmed: whoever has
registered before is seen then, and nothing is deleted; whoever registers later finds FLOOR in the journal. They find it
until a newer manifest is there, so an answer that came late counts no more; what it would have let go stays until the
next FLOOR.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

from headrace.storage.kafka.actions import Confirmed
from headrace.storage.kafka.chains import FULL
from headrace.storage.kafka.entry import Entry, FloorEntry, MarkEntry
from headrace.storage.kafka.envelope import Epoch
from headrace.storage.kafka.keeping import Keeping, Place
from headrace.storage.kafka.snapshot_topic import SnapshotTopic, SnapshotWriter

ANSWERED_WITHIN_S: Final = 8.0  # before another owner can have the shard and a manifest


class MarkedJournal(Protocol):
    """What is used of a shard's journal (`storage.KafkaStorage`)."""

    @property
    def away(self) -> str:
        """Return why Kafka takes nothing now; "" if it does."""

    async def confirmed(self, entry: Entry) -> Confirmed:
        """Append an entry, and return what is known of it once it is confirmed. Raises OSError."""

    async def consumed(self) -> int | None:
        """Return the offset below which all registered consumers have read everything; None if there are none. While
        nobody can tell, it is 0."""

    def delete(self, offset: int) -> None:
        """Delete what the partition has below a Kafka offset."""


class KafkaPlace:
    """The partition of a shard's snapshots, as `storage.embedded.snapshotting.Place`."""

    def __init__(self, journal: MarkedJournal, topic: SnapshotTopic, keeping: Keeping) -> None:
        self._keeping = keeping
        self._journal = journal
        self._topic = topic
        self._names: dict[int, bytes] = {}  # of those that changes may follow, by their position
        self._writer: SnapshotWriter | None = None
        self._newest = (0, -1)  # of the newest snapshot: its position, and the Kafka offset of its manifest

    @property
    def full(self) -> str:
        return self._journal.away

    def mark_entry(self) -> MarkEntry:
        """Return a MARK that names the newest snapshot."""
        return MarkEntry(*self._newest)

    def writer(self, position: int, parent: int | None) -> SnapshotWriter:
        if self._journal.away:
            raise OSError(self._journal.away)
        follows = FULL if parent is None else self._names[parent]
        self._writer = self._topic.begin(position, follows, self._seal)
        return self._writer

    async def _seal(self) -> tuple[Epoch, list[Place]]:
        mark = await self._journal.confirmed(self.mark_entry())
        return mark.epoch, self._keeping.places

    async def release(self, needed: int, is_full: bool) -> None:
        writer = self._writer
        assert writer is not None, "it was written"
        position = writer.manifest.position
        self._newest = position, writer.last
        self._names = {position: writer.manifest.name}
        release = None
        if is_full:
            release = self._keeping.on_full(needed, writer.first, await self._journal.consumed())
        if release is not None:
            if release.floor is not None:
                await self._let_go(release.floor, release.kept_from)
            self._topic.delete(release.snapshots_below)

    async def _let_go(self, floor: FloorEntry, kept_from: int) -> None:
        """Say that what lies below a MARK is needed by nobody, and delete it, if that is still so. Raises OSError."""
        await self._journal.confirmed(floor)
        asked_s = time.monotonic()
        consumed = await self._journal.consumed()
        if time.monotonic() - asked_s > ANSWERED_WITHIN_S:
            return  # this process stood still, maybe: another one owns the shard, and its manifest lies behind FLOOR
        if consumed is None or consumed >= kept_from:
            self._journal.delete(floor.mark)
