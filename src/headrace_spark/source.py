"""`headrace-journal`: the journal of a broker as a Spark source, batch and stream.

    spark.dataSource.register(JournalDataSource)
    spark.read.format("headrace-journal").load("headrace-data")
    spark.readStream.format("headrace-journal").option("consumer", "archive").load("headrace-data")

It is a Python Data Source. Rows are messages, events or progress (`schema`), options are in `options`. A read
stops at the high watermark that the broker publishes, never at the end of a file. Offsets in the checkpoint
carry the journal's uuid and epoch: another journal, or one that was cut back, is refused instead of being read
as if it continued the old one. Offsets count records of every kind, so a micro-batch may have fewer rows than
its offsets suggest, or none.

A stream is a registered consumer: registered before its first read, and its committed position holds
retention back. Spark calls `commit` when it plans the batch after, so the position may trail by one batch
(decision 32).
"""

# ruff: noqa: N802  (the names of methods are Spark's)

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.journal.reader import JournalReader
from headrace_spark.decode import decode
from headrace_spark.errors import BadOption
from headrace_spark.journal import (
    commit,
    open_journal,
    readable_from,
    register,
    registered_offset,
    require_history,
)
from headrace_spark.options import EARLIEST, LATEST, SourceOptions
from headrace_spark.ranges import JournalOffset, bytes_between, end_within, split
from headrace_spark.schema import arrow_schema, check_columns, select

Offset = dict[str, Any]


class JournalDataSource(DataSource):
    """Registered with a session as `headrace-journal`. Made anew in every process that takes part; holds no state."""

    @classmethod
    def name(cls) -> str:
        return "headrace-journal"

    def schema(self) -> StructType:
        options = SourceOptions.parse(self.options)
        return select(options.columns, options.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(SourceOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(SourceOptions.parse(self.options), schema)


@dataclass
class JournalPartition(InputPartition):
    """What one task reads: [start, end) of the journal with this uuid and epoch."""

    uuid: str
    epoch: int
    start: int
    end: int


class RangeReader:
    """What batch and stream share: cut a range into partitions, read one of them in a worker."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_columns(schema, options.schema)
        self.options = options
        self.columns = schema

    def plan(self, journal: JournalReader, start: int, end: int) -> list[InputPartition]:
        start = readable_from(journal, start, self.options.fail_on_data_loss)
        ranges = split(start, end, self.options.partitions)
        return [JournalPartition(journal.uuid, journal.epoch, first, last) for first, last in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on a worker, perhaps long after the plan: retention and epoch are checked again."""
        if not isinstance(partition, JournalPartition):  # Spark makes one of its own for an empty plan
            return
        journal = open_journal(self.options.data_dir)
        require_history(journal, JournalOffset(partition.uuid, partition.epoch, partition.end))
        start = readable_from(journal, partition.start, self.options.fail_on_data_loss)
        if start < partition.end:
            batches = journal.scan(start, partition.end)
            columns, of = arrow_schema(self.columns), self.options.schema
            yield from decode(batches, journal.uuid, start, partition.end, columns, of)


class BatchReader(RangeReader, DataSourceReader):
    """One read of [startingOffsets, endingOffsets), which is fixed when the query is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        journal = open_journal(self.options.data_dir)
        high_watermark = journal.high_watermark()
        start = _begin(journal, self.options)
        end = high_watermark if self.options.ending in (None, LATEST) else int(self.options.ending)
        if end > high_watermark:
            raise BadOption("endingOffsets", end, f"the journal ends at {high_watermark}")
        return self.plan(journal, start, end)


class StreamReader(RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Planned by one Python process beside Spark's driver, for the life of the query; `read` runs on workers."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.consumer is None:
            raise BadOption(
                "consumer", "", "a stream needs a consumer name, under which the journal keeps its records"
            )
        if options.ending is not None:
            raise BadOption(
                "endingOffsets", options.ending, "a stream has no end; use trigger(availableNow=True)"
            )
        self.consumer = options.consumer
        self._initial: Offset | None = None
        self._target: int | None = None
        self._registered = False

    def initialOffset(self) -> Offset:
        """Asked twice in the first batch, and again when a restart finds no finished batch: always the same answer."""
        if self._initial is None:
            journal = open_journal(self.options.data_dir)
            self._initial = JournalOffset(journal.uuid, journal.epoch, self._first(journal)).as_dict()
        return self._initial

    def _first(self, journal: JournalReader) -> int:
        known = registered_offset(journal, self.consumer) if self.options.starting == LATEST else None
        while True:
            offset = _begin(journal, self.options) if known is None else known
            self._register(journal, offset)
            # Retention may have moved the start between the look and the registration.
            if self.options.starting != EARLIEST or journal.start_offset() <= offset:
                return offset

    def _register(self, journal: JournalReader, offset: int) -> None:
        register(journal, self.consumer, offset)
        self._registered = True

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = open_journal(self.options.data_dir).high_watermark()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark takes one limit only; `latestOffset` applies both."""
        if self.options.rows_per_trigger_max is not None:
            return ReadMaxRows(self.options.rows_per_trigger_max)
        if self.options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(self.options.bytes_per_trigger_max)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        journal = open_journal(self.options.data_dir)
        begin = JournalOffset.from_dict(start)
        require_history(journal, begin)
        if not self._registered:
            self._register(journal, begin.offset)
        high_watermark = journal.high_watermark()
        target = high_watermark if self._target is None else min(self._target, high_watermark)
        first = readable_from(journal, begin.offset, self.options.fail_on_data_loss)
        if target <= first:
            return start
        segments = journal.segments()
        end = target if isinstance(limit, ReadAllAvailable) else self._limited(segments, first, target)
        reached = JournalOffset(journal.uuid, journal.epoch, end)
        return reached.as_dict(bytes=bytes_between(segments, first, end), lag=high_watermark - end)

    def _limited(self, segments: Sequence[Any], start: int, end: int) -> int:
        if self.options.rows_per_trigger_max is not None:
            end = min(end, start + self.options.rows_per_trigger_max)
        if self.options.bytes_per_trigger_max is not None:
            end = end_within(segments, start, end, self.options.bytes_per_trigger_max)
        return end

    def reportLatestOffset(self) -> Offset:
        journal = open_journal(self.options.data_dir)
        return JournalOffset(journal.uuid, journal.epoch, journal.high_watermark()).as_dict()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        journal = open_journal(self.options.data_dir)
        first, last = JournalOffset.from_dict(start), JournalOffset.from_dict(end)
        require_history(journal, first)
        require_history(journal, last)
        if not self._registered:
            self._register(journal, first.offset)
        return self.plan(journal, first.offset, last.offset)

    def commit(self, end: Offset) -> None:
        commit(self.options.data_dir, self.consumer, JournalOffset.from_dict(end))


def _begin(journal: JournalReader, options: SourceOptions) -> int:
    if options.starting == EARLIEST:
        return journal.start_offset()
    if options.starting == LATEST:
        return journal.high_watermark()
    if int(options.starting) > journal.high_watermark():
        raise BadOption(
            "startingOffsets", options.starting, f"the journal ends at {journal.high_watermark()}"
        )
    return int(options.starting)
