"""What opening a log finds: how far the records reach, what is cut back, and what is refused.

The last segment is walked with all checksums; the ones before end with a footer. Where the walk stops:

- **Known durable** is what the durable offsets in the batch headers, a footer, and the *older* slot of the
  high watermark file say. Damage below that: `CorruptJournal`, nothing is touched (decision 20). The newest
  group of batches has no successor that vouches for it: damage there is cut back, and said.
- Of the finished segments, the newest 256 MiB (a setting) are read through when a log is opened; damage there is
  refused in the same way. The older ones are read through later, while the broker runs (`SegmentedLog.verify_next`).
- If the cut lies below the published high watermark, readers may have seen records that are gone: the epoch
  rises.
- Records above the newest durable offset were written, but nobody knows whether they were synced; after a
  failed sync they may be in the page cache alone. They are rewritten into a new segment and synced (decision
  21).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from time import time_ns

from headrace.journal.active import SegmentFile, create_segment
from headrace.journal.catalog import Segment
from headrace.journal.disk import Disk
from headrace.journal.epochs import raised
from headrace.journal.errors import CorruptFile, CorruptJournal, JournalError
from headrace.journal.restore import is_interrupted
from headrace.journal.sealed import SealedLoader, read_header
from headrace.journal.segment import SegmentHeader, base_offset_of, file_name, seed_of
from headrace.journal.tail import Tail, open_to_append, rewrite
from headrace.journal.walk import is_compacted
from headrace.journal.watermark import NAME as WATERMARK_NAME
from headrace.journal.watermark import UNKNOWN, Times, WatermarkState, read_slots, without_slots


class Recovered:
    """A log ready to be written: everything in it is synced, and `state` is what to publish."""

    def __init__(
        self,
        segments: list[Segment],
        file: SegmentFile,
        state: WatermarkState,
        unverified: list[Segment],
        taken_in: list[int],
    ) -> None:
        self.segments = segments
        self.taken_in = taken_in
        self.unverified = unverified
        self.file = file
        self.state = state


class Recovery:
    """Runs once when a log is opened, under its lock."""

    def __init__(
        self,
        disk: Disk,
        data_dir: Path,
        directory: Path,
        allocate_bytes: int,
        index_interval_bytes: int,
        report: Callable[[str], None],
        verified_bytes: int,
    ) -> None:
        self._disk = disk
        self._verified_bytes = verified_bytes
        self._data_dir = data_dir
        self._directory = directory
        self._allocate_bytes = allocate_bytes
        self._index_interval_bytes = index_interval_bytes
        self._report = report
        self._slots: list[WatermarkState] = []

    def run(self, new_uuid: bytes) -> Recovered:
        """Recover the journal. `new_uuid` names the journal if there is none yet. Raises CorruptJournal, CorruptFile,
        UnsupportedFormat."""
        self._slots = self._read_slots()
        bases = self._bases()
        if not bases:
            return self._begin(new_uuid)
        header = read_header(self._disk, self._directory, bases[-1])
        self._check_identity(header.uuid)
        self._check_start(bases[0])
        seed = seed_of(header.uuid)
        loader = SealedLoader(self._disk, self._directory, seed, self._index_interval_bytes, self._report)
        verified_from = self._verified_from(bases)
        sealed, taken_in = self._load_sealed(loader, bases, verified_from)
        tail = Tail(self._disk, self._directory, bases[-1], seed)
        state = self._judge(header, tail)
        state.start_offset = bases[0]
        file = self._resume(header, tail, state)
        if file.segment.base_offset > tail.segment.base_offset:
            sealed.append(loader.load(tail.segment.base_offset, file.segment.base_offset))
        state.high_watermark = state.durable_offset = tail.segment.end_offset
        state.last_timestamp_us = max(segment.max_timestamp_us for segment in [*sealed, file.segment])
        state.complete_offset = self._complete_offset(state, sealed)
        last = file.segment
        if last.went_back:
            state.times = Times(last.base_offset, last.min_timestamp_us, last.max_timestamp_us)
        unverified = [segment for segment in sealed if segment.base_offset < verified_from]
        return Recovered([*sealed, file.segment], file, state, unverified, taken_in)

    def _complete_offset(self, state: WatermarkState, sealed: Sequence[Segment]) -> int:
        """Return the offset as it was published; where nobody has, behind the last segment that compaction has
        written."""
        if state.complete_offset != UNKNOWN:
            return state.complete_offset
        for segment in reversed(sealed):
            if is_compacted(self._disk, segment.path):
                return segment.end_offset
        return 0

    def _load_sealed(
        self, loader: SealedLoader, bases: list[int], verified_from: int
    ) -> tuple[list[Segment], list[int]]:
        """Load all but the last segment; and those that a merge has put into another one, which are to be removed."""
        sealed: list[Segment] = []
        taken_in: list[int] = []
        for at, (base, following) in enumerate(pairwise(bases), 1):
            if sealed and base < sealed[-1].end_offset:
                taken_in.append(base)
            else:
                sealed.append(loader.load(base, following, base >= verified_from, bases[at:]))
        return sealed, taken_in

    def _read_slots(self) -> list[WatermarkState]:
        try:
            return read_slots(self._disk, self._data_dir)
        except CorruptFile as error:
            self._report(f"{error}; reading the journal tells how far it reaches")
            return []

    def _bases(self) -> list[int]:
        """Return the base offsets, ascending. Leftovers of an interrupted creation are removed."""
        names = self._disk.names(self._directory)
        for name in names:
            if name.endswith(".tmp"):
                self._disk.unlink(self._directory / name)
        return sorted(base for name in names if (base := base_offset_of(name)) is not None)

    def _verified_from(self, bases: list[int]) -> int:
        """Return the base offset from which on the finished segments are read through: the newest so many bytes."""
        left = self._verified_bytes
        for base in reversed(bases[:-1]):
            fd = self._disk.open(self._directory / file_name(base))
            left -= self._disk.size(fd)
            self._disk.close(fd)
            if left < 0:
                return base + 1
        return 0

    def _begin(self, new_uuid: bytes) -> Recovered:
        """Begin a journal: no segment is there yet, or a crash came before the first one had its name."""
        if is_interrupted(self._data_dir, self._disk):
            raise JournalError(
                f"{self._data_dir}: a restore into it was interrupted; run `headrace restore` again"
            )
        state = WatermarkState(new_uuid, 1, 0, 0, start_offset=0, complete_offset=0)
        if self._slots:
            end = self._slots[0].high_watermark
            if end:
                raise CorruptJournal(str(self._directory), 0, 0, end, "there is no segment file any more")
            state = self._slots[0]
            state.start_offset = state.complete_offset = 0
        header = SegmentHeader(state.uuid, state.epoch, 0, time_ns() // 1000)
        file = create_segment(self._disk, self._directory, header, self._allocate_bytes)
        return Recovered([file.segment], file, state, [], [])

    def _check_identity(self, uuid: bytes) -> None:
        if self._slots and self._slots[0].uuid != uuid:
            raise CorruptFile(
                f"{self._data_dir / WATERMARK_NAME} belongs to journal {self._slots[0].uuid.hex()}, "
                f"the segments belong to {uuid.hex()}"
            )

    def _check_start(self, first: int) -> None:
        """Check that the segments begin where retention says that they do: a file that went in another way took records
        with it."""
        start = self._slots[0].start_offset if self._slots else UNKNOWN
        if UNKNOWN < start < first:
            path = str(self._directory / file_name(start))
            raise CorruptJournal(path, 0, start, first, "there is no such file")

    def _judge(self, header: SegmentHeader, tail: Tail) -> WatermarkState:
        """Refuse the journal, or say what is cut; return the epoch, and the newest durable offset, with which to go
        on."""
        end = tail.segment.end_offset
        newest = self._slots[0] if self._slots else WatermarkState(header.uuid, 0, 0, 0)
        if not self._slots and end:  # the file was there before the first record was
            newest = without_slots(self._disk, self._data_dir, header.uuid)
        known_durable = max(tail.durable_offset, self._slots[1].durable_offset if len(self._slots) > 1 else 0)
        if end < known_durable:
            path, position = str(tail.segment.path), tail.segment.size
            raise CorruptJournal(path, position, end, known_durable, tail.damage or "the data ends here")
        if tail.damage:
            self._report(
                f"cut {tail.segment.path.name} back to byte {tail.segment.size}, offset {end}, "
                f"where its last good record ends: {tail.damage}"
            )
        epoch = max(header.epoch, tail.epoch, newest.epoch)
        durable = min(end, max(known_durable, newest.durable_offset))
        # With the marks: a crash behind the rise of the epoch must not take them away.
        last_us, sequence, start = newest.last_timestamp_us, newest.sequence, newest.start_offset
        complete = min(newest.complete_offset, end)
        state = WatermarkState(header.uuid, epoch, durable, durable, last_us, sequence, start, complete)
        state.version = newest.version
        if end < newest.high_watermark:
            self._raise_epoch(state, end, newest.high_watermark)
        return state

    def _raise_epoch(self, state: WatermarkState, end: int, published: int) -> None:
        """Raise the epoch on disk before the cut is made: a crash between the two must not hide that there was a cut."""
        state.epoch = raised(state.epoch)
        self._report(
            f"records {end} up to {published} were published and are gone; the epoch rises to {state.epoch}"
        )
        self._disk.replace(self._data_dir / WATERMARK_NAME, state.pack_page())

    def _resume(self, header: SegmentHeader, tail: Tail, state: WatermarkState) -> SegmentFile:
        segment = tail.segment
        unsure = segment.end_offset - state.durable_offset
        if not unsure:
            return open_to_append(self._disk, segment, self._allocate_bytes)
        base, position, _ = segment.index.span(state.durable_offset, segment.size)
        self._report(
            f"{unsure} records from offset {state.durable_offset} on were written but perhaps never synced; "
            "they are rewritten into a new segment"
        )
        new_header = SegmentHeader(header.uuid, state.epoch, base, time_ns() // 1000)
        return rewrite(self._disk, segment, new_header, position, self._allocate_bytes)
