"""The log: one writer, many readers, offsets without gaps.

Used by the broker. All methods run on the loop, except where they say otherwise; the threads that write are inside.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from headrace.journal.ages import Ages
from headrace.journal.catalog import Catalog, Segment
from headrace.journal.compaction import count_kept, rewrite_sparse, temporary_of
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.copying import copy_file
from headrace.journal.damage import first_damage
from headrace.journal.disk import Disk
from headrace.journal.epochs import beginnings
from headrace.journal.errors import (
    CorruptBatch,
    DiskFull,
    JournalError,
    OffsetOutOfRange,
    SyncFailed,
    is_disk_full,
    is_passing,
    reason_of,
)
from headrace.journal.lock import NAME as LOCK
from headrace.journal.lock import lock_data_dir
from headrace.journal.merging import are_adjacent, merge, mergeable
from headrace.journal.opening import Recovery
from headrace.journal.presence import Known, Presence, check_is_there
from headrace.journal.reserve import SHARE_OF_DISK, Reserve
from headrace.journal.retention import (
    IS_FULL,
    LagWarnings,
    RetentionLimits,
    compactable,
    lagging,
    lost_by,
    plan,
)
from headrace.journal.segment import Batch, file_name, seed_of
from headrace.journal.snapshot import discard_beyond, positions
from headrace.journal.synced_disk import SYNCED_DISK
from headrace.journal.watermark import NAME as WATERMARK
from headrace.journal.watermark import STORES_VERSION, STREAMS_VERSION, Watermark
from headrace.journal.writer import FSYNC, NONE, OS, GroupWriter

if TYPE_CHECKING:
    from headrace.syscalls import Syncer

DIRECTORY = "journal"
_ALLOCATE_BYTES = 16 << 20
_DROPS_MAX = 8  # a call of apply_retention, since it runs on the loop
_SEGMENT_BYTES_LIMIT = 0xFFFF_FFFF  # positions in the index are 32 bits


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What a log is told. `durability`: `fsync` acknowledges after fdatasync, `os` after write, `none` before it
    (decision 24).

    `retention_*` bind everything, `consumer_retention_*` bind what a registered consumer may hold beyond
    that. `reserve_bytes`: what is kept back for a full disk, less on a small one.
    `verified_bytes`: of finished segments that are read through when the log is opened: 0.2 s, or 2 s if every
    message is a batch of its own. `streams`: it is the journal of one of several shards, and holds records that a
    headrace without streams does not know and must refuse.
    """

    durability: str = FSYNC
    segment_bytes_max: int = 128 << 20
    segment_s_max: int = 24 * 3600
    retention_bytes: int = 4 << 30
    retention_s: int = 7 * 24 * 3600
    consumer_retention_bytes: int = 32 << 30
    consumer_retention_s: int = 30 * 24 * 3600
    index_interval_bytes: int = 16 << 10
    reserve_bytes: int = 16 << 20
    verified_bytes: int = 256 << 20
    streams: bool = False
    stores: bool = False  # queues may lie in a store beside the journal

    def __post_init__(self) -> None:
        if self.durability not in (FSYNC, OS, NONE):
            raise ValueError(f"durability: {self.durability!r} is not one of fsync, os, none")
        if not 4096 <= self.segment_bytes_max <= _SEGMENT_BYTES_LIMIT:
            raise ValueError(
                f"segment_bytes_max: {self.segment_bytes_max} is not in 4096 to {_SEGMENT_BYTES_LIMIT}"
            )


