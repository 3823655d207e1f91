"""`headrace serve --bootstrap SNAPSHOT`: a data directory for a fresh broker, with the state that another journal had.

The new journal holds the fewest records that lead to that state, and from there on it is a journal like any other, with a
uuid of its own. It is made in a folder of the data directory and then moved up, the segments in one step: a crash leaves
either nothing or all of them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

from librt.strings import BytesWriter

from headrace.core.ports.journal import GONE, Absent, PageReader
from headrace.core.records.message import decode_record
from headrace.core.records.record import Record
from headrace.core.state.compacted import records
from headrace.core.state.replay import Replay
from headrace.core.state.state import Fold
from headrace.errors import CorruptRecord, HeadraceError
from headrace.journal.bootstrap_file import BootstrapFile
from headrace.journal.disk import DISK
from headrace.journal.errors import CorruptFile
from headrace.journal.log import LogSettings, SegmentedLog
from headrace.journal.reader import DIRECTORY as SEGMENTS

_BATCH_RECORDS = 1_000
_MAKING = "bootstrap.tmp"
_MEANINGLESS = {_MAKING, "lost+found"}  # of a start that was interrupted; of a file system's root


class DataDirNotEmpty(HeadraceError):
    """There is a broker's state already, and two cannot be one."""


class _NoPages(PageReader):
    """The page reader of a bootstrap, which has no backlogs."""

    def fetch_page(self, offset: int) -> bytes | Absent:
        return GONE


def bootstrap(path: Path, data_dir: Path, report: Callable[[str], None]) -> int:
    """Make `data_dir` from the snapshot `path`; returns the number of its records.

    Raises DataDirNotEmpty, CorruptFile, UnsupportedFormat, OSError; `data_dir` is as it was then.
    """
    if data_dir.exists() and {entry.name for entry in data_dir.iterdir()} - _MEANINGLESS:
        raise DataDirNotEmpty(
            f"{data_dir} is not empty: --bootstrap is for a broker that has no state yet. "
            "Start without it, or give another data directory"
        )
    snapshot = BootstrapFile(path)
    fold = folded(snapshot, path)
    if fold.queues.by_id:
        report(
            f"{len(fold.queues.by_id)} topic queues begin empty: their messages, and how far clusters had come, are in "
            "the journal of before alone"
        )
    made = data_dir / _MAKING
    shutil.rmtree(made, ignore_errors=True)
    with closing(SegmentedLog.open(made, LogSettings(), report)) as log:
        count = _append(log, records(fold, time.time_ns() // 1000))
    _move_up(made, data_dir)
    return count


def _move_up(made: Path, data_dir: Path) -> None:
    """Move the files up, the segments first: what else there is can be made from them."""
    for name in sorted((entry.name for entry in made.iterdir()), key=lambda name: name != SEGMENTS):
        (made / name).rename(data_dir / name)
    made.rmdir()
    DISK.fsync_directory(data_dir)


def folded(snapshot: BootstrapFile, path: Path) -> Fold:
    """Return the state that a snapshot's records lead to. Raises CorruptFile."""
    fold = Fold(_NoPages())
    replay = Replay(fold)
    try:
        for offset, data in snapshot.records():
            record, end = decode_record(data, 0)
            if end != len(data):
                raise CorruptRecord("more than one record")
            record.offset = offset
            replay.record(record)
    except (CorruptRecord, KeyError, ValueError, TypeError) as error:
        raise CorruptFile(f"{path}: a record in it cannot be read: {error}") from error
    return fold


def _append(log: SegmentedLog, found: Iterator[Record]) -> int:
    count = 0
    while batch := list(islice(found, _BATCH_RECORDS)):
        body = BytesWriter()
        for record in batch:
            record.encode_into(body)
        stamps = [record.timestamp_us for record in batch]
        log.append(body.getvalue(), len(batch), min(stamps), max(stamps))
        count += len(batch)
    return count
