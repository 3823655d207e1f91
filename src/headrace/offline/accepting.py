"""`headrace journal accept`: several shards go on with one of them that was put back from an older copy (ADR 0025).

No broker runs. First the accepted shard's journal gets a gap, above every offset that the others know of it, in an epoch
of its own; then each of the others gets one batch that says where streams go on. Killed in between, a broker refuses
between the same shards as before, and the command run again does the rest: with a shard that has its batch all fits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from librt.strings import BytesWriter

from headrace.core.homes import Homes
from headrace.core.records.record import FLAG_QOS, KIND_MESSAGE
from headrace.data.acceptance import Misfit, Side, highest_known, misfit, records
from headrace.data.claim import Claim, Wish
from headrace.data.layout import Layout, check_is_whole
from headrace.errors import HeadraceError
from headrace.journal.copying import give_to_owner
from headrace.journal.disk import DISK, Disk
from headrace.journal.epochs import raised
from headrace.journal.log import DIRECTORY, LogSettings, SegmentedLog
from headrace.journal.segment import split_records
from headrace.journal.voids import leave_out
from headrace.offline.resharding import folded

Report = Callable[[str], None]
_SETTINGS: Final = LogSettings(streams=True)
_KIND_AT: Final = 4
_FLAGS_AT: Final = 5


class NotAccepted(HeadraceError):
    """There is no such shard of several, or it holds no journal."""


class Acceptance:
    """The shards of a directory, held open while one of them that was put back is compared with the others. `misfits`:
    what does not fit, by pair; `lines` say what is lost and what comes twice."""

    def __init__(self, layout: Layout, shard: int, logs: list[SegmentedLog], disk: Disk) -> None:
        """Compare. Raises CorruptFile, CorruptBatch."""
        self.misfits: list[Misfit] = []
        self.lines: list[str] = []
        self._layout = layout
        self._shard = shard
        self._logs = logs
        self._disk = disk
        self._end = logs[shard].high_watermark
        self._above = self._end + 1
        homes = Homes(layout.shards)
        accepted = Side(shard, folded(logs[shard], _quietly, (homes, shard)), self._end)
        for number, log in enumerate(logs):
            if number == shard:
                continue
            other = Side(number, folded(log, _quietly, (homes, number)), log.high_watermark)
            self._above = max(self._above, highest_known(accepted, other))
            found = misfit(accepted, other)
            if found is not None:
                self.misfits.append(found)
        if self.misfits:
            self.lines = self._said(len([group for group in accepted.fold.groups.all() if group.members]))

    def run(self) -> Iterator[str]:
        """Make everything fit, and yield what was done. Raises OSError, JournalError."""
        log, directory = self._logs[self._shard], self._layout.directory(self._shard)
        log.close()
        gap, epoch = range(self._end, self._above), raised(log.epoch)
        leave_out(self._disk, log.directory, log.uuid, epoch, gap)
        again = self._logs[self._shard] = _opened(directory, _quietly, self._disk)
        yield f"shard {self._shard} goes on at offset {again.next_offset}, in epoch {again.epoch}"
        for found in self.misfits:
            other = self._logs[found.other]
            _append(other, found, gap.start)
            yield f"shard {found.other} goes on with shard {self._shard}"

    def _said(self, groups: int) -> list[str]:
        shard, end = self._shard, self._end
        lines = [f"shard {shard} ends at offset {end}; what it alone had behind its copy is lost"]
        known = max(found.had for found in self.misfits)
        if known > end:
            lines.append(
                f"shard {shard}: others know of it up to {known}, so {known - end} records or more are gone"
            )
        for found in self.misfits:
            lines += self._said_of(found)
        if groups:
            lines.append(
                f"shard {shard}: of {groups} shared subscriptions at home there comes again what members have "
                "acknowledged since the copy"
            )
        return lines

    def _said_of(self, found: Misfit) -> Iterator[str]:
        to, log = f"shard {found.other}", self._logs[found.other]
        end = min(found.had, self._end)
        if found.taken < end:
            count = _messages(self._logs[self._shard], found.taken, end)
            yield f"{to} gets records {found.taken} up to {end}, which it has had no part of: {count} messages at most"
        if found.asks < found.known:
            count = _messages(log, found.asks, found.known)
            yield f"{to} sends again from {found.asks} up to {found.known}, what may come twice: {count} messages at most"
        gone = min(log.start_offset, found.known) - found.asks
        if gone > 0:
            yield f"{to} has deleted {gone} records from {found.asks} on: what was for shard {self._shard} is lost"
        if found.loans:
            yield f"{to}: {len(found.loans)} messages of shared subscriptions in flight at QoS 2 may come twice"


@contextmanager
def opened(data_dir: Path, shard: int, report: Report, disk: Disk = DISK) -> Iterator[Acceptance]:
    """Give what does not fit between a shard and the others, all of which are opened as a start opens them: a torn end
    is cut. No broker starts meanwhile. Raises NotAccepted, UnusableLayout, JournalLocked where a worker runs,
    CorruptJournal, OSError."""
    check_is_whole(data_dir)
    layout = Layout.open(data_dir)
    if layout.shards == 1 or not 0 <= shard < layout.shards:
        raise NotAccepted(f"{data_dir} has no shard {shard} of several")
    for directory in layout.directories():
        if not DISK.names(directory / DIRECTORY):
            raise NotAccepted(f"{directory} holds no journal: put back a copy of it first")
    claim = Claim(data_dir, Wish(), disk)
    logs: list[SegmentedLog] = []
    with ExitStack() as held:
        held.callback(claim.close)
        claim.wait_for_workers(0.0)
        held.callback(_close, layout, logs)
        logs.extend(_opened(directory, report, disk) for directory in layout.directories())
        yield Acceptance(layout, shard, logs, disk)


def _opened(directory: Path, report: Report, disk: Disk) -> SegmentedLog:
    return SegmentedLog.open(directory, _SETTINGS, report, disk)


def _close(layout: Layout, logs: list[SegmentedLog]) -> None:
    for log in logs:
        log.close()
    for directory in layout.directories():
        give_to_owner(directory, directory)


def _append(log: SegmentedLog, found: Misfit, gap: int) -> None:
    """Write what a shard is told, in one batch, and make it durable: the log is closed then. Raises OSError."""
    now_us, count, out = time.time_ns() // 1000, 0, BytesWriter()
    for record in records(found, gap, now_us):
        record.encode_into(out)
        count += 1
    end = log.append(bytes(out.getvalue()), count, now_us, now_us) + count
    log.close()
    if log.high_watermark < end:
        raise OSError(f"{log.directory} was not written")


def _messages(log: SegmentedLog, start: int, end: int) -> int:
    """Return how many messages of QoS 1 and 2 that were published there are in a part of a journal."""
    start, count = max(start, log.start_offset), 0
    if start >= end:
        return 0
    for batch in log.scan(start, end):
        for offset, record in enumerate(split_records(bytes(batch.body)), batch.base_offset):
            is_message = record[_KIND_AT] == KIND_MESSAGE and record[_FLAGS_AT] & FLAG_QOS != 0
            count += is_message and start <= offset < end
    return count


def _quietly(line: str) -> None:
    """Say nothing: what was repaired was said when the journals were opened first."""