class SegmentedLog:
    """The journal of one broker. Open it, read what recovery needs, `start` it, append. One process at a time has it
    open."""

    def __init__(
        self,
        data_dir: Path,
        settings: LogSettings,
        report: Callable[[str], None],
        disk: Disk,
        clock: Callable[[], float],
        known: Known,
    ) -> None:
        """Prepare a log that is not open yet; use `open`."""
        self.data_dir = data_dir
        self.directory = data_dir / DIRECTORY
        self.settings = settings
        self._report = report
        self._disk = disk
        self._clock = clock
        self._thread: Thread | None = None
        self._is_closed = False
        self.space_wanted = False  # by publishers who wait for other shards on the disk, with too little left
        self._floor = 0
        self._name_is_unsure = (
            False  # of a merged segment: what is in it may not go, until a start writes it anew
        )
        self._lag_warnings = LagWarnings(report)
        check_is_there(disk, self.directory, known)
        disk.make_directory(self.directory)
        self._lock_fd = lock_data_dir(disk, data_dir)
        try:
            self._reserve = Reserve(disk, data_dir, settings.reserve_bytes, self._bytes_kept)
            self._recover_on_any_disk()
        except BaseException:
            disk.close(self._lock_fd)
            raise

    @classmethod
    def open(
        cls,
        data_dir: Path,
        settings: LogSettings,
        report: Callable[[str], None],
        disk: Disk = SYNCED_DISK,
        clock: Callable[[], float] = monotonic,
        known: Known | None = None,
    ) -> SegmentedLog:
        """Open the log: take the lock, recover, sync, publish the high watermark. `report` gets a line for each repair.
        `clock`: seconds by which segments age, which must not jump. `known`: which journal must be there, if any must.

        Raises JournalLocked; JournalMoved, and then nothing is made; CorruptJournal or CorruptFile if records known
        durable are damaged.
        """
        return cls(data_dir, settings, report, disk, clock, known or Known())

    def _bytes_kept(self) -> int:
        """Return the bytes of the journal's files, before it is read, where there are other shards: a small reserve would
        soon be held again, and what they need be written full. 0 where there are none. Raises OSError."""
        size = 0
        if not self.settings.streams:
            return size
        for name in self._disk.names(self.directory):
            fd = self._disk.open(self.directory / name)
            try:
                size += self._disk.size(fd)
            finally:
                self._disk.close(fd)
        return size

    def _recover_on_any_disk(self) -> None:
        try:
            self._recover()
        except OSError as error:
            if not is_disk_full(error):
                raise
            if not self._reserve.release():
                raise DiskFull(f"{self.data_dir}: no space to open the journal: {error}") from error
            self._report(f"the disk is full ({error}); starting on the reserve")
            self._recover_on_any_disk()

    def _recover(self) -> None:
        settings = self.settings
        allocate = min(_ALLOCATE_BYTES, settings.segment_bytes_max)
        interval = settings.index_interval_bytes
        recovery = Recovery(
            self._disk,
            self.data_dir,
            self.directory,
            allocate,
            interval,
            self._report,
            settings.verified_bytes,
        )
        found = recovery.run(uuid4().bytes)
        state = found.state
        if settings.streams:
            state.version = max(state.version, STREAMS_VERSION)
        if settings.stores:
            state.version = max(state.version, STORES_VERSION)
        self.version = state.version
        self.uuid = str(UUID(bytes=state.uuid))
        self.epoch = state.epoch
        self.next_offset = state.high_watermark
        discard_beyond(self.directory, state.high_watermark, self._report, self._disk)
        self._catalog = Catalog(self._disk, seed_of(state.uuid), found.segments)
        self._catalog.leftovers = [self.directory / file_name(base) for base in found.taken_in]
        self._finish_merges()
        self._unverified = found.unverified
        self._ages = Ages(found.segments, 2 * settings.segment_s_max, self._clock)
        self._watermark = Watermark(self._disk, self.data_dir, state)
        found.file.restart_index(interval, seed_of(state.uuid))
        self._writer = GroupWriter(
            self._disk,
            self._catalog,
            found.file,
            self._watermark,
            self._reserve,
            settings.durability,
            settings.segment_bytes_max,
            settings.segment_s_max,
            allocate,
            interval,
        )
        kept = {
            self.data_dir / LOCK: self._disk.identity_of(self._lock_fd),
            self.data_dir / WATERMARK: self._watermark.identity,
        }
        self.presence = Presence(self._disk, kept, self._writer, self._catalog)
        self._writer.displaced = partial(self.presence.verdict, self._writer.closing.wait)

    @property
    def high_watermark(self) -> int:
        """Return the offset below which every record is durable, in the sense of the setting."""
        return self._writer.high_watermark

    @property
    def full(self) -> str:
        """Return why nothing but progress should be appended now; "" as long as the disk has space."""
        return self._writer.full

    @property
    def reserve_bytes(self) -> int:
        """Return how much is kept back for a full disk."""
        return self._reserve.size

    @property
    def short(self) -> bool:
        """Return whether what nobody needs has to go: the disk is full, or publishers wait for space on it, or, where
        other shards write to it, they may find it so, with less left than each gets back of it."""
        if self.full or self.space_wanted:
            return True
        if not self.settings.streams:
            return False
        free = self._disk.free_bytes(self.data_dir)
        wanted = self._kept_back(free)
        return free < wanted + wanted // 4

    def _kept_back(self, free: int) -> int:
        """Return how much a shard of this disk may keep back of it: one that began on a full disk itself has a small
        reserve, and may have written much since that another one needs."""
        share = (free + self.size_bytes) // SHARE_OF_DISK
        return max(self._reserve.size, min(self.settings.reserve_bytes, share))

    @property
    def start_offset(self) -> int:
        """Return the oldest offset that is still there."""
        return self._catalog.segments[0].base_offset

    @property
    def size_bytes(self) -> int:
        """Return the number of bytes that hold data, in all segments."""
        return sum(segment.size for segment in self._catalog.segments)

    @property
    def segment_count(self) -> int:
        return len(self._catalog.segments)

    def behind(self, offset: int) -> tuple[int, int]:
        """Return about how many records and bytes there are from `offset` up to the high watermark. Runs on any
        thread."""
        offset = max(offset, self.start_offset)
        records = max(0, self.high_watermark - offset)
        return records, self._catalog.bytes_from(offset) if records else 0

    def start(
        self,
        on_durable: Callable[[int], None],
        on_failure: Callable[[BaseException], None],
        on_full: Callable[[str], None] | None = None,
        syncer: Syncer | None = None,
        on_synced: Callable[[float], None] | None = None,
    ) -> None:
        """Start the threads. With a `syncer`, whoever calls sees to it that `finish_write` is called whenever its `fd`
        was written to.

        All are called ON THE WRITER THREAD: `on_durable(high_watermark)` once a
        group, `on_failure(error)` at most once and last (WriteFailed; decision 21: stop and exit),
        `on_full(reason)` when the disk is full and `on_full("")` when space has returned. While it is full,
        what is appended goes to the reserve, and waits when that is used up too. `on_synced(seconds)` is called for each
        write with its sync, on the writer thread or in `finish_write`, and never by both at once."""
        if on_full is not None:
            self._writer.on_full = on_full
            if self._writer.full:
                on_full(self._writer.full)
        if on_synced is not None:
            self._writer.on_synced = on_synced
        self._writer.on_durable = on_durable
        self._writer.on_failure = on_failure
        self._thread = Thread(target=self._writer.run, name="journal-writer", daemon=True)
        self._thread.start()
        if syncer is not None and self.settings.durability == FSYNC:
            Thread(target=syncer.serve, name="journal-syncer", daemon=True).start()
            self._writer.use(syncer)

    def finish_write(self) -> None:
        """Take note of what the syncer has made durable: `high_watermark` says it, and `on_durable` is not called."""
        self._writer.finish_write()

    def append(self, body: bytes, count: int, first_timestamp_us: int, max_timestamp_us: int) -> int:
        """Hand a batch of `count` records over to be written; return the offset of the first record, at once.

        Takes batches before `start` too; they are written then. After a failure nothing is written any more.
        """
        base_offset = self.next_offset
        self.next_offset = base_offset + count
        self._writer.submit(base_offset, count, first_timestamp_us, max_timestamp_us, body)
        return base_offset

    def fail(self, error: JournalError) -> None:
        """Write nothing any more, and say so by `on_failure`, where what is written would not be found again. Runs on any
        thread."""
        self._writer.fail(error)

    @property
    def is_displaced(self) -> bool:
        """Return whether a file is not in its place just now: what goes by name may be somebody else's."""
        if self._writer.is_failed:
            return True
        with suppress(OSError):
            return bool(self.presence.look())
        return False

    def read_batch(self, offset: int) -> Batch:
        """Return the batch that holds `offset`, which is below the high watermark. Raises OffsetOutOfRange,
        CorruptBatch."""
        for base, count, first_us, max_us, _, body in self._writer.acknowledged_early:
            if base <= offset < base + count:
                return Batch(base, count, first_us, max_us, body, self.epoch)
        return self._catalog.read(offset)

    def scan(self, start: int, end: int | None = None) -> Iterator[Batch]:
        """Yield the batches that hold the offsets from `start` up to `end` (default: what is written now).

        The first may begin before `start` and the last end after `end`. Raises OffsetOutOfRange,
        CorruptBatch.
        """
        written = self._catalog.segments[-1].end_offset
        if not self.start_offset <= start <= written:
            raise OffsetOutOfRange(start, self.start_offset, written)
        return self._catalog.scan(start, written if end is None else min(end, written))

    def epochs(self) -> list[tuple[int, int]]:
        """Return (offset from which on, epoch) of all that is there, ascending; what is appended next has the last one.

        Reads a batch, and where the journal was restored or cut, a few more."""
        return beginnings(self.start_offset, self.next_offset, self.epoch, self._epoch_at)

    def _epoch_at(self, offset: int) -> int:
        """Return the epoch in which a record was written; for a record that cannot be read, the epoch of now. Leaves no
        file open."""
        try:
            (batch,) = self._catalog.scan(offset, offset + 1)
            return batch.epoch
        except (CorruptBatch, OffsetOutOfRange):
            return self.epoch

    @property
    def unverified(self) -> int:
        """Return how many finished segments nobody has read through since the log was opened."""
        return len(self._unverified)

    def verify_next(self) -> str:
        """Read one of the finished segments through, the newest first; return what is damaged, or "". Runs on any
        thread, one at a time. Raises OSError, and then the segment is still to be read."""
        segment = self._unverified[-1]
        damage = ""
        with suppress(FileNotFoundError):  # retention took it
            damage = self._verify(segment)
        self._unverified.pop()
        return damage

    def _verify(self, segment: Segment) -> str:
        fd = self._disk.open(segment.path)
        try:
            seed = seed_of(UUID(self.uuid).bytes)
            path, base, end = str(segment.path), segment.base_offset, segment.end_offset
            return str(first_damage(self._disk, fd, path, seed, base, end) or "")
        finally:
            self._disk.close(fd)

    def set_floor(self, offset: int) -> None:
        """Keep everything from `offset` on, which the broker needs. Until this was called, retention deletes nothing.

        What the older one of the two snapshots needs is kept too, in case the newest turns out to be damaged.
        """
        self._floor = max(self._floor, offset)

    def apply_retention(self) -> list[str]:
        """Delete the oldest segments that nobody needs, a few a call; return what was dropped and why. On a full disk
        more than the limits ask for, until there is room again. Raises OSError."""
        limits = self._limits()
        consumers = self._consumers()
        if consumers is None or self.is_displaced:
            return []
        segments = self._catalog.segments
        self._ages.see(segments)
        self._lag_warnings.update(lagging(segments, limits, consumers, self._ages))
        floor = min([self._floor, *positions(self.directory, self._disk)])
        said = []
        for drop in plan(segments, limits, floor, consumers, self._ages, self.short)[:_DROPS_MAX]:
            if drop.reason == IS_FULL and self.has_room():
                break
            self._watermark.publish_start(drop.segment.end_offset)
            self._catalog.remove_first()
            said.append(str(drop))
        return said

    def has_room(self) -> bool:
        """Return whether the disk has as much space as a full one must get back."""
        free = self._disk.free_bytes(self.data_dir)
        wanted = self._reserve.wanted_bytes
        if self.settings.streams:
            wanted = max(wanted, 2 * self._kept_back(free))
        return free >= wanted

    @property
    def is_tight(self) -> bool:
        """Return whether there is less space than a reserve takes: another shard that has given its own away may find too
        little in it. Raises OSError."""
        free = self._disk.free_bytes(self.data_dir)
        return free < self._kept_back(free)

    def room(self) -> int:
        """Return how many bytes there is room for while the disk is full, beside the progress of sessions: what is free,
        or in the segment already, above half of the reserve. Raises OSError."""
        free = self._disk.free_bytes(self.data_dir) + self._writer.file.spare_bytes
        return max(0, free - self._reserve.size // 2)

    def lend(self, wanted: bool) -> None:
        """Give the reserve away, as for a full disk, while `wanted`: another shard has to write on this disk before
        anything of this journal can go. It is given with the next batch, and taken again when it fits."""
        self._writer.lend_wanted = wanted

    @property
    def active_bytes(self) -> int:
        """Return the bytes of the segment that is being written."""
        return self._catalog.segments[-1].size

    @property
    def finished_offset(self) -> int:
        """Return where the finished segments end, which can go as a whole."""
        return self._catalog.segments[-1].base_offset

    def roll(self) -> None:
        """Let the next batch begin a segment, if this segment holds any: what is in it can go as a whole then."""
        self._writer.roll_wanted = True

    def _limits(self) -> RetentionLimits:
        settings = self.settings
        return RetentionLimits(
            settings.retention_bytes,
            settings.retention_s,
            settings.consumer_retention_bytes,
            settings.consumer_retention_s,
        )

    def _consumers(self) -> list[ConsumerPosition] | None:
        """Return the consumers of this journal; None, and said, if one cannot be read."""
        try:
            registered = ConsumerPosition.list(self.data_dir, self._disk)
        except JournalError as error:
            self._report(f"nothing is dropped while the position of a consumer is unknown: {error}")
            return None
        return [consumer for consumer in registered if consumer.uuid == self.uuid]

    # Compaction, in the three steps that `compaction` describes

    def compactable(self) -> list[Segment]:
        """Return the segments that retention would drop if no session referred to a record in them; oldest first.
        Raises OSError."""
        return [segment for segment in self._over() if segment.kept_records]  # of an empty one nothing can go

    def _over(self) -> list[Segment]:
        """Return the segments over the limits of retention that are there for references alone."""
        kept = positions(self.directory, self._disk)
        consumers = self._consumers()
        if consumers is None or not kept:
            return []
        segments = self._catalog.segments
        self._ages.see(segments)
        is_full = self.short and not self.has_room()
        return compactable(segments, self._limits(), kept[0], consumers, self._ages, is_full)

    def lost_by(self, segment: Segment) -> str:
        """Return the registered consumers that have not read a segment which is compacted, and how much of it; "" for
        none."""
        return lost_by(segment, self._consumers() or [])

    def count_kept(self, segment: Segment) -> None:
        """Find out how many records a segment still has. Runs on any thread, one at a time. Raises OSError."""
        if segment.kept_records < 0:
            segment.kept_records = count_kept(self._disk, segment)

    def rewrite_sparse(self, segment: Segment, live: Collection[int]) -> Segment:
        """Write a segment anew with the records in `live` alone. Runs on any thread, one at a time. Raises
        CorruptBatch, OSError."""
        interval = self.settings.index_interval_bytes
        return rewrite_sparse(self._disk, segment, UUID(self.uuid).bytes, self.epoch, live, interval)

    def adopt(self, new: Segment) -> int:
        """Put the rewritten segment into the place of the old one, once the watermark says that it is not complete.

        Returns the bytes that this freed; dropped meanwhile: 0. Raises OSError."""
        old = next((one for one in self._catalog.segments if one.base_offset == new.base_offset), None)
        if old is None:
            self._disk.unlink(temporary_of(new))
            return 0
        if self._watermark.state.complete_offset < new.end_offset:
            self._watermark.publish_complete(new.end_offset)
        with suppress(FileNotFoundError):
            self._disk.unlink(old.index_path)
        self._disk.rename(temporary_of(new), new.path)
        self._catalog.replace(new)
        return old.size - new.size

    # Merging, in the steps that `merging` describes

    def mergeable(self) -> list[list[Segment]]:
        """Return groups of neighbours that compaction has left small; none on a full disk or after a sync that failed.
        Raises OSError."""
        if self.full or self._name_is_unsure:
            return []
        return mergeable(self._over(), self.settings.segment_bytes_max)

    def merge(self, group: Sequence[Segment]) -> Segment:
        """Write the segment that is to take the place of the group. Runs on any thread, one at a time. Raises
        CorruptBatch, OSError."""
        interval = self.settings.index_interval_bytes
        return merge(self._disk, group, UUID(self.uuid).bytes, self.epoch, interval)

    def adopt_merged(self, new: Segment, group: Sequence[Segment]) -> bool:
        """Put the merged segment into the place of the group; False if retention or compaction was faster. From here on
        either is right: the old files are removed by `remove_leftovers`."""
        if not are_adjacent(self._catalog.segments, group):
            self._disk.unlink(temporary_of(new))
            return False
        with suppress(FileNotFoundError):
            self._disk.unlink(group[0].index_path)
        self._disk.rename(temporary_of(new), new.path)
        self._catalog.merge(new, group)
        self._ages.merged(group)
        return True

    def remove_leftovers(self) -> None:
        """Remove the segments that a merge has replaced. Runs on any thread, one at a time, and not beside retention.
        Raises OSError: the next start, or the segment's end, removes what is left."""
        if not self._catalog.leftovers or self._name_is_unsure:
            return
        try:
            self._disk.fsync_directory(self.directory)  # the name of the merged one comes first
        except SyncFailed:
            self._name_is_unsure = True
            raise
        self._catalog.remove_leftovers()

    def _finish_merges(self) -> None:
        """Give the segments that a process before this one has merged their names anew: whether that was synced only it
        knew."""
        count = len(self._catalog.leftovers)
        if not count:
            return
        try:
            for segment in self._catalog.merged():
                self._write_anew(segment)
            self.remove_leftovers()
        except (OSError, MemoryError) as error:
            self._name_is_unsure = True
            reason = reason_of(error)
            self._report(f"segments that were merged into another one cannot be removed yet: {reason}")
        else:
            self._report(f"removed {count} segments that an interrupted merge had put into another one")

    def _write_anew(self, segment: Segment) -> None:
        temporary = temporary_of(segment)
        try:
            copy_file(self._disk, segment.path, temporary)
            self._disk.rename(temporary, segment.path)
        except (OSError, MemoryError):
            with suppress(OSError):
                self._disk.unlink(temporary)
            raise

    def close(self) -> None:
        """Write what is queued, then a footer; sync; free the lock. Waits for the threads that write."""
        if self._is_closed:
            return
        self._is_closed = True
        self._writer.settle()
        self._writer.closing.set()
        self._drain()
        try:
            if not self.is_displaced:
                self._finish()
        finally:
            self._watermark.close()
            self._writer.file.close()
            self._catalog.close()
            self._disk.close(self._lock_fd)

    def _finish(self) -> None:
        is_finished = False
        try:
            self._writer.finish()
            is_finished = True
            self._watermark.replace()
        except (OSError, MemoryError) as error:
            # The watermark that is there is as good as a new one, unless nobody knows which of them is on disk.
            is_kept = is_finished and not isinstance(error, SyncFailed)
            if not (is_kept or is_passing(error)):
                raise
            reason = reason_of(error)
            self._report(
                f"the marks of a clean stop could not be written ({reason}); the next start repairs that"
            )

    def _drain(self) -> None:
        self._writer.queue.put(None)
        if self._thread is None:
            self._writer.run()
        else:
            self._thread.join()
