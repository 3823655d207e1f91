"""Repair: `headrace journal repair`. What can be read is kept at its offsets, what cannot is listed and made void.

What is damaged and what is to be done about it stands in the report that `headrace journal verify` prints
(`diagnosis`): repair does that and nothing else, and afterwards verify finds nothing.

A void record is a PROGRESS record about nothing: every reader knows it and passes over it. So offsets stay
without gaps, nothing is read under an offset that once meant something else, and a session that still refers
to a lost message finds that it is gone, and counts it. The epoch rises above all that any file speaks of, first of
all: whoever remembers an offset is told.

Nothing is overwritten: each file that is replaced or taken away is moved to `<data-dir>/damaged/` first.
Refuses while a broker has the journal open. Planning writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import time_ns
from typing import Literal, Self
from uuid import UUID

from headrace.journal.active import SegmentFile
from headrace.journal.catalog import Segment
from headrace.journal.copying import give_to_owner
from headrace.journal.damage import Damage, pieces
from headrace.journal.diagnosis import diagnose
from headrace.journal.disk import DISK, Disk
from headrace.journal.epochs import raised
from headrace.journal.errors import JournalError, NoJournal
from headrace.journal.findings import Finding, Remedy, Report
from headrace.journal.index import SUFFIX as INDEX_SUFFIX
from headrace.journal.lock import NAME as LOCK
from headrace.journal.lock import lock_data_dir
from headrace.journal.reader import DIRECTORY as JOURNAL
from headrace.journal.segment import (
    SUFFIX,
    Batch,
    SegmentHeader,
    file_name,
    pack_batch_header,
    seed_of,
)
from headrace.journal.voids import add_voids
from headrace.journal.watermark import NAME as WATERMARK
from headrace.journal.watermark import WatermarkState, without_slots

DAMAGED = "damaged"


class Repair:
    """Repairs a journal: `plan` looks and lists; `run` does it. Use as a context: the lock is held in between."""

    def __init__(self, data_dir: Path, disk: Disk = DISK) -> None:
        """Begin to repair a journal, which no broker may have open. Raises JournalLocked, NoJournal."""
        self.data_dir = data_dir
        self.report = Report()
        self._directory = data_dir / JOURNAL
        self._disk = disk
        self._epoch = 0
        self._uuid = b""
        if not disk.names(self._directory) and WATERMARK not in disk.names(data_dir):
            raise NoJournal(f"{self._directory}: there is no journal")
        self._lock_fd = lock_data_dir(disk, data_dir)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        self._disk.close(self._lock_fd)
        return False

    @property
    def lost_records(self) -> int:
        return self.report.lost_records

    def plan(self) -> list[str]:
        """Return one line for each thing that is damaged; empty if nothing is. Raises OSError."""
        self.report = diagnose(self.data_dir, self._disk)
        return self.report.problems

    def run(self) -> list[str]:
        """Repair the journal, after `plan`. Returns what was done, one line each. Raises JournalError if it would make
        it worse, OSError."""
        report = self.report
        hopeless = [finding.text for finding in report.findings if finding.remedy is Remedy.NONE]
        if hopeless:
            raise JournalError(f"nothing was changed: {'; '.join(hopeless)}")
        if report.ok:
            return []
        self._uuid = UUID(report.uuid).bytes
        self._epoch = raised(report.seen_epoch) if self._raises_epoch() else report.seen_epoch
        done = [self._publish(report.end)] if self._raises_epoch() else []
        done += self._set_aside_all()
        rewritten = {one.base_offset: one for one in report.findings if one.remedy is Remedy.REWRITE}
        for finding in rewritten.values():
            done.append(self._rewrite(finding.base_offset, self._pieces(finding)))
        for finding in report.findings:
            if finding.remedy is Remedy.FILL:
                done.append(self._rewrite(finding.base_offset, iter([_lost(finding)])))
        give_to_owner(self.data_dir, self.data_dir / LOCK, *self._made())
        return done

    def _raises_epoch(self) -> bool:
        """Return whether anything but snapshots and consumer positions is touched."""
        aside = [one for one in self.report.findings if one.remedy is Remedy.SET_ASIDE]
        return len(aside) < len(self.report.findings) or any(one.path.suffix == SUFFIX for one in aside)

    def _made(self) -> list[Path]:
        names = (JOURNAL, DAMAGED, WATERMARK)
        return [self.data_dir / name for name in names if (self.data_dir / name).exists()]

    def _publish(self, end: int) -> str:
        """Publish the end, as the first step: should there be no second one, the offsets of before count no more, and
        nothing says that less was lost."""
        newest = self.report.state or without_slots(self._disk, self.data_dir, self._uuid)
        last_us, sequence, start = newest.last_timestamp_us, newest.sequence, newest.start_offset
        complete = min(newest.complete_offset, end)
        state = WatermarkState(self._uuid, self._epoch, end, end, last_us, sequence, start, complete)
        state.version = newest.version
        if self.report.state is None:
            self._keep(self.data_dir / WATERMARK)
        self._disk.replace(self.data_dir / WATERMARK, state.pack_page())
        said = f"the epoch rises to {self._epoch}; the high watermark is {end}"
        return said if self.report.state else f"{said}; an older headrace will refuse the journal"

    def _set_aside_all(self) -> list[str]:
        done = []
        for finding in self.report.findings:
            if finding.remedy is Remedy.SET_ASIDE:
                self._set_aside(finding.path)
                done.append(f"moved {finding.path} to {DAMAGED}/")
        return done

    def _pieces(self, finding: Finding) -> Iterator[Batch | Damage]:
        base = finding.base_offset
        path = self._directory / file_name(base)
        fd = self._disk.open(path)
        try:
            end, is_last = self.report.spans[base], base == max(self.report.spans)
            yield from pieces(self._disk, fd, str(path), seed_of(self._uuid), base, end, is_last)
        finally:
            self._disk.close(fd)

    def _rewrite(self, base: int, found: Iterator[Batch | Damage]) -> str:
        """Write the segment anew: what is good, and void records for what is not; synced before it takes the name."""
        segment = Segment(self._directory, base)
        temporary = segment.path.with_suffix(".tmp")
        file = SegmentFile(self._disk, segment, self._disk.create(temporary), 0, 0)
        header = SegmentHeader(self._uuid, self._epoch, base, time_ns() // 1000)
        voids = 0
        timestamp_us = header.created_us
        try:
            self._disk.write_fully(file.fd, [header.pack()], 0)
            for piece in found:
                if isinstance(piece, Batch):
                    timestamp_us = piece.max_timestamp_us
                    self._add(file, piece)
                else:
                    voids += piece.records
                    self._add_void(file, piece, timestamp_us)
            file.seal(seed_of(self._uuid))
        finally:
            file.close()
        self._keep(segment.path)
        with suppress(FileNotFoundError):
            self._disk.unlink(segment.index_path)  # it is rebuilt
        self._disk.rename(temporary, segment.path)
        self._disk.fsync_directory(self._directory)
        return f"rewrote {segment.path.name}: {segment.end_offset - base - voids} records kept, {voids} void"

    def _add(self, file: SegmentFile, batch: Batch) -> None:
        durable = min(batch.durable_offset, batch.base_offset)
        times = (batch.first_timestamp_us, batch.max_timestamp_us)
        seed = seed_of(self._uuid)
        head = pack_batch_header(
            seed, batch.body, batch.base_offset, batch.count, batch.epoch, durable, *times
        )
        segment = file.segment
        segment.size = self._disk.write_fully(file.fd, [head, batch.body], segment.size)
        segment.note(*times)
        segment.end_offset = batch.end_offset

    def _add_void(self, file: SegmentFile, lost: Damage, timestamp_us: int) -> None:
        lost_offsets = range(lost.first_offset, lost.end_offset)
        add_voids(self._disk, file, seed_of(self._uuid), self._epoch, lost_offsets, timestamp_us)

    # Nothing is overwritten

    def _keep(self, path: Path) -> None:
        """Give what is about to be replaced a second name in `damaged/`, if there is such a file."""
        with suppress(FileNotFoundError):
            self._disk.link(path, self._aside(path))
        self._disk.fsync_directory(self.data_dir / DAMAGED)

    def _set_aside(self, path: Path) -> None:
        self._disk.rename(path, self._aside(path))
        if path.suffix == SUFFIX:
            with suppress(FileNotFoundError):
                self._disk.unlink(path.with_suffix(INDEX_SUFFIX))
        self._disk.fsync_directory(path.parent)
        self._disk.fsync_directory(self.data_dir / DAMAGED)

    def _aside(self, path: Path) -> Path:
        self._disk.make_directory(self.data_dir / DAMAGED)
        return self.data_dir / DAMAGED / f"{path.name}.{time_ns()}"


def _lost(finding: Finding) -> Damage:
    return Damage(str(finding.path), 0, 0, finding.first_offset, finding.end_offset, "no file")
