"""When the broker's state is written down, and what of it: all, or what changed since the last time.

Runs on the loop, in slices between ticks; the file is synced on another thread. A snapshot is due after so many bytes of
records, but not before four times its own size: under load it costs a quarter of what the journal costs, and a start
replays seconds of traffic, not minutes. It is a full one where that costs little, a sixteenth: small states have no
others, and of the journal, which is kept from the older full one on, no more than 32 times a full one is kept for that.
`journal.snapshot` says what is kept of the files.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Protocol

from headrace.core.broker import Broker
from headrace.core.commit import Barrier, GroupCommit
from headrace.core.state.snapshots import SnapshotPass
from headrace.journal.log import SegmentedLog
from headrace.journal.snapshot import SnapshotWriter
from headrace.services.watchdog import Watchdog

SHARE_OF_JOURNAL = 4
FULL_SHARE_OF_JOURNAL = 16
CHANGES_MAX = 32  # files behind a full one
RETRY_S = 5.0  # after one that failed, at least; four times as long as it took
STUCK_S = 5.0


class MayBeFull(Protocol):
    """What appends go to, and may have to wait for. `full` says why they do, if they do."""

    @property
    def full(self) -> str: ...


class Writer(Protocol):
    """One snapshot that is being written. `size` is that of what was added, in bytes."""

    @property
    def size(self) -> int: ...

    def add(self, entry: bytes) -> None:
        """Add an entry."""

    async def drain(self) -> None:
        """Let others have a turn, and what was added go where it is kept. Raises OSError."""

    async def commit(self, applied_offset: int) -> None:
        """Make the snapshot durable: it is there from then on. `applied_offset` is the end of what any entry reflects.
        Raises OSError, MemoryError."""

    def abandon(self) -> None:
        """Forget what was written."""


class Place(MayBeFull, Protocol):
    """The place in which the snapshots of one broker are kept."""

    def writer(self, position: int, parent: int | None) -> Writer:
        """Begin a snapshot at `position`. `parent`: position of the one whose changes it is to have; None for a full
        one. Raises OSError."""

    async def release(self, needed: int, is_full: bool) -> None:
        """Note that the snapshot is there, and that the broker needs the records from `needed` on. Raises OSError."""


async def durable(commit: GroupCommit, log: MayBeFull | None = None) -> None:
    """Wait until everything done so far is durable. Raises OSError when the journal has failed, or when it is `log` and
    has been waiting for space for STUCK_S: whoever makes space must not wait for it."""
    barrier = Barrier()
    commit.defer(barrier)
    patience = STUCK_S / 0.001
    while not barrier.passed:
        if commit.failed is not None:
            raise OSError("the journal has failed")
        await asyncio.sleep(0.001)
        if log is not None and log.full:
            patience -= 1
            if patience <= 0:
                raise OSError("the journal waits for space")


def followed(broker: Broker) -> int:
    """Return the offset from which on another shard may still ask for what it has not; behind the end of every journal
    where there is no other."""
    return broker.fold.streams.floor(broker.neighbours.others)


class FolderWriter:
    """A snapshot in a file."""

    def __init__(self, writer: SnapshotWriter) -> None:
        self._writer = writer
        self.add = writer.add
        self.abandon = writer.abandon

    @property
    def size(self) -> int:
        return self._writer.size

    async def drain(self) -> None:
        await asyncio.sleep(0)

    async def commit(self, applied_offset: int) -> None:
        await asyncio.to_thread(self._writer.commit, applied_offset)


class Folder:
    """The directory of a segmented log, where its snapshots are files."""

    def __init__(self, log: SegmentedLog) -> None:
        self._log = log

    @property
    def full(self) -> str:
        return self._log.full

    def writer(self, position: int, parent: int | None) -> Writer:
        return FolderWriter(SnapshotWriter(self._log.directory, position, parent=parent))

    async def release(self, needed: int, is_full: bool) -> None:
        self._log.set_floor(needed)


class Snapshotting:
    """Takes the snapshots of a broker, one at a time."""

    def __init__(
        self,
        broker: Broker,
        place: Place,
        interval_bytes: int,
        interval_s: float,
        watchdog: Watchdog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._watchdog = watchdog
        self._broker = broker
        self._fold = broker.fold
        self._commit = broker.commit
        self._place = place
        self._interval_bytes = interval_bytes
        self._interval_s = interval_s
        self._must_be_full = True  # nothing that this process wrote is there, or the last one was given up
        self._position = 0
        self._size = 0
        self._full_size = 0
        self._full_at_bytes = 0
        self._changes = 0
        self._at_bytes = 0
        self._at_s = self._clock()
        self._retry_at = math.inf  # after one that failed

    def due(self) -> bool:
        if self._clock() >= self._retry_at:
            return True
        grown = self._commit.bytes - self._at_bytes
        old = self._clock() - self._at_s >= self._interval_s
        enough = max(self._interval_bytes, SHARE_OF_JOURNAL * self._size)
        return grown >= enough or (old and grown > 0)

    def _full_is_cheap(self) -> bool:
        return self._commit.bytes - self._full_at_bytes >= FULL_SHARE_OF_JOURNAL * self._full_size

    async def take(self, full: bool = False) -> None:
        """Write one snapshot, with everything if `full`, and tell the journal what the broker still needs. Raises
        OSError. What fails is tried again soon: as long as it does, retention deletes nothing and a start replays more
        and more."""
        began = self._clock()
        try:
            await self._take(full)
        except BaseException:
            now = self._clock()
            self._retry_at = now + max(RETRY_S, 4 * (now - began))
            raise
        self._retry_at = math.inf

    async def _take(self, full: bool) -> None:
        self._at_bytes = self._commit.bytes
        self._at_s = self._clock()
        is_full = full or self._must_be_full or self._changes >= CHANGES_MAX or self._full_is_cheap()
        if not is_full and self._commit.high_watermark == self._position:
            return
        self._must_be_full = True  # until it is there: what the walk notes as written is nowhere else
        walk = SnapshotPass(self._fold, self._commit, is_full)
        writer = self._place.writer(walk.position, None if is_full else self._position)
        await self._write(walk, writer)
        self._note(walk.position, writer.size, is_full)
        needed = min(walk.position, walk.lowest_offset, followed(self._broker))
        await self._place.release(needed, is_full)

    async def _write(self, walk: SnapshotPass, writer: Writer) -> None:
        try:
            for entries in self._watchdog.steps("snapshot", walk.slices()):
                for entry in entries:
                    writer.add(entry)
                await writer.drain()
            # Sessions are written as they are, also what is on its way to the journal.
            await durable(self._commit, self._place)
        except BaseException:
            writer.abandon()
            raise
        try:
            await writer.commit(self._commit.high_watermark)
        except (OSError, MemoryError):
            writer.abandon()
            raise

    def _note(self, position: int, size: int, is_full: bool) -> None:
        self._must_be_full = False
        self._position = position
        self._size = size
        if is_full:
            self._full_size, self._full_at_bytes, self._changes = size, self._at_bytes, 0
        else:
            self._changes += 1
