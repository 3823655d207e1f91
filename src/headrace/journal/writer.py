"""Makes batches durable, by one of two threads.

The *syncer* takes the usual case: one batch, with room for it in the segment. Its thread knows nothing of Python and
never waits for the interpreter lock; the loop prepares the job and, when it is done, takes note of it (`finish_write`).

The *writer thread* takes everything else: the first batch of a segment, the roll to the next one, large batches,
a full disk, the other settings of durability, and what the syncer could not do. Everything that was handed
over while it was busy becomes one write and one sync. It competes with the loop for the interpreter lock, and each time
it waits for it is a switch between threads; so the loop packs the header of a batch, and the thread lets go of the lock
twice: to wait for a batch, and to write and sync it.

Only one of them has something to do at a time, and only that one, or the loop on behalf of the syncer, changes the
segment, the index and the watermark.

Order within a group: write, sync, then the index and the end of the segment (so that reads find the batches),
then the high watermark for other processes, then the callback.

A full disk is waited out: what has not been written has not been acknowledged either, so it is written again
where it was to go, on the blocks of the reserve or when space returns. So is any other want of the system, as of a
descriptor for the next segment. A sync that failed is never tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event
from time import monotonic, time_ns
from typing import TYPE_CHECKING, TypeVar

from headrace.journal.active import SegmentFile, begin_segment, name_segment
from headrace.journal.catalog import Catalog
from headrace.journal.disk import Disk
from headrace.journal.errors import (
    LENT,
    NO_RESERVE,
    DiskFull,
    JournalMoved,
    SyncFailed,
    WriteFailed,
    is_disk_full,
    is_passing,
    reason_of,
)
from headrace.journal.index import pack_entry
from headrace.journal.reserve import Reserve
from headrace.journal.segment import (
    BATCH_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    pack_batch_header,
    seed_of,
)
from headrace.journal.watermark import Watermark

if TYPE_CHECKING:
    from headrace.syscalls import Syncer

FSYNC, OS, NONE = "fsync", "os", "none"
RETRY_S = 0.25  # how often a full disk is looked at again
Result = TypeVar("Result")
PACKED_AT_ONCE_MAX = 1 << 20  # bytes of a body whose checksum is made on the loop: 0.4 ms at most
# base offset, count, first timestamp, largest timestamp, header (b"" if the writer thread is to pack it), body
Pending = tuple[int, int, int, int, bytes, bytes]


class GroupWriter:
    """Writes groups of batches. All of it runs on the writer thread, except what says that it runs on the loop."""

    def __init__(
        self,
        disk: Disk,
        catalog: Catalog,
        file: SegmentFile,
        watermark: Watermark,
        reserve: Reserve,
        durability: str,
        segment_bytes_max: int,
        segment_s_max: int,
        allocate_bytes: int,
        index_interval_bytes: int,
    ) -> None:
        self.queue: SimpleQueue[Pending | None] = SimpleQueue()
        self.high_watermark = watermark.state.high_watermark
        self.file = file
        self.is_failed = False
        self.full = "" if reserve.hold() else NO_RESERVE  # the reason
        self.closing = Event()
        self.roll_wanted = False  # set on the loop: the next batch begins a segment
        self.lend_wanted = (
            False  # set on the loop: the reserve is for others, until it is not wanted any more
        )
        self.acknowledged_early: tuple[Pending, ...] = ()  # with durability=none, until they are written
        self.on_durable: Callable[[int], None] = _ignore_offset
        self.on_failure: Callable[[BaseException], None] = _ignore_error
        self.on_full: Callable[[str], None] = _ignore_reason
        self.on_synced: Callable[[float], None] = _ignore_seconds  # what a write and its sync took
        self.displaced: Callable[[], str] = str  # which file is not in its place any more. Raises OSError
        self._disk = disk
        self._catalog = catalog
        self._watermark = watermark
        self._reserve = reserve
        self._regain_at = 0.0
        self._durable_offset = watermark.state.durable_offset
        self._epoch = watermark.state.epoch
        self._uuid = watermark.state.uuid
        self._seed = seed_of(self._uuid)
        self._durability = durability
        self._segment_bytes_max = segment_bytes_max
        self._segment_us_max = segment_s_max * 1_000_000
        self._allocate_bytes = allocate_bytes
        self._index_interval_bytes = index_interval_bytes
        self._index_wanted_at = file.segment.size
        self._syncer: Syncer | None = None
        self._syncing: Pending | None = None  # what the syncer has
        self._held: list[Pending] = []  # behind that
        self._handed = 0  # batches, ever, to the writer thread
        self._settled = 0  # of these: done, but for the callback

    # On the loop

    def use(self, syncer: Syncer) -> None:
        """Let `syncer`, which is served by its thread, take the usual case from now on. Only with durability=fsync."""
        self._syncer = syncer

    def submit(self, base: int, count: int, first_us: int, max_us: int, body: bytes) -> None:
        """Hand a batch over to be written. Runs on the loop. The header says what is durable now, which is more by the
        time it is written."""
        if self.is_failed:
            return
        small = len(body) <= PACKED_AT_ONCE_MAX
        header = self._header(base, count, first_us, max_us, body) if small else b""
        self._take((base, count, first_us, max_us, header, body))

    def _take(self, pending: Pending) -> None:
        syncer = self._syncer
        if self._syncing is not None:
            self._held.append(pending)
        elif syncer is None or not self._begin(syncer, pending):
            self._hand(pending)

    def _hand(self, pending: Pending) -> None:
        self._handed += 1
        self.queue.put(pending)

    def _begin(self, syncer: Syncer, pending: Pending) -> bool:
        """Give a group to the syncer. False if there is anything about the group that is for the writer thread."""
        base, _, first_us, _, header, body = pending
        file = self.file
        position = file.segment.size
        end = position + len(header) + len(body)
        busy = self._handed != self._settled
        if (
            busy
            or self.full
            or self.roll_wanted
            or self.lend_wanted
            or not header
            or end > self._segment_bytes_max
            or self._is_old(first_us)
        ):
            return False
        entries = b""
        if position >= self._index_wanted_at:
            if not file.has_index:
                return False
            entries = pack_entry(base, position, self._seed)
        try:
            file.begin(syncer, header, body, position, end, entries)
        except (OSError, MemoryError):  # there is no job then
            return False
        self._syncing = pending
        return True

    def finish_write(self) -> None:
        """Take note of what the syncer has done, if it has; the high watermark is up to date then.

        What it could not do goes to the writer thread, which finds out why. A sync that failed is a failure, said by
        `on_failure`.
        """
        pending, syncer = self._syncing, self._syncer
        if pending is None or syncer is None:
            return
        try:
            done = self.file.finish(syncer)
        except OSError as error:
            self._syncing = None
            self._fail(error)
            return
        if done is None:
            return
        self._syncing = None
        if done:
            self.on_synced(syncer.took_ns / 1e9)
            self._index([pending], self.file.segment.size)
            self._reach(pending)
        else:
            self._hand(pending)
        held, self._held = self._held, []
        for one in held:
            self._take(one)

    def settle(self) -> None:
        """Wait for the syncer, until it has nothing more to do, and end its thread."""
        syncer = self._syncer
        if syncer is None:
            return
        while self._syncing is not None:
            syncer.wait()
            self.finish_write()
        syncer.stop()
        self._syncer = None

    # On the writer thread

    def _header(self, base: int, count: int, first_us: int, max_us: int, body: bytes) -> bytes:
        return pack_batch_header(
            self._seed, body, base, count, self._epoch, self._durable_offset, first_us, max_us
        )

    def run(self) -> None:
        """Write until the end mark comes or something fails. Reports a failure once."""
        try:
            while self._turn():
                pass
        except BaseException as error:  # noqa: BLE001  whatever it was, nothing may be acknowledged any more
            self._fail(error)

    def fail(self, error: BaseException) -> None:
        """Write nothing any more, for a reason that was found elsewhere. Runs on any thread."""
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self.is_failed:
            return
        self.is_failed = True
        self._held = []
        self.on_failure(_named(error))

    def _turn(self) -> bool:
        """Take everything that waits, in one go. False after the end mark."""
        queue = self.queue
        try:
            first = queue.get(timeout=RETRY_S if self.full else None)
        except Empty:
            self._regain()
            return True
        group = [] if first is None else [first]
        goes_on = first is not None
        for _ in range(queue.qsize()):
            item = queue.get_nowait()
            if item is None:
                goes_on = False
            else:
                group.append(item)
        if self.lend_wanted:
            if not self.full:
                self._say_full(LENT)
            self._reserve.release()
        if group:
            self._write(group)
        if self.full and monotonic() > self._regain_at:
            self._regain()
        return goes_on

    def _write(self, group: list[Pending]) -> None:
        if self._durability == NONE:
            self.acknowledged_early = tuple(group)
            last = group[-1]
            self.high_watermark = last[0] + last[1]
            self.on_durable(self.high_watermark)
        rolled = self._is_old(group[0][3]) or (self.roll_wanted and self.file.segment.batches > 0)
        if rolled:
            self._roll(group[0][0])
        buffers: list[bytes] = []
        start = 0
        position = self.file.segment.size
        for i, (base, count, first_us, max_us, header, body) in enumerate(group):
            size = BATCH_HEADER_SIZE + len(body)
            if position + size > self._segment_bytes_max and position > SEGMENT_HEADER_SIZE:
                self._flush(group[start:i], buffers)
                self._roll(base)
                rolled = True  # and more is durable than the headers know
                buffers, start = [], i
                position = SEGMENT_HEADER_SIZE
            if rolled or not header:
                header = self._header(base, count, first_us, max_us, body)
            buffers.append(header)
            buffers.append(body)
            position += size
        self._flush(group[start:], buffers)
        self.acknowledged_early = ()

    def _flush(self, group: list[Pending], buffers: list[bytes]) -> None:
        """Write a group of batches with one write and one sync, then everybody may see it."""
        if not group:
            return
        file = self.file
        position = file.segment.size
        self._with_room(partial(self._put, file, buffers, position))
        entries = self._index(group, position)
        if entries:
            file.write_index(entries)
        self._reach(group[-1])
        self._settled += len(group)
        if self._durability != NONE:
            self.on_durable(file.segment.end_offset)

    def _reach(self, last: Pending) -> None:
        """Note that everything up to the end of this batch is written and, if it is to be, synced: readers may have
        it."""
        end_offset = last[0] + last[1]
        if self._durability == FSYNC:
            self._durable_offset = end_offset
        self.file.segment.end_offset = end_offset
        self._publish(end_offset, last[3])

    def _put(self, file: SegmentFile, buffers: list[bytes], position: int) -> None:
        end = position
        for buffer in buffers:
            end += len(buffer)
        file.preallocate(end, bool(self.full))
        if self._durability == FSYNC:
            began = monotonic()
            file.append_durably(buffers, position, end)
            self.on_synced(monotonic() - began)
        else:
            self._disk.write_fully(file.fd, buffers, position)

    def _with_room(self, step: Callable[[], Result]) -> Result:
        """Do what may find the disk full, descriptors or memory used up, again and again until it does not. Syncs are
        not among it."""
        return self._again(step, is_passing)

    def _until_done(self, step: Callable[[], Result]) -> Result:
        """Make or open something in a directory, again and again until that succeeds, whatever is the reason that it
        does not: nothing was lost by it."""
        return self._again(step, _is_any)

    def _again(
        self, step: Callable[[], Result], is_tried_again: Callable[[OSError | MemoryError], bool]
    ) -> Result:
        while True:
            try:
                return step()
            except SyncFailed:
                raise
            except (OSError, MemoryError) as error:
                if not is_tried_again(error):
                    raise
                self._make_room(error)

    def _make_room(self, error: OSError | MemoryError) -> None:
        """Give the reserve away for a full disk; without one, waits. Raises the error if the log is to be closed."""
        if not self.full:
            self._say_full(reason_of(error))
        self._regain_at = monotonic() + RETRY_S
        given = isinstance(error, OSError) and is_disk_full(error) and self._reserve.release()
        if not given and self.closing.wait(RETRY_S):
            raise error

    def _regain(self) -> None:
        """Take the reserve again when it fits: then space has returned."""
        if self.is_failed:
            return
        self._regain_at = monotonic() + RETRY_S
        if not self.lend_wanted and self._reserve.hold():
            self._say_full("")

    def _say_full(self, reason: str) -> None:
        self.full = reason
        self.on_full(reason)

    def _index(self, group: list[Pending], position: int) -> bytes:
        """Make the batches at `position` findable; return what goes into the index file."""
        segment = self.file.segment
        add = segment.index.add
        entries = b""
        for base, _, first_us, max_us, _, body in group:
            add(base, position)
            segment.note(first_us, max_us)
            if position >= self._index_wanted_at:
                entries += pack_entry(base, position, self._seed)
                self._index_wanted_at = position + self._index_interval_bytes
            position += BATCH_HEADER_SIZE + len(body)
        segment.size = position
        return entries

    def _publish(self, end_offset: int, last_timestamp_us: int) -> None:
        segment = self.file.segment
        if segment.went_back:
            self._watermark.publish_times(
                segment.base_offset, segment.min_timestamp_us, segment.max_timestamp_us
            )
        if end_offset > self.high_watermark:
            self.high_watermark = end_offset
        self._watermark.publish(end_offset, self._durable_offset, last_timestamp_us)

    def _is_old(self, now_us: int) -> bool:
        segment = self.file.segment
        return segment.batches > 0 and now_us - segment.min_timestamp_us > self._segment_us_max

    def _roll(self, base_offset: int) -> None:
        """Finish the segment and begin the next one. After this everything before it is durable. Raises JournalMoved
        where the next one would be begun in another directory than this."""
        displaced = self._until_done(self.displaced)
        if displaced:
            raise JournalMoved(displaced)
        self._with_room(partial(self.file.write_footer, self._seed))
        self.file.sync_footer()
        self.file.close()
        with suppress(MemoryError):  # then it stays as large as it is
            self.file.segment.index = self.file.segment.index.thinned(self._index_interval_bytes)
        self._durable_offset = base_offset
        header = SegmentHeader(self._uuid, self._epoch, base_offset, time_ns() // 1000)
        directory = self.file.segment.path.parent

        def begin() -> SegmentFile:
            scarce = bool(self.full)
            return begin_segment(
                self._disk, directory, header, self._allocate_bytes, scarce, self._until_done
            )

        self.file = name_segment(self._disk, self._with_room(begin), self._with_room, self._until_done)
        self.roll_wanted = False
        self._index_wanted_at = self.file.segment.size
        self._catalog.append(self.file.segment)

    def finish(self) -> None:
        """Finish after the last group: everything durable, and a footer that says so."""
        self._with_room(partial(self.file.write_footer, self._seed))
        self.file.sync_footer()
        self._durable_offset = self.file.segment.end_offset
        self._publish(self._durable_offset, self._watermark.state.last_timestamp_us)


def _named(error: BaseException) -> BaseException:
    if not isinstance(error, OSError | MemoryError):
        return error
    kind = DiskFull if isinstance(error, OSError) and is_disk_full(error) else WriteFailed
    named = kind(f"the journal cannot be written: {reason_of(error)}")
    named.__cause__ = error
    return named


def _is_any(_: OSError | MemoryError) -> bool:
    return True


def _ignore_offset(offset: int) -> None:
    """Do nothing: nobody listens yet."""


def _ignore_reason(reason: str) -> None:
    """Do nothing: nobody listens yet."""


def _ignore_seconds(seconds: float) -> None:
    """Do nothing: nobody listens yet."""


def _ignore_error(error: BaseException) -> None:
    """Do nothing: nobody listens yet."""
