"""Looking through a journal for damage, for `headrace journal verify` and `repair` alike. Takes no lock, writes nothing.

Reads every byte: headers, checksums, that offsets follow each other across segments, footers, indexes, snapshots
and consumer positions. A broker may be writing: whatever is asked of the segments is read before them, so what they
hold by then is more. What lies beyond everything that anybody was told may be in the middle of being written and is no
damage.

Whose journal it is, is decided by majority: a file of another journal is set aside, whichever it is. The end is
where the high watermark says, or further, where a batch or a consumer position vouches for more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import UUID

from headrace.journal.consumers import DIRECTORY as CONSUMERS
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.damage import Damage, first_damage, pieces
from headrace.journal.disk import DISK, Disk
from headrace.journal.errors import CorruptFile, JournalError, UnknownConsumer, UnsupportedFormat
from headrace.journal.findings import Finding, Remedy, Report, SegmentReport
from headrace.journal.index import SUFFIX as INDEX_SUFFIX
from headrace.journal.index import OffsetIndex
from headrace.journal.overlap import taken_in
from headrace.journal.reader import DIRECTORY
from headrace.journal.search import find_batches
from headrace.journal.segment import SEGMENT_HEADER_SIZE, SegmentHeader, base_offset_of, file_name, seed_of
from headrace.journal.snapshot import CHANGES_SUFFIX, SnapshotFile, positions
from headrace.journal.snapshot import SUFFIX as SNAPSHOT_SUFFIX
from headrace.journal.walk import Walk, read_footer
from headrace.journal.watermark import NAME as WATERMARK
from headrace.journal.watermark import UNKNOWN, WatermarkState, read_slots


def diagnose(data_dir: Path, disk: Disk = DISK) -> Report:
    """Read the whole journal. Damage is in the report, never an exception; raises OSError."""
    return _Diagnosis(data_dir, disk).run()


class _Diagnosis:
    def __init__(self, data_dir: Path, disk: Disk) -> None:
        self._disk = disk
        self._data_dir = data_dir
        self._directory = data_dir / DIRECTORY
        self._report = Report()
        self._consumers: list[ConsumerPosition] = []
        self._headers: dict[int, SegmentHeader | None] = {}  # None: damaged
        self._uuid = b""
        self._applied = 0  # what the snapshots reflect

    def run(self) -> Report:
        report = self._report
        self._read_consumers()
        slots = self._read_watermark()
        self._read_headers()
        if not slots and not self._headers:
            self._find(f"{self._directory}: there is no journal", Remedy.NONE, self._directory)
            return report
        found = self._identity(slots)
        if found is None:
            what = "no segment header and no high watermark tells which journal this is"
            self._find(f"{self._directory}: {what}", Remedy.NONE, self._directory)
            return report
        self._uuid = found
        report.uuid = str(UUID(bytes=found))
        slots = self._check_watermark(slots)
        report.state = slots[0] if slots else None
        report.high_watermark = slots[0].high_watermark if slots else 0
        self._set_foreign_aside()
        start = self._read_snapshots()
        self._judge_segments(start)
        self._judge_epoch()
        return report

    def _find(
        self, text: str, remedy: Remedy, path: Path, base: int = 0, first: int = 0, end: int = 0
    ) -> None:
        self._report.findings.append(Finding(text, remedy, path, base, first, end))

    def _attempt(self, path: Path, read: Callable[[], object]) -> bool:
        """Return whether the file is whole. What is damaged is set aside, unless it is only newer than we are."""
        try:
            read()
        except (FileNotFoundError, UnknownConsumer):
            return False  # it was replaced or removed meanwhile
        except UnsupportedFormat as error:
            self._find(str(error), Remedy.NONE, path)
            return False
        except JournalError as error:
            self._find(str(error), Remedy.SET_ASIDE, path)
            return False
        return True

    # Small files

    def _read_consumers(self) -> None:
        for name in ConsumerPosition.names(self._data_dir, self._disk):
            self._attempt(self._data_dir / CONSUMERS / name, partial(self._read_consumer, name))

    def _read_consumer(self, name: str) -> None:
        self._consumers.append(ConsumerPosition.read(self._data_dir, name, self._disk))

    def _read_watermark(self) -> list[WatermarkState]:
        path = self._data_dir / WATERMARK
        try:
            slots = read_slots(self._disk, self._data_dir)
        except UnsupportedFormat as error:
            self._find(str(error), Remedy.NONE, path)
            return []
        except CorruptFile as error:
            self._find(str(error), Remedy.EPOCH, path)
            return []
        if len(slots) == 1:
            self._report.notes.append(f"{path}: one of its two slots is damaged; the other one counts")
        return slots

    def _check_watermark(self, slots: list[WatermarkState]) -> list[WatermarkState]:
        """Check the slots of the high watermark, and return those of this journal."""
        path = self._data_dir / WATERMARK
        known = any(finding.path == path for finding in self._report.findings)
        if not slots and not known:
            self._find(f"{path}: there is no such file", Remedy.EPOCH, path)
        if slots and slots[0].uuid != self._uuid:
            theirs = UUID(bytes=slots[0].uuid)
            self._find(
                f"{path}: belongs to journal {theirs}, the segments to {self._report.uuid}",
                Remedy.EPOCH,
                path,
            )
            return []
        return slots

    def _read_snapshots(self) -> int:
        """Read the snapshots; return the offset from which on a start needs the records."""
        whole: dict[str, dict[int, SnapshotFile]] = {SNAPSHOT_SUFFIX: {}, CHANGES_SUFFIX: {}}
        damaged_changes = []
        for suffix, files in whole.items():
            for position in positions(self._directory, self._disk, suffix):
                path = self._directory / file_name(position, suffix)
                read = partial(self._read_snapshot, path, position, files)
                if not self._attempt(path, read) and suffix == CHANGES_SUFFIX:
                    damaged_changes.append(position)
        reflected = [file.applied_offset for found in whole.values() for file in found.values()]
        self._applied = max(reflected, default=0)
        reached = max(whole[SNAPSHOT_SUFFIX], default=0)
        for position, file in whole[CHANGES_SUFFIX].items():
            if file.parent == reached and not any(reached < other < position for other in damaged_changes):
                reached = position
        return reached

    def _read_snapshot(self, path: Path, position: int, files: dict[int, SnapshotFile]) -> None:
        file = SnapshotFile(path, self._disk)
        if file.position != position:
            raise CorruptFile(f"{path}: its header says that its position is {file.position}")
        files[position] = file

    # Whose segments these are

    def _read_headers(self) -> None:
        found = (base_offset_of(name) for name in self._disk.names(self._directory))
        for base in sorted(base for base in found if base is not None):
            path = self._directory / file_name(base)
            try:
                fd = self._disk.open(path)
            except FileNotFoundError:
                continue  # retention took it meanwhile
            try:
                data = self._disk.read_fully(fd, SEGMENT_HEADER_SIZE, 0)
                self._headers[base] = SegmentHeader.unpack(data, str(path))
            except UnsupportedFormat as error:
                self._find(str(error), Remedy.NONE, path)
            except CorruptFile:
                self._headers[base] = None
            finally:
                self._disk.close(fd)

    def _identity(self, slots: list[WatermarkState]) -> bytes | None:
        """Return the majority of the segments and the high watermark; on a tie what the latter says, or the
        consumers."""
        votes = Counter(header.uuid for header in self._headers.values() if header is not None)
        known = [slots[0].uuid] if slots else []
        votes.update(known)
        if not votes:
            votes.update(UUID(consumer.uuid).bytes for consumer in self._consumers)
        ties = {UUID(consumer.uuid).bytes: 1 for consumer in self._consumers} | dict.fromkeys(known, 2)
        return max(votes, key=lambda uuid: (votes[uuid], ties.get(uuid, 0)), default=None)

    def _set_foreign_aside(self) -> None:
        for base, header in list(self._headers.items()):
            path = self._directory / file_name(base)
            if header is None:
                self._find(
                    f"{path.name}: the segment header is damaged; it is written anew",
                    Remedy.REWRITE,
                    path,
                    base,
                )
            elif header.uuid != self._uuid:
                what = f"belongs to journal {UUID(bytes=header.uuid)}, this is {self._report.uuid}"
                self._find(f"{path}: {what}", Remedy.SET_ASIDE, path, base)
                del self._headers[base]
            elif header.base_offset != base:
                what = f"its header says that it begins at offset {header.base_offset}"
                self._find(f"{path}: {what}", Remedy.SET_ASIDE, path, base)
                del self._headers[base]

    # The records

    def _judge_segments(self, start: int) -> None:
        """Judge the segments; `start` is the offset from which on they are needed."""
        bases = list(self._headers)
        known = self._known_end()
        start = self._start(start, bases[0] if bases else known)
        if bases and bases[0] > start:
            self._missing(start, bases[0])
        at = 0
        while at < len(bases) - 1:
            merged = self._taken_in(bases[at], bases[at + 1 :])
            following = at + 1 + len(merged)
            self._judge(bases[at], bases[following])
            at = following
        if bases:
            known = self._judge(bases[-1], None, known)
        elif start < known:
            self._missing(start, known)
        self._report.end = known

    def _start(self, needed: int, first: int) -> int:
        """Return the offset from which on there must be files: what a start needs, or from where on retention has left
        them."""
        state = self._report.state
        start = state.start_offset if state else UNKNOWN
        if UNKNOWN < start < first:  # or it is at work meanwhile, and has said so before the first file went
            slots = read_slots(self._disk, self._data_dir)
            start = slots[0].start_offset if slots else UNKNOWN
        return min(needed, start) if start != UNKNOWN else needed

    def _taken_in(self, base: int, behind: list[int]) -> list[int]:
        """Return the segments that an unfinished merge has put into this one, if that is whole: they count no more."""
        seed = seed_of(self._uuid)
        try:
            merged = taken_in(self._disk, self._directory, seed, base, behind)
            if not merged or not self._is_whole(base, behind[len(merged)]):
                return []
        except FileNotFoundError:
            return []  # retention took it meanwhile
        except UnsupportedFormat:
            return []  # which is said of it
        names = ", ".join(file_name(other) for other in merged)
        self._report.notes.append(f"{file_name(base)} holds what was merged into it; to be removed: {names}")
        return merged

    def _is_whole(self, base: int, end: int) -> bool:
        path = self._directory / file_name(base)
        fd = self._disk.open(path)
        try:
            return first_damage(self._disk, fd, str(path), seed_of(self._uuid), base, end) is None
        finally:
            self._disk.close(fd)

    def _known_end(self) -> int:
        """Return the offset below which records were published: somebody has read them, or may have."""
        report = self._report
        epoch = report.state.epoch if report.state else max((one.epoch for one in self._consumers), default=0)
        read = [one.offset for one in self._consumers if (one.uuid, one.epoch) == (report.uuid, epoch)]
        return max([report.high_watermark, *read, *([] if report.state else [self._applied])])

    def _missing(self, first: int, end: int) -> None:
        what = f"no segment file holds offsets {first} up to {end} ({end - first} records)"
        self._find(what, Remedy.FILL, self._directory / file_name(first), first, first, end)

    def _judge(self, base: int, following: int | None, known: int = 0) -> int:
        """Decide where this segment should end: before the one at `following`, or, the last one, at `known` or
        further."""
        path = self._directory / file_name(base)
        try:
            fd = self._disk.open(path)
        except FileNotFoundError:
            return known  # retention took it meanwhile
        try:
            return self._walk(fd, path, base, following, known)
        except UnsupportedFormat as error:
            self._find(str(error), Remedy.NONE, path)
            return known
        finally:
            self._disk.close(fd)

    def _walk(self, fd: int, path: Path, base: int, following: int | None, known: int) -> int:
        seed = seed_of(self._uuid)
        walk = Walk(self._disk, fd, seed, base)
        places = {}
        for batch in walk:
            places[batch.base_offset] = walk.position - batch.size
            self._saw_epoch(batch.epoch)
        size = walk.position - SEGMENT_HEADER_SIZE
        report = self._report
        report.segments.append(SegmentReport(path.name, base, walk.next_offset, len(places), size, walk.stop))
        footer = read_footer(self._disk, fd, seed)
        if following is None:
            wanted = max(known, base, self._vouched(fd, seed, walk))
            missing_from = walk.next_offset if walk.footer else wanted
        else:
            wanted = following
            missing_from = footer.end_offset if footer else following
        end = min(wanted, max(missing_from, base))
        report.spans[base] = end
        if footer and following is not None and footer.end_offset > following:
            what = f"reaches up to offset {footer.end_offset}, but the next segment begins at {following}"
            self._find(f"{path}: {what}", Remedy.REWRITE, path, base)
        if walk.next_offset < end:
            self._say_damage(fd, path, base, end, following is None)
        elif walk.is_damaged:
            report.notes.append(f"{path.name}: an unfinished batch behind offset {walk.next_offset}")
        if end < wanted:
            self._missing(end, wanted)
        self._check_index(base, places)
        return wanted

    def _vouched(self, fd: int, seed: int, walk: Walk) -> int:
        """Return the offset up to where batches behind the place where the walk stopped, or the footer, say that all
        was durable."""
        if not walk.is_damaged:
            return 0
        footer = read_footer(self._disk, fd, seed)
        behind = find_batches(self._disk, fd, seed, walk.position, walk.next_offset)
        durable = [batch.durable_offset for _, batch in behind]
        return max([footer.end_offset if footer else 0, *durable])

    def _say_damage(self, fd: int, path: Path, base: int, end: int, is_last: bool) -> None:
        """Note a finding for each stretch that cannot be read."""
        for piece in pieces(self._disk, fd, str(path), seed_of(self._uuid), base, end, is_last):
            if isinstance(piece, Damage):
                lost = (piece.first_offset, piece.end_offset)
                self._find(str(piece), Remedy.REWRITE, path, base, *lost)
            else:
                self._saw_epoch(piece.epoch)

    def _check_index(self, base: int, places: dict[int, int]) -> None:
        name = file_name(base, INDEX_SUFFIX)
        try:
            index = OffsetIndex.unpack(self._disk.read_file(self._directory / name), seed_of(self._uuid))
        except FileNotFoundError:
            return
        pairs = zip(index.offsets, index.positions, strict=True)
        if any(places.get(offset, position) != position for offset, position in pairs):
            self._report.notes.append(f"{name} is wrong; readers notice and walk instead")

    # The epoch

    def _saw_epoch(self, epoch: int) -> None:
        self._report.seen_epoch = max(self._report.seen_epoch, epoch)

    def _judge_epoch(self) -> None:
        """Judge the epoch: what has a higher epoch than the journal remembers offsets that would match again."""
        report = self._report
        headers = [header for header in self._headers.values() if header is not None]
        for header in headers:
            self._saw_epoch(header.epoch)
        told = report.seen_epoch
        if report.state:
            self._saw_epoch(report.state.epoch)
        report.epoch = report.state.epoch if report.state else told
        path = self._data_dir / WATERMARK
        if report.state and told > report.state.epoch:
            what = f"says epoch {report.state.epoch}, but the segments have seen {told}"
            self._find(f"{path}: {what}; the epoch rises", Remedy.EPOCH, path)
        for consumer in self._consumers:
            if consumer.uuid == report.uuid:
                self._saw_epoch(consumer.epoch)
                if consumer.epoch > report.epoch:
                    what = f"has seen epoch {consumer.epoch}, but the journal is at {report.epoch}"
                    self._find(f"consumer {consumer.name!r} {what}; the epoch rises", Remedy.EPOCH, path)
