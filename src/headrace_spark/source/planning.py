"""What batch and stream readers share: positions as offsets, ranges cut into partitions, a partition read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from headrace_spark.base.errors import BadOption
from headrace_spark.records.schema import arrow_schema, check_columns
from headrace_spark.source.journal import offset_at, readable_from, require_all_tenants
from headrace_spark.source.log_reader import LogReader
from headrace_spark.source.options import (
    EARLIEST,
    KAFKA_EARLIEST,
    KAFKA_LATEST,
    LATEST,
    Position,
    SourceOptions,
)
from headrace_spark.source.ranges import SegmentRange, overlapping, shares, split, split_at
from headrace_spark.source.reading import JournalPartition, read_partition

_SHOWN: Final = "messages"  # to a tenant's token


class RangeReader:
    """What batch and stream share: cut a range into partitions, read one of them in a worker."""

    is_indexed = False
    """Whether topic indexes are used: they are of segments that are finished, which streams hardly ever read."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_columns(schema, options.schema)
        self.options = options
        self.columns = schema
        self.selection = options.selection

    def plan(self, journal: LogReader, start: int, end: int, tasks: int) -> list[InputPartition]:
        """Return partitions of the segments in [start, end) that may have what is selected."""
        if self.options.schema != _SHOWN:
            require_all_tenants(journal, f"schema={self.options.schema}")
        start = readable_from(journal, start, self.options.fail_on_data_loss)
        start, end = max(start, self.selection.start), min(end, self.selection.end)
        segments = journal.segments()
        runs = overlapping(segments, start, end, self.selection.times)
        parts = shares([last - first for first, last in runs], tasks)
        ranges = [
            part
            for run, share in zip(runs, parts, strict=True)
            for part in (self._cut(segments, *run, share) if share > 1 else [run])
        ]
        return [
            JournalPartition(journal.location_from(first), journal.uuid, journal.epoch, first, last)
            for first, last in ranges
        ]

    def _cut(
        self, segments: Sequence[SegmentRange], start: int, end: int, parts: int
    ) -> list[tuple[int, int]]:
        if self.is_indexed and self.selection.is_by_topic:
            return split_at([segment.base_offset for segment in segments], start, end, parts)
        return split(start, end, parts, self.options.task_records_min)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. Runs on a worker."""
        if isinstance(partition, JournalPartition):  # Spark makes one of its own for an empty plan
            cache = self.options.cache if self.is_indexed else None
            schema = arrow_schema(self.columns)
            yield from read_partition(partition, self.options, self.selection, schema, cache)


def offset_of(journal: LogReader, position: Position, option: str, options: SourceOptions) -> int:
    """Return a position as an offset of this journal. Raises BadOption for one behind its end."""
    if position.word == EARLIEST:
        return journal.complete_offset()
    if position.word == LATEST:
        return journal.high_watermark()
    if position.at_us is not None:
        return offset_at(journal, position.at_us)
    if position.offset is not None and len(options.locations) > 1:
        raise BadOption(option, position.offset, "with several journals, give JSON: an offset for each uuid")
    offset = position.offset
    if offset is None:
        unnamed = KAFKA_EARLIEST if option == "startingOffsets" else KAFKA_LATEST
        offset = (position.by_uuid or {}).get(journal.uuid, unnamed)
    if offset < 0:
        return journal.complete_offset() if offset == KAFKA_EARLIEST else journal.high_watermark()
    if offset > journal.high_watermark():
        raise BadOption(option, offset, f"the journal ends at {journal.high_watermark()}")
    return offset
