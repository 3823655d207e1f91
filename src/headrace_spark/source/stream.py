"""The journal as a stream: offsets of micro-batches, their limits, and the consumer that retention waits for.

One `StreamReader` runs in a Python process beside Spark's driver for the life of the query; its `read` runs on
workers. Offsets are by journal (`headrace_spark.source.ranges.StreamOffset`), so that one query can read many brokers.
"""

# ruff: noqa: N802  (the names of methods are Spark's)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import monotonic
from types import MappingProxyType
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace_spark.base.errors import BadOption, ForeignOffset
from headrace_spark.source.journal import (
    commit,
    open_all,
    readable_from,
    register,
    registered_offset,
    require_history,
    require_same,
    time_before,
)
from headrace_spark.source.log_reader import LogReader
from headrace_spark.source.options import EARLIEST, LATEST, SourceOptions
from headrace_spark.source.planning import RangeReader, offset_of
from headrace_spark.source.ranges import (
    JournalOffset,
    SegmentRange,
    StreamOffset,
    bytes_between,
    end_within,
    shares,
)

Offset = dict[str, Any]


class StreamReader(RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    written_below: Mapping[str, int] = MappingProxyType({})
    """Records below this offset, by journal, are passed over, though the checkpoint names them: who reads has them."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.consumer is None:
            raise BadOption(
                "consumer", "", "a stream needs a consumer name, under which the journal keeps its records"
            )
        if options.ending is not None:
            raise BadOption("endingOffsets", "", "a stream has no end; use trigger(availableNow=True)")
        self.consumer = options.consumer
        self._initial: Offset | None = None
        self._targets: dict[str, int] | None = None
        self._registered: set[str] = set()
        self._joined: dict[str, int] = {}
        self._processed: dict[str, JournalOffset] = {}
        """What was committed last, by journal."""
        self._planned_s = float("-inf")
        """When a batch was planned last; the first one of a start waits for nothing, as with Kafka's source."""

    def initialOffset(self) -> Offset:
        """Return where a query begins: Spark asks twice in the first batch, and again when a restart finds no finished
        batch: always the same answer."""
        if self._initial is None:
            journals = self._open()
            begin = {uuid: self._at(journal, self._first(journal)) for uuid, journal in journals.items()}
            self._initial = StreamOffset(begin).as_dict()
        return self._initial

    def _open(self) -> dict[str, LogReader]:
        return open_all(self.options.locations, self.options.token)

    @staticmethod
    def _at(journal: LogReader, offset: int) -> JournalOffset:
        return JournalOffset(journal.uuid, journal.epoch, offset)

    def _end_at(self, journal: LogReader, offset: int) -> JournalOffset:
        return replace(self._at(journal, offset), time_us=time_before(journal, offset))

    def _first(self, journal: LogReader) -> int:
        """Return where the query begins with a journal; registers the consumer there."""
        starting = self.options.starting
        known = registered_offset(journal, self.consumer) if starting.word == LATEST else None
        while True:
            offset = offset_of(journal, starting, "startingOffsets", self.options) if known is None else known
            self._register(journal, offset)
            # Retention may have moved the start between the look and the registration.
            if starting.word != EARLIEST or journal.complete_offset() <= offset:
                return offset

    def _register(self, journal: LogReader, offset: int) -> None:
        if journal.uuid not in self._registered:
            register(journal, self.consumer, offset, self.options.owner)
            self._registered.add(journal.uuid)

    def _begin(self, journals: Mapping[str, LogReader], start: Offset) -> StreamOffset:
        """Return `start` with a position for each journal: one that joined the query later begins as a new query
        does."""
        given = StreamOffset.from_dict(start)
        positions = dict(given.positions)
        for uuid, position in given.positions.items():
            if uuid in journals:
                positions[uuid] = require_history(journals[uuid], position)
                if uuid not in self._registered or journals[uuid].high_watermark() > position.offset:
                    require_same(journals[uuid], positions[uuid])
            elif len(given.positions) == 1 == len(journals):
                require_history(next(iter(journals.values())), position)
            else:
                raise ForeignOffset(
                    f"the checkpoint has read journal {uuid}, which is not among {', '.join(self.options.locations)}: "
                    "name its broker again in option path, or use a new checkpoint"
                )
        begun = dict(given.begun)
        for uuid, journal in journals.items():
            if uuid not in positions:
                begun[uuid] = self._joined[uuid] = self._joined.get(uuid, -1)
                if begun[uuid] < 0:
                    begun[uuid] = self._joined[uuid] = self._first(journal)
                positions[uuid] = self._at(journal, begun[uuid])
            self._register(journal, positions[uuid].offset)
        return StreamOffset(positions, begun)

    def prepareForTriggerAvailableNow(self) -> None:
        self._targets = {uuid: journal.high_watermark() for uuid, journal in self._open().items()}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit in rows, or else the one in bytes: Spark takes one limit only; `latestOffset` applies
        both."""
        if self.options.rows_per_trigger_max is not None:
            return ReadMaxRows(self.options.rows_per_trigger_max)
        if self.options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(self.options.bytes_per_trigger_max)
        if self.options.rows_per_trigger_min is not None:
            return ReadMinRows(self.options.rows_per_trigger_min)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next batch; `bytes` (estimated) and `lag` (records) say what it takes and what it
        leaves."""
        journals = self._open()
        begin = self._begin(journals, start)
        fetches = {
            uuid: self._fetch(journal, begin.positions[uuid].offset) for uuid, journal in journals.items()
        }
        backlog = sum(fetch.backlog for fetch in fetches.values())
        is_limited = not isinstance(limit, ReadAllAvailable)
        if not backlog or (is_limited and self._waits(backlog)):
            self._commit(journals, begin)
            return start
        self._planned_s = monotonic()
        if is_limited:
            self._limit(list(fetches.values()))
        ends = {uuid: self._end_at(journals[uuid], fetch.end) for uuid, fetch in fetches.items()}
        return StreamOffset(ends, begin.begun).as_dict(
            bytes=sum(fetch.bytes for fetch in fetches.values()),
            lag=sum(fetch.high_watermark - fetch.end for fetch in fetches.values()),
        )

    def _waits(self, backlog: int) -> bool:
        """Return whether so few records are left for a later batch. What `availableNow` is to read comes at once."""
        least = self.options.rows_per_trigger_min
        if least is None or backlog >= least or self._targets is not None:
            return False
        return monotonic() - self._planned_s < self.options.trigger_delay_s

    def _fetch(self, journal: LogReader, offset: int) -> Fetch:
        high_watermark = journal.high_watermark()
        target = high_watermark
        if self._targets is not None:
            target = min(target, self._targets.get(journal.uuid, target))
        first = readable_from(
            journal, max(offset, self.written_below.get(journal.uuid, 0)), self.options.fail_on_data_loss
        )
        segments = journal.segments() if first < target else []
        return Fetch(segments, first, max(first, target), high_watermark)

    def _limit(self, fetches: Sequence[Fetch]) -> None:
        """Apply both limits, shared by the journals in proportion to what waits there."""
        rows, size = self.options.rows_per_trigger_max, self.options.bytes_per_trigger_max
        if rows is not None:
            for fetch, share in zip(fetches, shares([f.backlog for f in fetches], rows), strict=True):
                fetch.end = fetch.start + share
        if size is not None:
            for fetch, share in zip(fetches, shares([f.bytes for f in fetches], size), strict=True):
                if fetch.backlog:
                    fetch.end = end_within(fetch.segments, fetch.start, fetch.end, max(1, share))

    def reportLatestOffset(self) -> Offset:
        ends = {uuid: self._at(journal, journal.high_watermark()) for uuid, journal in self._open().items()}
        return StreamOffset(ends).as_dict()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        journals = self._open()
        last = StreamOffset.from_dict(end)
        first = {**StreamOffset.from_dict(start).positions}
        planned: list[InputPartition] = []
        ranges = []
        for uuid, position in last.positions.items():
            journal = journals.get(uuid) or next(iter(journals.values()))
            start_at = first.get(uuid, self._at(journal, last.begun.get(uuid, 0)))
            require_history(journal, start_at)
            require_history(journal, position)
            require_same(journal, position)
            self._register(journal, start_at.offset)
            ranges.append((journal, start_at.offset, position.offset))
        tasks = shares([stop - begun for _, begun, stop in ranges], self.options.partitions)
        for (journal, begun, stop), share in zip(ranges, tasks, strict=True):
            begin = max(begun, self.written_below.get(journal.uuid, 0))
            if begin < stop:
                planned += self.plan(journal, begin, stop, share)
        return planned

    def commit(self, end: Offset) -> None:
        """Move the consumer behind a batch that is done. Spark says so with the next batch only, which may be long in
        coming, and never comes after `availableNow`; hence `latestOffset` does it too."""
        self._commit(self._open(), StreamOffset.from_dict(end))

    def _commit(self, journals: Mapping[str, LogReader], end: StreamOffset) -> None:
        """Move the consumer to where all is done: as far as Spark asks from, for it plans no batch while another one is
        under way, and does one again that was cut off before it asks."""
        for uuid, position in end.positions.items():
            if uuid in journals and self._processed.get(uuid) != position:
                commit(journals[uuid], self.consumer, position, self.options.owner)
                self._processed[uuid] = position


class Fetch:
    """What one micro-batch takes of one journal: [start, end)."""

    def __init__(self, segments: Sequence[SegmentRange], start: int, end: int, high_watermark: int) -> None:
        self.segments = segments
        self.start = start
        self.end = end
        self.high_watermark = high_watermark

    @property
    def backlog(self) -> int:
        return self.end - self.start

    @property
    def bytes(self) -> int:
        """Return the estimated bytes of what a batch fetches."""
        return bytes_between(self.segments, self.start, self.end)
