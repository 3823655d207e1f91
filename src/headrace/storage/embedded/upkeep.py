"""What keeps the journal small: snapshots, retention, compaction, and how a full disk gets space again.

Runs on the loop, in slices between ticks; what takes its time is done on another thread.

A full disk recovers by itself as soon as something can go: sessions have drained, or a consumer has read on. What goes
lies below the floor, which only a newer snapshot moves; so one is taken while the disk is full, out of what is left of
the reserve. Then whatever nobody needs goes, until there is room. All of it may be in the segment that is being
written, so that one is finished first; and retention keeps what the older of two snapshots needs, so two are taken.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

from headrace.core.records.record import ACKED, Progress
from headrace.core.shards.neighbours import Neighbours
from headrace.errors import NotReadableNow
from headrace.journal.compaction import is_worth_it
from headrace.journal.errors import CorruptBatch
from headrace.storage.embedded.references import References
from headrace.storage.embedded.snapshotting import durable, followed

if TYPE_CHECKING:
    from headrace.core.broker import Broker
    from headrace.core.shards.shared_disk import SharedDisk
    from headrace.journal.catalog import Segment
    from headrace.journal.log import SegmentedLog
    from headrace.services.watchdog import Watchdog
    from headrace.storage.embedded.snapshotting import Snapshotting

COMPACTED_OFFSETS = 4_000_000  # looked at together, at a byte each
RELIEF_INTERVAL_S = 2.0  # of snapshots on a full disk, at least; four times as long as they take
ROLLED_BYTES = 256 << 10  # of a segment that is finished early, so that it may go

log = structlog.get_logger("headrace")


class Upkeep:
    """Keeps the journal of one broker small. One call at a time."""

    def __init__(
        self, broker: Broker, journal: SegmentedLog, snapshots: Snapshotting, watchdog: Watchdog
    ) -> None:
        self._broker = broker
        self._commit = broker.commit
        self._journal = journal
        self._snapshots = snapshots
        self._watchdog = watchdog
        self._relief_at = 0.0
        self._relieved_bytes = -1  # handed to the journal when a full disk was last looked at

    async def turn(self) -> None:
        """Do what is due now, if anything. Raises OSError, and then the journal keeps what it needs."""
        if self._journal.is_displaced:
            return
        self._journal.space_wanted = self._broker.gate.full
        short = self._journal.short
        neighbours = self._broker.neighbours
        if isinstance(neighbours, Neighbours):
            neighbours.disk.finished = self._journal.finished_offset if short else 0
            self._lend(self._must_lend(neighbours.disk, short))
        if short:
            await self._relieve()
        elif self._snapshots.due():
            await self.snapshot()
        elif self._journal.unverified:
            await self._verify_old()

    async def _verify_old(self) -> None:
        """Read through an old segment, which the start left out to be quick."""
        damage = await asyncio.to_thread(self._journal.verify_next)
        if damage:
            log.error(
                "the journal is damaged: stop the broker and see `headrace journal repair`", detail=damage
            )

    async def snapshot(self, compact: bool = True) -> None:
        """Write the fold down between ticks, then let retention delete what nobody needs. Raises OSError."""
        await self._snapshots.take()
        self._retain()
        if compact:
            await self._compact()
            await self._merge()

    def _retain(self) -> None:
        for line in self._journal.apply_retention():
            log.info("retention", detail=line)

    # A full disk

    def _must_lend(self, disk: SharedDisk, short: bool) -> bool:
        """Return whether the reserve is for others: somebody has had nothing for want of space, and until it is given
        what waits, or there is room. What frees some is not to end it by turns."""
        starves = disk.starve()  # to be asked each time
        journal = self._journal
        if not short or journal.has_room():
            return False
        return disk.owes if journal.full else starves and journal.is_tight

    def _lend(self, wanted: bool) -> None:
        """Give the reserve to another shard that can take nothing for want of it, so that what lies here for that one
        may go; it goes with the next batch."""
        self._journal.lend(wanted)
        if wanted and not self._journal.full:
            self._commit.append(Progress(ACKED, self._broker.worker.clock.now_us, b""))

    async def _relieve(self) -> None:
        """Look for what can go. A snapshot is worth its space only if something has moved since the last one."""
        self._retain()
        now = time.monotonic()
        if self._journal.has_room() or now < self._relief_at or self._commit.bytes == self._relieved_bytes:
            return
        try:
            if self._journal.active_bytes >= ROLLED_BYTES:
                self._journal.roll()
            for _ in range(2):
                self._commit.append(
                    Progress(ACKED, self._broker.worker.clock.now_us, b"")
                )  # so that positions differ
                await durable(self._commit, self._journal)
                await self._snapshots.take(full=True)
                self._retain()
                if self._journal.has_room():
                    return
            await self._compact()
            self._retain()
        finally:
            self._relief_at = time.monotonic() + max(RELIEF_INTERVAL_S, 4 * (time.monotonic() - now))
            self._relieved_bytes = self._commit.bytes

    # Compaction

    async def _compact(self) -> None:
        """Free the disk from what lies between old records that a session still refers to."""
        needed = followed(
            self._broker
        )  # by a shard that has not read it: it looks for messages that nobody refers to
        segments = [segment for segment in self._journal.compactable() if segment.end_offset <= needed]
        while segments:
            start = segments[0].base_offset
            stretch = [segment for segment in segments if segment.end_offset - start <= COMPACTED_OFFSETS]
            stretch = stretch or segments[:1]
            del segments[: len(stretch)]
            references = References(self._broker.fold, start, stretch[-1].end_offset)
            try:
                await self._walk(references)
            except NotReadableNow as error:
                log.error("nothing is compacted: what is referred to is not known", error=str(error))
                return
            for segment in stretch:
                await self._compact_segment(segment, references)

    async def _walk(self, references: References) -> None:
        """Walk over all references. Raises NotReadableNow, OSError."""
        for _ in self._watchdog.steps("references", references.retained()):
            await asyncio.sleep(0)
        await durable(self._commit, self._journal)  # what new subscriptions were given is in their queues
        for _ in self._watchdog.steps("references", references.owners()):
            await asyncio.sleep(0)
        await durable(self._commit, self._journal)  # what is not referred to now is not after a crash either

    async def _compact_segment(self, segment: Segment, references: References) -> None:
        live = await asyncio.to_thread(references.between, segment.base_offset, segment.end_offset)
        await asyncio.to_thread(self._journal.count_kept, segment)
        if not is_worth_it(segment, live):
            return
        try:
            new = await asyncio.to_thread(self._journal.rewrite_sparse, segment, live)
        except CorruptBatch as error:
            log.error("a segment cannot be compacted: see `headrace journal repair`", error=str(error))
            return
        lost_by = self._journal.lost_by(segment)
        freed = self._journal.adopt(new)
        log.info("compacted", segment=segment.path.name, records=len(live), freed_bytes=freed)
        if lost_by:
            log.warning(
                "consumers beyond their limit lose records", segment=segment.path.name, lost_by=lost_by
            )

    async def _merge(self) -> None:
        """Make one segment of many that compaction has left small, so that their number does not grow for ever."""
        await asyncio.to_thread(self._journal.remove_leftovers)
        for group in self._journal.mergeable():
            try:
                new = await asyncio.to_thread(self._journal.merge, group)
            except CorruptBatch as error:
                log.error("segments cannot be merged: see `headrace journal repair`", error=str(error))
                return
            if self._journal.adopt_merged(new, group):
                await asyncio.to_thread(self._journal.remove_leftovers)
                log.info("merged", segment=new.path.name, segments=len(group), bytes=new.size)
