"""Looking into a journal from outside: `headrace journal verify` and `dump`. Takes no lock, writes nothing.

Verify reads every byte: headers, checksums, that offsets follow each other across segments, footers, indexes,
snapshots and consumer positions. What lies beyond the high watermark may be in the middle of being written
and is no damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from headrace.journal.consumers import ConsumerPosition
from headrace.journal.damage import Damage, survey
from headrace.journal.disk import DISK, Disk
from headrace.journal.errors import JournalError
from headrace.journal.index import SUFFIX as INDEX_SUFFIX
from headrace.journal.index import OffsetIndex
from headrace.journal.reader import DIRECTORY, JournalReader
from headrace.journal.segment import SEGMENT_HEADER_SIZE, SegmentHeader, base_offset_of, file_name, seed_of
from headrace.journal.snapshot import CHANGES_SUFFIX, SnapshotFile, positions
from headrace.journal.snapshot import SUFFIX as SNAPSHOT_SUFFIX
from headrace.journal.walk import Walk
from headrace.journal.watermark import WatermarkState, read_state


@dataclass(slots=True)
class SegmentReport:
    name: str
    base_offset: int
    end_offset: int
    batches: int
    bytes: int
    ends_with: str

    def __str__(self) -> str:
        records = self.end_offset - self.base_offset
        return (
            f"{self.name}: offsets {self.base_offset} up to {self.end_offset}, {records} records in "
            f"{self.batches} batches, {self.bytes} bytes, ends with {self.ends_with}"
        )


@dataclass(slots=True)
class Report:
    """`problems`: damage; one line each. `notes`: what heals by itself."""

    uuid: str = ""
    epoch: int = 0
    high_watermark: int = 0
    segments: list[SegmentReport] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def lines(self) -> list[str]:
        head = f"journal {self.uuid}, epoch {self.epoch}, high watermark {self.high_watermark}"
        damage = [f"DAMAGED {problem}" for problem in self.problems]
        notes = [f"note: {note}" for note in self.notes]
        return [head, *map(str, self.segments), *notes, *damage, "ok" if self.ok else "damaged"]


def verify(data_dir: Path, disk: Disk = DISK) -> Report:
    """Reads the whole journal. Damage is in the report, never an exception."""
    report = Report()
    try:
        state = read_state(disk, data_dir)
    except JournalError as error:
        report.problems.append(str(error))
        return report
    reader = JournalReader(data_dir, disk)
    report.uuid, report.epoch, report.high_watermark = reader.uuid, state.epoch, state.high_watermark
    directory = data_dir / DIRECTORY
    _Verifier(disk, directory, state, report).run()
    for suffix in (SNAPSHOT_SUFFIX, CHANGES_SUFFIX):
        for position in positions(directory, disk, suffix):
            _attempt(report, partial(SnapshotFile, directory / file_name(position, suffix), disk))
    _attempt(report, partial(ConsumerPosition.list, data_dir, disk))
    return report


def _attempt(report: Report, check: Callable[[], object]) -> None:
    try:
        check()
    except JournalError as error:
        report.problems.append(str(error))


class _Verifier:
    """Walks the segments in order."""

    def __init__(self, disk: Disk, directory: Path, state: WatermarkState, report: Report) -> None:
        self._disk = disk
        self._directory = directory
        self._state = state
        self._seed = seed_of(state.uuid)
        self._report = report

    def run(self) -> None:
        found = (base_offset_of(name) for name in self._disk.names(self._directory))
        bases = sorted(base for base in found if base is not None)
        end = None
        for base in bases:
            if end is not None and base != end:
                self._report.problems.append(f"{file_name(base)}: begins where offset {end} was expected")
            following = next((other for other in bases if other > base), None)
            end = self._segment(base, following)
        if (end or 0) < self._state.high_watermark:
            self._report.problems.append(
                f"the records end at offset {end or 0}, the high watermark is {self._state.high_watermark}"
            )

    def _segment(self, base: int, following: int | None) -> int | None:
        """Its end offset; None if it cannot be read at all."""
        path = self._directory / file_name(base)
        try:
            fd = self._disk.open(path)
        except FileNotFoundError:
            return None  # retention took it meanwhile
        try:
            header = SegmentHeader.unpack(self._disk.pread(fd, SEGMENT_HEADER_SIZE, 0), str(path))
            if header.base_offset != base or header.uuid != self._state.uuid:
                self._report.problems.append(f"{path}: does not belong here")
                return None
            return self._walk(fd, path, base, following)
        except JournalError as error:
            self._report.problems.append(str(error))
            return None
        finally:
            self._disk.close(fd)

    def _walk(self, fd: int, path: Path, base: int, following: int | None) -> int:
        walk = Walk(self._disk, fd, self._seed, base)
        places = {batch.base_offset: walk.position - batch.size for batch in walk}
        size = walk.position - SEGMENT_HEADER_SIZE
        self._report.segments.append(
            SegmentReport(path.name, base, walk.next_offset, len(places), size, walk.stop)
        )
        wanted = self._state.high_watermark if following is None else following
        if walk.next_offset < wanted and not walk.footer:
            return self._say_damage(fd, path, base, wanted)
        if walk.is_damaged:
            self._report.notes.append(f"{path.name}: an unfinished batch behind offset {walk.next_offset}")
        self._check_index(base, places)
        return walk.next_offset

    def _say_damage(self, fd: int, path: Path, base: int, wanted: int) -> int:
        """One line for each stretch that cannot be read; how far the segment reaches with them."""
        end = base
        for piece in survey(self._disk, fd, str(path), self._seed, base, wanted):
            end = piece.end_offset
            if isinstance(piece, Damage):
                self._report.problems.append(str(piece))
        return end

    def _check_index(self, base: int, places: dict[int, int]) -> None:
        name = file_name(base, INDEX_SUFFIX)
        try:
            index = OffsetIndex.unpack(self._disk.read_file(self._directory / name), self._seed)
        except FileNotFoundError:
            return
        pairs = zip(index.offsets, index.positions, strict=True)
        if any(places.get(offset, position) != position for offset, position in pairs):
            self._report.notes.append(f"{name} is wrong; readers notice and walk instead")


def dump(
    data_dir: Path, start: int | None = None, end: int | None = None, disk: Disk = DISK
) -> Iterator[dict[str, object]]:
    """One dict a batch, with the frames of its records as (kind, length); what is inside is not decoded."""
    reader = JournalReader(data_dir, disk)
    for batch in reader.scan(reader.start_offset() if start is None else start, end):
        yield {
            "base_offset": batch.base_offset,
            "count": batch.count,
            "epoch": batch.epoch,
            "durable_offset": batch.durable_offset,
            "first_timestamp_us": batch.first_timestamp_us,
            "max_timestamp_us": batch.max_timestamp_us,
            "bytes": len(batch.body),
            "records": list(frames(batch.body)),
        }


def frames(body: bytes) -> Iterator[tuple[int, int]]:
    """(kind, length) of the records in a batch body, as `core/record.py` frames them; stops where that
    ends."""
    at = 0
    while at + 5 <= len(body):
        length = int.from_bytes(body[at : at + 4], "little")
        yield body[at + 4], length
        at += 4 + length
