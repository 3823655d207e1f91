"""Repair: `headrace journal repair`. What can be read is kept at its offsets, what cannot is listed and made void.

A void record is a PROGRESS record about nothing: every reader knows it and passes over it. So offsets stay
without gaps, nothing is read under an offset that once meant something else, and a session that still refers
to a lost message finds that it is gone, and counts it.

Nothing is overwritten: each file that is replaced or taken away is moved to `<data-dir>/damaged/` first.
Refuses while a broker has the journal open. Planning writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import time_ns
from typing import Literal, Self

from headrace.journal.active import SegmentFile
from headrace.journal.catalog import Segment
from headrace.journal.consumers import DIRECTORY as CONSUMERS
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.damage import Damage, survey
from headrace.journal.disk import DISK, Disk
from headrace.journal.errors import CorruptFile, JournalError, NoJournal
from headrace.journal.lock import lock_data_dir
from headrace.journal.reader import DIRECTORY as JOURNAL
from headrace.journal.segment import (
    SEGMENT_HEADER_SIZE,
    Batch,
    Footer,
    SegmentHeader,
    base_offset_of,
    file_name,
    pack_batch_header,
    seed_of,
    void_records,
)
from headrace.journal.snapshot import SUFFIX as SNAPSHOT_SUFFIX
from headrace.journal.snapshot import SnapshotFile, positions
from headrace.journal.walk import read_footer
from headrace.journal.watermark import NAME as WATERMARK
from headrace.journal.watermark import WatermarkState, read_slots

DAMAGED = "damaged"
_VOIDS_MAX = 4096  # in a batch
Piece = Batch | Damage


def void_batches(first_offset: int, end_offset: int, timestamp_us: int, epoch: int) -> Iterator[Batch]:
    """Batches of void records for these offsets."""
    for base in range(first_offset, end_offset, _VOIDS_MAX):
        count = min(_VOIDS_MAX, end_offset - base)
        yield Batch(base, count, timestamp_us, timestamp_us, void_records(count, timestamp_us), epoch)


class Repair:
    """`plan` looks and lists; `run` does it. Use as a context: the lock is held in between."""

    def __init__(self, data_dir: Path, disk: Disk = DISK) -> None:
        """Raises JournalLocked, NoJournal."""
        self.data_dir = data_dir
        self._directory = data_dir / JOURNAL
        self._disk = disk
        self._bases = sorted(
            base for name in disk.names(self._directory) if (base := base_offset_of(name)) is not None
        )
        if not self._bases:
            raise NoJournal(f"{self._directory}: there is no segment")
        self._lock_fd = lock_data_dir(disk, data_dir)
        self._slots = self._read_slots()
        self._uuid = self._find_uuid()
        self._known_end = self._slots[1].durable_offset if len(self._slots) > 1 else 0
        self.damages: list[Damage] = []
        self.broken_headers: list[int] = []
        self.broken_files: list[tuple[Path, str]] = []
        self.missing: list[tuple[int, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        self._disk.close(self._lock_fd)
        return False

    @property
    def lost_records(self) -> int:
        return sum(damage.records for damage in self.damages) + sum(
            end - first for first, end in self.missing
        )

    def plan(self) -> list[str]:
        """One line for each thing that is damaged; empty if nothing is."""
        self.damages.clear()
        for base, end in self._spans():
            if not self._header_holds(base):
                self.broken_headers.append(base)
            pieces = self._pieces(base, end)
            self.damages += [piece for piece in pieces if isinstance(piece, Damage)]
        self._plan_missing()
        self._plan_small_files()
        headers = [
            f"{file_name(base)}: the segment header is damaged; it is written anew"
            for base in self.broken_headers
        ]
        missing = [
            f"no segment file holds offsets {first} up to {end} ({end - first} records)"
            for first, end in self.missing
        ]
        return [
            *map(str, self.damages),
            *headers,
            *missing,
            *(f"{path}: {what}" for path, what in self.broken_files),
        ]

    def run(self) -> list[str]:
        """After `plan`. Says what was done, one line each."""
        done = []
        hurt = {Path(damage.path).name for damage in self.damages} | {
            file_name(base) for base in self.broken_headers
        }
        for base, end in self._spans():
            if file_name(base) in hurt:
                done.append(self._rewrite(base, self._pieces(base, end)))
        for first, end in self.missing:
            lost = Damage(str(self._directory), 0, 0, first, end, "no file")
            done.append(self._rewrite(first, iter([lost])))
        for path, _ in self.broken_files:
            self._set_aside(path)
            done.append(f"moved {path} to {DAMAGED}/")
        if done:
            self._publish()
        return done

    # Looking

    def _read_slots(self) -> list[WatermarkState]:
        try:
            return read_slots(self._disk, self.data_dir)
        except CorruptFile:
            return []  # opening the log writes it anew

    def _find_uuid(self) -> bytes:
        for base in reversed(self._bases):
            header = self._header(base)
            if header is not None:
                return header.uuid
        if not self._slots:
            raise CorruptFile(
                f"{self._directory}: no segment header and no high watermark tells which journal this is"
            )
        return self._slots[0].uuid

    def _header(self, base: int) -> SegmentHeader | None:
        path = self._directory / file_name(base)
        fd = self._disk.open(path)
        try:
            return SegmentHeader.unpack(self._disk.pread(fd, SEGMENT_HEADER_SIZE, 0), str(path))
        except CorruptFile:
            return None
        finally:
            self._disk.close(fd)

    def _header_holds(self, base: int) -> bool:
        header = self._header(base)
        return header is not None and header.base_offset == base and header.uuid == self._uuid

    def _spans(self) -> list[tuple[int, int]]:
        """(base, end that the file should reach): the next base, or where its own footer says that it ended."""
        spans = []
        for base, following in pairwise([*self._bases, max(self._known_end, self._bases[-1])]):
            footer = self._footer(base)
            spans.append((base, following if footer is None else min(following, footer.end_offset)))
        return spans

    def _footer(self, base: int) -> Footer | None:
        fd = self._disk.open(self._directory / file_name(base))
        try:
            return read_footer(self._disk, fd, seed_of(self._uuid))
        finally:
            self._disk.close(fd)

    def _plan_missing(self) -> None:
        self.missing = [
            (end, following)
            for (_, end), following in zip(self._spans(), self._bases[1:], strict=False)
            if end < following
        ]

    def _plan_small_files(self) -> None:
        self.broken_files = []
        for position in positions(self._directory, self._disk):
            path = self._directory / file_name(position, SNAPSHOT_SUFFIX)
            self._try(path, partial(SnapshotFile, path, self._disk))
        for name in self._disk.names(self.data_dir / CONSUMERS):
            path = self.data_dir / CONSUMERS / name
            self._try(path, partial(ConsumerPosition.read, self.data_dir, name, self._disk))

    def _try(self, path: Path, read: Callable[[], object]) -> None:
        try:
            read()
        except (JournalError, ValueError) as error:
            self.broken_files.append((path, str(error).removeprefix(f"{path}: ")))

    def _pieces(self, base: int, end: int) -> Iterator[Piece]:
        path = self._directory / file_name(base)
        fd = self._disk.open(path)
        try:
            yield from survey(self._disk, fd, str(path), seed_of(self._uuid), base, end)
        finally:
            self._disk.close(fd)

    # Doing

    def _rewrite(self, base: int, pieces: Iterator[Piece]) -> str:
        """The segment anew: what is good, and void records for what is not; synced before it takes the name."""
        segment = Segment(self._directory, base)
        temporary = segment.path.with_suffix(".tmp")
        fd = self._disk.create(temporary)
        file = SegmentFile(self._disk, segment, fd, 0, 0)
        epoch = max((slot.epoch for slot in self._slots), default=1)
        header = SegmentHeader(self._uuid, epoch, base, time_ns() // 1000)
        self._disk.write_fully(fd, [header.pack()], 0)
        voids = 0
        timestamp_us = header.created_us
        for piece in pieces:
            if isinstance(piece, Batch):
                timestamp_us = piece.max_timestamp_us
                self._add(file, piece)
                continue
            voids += piece.records
            for batch in void_batches(piece.first_offset, piece.end_offset, timestamp_us, epoch):
                self._add(file, batch)
        file.seal(seed_of(self._uuid))
        file.close()
        self._keep(segment.path)
        with suppress(FileNotFoundError):
            self._disk.unlink(segment.index_path)  # it is rebuilt
        self._disk.rename(temporary, segment.path)
        self._disk.fsync_directory(self._directory)
        self._known_end = max(self._known_end, segment.end_offset)
        return f"rewrote {segment.path.name}: {segment.end_offset - base - voids} records kept, {voids} void"

    def _add(self, file: SegmentFile, batch: Batch) -> None:
        head = pack_batch_header(
            seed_of(self._uuid),
            batch.body,
            batch.base_offset,
            batch.count,
            batch.epoch,
            min(batch.durable_offset, batch.base_offset),
            batch.first_timestamp_us,
            batch.max_timestamp_us,
        )
        segment = file.segment
        segment.size = self._disk.write_fully(file.fd, [head, batch.body], segment.size)
        segment.note(batch.first_timestamp_us, batch.max_timestamp_us)
        segment.end_offset = batch.end_offset

    def _keep(self, path: Path) -> None:
        """A second name in `damaged/` for what is about to be replaced, if there is such a file."""
        with suppress(FileNotFoundError):
            self._disk.link(path, self._aside(path))
        self._disk.fsync_directory(self.data_dir / DAMAGED)

    def _set_aside(self, path: Path) -> None:
        self._disk.rename(path, self._aside(path))
        self._disk.fsync_directory(path.parent)
        self._disk.fsync_directory(self.data_dir / DAMAGED)

    def _aside(self, path: Path) -> Path:
        self._disk.make_directory(self.data_dir / DAMAGED)
        return self.data_dir / DAMAGED / f"{path.name}.{time_ns()}"

    def _publish(self) -> None:
        """A high watermark file that is whole, and knows what was rewritten."""
        newest = self._slots[0] if self._slots else WatermarkState(self._uuid, 1, 0, 0)
        end = max(newest.high_watermark, self._known_end)
        state = WatermarkState(
            self._uuid, newest.epoch, end, self._known_end, newest.last_timestamp_us, newest.sequence
        )
        self._disk.replace(self.data_dir / WATERMARK, state.pack_page())
