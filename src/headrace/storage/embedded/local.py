"""The embedded journal behind `JournalPort`: appends to the segmented log, finds messages by offset.

The messages of the newest batches that wait for somebody stay in memory, since most references are used soon after they
were made; others are read from the segments, a batch at a time, and the batches read last are kept decoded.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from mypy_extensions import i64

from headrace.core.ports.journal import DAMAGED, GONE, NOT_NOW, OTHER_RECORD, Absent, JournalPort
from headrace.core.records.message import Given, Message, decode_copy, decode_message
from headrace.core.records.record import (
    KIND_COPY,
    KIND_GIVEN,
    KIND_MESSAGE,
    KIND_PROGRESS,
    SHORT_HEADER_SIZE,
    record_end,
)


class ReadBatch(Protocol):
    """A batch as the log reads it back."""

    base_offset: int
    body: bytes


class Log(Protocol):
    """What is used of `journal.log.SegmentedLog`; the node puts the two together."""

    next_offset: int

    def append(self, body: bytes, count: int, first_timestamp_us: int, max_timestamp_us: int) -> int: ...

    def room(self) -> int: ...

    def has_room(self) -> bool: ...

    def read_batch(self, offset: int) -> ReadBatch: ...


RECENT_BYTES_MAX = 32 << 20
RECORD_BYTES = (
    512  # of a message in memory beside its bytes: without them, small messages cost many times the limit
)
DECODED_BATCHES_MAX = 128
FAILURE_SAID_EVERY_S = 10.0


def _said_to_nobody(line: str) -> None:
    """Say nothing: nobody listens."""


class _Frames:
    """A batch read back: its body and where its records start, decoded one by one on demand."""

    def __init__(self, base_offset: int, body: bytes) -> None:
        self.base_offset = base_offset
        self.body = body
        self.starts: list[int] = []
        pos = 0
        while pos < len(body):
            self.starts.append(pos)
            pos = record_end(body, pos)
        self.starts.append(pos)

    def holds(self, offset: int) -> bool:
        return self.base_offset <= offset < self.base_offset + len(self.starts) - 1

    def message(self, offset: int) -> Message | Absent:
        index = offset - self.base_offset
        start = self.starts[index]
        kind = self.body[start + 4]
        if kind == KIND_COPY:
            message: Message = decode_copy(self.body, start, self.starts[index + 1])
        elif kind == KIND_MESSAGE:
            message = decode_message(self.body, start, self.starts[index + 1])
        elif kind == KIND_GIVEN:
            message = Given(decode_message(self.body, start, self.starts[index + 1]))
        else:
            return OTHER_RECORD
        message.offset = offset
        return message

    def page(self, offset: int) -> bytes | Absent:
        index = offset - self.base_offset
        start = self.starts[index]
        if self.body[start + 4] != KIND_PROGRESS:
            return OTHER_RECORD
        return self.body[start + SHORT_HEADER_SIZE : self.starts[index + 1]]


class LocalJournal(JournalPort):
    """`JournalPort` over a `SegmentedLog`. Runs on the loop; the log's own thread does the writing."""

    def __init__(
        self,
        log: Log,
        gone: type[Exception],
        report: Callable[[str], None] = _said_to_nobody,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Begin to read `log`. `gone` is what `log.read_batch` raises when retention has taken an offset. An OSError,
        want of memory, and an error that says that a retry helps are a failure of the read and say nothing about the
        record: NOT_NOW, told to `report` every FAILURE_SAID_EVERY_S at most, counted in `failed_reads`. Whatever else
        is raised is damage: told once a batch, counted in `damaged_reads`."""
        self._log = log
        self._gone = gone
        self._report = report
        self._bases: list[
            int
        ] = []  # base offsets of the recent batches, ascending; those below `_first` are let go
        self._recent: list[list[object]] = []
        self._sizes: list[int] = []
        self._first = 0
        self._recent_bytes = 0
        self._near_base = 0  # the recent batch looked into last: references are mostly used in order
        self._near: list[object] = []
        self._frames: OrderedDict[int, _Frames] = OrderedDict()
        self._framed: list[int] = []  # the base offsets in `_frames`, ascending
        self._last: _Frames | None = None
        self._said: set[str] = set()
        self._clock = clock
        self._failure_said_at = -FAILURE_SAID_EVERY_S
        self.disk_reads = 0
        self.damaged_reads = 0
        self.failed_reads = 0
        self._fails = False  # the last read of the disk did, and the next one may

    def next_offset(self) -> int:
        return self._log.next_offset

    def room(self) -> i64:
        try:
            return self._log.room()
        except OSError:  # it cannot be told now
            return 0

    def has_room(self) -> bool:
        try:
            return self._log.has_room()
        except OSError:
            return True

    def append(
        self, body: bytes, records: list[object], first_timestamp_us: int, max_timestamp_us: int
    ) -> None:
        base = self._log.append(body, len(records), first_timestamp_us, max_timestamp_us)
        self._bases.append(base)
        self._recent.append(records)
        size = len(body) + RECORD_BYTES * len(records)
        self._sizes.append(size)
        self._recent_bytes += size
        while self._recent_bytes > RECENT_BYTES_MAX:
            self._recent_bytes -= self._sizes[self._first]
            self._recent[self._first] = []
            self._first += 1
        if self._first > len(self._bases) // 2 + 64:
            self._forget()

    def _forget(self) -> None:
        """Shorten the lists by what was let go."""
        del self._bases[: self._first]
        del self._recent[: self._first]
        del self._sizes[: self._first]
        self._first = 0

    def fetch(self, offset: int) -> Message | Absent:
        at = offset - self._near_base
        if not 0 <= at < len(self._near):
            if self._first >= len(self._bases) or offset < self._bases[self._first]:
                return self._read(offset)
            index = bisect_right(self._bases, offset) - 1
            self._near_base = self._bases[index]
            self._near = self._recent[index]
            at = offset - self._near_base
            if at >= len(self._near):
                return GONE
        record = self._near[at]
        return record if isinstance(record, Message) else self._read(offset)

    def _read(self, offset: int) -> Message | Absent:
        frames = self._last
        if frames is None or not frames.holds(offset):
            frames = self._kept(offset)
            if frames is None:
                loaded = self._load(offset)
                if isinstance(loaded, Absent):
                    return loaded
                frames = loaded
            self._last = frames
        try:
            return frames.message(offset)
        except MemoryError as error:
            return self._judged(offset, error)

    def fetch_page(self, offset: int) -> bytes | Absent:
        frames = self._kept(offset)
        if frames is None:
            loaded = self._load(offset)
            if isinstance(loaded, Absent):
                return loaded
            frames = loaded
        try:
            return frames.page(offset)
        except MemoryError as error:
            return self._judged(offset, error)

    def _kept(self, offset: int) -> _Frames | None:
        """Return the record if it is among the batches read last."""
        index = bisect_right(self._framed, offset) - 1
        if index < 0:
            return None
        frames = self._frames[self._framed[index]]
        if not frames.holds(offset):
            return None
        self._frames.move_to_end(frames.base_offset)
        return frames

    def _load(self, offset: int) -> _Frames | Absent:
        try:
            batch = self._log.read_batch(offset)
            frames = _Frames(batch.base_offset, batch.body)
        except self._gone:
            return GONE
        except Exception as error:  # noqa: BLE001  whatever makes one batch unreadable must not end a connection
            return self._judged(offset, error)
        self.disk_reads += 1
        if self._fails:
            self._fails = False
            if self.waiting is not None:
                self.waiting.wake_all()
        if frames.base_offset not in self._frames:  # compaction may have drawn batches together
            insort(self._framed, frames.base_offset)
        self._frames[frames.base_offset] = frames
        if len(self._frames) > DECODED_BATCHES_MAX:
            oldest, _ = self._frames.popitem(last=False)
            del self._framed[bisect_right(self._framed, oldest) - 1]
        return frames

    def _judged(self, offset: int, error: Exception) -> Absent:
        """Return what an error says about the record: only damage is a fact."""
        if not isinstance(error, OSError | MemoryError) and not getattr(error, "retry_helps", False):
            self._say_damage(offset, error)
            return DAMAGED
        self.failed_reads += 1
        self._fails = True
        now = self._clock()
        if now - self._failure_said_at >= FAILURE_SAID_EVERY_S:
            self._failure_said_at = now
            reason = str(error) or "not enough memory"
            self._report(f"offset {offset} cannot be read now, whoever needs it waits: {reason}")
        return NOT_NOW

    def _say_damage(self, offset: int, error: Exception) -> None:
        self.damaged_reads += 1
        place = str(error).partition(" (offset")[0]  # one line a batch, not one a message in it
        if place not in self._said:
            self._said.add(place)
            self._report(f"offset {offset} cannot be read: {error}")
