"""`headrace`: the journal of a broker as a Spark source, batch and stream.

    spark.read.format("headrace").load("headrace-data")
    spark.readStream.format("headrace").option("consumer", "alarms").load("headrace-data")
    spark.read.format("headrace").load("headrace://broker-1:18830,headrace://broker-2:18830")

It is a Python Data Source, which Spark finds by itself (`pyspark_headrace`); `headrace-journal` is the same one for
sessions that register it (`spark.dataSource.register(JournalDataSource)`).

Rows are messages, events or progress (`schema`), options are in `options`. A read
stops at the high watermark that the broker publishes, never at the end of a file. Offsets in the checkpoint
carry the journal's uuid and epoch: another journal, or one that was cut back, is refused instead of being read
as if it continued the old one. Offsets count records of every kind, so a micro-batch may have fewer rows than
its offsets suggest, or none.

A stream is a registered consumer: registered before its first read, and its committed position holds
retention back. It moves when Spark plans the batch after, or asks for one and there is none (decision 32: one
consumer a stream).
"""

# ruff: noqa: N802  (the names of methods are Spark's)

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from headrace_spark.records.schema import select
from headrace_spark.source.journal import open_all
from headrace_spark.source.log_reader import LogReader
from headrace_spark.source.options import SourceOptions
from headrace_spark.source.planning import RangeReader, offset_of
from headrace_spark.source.ranges import shares
from headrace_spark.source.stream import StreamReader


class JournalDataSource(DataSource):
    """The source, which is registered with a session as `headrace-journal`. Made anew in every process that takes part;
    holds no state."""

    @classmethod
    def name(cls) -> str:
        return "headrace-journal"

    def schema(self) -> StructType:
        options = SourceOptions.parse(self.options)
        return select(options.columns, options.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.parse(self.options)
        return (FilteredReader if options.push_filters else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(SourceOptions.parse(self.options), schema)


class HeadraceDataSource(JournalDataSource):
    """The source under the name that Spark finds by itself."""

    @classmethod
    def name(cls) -> str:
        return "headrace"


class BatchReader(RangeReader, DataSourceReader):
    """One read of [startingOffsets, endingOffsets), which is fixed when the query is planned."""

    is_indexed = True

    def partitions(self) -> Sequence[InputPartition]:
        journals = open_all(self.options.locations, self.options.token)
        ranges = {uuid: self._range(journal) for uuid, journal in journals.items()}
        tasks = shares([max(0, end - start) for start, end in ranges.values()], self.options.partitions)
        return [
            partition
            for (uuid, journal), share in zip(journals.items(), tasks, strict=True)
            for partition in self.plan(journal, *ranges[uuid], share)
        ]

    def _range(self, journal: LogReader) -> tuple[int, int]:
        start = offset_of(journal, self.options.starting, "startingOffsets", self.options)
        if self.options.ending is None:
            return start, journal.high_watermark()
        return start, offset_of(journal, self.options.ending, "endingOffsets", self.options)


class FilteredReader(BatchReader):
    """Serves reads with option `pushFilters`. Never for all reads: Spark 4.2 remembers, for the whole life of a
    loaded DataFrame, what its last filter left to read, and a query of the same DataFrame without a filter would
    silently miss rows.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters over and return all of them: Spark evaluates them again, and what is skipped here is skipped
        by segments and batches."""
        self.selection = self.selection.pushed(filters)
        return filters
