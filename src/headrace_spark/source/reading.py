"""Reading one partition: the records of a range of one journal that a selection wants, as Arrow record batches.

Runs on Spark's Python workers, perhaps long after the plan: retention and epoch are checked again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from headrace_spark.records.chunk import Chunk, chunks
from headrace_spark.records.decode import decode_chunk
from headrace_spark.source.journal import (
    GO_ON,
    open_journal,
    readable_from,
    require_all_tenants,
    require_history,
)
from headrace_spark.source.log_reader import LogReader
from headrace_spark.source.options import SourceOptions
from headrace_spark.source.ranges import JournalOffset
from headrace_spark.source.selection import Selection
from headrace_spark.source.topic_index import SUFFIX, StaleIndex, TopicIndex, build, prune

_START_AGAIN: Final = "start the job again; it says what to do if that does not help"


@dataclass
class JournalPartition(InputPartition):
    """What one task reads: [start, end) of the journal with this uuid and epoch."""

    location: str
    uuid: str
    epoch: int
    start: int
    end: int


def read_partition(
    partition: JournalPartition,
    options: SourceOptions,
    selection: Selection,
    schema: pa.Schema,
    cache: Path | None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition. `cache`: where topic indexes are kept; None to do without. Raises DataLoss,
    ForeignOffset."""
    journal, start = opened(partition, options.token, options.fail_on_data_loss)
    if start < partition.end:
        for chunk in wanted_chunks(journal, start, partition.end, selection, cache):
            yield from decode_chunk(chunk, schema, options.schema, selection)
        readable_from(
            journal, start, options.fail_on_data_loss
        )  # compaction says what it takes before it does


def opened(
    partition: JournalPartition, token: str, fail_on_data_loss: bool, go_on: str = GO_ON
) -> tuple[LogReader, int]:
    """Return the journal of a partition, and where there is something to read of it. Raises DataLoss, ForeignOffset."""
    journal = open_journal(partition.location, token)
    require_history(journal, JournalOffset(partition.uuid, partition.epoch, partition.end))
    return journal, readable_from(journal, partition.start, fail_on_data_loss, go_on)


def all_chunks(partition: JournalPartition, token: str) -> Iterator[Chunk]:
    """Yield all records of a partition, for jobs that make something else of them than rows. Raises DataLoss,
    ForeignOffset."""
    journal, start = opened(partition, token, True, _START_AGAIN)
    require_all_tenants(journal, "this job")
    yield from scanned(journal, start, partition.end, Selection())
    readable_from(journal, start, True, _START_AGAIN)


def wanted_chunks(
    journal: LogReader, start: int, end: int, selection: Selection, cache: Path | None
) -> Iterator[Chunk]:
    """Yield at least the records of [start, end) that are wanted. Indexes are of everybody's messages."""
    if cache is None or not selection.is_by_topic or journal.tenant:
        yield from scanned(journal, start, end, selection)
        return
    segments = journal.segments()
    prune(cache / journal.uuid, {segment.base_offset for segment in segments})
    for segment in segments:
        first, last = max(start, segment.base_offset), min(end, segment.end_offset)
        if first < last and selection.times.overlaps(segment.min_ts, segment.max_ts):
            found = indexed(journal, segment.base_offset, selection, cache / journal.uuid)
            if found is None:
                yield from scanned(journal, first, last, selection)
                continue
            for chunk in found:
                yield chunk.only((chunk.offsets >= first) & (chunk.offsets < last))


def scanned(journal: LogReader, start: int, end: int, selection: Selection) -> Iterator[Chunk]:
    return chunks(journal.scan(start, end, times=selection.times), journal.uuid, start, end)


def indexed(journal: LogReader, base_offset: int, selection: Selection, folder: Path) -> list[Chunk] | None:
    """Return the wanted records of a finished segment by its topic index; None if a scan is to be made instead.

    All of them, because an index that turns out stale must not have given rows before.
    """
    try:
        segment = journal.finished(base_offset)
    except FileNotFoundError:
        return None  # retention was faster; the scan says so
    with segment:
        if segment.footer is None:
            return None
        path = folder / f"{segment.key}{SUFFIX}"
        index = TopicIndex.load(path) or build(segment, path)
        try:
            entries = None if index is None else index.wanted(selection)
            if index is None or entries is None:
                return None
            return list(index.chunks(segment, journal.uuid, entries))
        except FileNotFoundError:
            return None  # a reader of another copy of the journal, which has other segments, has removed it
        except StaleIndex:
            path.unlink(missing_ok=True)
            return None
