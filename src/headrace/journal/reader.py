"""Reading a journal that another process writes: no lock, nothing written, never beyond the high watermark.

Used by Spark (driver and workers), the archive and the command line. Standard library only. Making a reader
costs nothing; every call looks at the files as they are now.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from headrace.journal.disk import DISK, Disk
from headrace.journal.errors import CorruptBatch, CorruptFile, EpochMismatch, OffsetOutOfRange
from headrace.journal.finished import FinishedSegment
from headrace.journal.index import SUFFIX as INDEX_SUFFIX
from headrace.journal.index import OffsetIndex
from headrace.journal.overlap import taken_in
from headrace.journal.segment import (
    BATCH_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
    Batch,
    SegmentHeader,
    base_offset_of,
    batch_range_at,
    batch_size_at,
    file_name,
    seed_of,
)
from headrace.journal.selective import SelectiveWalk, TimeRange
from headrace.journal.walk import Walk, is_compacted, read_footer
from headrace.journal.watermark import UNKNOWN, WatermarkState, read_state

DIRECTORY = "journal"
MOVES_MAX = 5  # times in a row that files are moved under a reader: retention and merges are far slower


@dataclass(slots=True)
class SegmentInfo:
    """A segment as a reader sees it. `bytes`: what batches take up, without preallocated space. Times in microseconds
    since 1970, 0 if empty."""

    base_offset: int
    end_offset: int
    bytes: int
    min_ts: int
    max_ts: int


class JournalReader:
    """The published part of the journal in a data directory. Every method may raise NoJournal."""

    def __init__(self, data_dir: Path | str, disk: Disk = DISK) -> None:
        self.data_dir = Path(data_dir)
        self.location = str(data_dir)
        self._directory = self.data_dir / DIRECTORY
        self._disk = disk
        self._sealed: dict[int, SegmentInfo] = {}

    @property
    def uuid(self) -> str:
        return str(UUID(bytes=self._state().uuid))

    @property
    def epoch(self) -> int:
        return self._state().epoch

    @property
    def version(self) -> int:
        """Return the version of the watermark file, which says what records may speak of: streams, stores."""
        return self._state().version

    def high_watermark(self) -> int:
        """Return the offset below which every record is durable and may be read."""
        return self._state().high_watermark

    def start_offset(self) -> int:
        """Return the oldest offset that is still there."""
        return self._bases()[0]

    def complete_offset(self) -> int:
        """Return from where on every record is there that was ever written: neither retention nor compaction has
        taken one.

        A journal that an older broker writes says nothing about compaction; its segments do.
        """
        published = self._state().complete_offset
        if published == UNKNOWN:
            published = self._behind_compacted()
        return max(published, self.start_offset())

    def _behind_compacted(self) -> int:
        for info in reversed(self.segments()[:-1]):
            with suppress(FileNotFoundError):  # moved meanwhile, by compaction or a merge: it is compacted
                if not is_compacted(self._disk, self._directory / file_name(info.base_offset)):
                    continue
            return info.end_offset
        return 0

    def check(self, uuid: str, epoch: int) -> None:
        """Check that an offset means what it meant under this uuid and epoch. Raises EpochMismatch if it means
        something else by now."""
        self._check(self._state(), uuid, epoch)

    def segments(self) -> list[SegmentInfo]:
        """Return the segments, oldest first, each from where the one before ends; the last one up to the high
        watermark."""
        for _ in range(MOVES_MAX):
            with suppress(
                FileNotFoundError
            ):  # removed, or merged into another one, since the names were read
                return self._segments()
        return self._segments()

    def _segments(self) -> list[SegmentInfo]:
        state = self._state()
        bases = self._bases()
        infos: list[SegmentInfo] = []
        at = 0
        while at < len(bases):
            base, behind = bases[at], bases[at + 1 :]
            end = behind[0] if behind else state.high_watermark
            info = self._sealed.get(base)
            if info is None or info.end_offset != end:
                info = self._inspect(base, end, state)
            infos.append(info)
            at += 1
            if behind and info.end_offset > end:
                at += len(taken_in(self._disk, self._directory, seed_of(state.uuid), base, behind))
        return infos

    def scan(
        self,
        start: int,
        end: int | None = None,
        *,
        uuid: str | None = None,
        epoch: int | None = None,
        times: TimeRange | None = None,
    ) -> Iterator[Batch]:
        """Yield the batches that hold the offsets from `start` up to `end`, at most up to the high watermark.

        With `times` only those that overlap the range; what lies outside is hardly read. The first may begin
        before `start` and the last end after `end`. Raises OffsetOutOfRange if retention passed `start`,
        EpochMismatch if the journal is not the one of `uuid` and `epoch` (default: as it is now), also midway;
        CorruptBatch.
        """
        state = self._state()
        uuid = uuid or str(UUID(bytes=state.uuid))
        epoch = epoch or state.epoch
        self._check(state, uuid, epoch)
        first = self.start_offset()
        if not first <= start <= state.high_watermark:
            raise OffsetOutOfRange(start, first, state.high_watermark)
        end = state.high_watermark if end is None else min(end, state.high_watermark)
        return self._scan(start, end, uuid, epoch, times)

    def finished(self, base_offset: int) -> FinishedSegment:
        """Return the segment that begins there, open for an index of the reader's own. Raises FileNotFoundError."""
        return FinishedSegment(self._disk, self._directory, base_offset)

    def _scan(self, start: int, end: int, uuid: str, epoch: int, times: TimeRange | None) -> Iterator[Batch]:
        vain = 0
        while start < end:
            before = start
            start = yield from self._scan_segment(start, end, uuid, epoch, times)
            vain = vain + 1 if start == before else 0
            if vain > MOVES_MAX:
                raise OffsetOutOfRange(start, self.start_offset(), self.high_watermark())

    def _scan_segment(
        self, start: int, end: int, uuid: str, epoch: int, times: TimeRange | None
    ) -> Generator[Batch, None, int]:
        """Yield the wanted batches of the segment that holds `start`, and return the offset to go on from; ends early
        if the broker moves the rest elsewhere."""
        base = max((base for base in self._bases() if base <= start), default=-1)
        path = self._directory / file_name(base)
        try:
            fd = self._disk.open(path)
        except FileNotFoundError:
            return start  # retention was faster, and the caller says so; or another file holds it now
        try:
            header = SegmentHeader.unpack(self._disk.read_fully(fd, SEGMENT_HEADER_SIZE, 0), str(path))
            seed = seed_of(header.uuid)
            footer = None if times is None else read_footer(self._disk, fd, seed)
            if footer and times and not times.overlaps(footer.min_timestamp_us, footer.max_timestamp_us):
                return footer.end_offset
            walk = self._walk(fd, self._place(fd, base, start, seed), seed, times, end)
            try:
                for batch in walk:
                    if batch.end_offset > start:
                        yield batch
                    if batch.end_offset >= end:
                        return batch.end_offset
            except FileNotFoundError:  # read from afar: another file took its place
                return max(start, walk.next_offset)
            self._check(self._state(), uuid, epoch)
            if walk.next_offset <= start or walk.is_damaged:
                raise CorruptBatch(str(path), walk.position, walk.next_offset, walk.stop)
            return walk.next_offset
        finally:
            self._disk.close(fd)

    def _walk(self, fd: int, place: tuple[int, int], seed: int, times: TimeRange | None, end: int) -> Walk:
        if times is None:
            return Walk(self._disk, fd, seed, *place)
        return SelectiveWalk(self._disk, fd, seed, *place, times, end)

    def _place(self, fd: int, base: int, start: int, seed: int) -> tuple[int, int]:
        """Return where to begin walking for `start`: by the index, if the batch it names is there."""
        if start > base:
            try:
                data = self._disk.read_file(self._directory / file_name(base, INDEX_SUFFIX))
                offset, position, _ = OffsetIndex.unpack(data, seed).span(start, 0)
            except (FileNotFoundError, IndexError):
                return base, SEGMENT_HEADER_SIZE
            header = self._disk.read_fully(fd, BATCH_HEADER_SIZE, position)
            if batch_size_at(header, 0) and batch_range_at(header, 0)[0] == offset:
                return offset, position
        return base, SEGMENT_HEADER_SIZE

    def _inspect(self, base: int, end: int, state: WatermarkState) -> SegmentInfo:
        path = self._directory / file_name(base)
        seed = seed_of(state.uuid)
        fd = self._disk.open(path)
        try:
            footer = read_footer(self._disk, fd, seed)
            if footer is None:
                return self._measure(fd, base, end, state)
            size = footer.position - SEGMENT_HEADER_SIZE
            times = (footer.min_timestamp_us, footer.max_timestamp_us)
            info = SegmentInfo(base, footer.end_offset, size, *times)
            self._sealed[base] = info
            return info
        finally:
            self._disk.close(fd)

    def _measure(self, fd: int, base: int, end: int, state: WatermarkState) -> SegmentInfo:
        """Return what a reader sees of a segment without a footer: the one being written."""
        if end <= base:
            return SegmentInfo(base, base, 0, 0, 0)
        seed = seed_of(state.uuid)
        first = next(iter(Walk(self._disk, fd, seed, base)), None)
        offset, position = self._place(fd, base, end - 1, seed)
        walk = Walk(self._disk, fd, seed, offset, position)
        last = next((batch for batch in walk if batch.end_offset >= end), None)
        if first is None or last is None:
            path = str(self._directory / file_name(base))
            raise CorruptBatch(path, walk.position, walk.next_offset, walk.stop)
        times = (first.first_timestamp_us, last.max_timestamp_us, state.last_timestamp_us)
        min_us, max_us = min(times[:2]), max(times)
        if state.times is not None and state.times.base_offset in (base, UNKNOWN):
            min_us, max_us = min(min_us, state.times.min_us), max(max_us, state.times.max_us)
        return SegmentInfo(base, end, walk.position - SEGMENT_HEADER_SIZE, min_us, max_us)

    def _state(self) -> WatermarkState:
        return read_state(self._disk, self.data_dir)

    def _check(self, state: WatermarkState, uuid: str, epoch: int) -> None:
        found = UUID(bytes=state.uuid)
        if (found, state.epoch) != (UUID(uuid), epoch):
            raise EpochMismatch(f"{uuid} epoch {epoch}", f"{found} epoch {state.epoch}")

    def _bases(self) -> list[int]:
        found = (base_offset_of(name) for name in self._disk.names(self._directory))
        bases = sorted(base for base in found if base is not None)
        if not bases:
            raise CorruptFile(f"{self._directory}: there is no segment")
        return bases
