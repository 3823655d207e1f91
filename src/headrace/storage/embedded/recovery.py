"""From a data directory to the fold: the newest good snapshot, then the records behind it.

Used by `node` at start and by `headrace session`, which folds the journal of a running broker from outside.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, cast

from headrace.core.homes import Homes
from headrace.core.ports.journal import DAMAGED, GONE, OTHER_RECORD, Absent, PageReader
from headrace.core.records.record import KIND_PROGRESS, SHORT_HEADER_SIZE
from headrace.core.state.replay import Replay
from headrace.core.state.snapshots import restoring
from headrace.core.state.state import Fold
from headrace.journal.errors import CorruptBatch, CorruptFile, OffsetOutOfRange
from headrace.journal.reader import JournalReader
from headrace.journal.segment import Batch, split_records
from headrace.journal.snapshot import newest_chain

PROGRESS_RECORDS = 500_000
REPLAYED_AT_ONCE = 500  # records in a slice, or a batch if that has more


class Snapshot(Protocol):
    """A whole snapshot: records from `position` on are to be replayed behind it."""

    position: int
    entry_count: int

    def entries(self) -> Iterator[bytes]:
        """Yield the entries in the order in which they were added. Raises CorruptFile, OSError."""


def load(
    fold: Fold,
    chain: Sequence[Snapshot],
    scan: Callable[[int], Iterable[Batch]],
    start_offset: int,
    report: Callable[[str], None],
) -> int:
    """Restore `chain` (`newest_chain`) into `fold` and replay what `scan(position)` yields; returns the number of
    records replayed.

    Raises CorruptFile if the state cannot be known, CorruptBatch. Millions of objects are made and none is garbage, so
    the collector rests meanwhile, if it was at work.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        slices = loading(fold, chain, scan, start_offset, report)
        while True:
            try:
                next(slices)
            except StopIteration as end:
                return cast(int, end.value)
    finally:
        if was_enabled:
            gc.enable()


def loading(
    fold: Fold,
    chain: Sequence[Snapshot],
    scan: Callable[[int], Iterable[Batch]],
    start_offset: int,
    report: Callable[[str], None],
) -> Generator[None, None, int]:
    """Do as `load`, in slices, beside others whose objects are garbage at times."""
    position = start_offset
    if not chain and start_offset > 0:
        raise CorruptFile(
            f"no snapshot can be read, and the records before offset {start_offset}, which could replace it, are gone"
        )
    if chain:
        position = chain[-1].position
        count = sum(file.entry_count for file in chain)
        report(
            f"recovering: {count} snapshot entries in {len(chain)} files, then what is behind offset {position}"
        )
        yield from restoring(fold, [file.entries() for file in chain])
    replay, shown, paused = Replay(fold), 0, 0
    for batch in scan(position):
        replay.batch(bytes(batch.body), batch.base_offset, position)
        if replay.count - shown >= PROGRESS_RECORDS:
            shown = replay.count
            report(f"recovering: {shown} records replayed, at offset {batch.base_offset}")
        if replay.count - paused >= REPLAYED_AT_ONCE:
            paused = replay.count
            yield
    return replay.count


class PublishedPages(PageReader):
    """Pages of backlogs, read from outside the broker."""

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader

    def fetch_page(self, offset: int) -> bytes | Absent:
        """Return a page, or raise OSError: who only looks does not wait."""
        try:
            batch = next(self._reader.scan(offset, offset + 1))
        except CorruptBatch:
            return DAMAGED
        except OffsetOutOfRange:
            return GONE
        record = split_records(batch.body)[offset - batch.base_offset]
        return bytes(record[SHORT_HEADER_SIZE:]) if record[4] == KIND_PROGRESS else OTHER_RECORD


def folded(data_dir: Path, shard: int = 0, shards: int = 1) -> Fold:
    """Return the state at the published high watermark, of that shard of so many. Reads only; a broker may be running."""
    reader = JournalReader(data_dir)
    while True:
        end = reader.high_watermark()
        fold = Fold(PublishedPages(reader))
        if shards > 1:
            fold.spread(Homes(shards), shard)
        chain = newest_chain(data_dir / "journal")
        try:
            load(fold, chain, partial(reader.scan, end=end), reader.start_offset(), _quietly)
        except FileNotFoundError:
            continue  # the broker has written a full snapshot meanwhile: its changes went
        return fold


def _quietly(line: str) -> None:
    """Say nothing: nobody watches the progress of a look from outside."""
