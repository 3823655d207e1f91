"""The map side of the job `metrics`: one pass over a range of the journal, and what its tables need of it.

What comes out (`packing`) is put together by `settling`. Runs on Spark's Python workers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from headrace.core.records.record import (
    ACKED,
    DROP_REASONS,
    DROPPED,
    KIND_EVENT,
    SHARED_DRAWN,
    SHARED_FINISHED,
)
from headrace_spark.metrics.packing import (
    ACKNOWLEDGED,
    DRAWN,
    DRAWN_GONE,
    GONE,
    KNOWN,
    KNOWN_ENTRY,
    LAST,
    NEW,
    NO_TIME,
    OUT_OF_GROUP,
    OUTCOME,
    OUTCOMES,
    TO_MEMBER,
    TRAFFIC,
    UNNAMED,
    Rows,
    edges,
    pack_rows,
    pack_tables,
    pack_time,
)  # fmt: skip
from headrace_spark.metrics.queues import UNKNOWN, Followed, Queues
from headrace_spark.metrics.traffic import LAST_READ, SECOND_US, counted, last_of, last_rows
from headrace_spark.records import event_rows
from headrace_spark.records.message_columns import Messages
from headrace_spark.records.progress_rows import Entries, all_entries
from headrace_spark.records.schema import MESSAGES, arrow_schema
from headrace_spark.source.reading import JournalPartition, all_chunks

_SERIALS_MAX: Final = 10_000_000  # of one `dropped`, so that a damaged count does not fill the memory
_WINDOWS_TOGETHER: Final = 64
_LAST_KEYS: Final = 64
_LAST_BYTES_MAX: Final = 32 << 20
_LAST_SCHEMA: Final = arrow_schema(StructType([MESSAGES[name] for name in LAST_READ]))
_STATE_ROWS: Final = 100_000


@dataclass(frozen=True)
class Counting:
    """Counts what a range of the journal holds, for `mapInArrow`: numbers of partitions -> PACKED. What a worker is
    told travels with it."""

    partitions: Sequence[JournalPartition]
    state_files: Sequence[Sequence[str]]
    """Of `metrics_state`: groups that are read like partitions, with the numbers behind them."""
    token: str
    followed: Followed
    window_s: int
    topic_levels: int
    is_divided: bool = False
    """Whether the state is that of a journal of which this one is a part: what others have in it is passed over."""

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch["id"].to_pylist():
                if number == 0 and len(self.followed.retained):
                    yield self._by_client(self.followed.retained, NEW, -1)
                if number < len(self.partitions):
                    yield from self._journal(self.partitions[number])
                else:
                    for file in self.state_files[number - len(self.partitions)]:
                        yield from self._state(file)

    def _journal(self, partition: JournalPartition) -> Iterator[pa.RecordBatch]:
        queues, newest, last = Queues(self.followed), NO_TIME, LastMessages()
        for chunk in all_chunks(partition, self.token):
            if not len(chunk.at):
                continue
            at = int(chunk.offsets[0])
            newest = max(newest, int(chunk.timestamps_us[chunk.kinds == KIND_EVENT].max(initial=NO_TIME)))
            messages = Messages(chunk)
            if messages.count:
                newest = max(newest, int(messages.timestamps_us.max()))
                yield self._traffic(counted(messages, self.window_s, self.topic_levels), at)
                yield from last.add(messages)
            queued = Messages(chunk, with_copies=True)  # what another shard published is delivered here, too
            if queued.count:
                for entries in queues.entries(queued):
                    yield self._by_client(entries, NEW, at)
            for progress in all_entries(chunk):
                newest = max(newest, int(progress.timestamps_us.max()))
                if progress.subkind in _OUTCOMES:
                    yield self._by_client(outcomes(progress), OUTCOMES, at)
        yield from last.flush()
        if newest != NO_TIME:
            yield pack_time(newest)

    def _traffic(self, parts: pa.Table, at: int) -> pa.RecordBatch:
        """Return the traffic, packed: rows are ordered by window, so each stretch of time is a slice."""
        keys = parts["window_us"].to_numpy() // (self.window_s * SECOND_US * _WINDOWS_TOGETHER)
        bounds = edges(keys)
        tables = [parts.slice(a, b - a) for a, b in pairwise(bounds.tolist())]
        return pack_tables(TRAFFIC, keys[bounds[:-1]], at, tables)

    def _by_client(self, rows: Rows, part: int, at: int) -> pa.RecordBatch:
        return pack_rows(self.followed.keys_of(rows["incarnation"]), part, at, rows)

    def _state(self, file: str) -> Iterator[pa.RecordBatch]:
        columns = ["kind", "incarnation", "serial", "publish_timestamp", "payload_bytes", "gone"]
        with pq.ParquetFile(file) as opened:
            there = [
                name for name in columns if name in opened.schema_arrow.names
            ]  # an older one has no `gone`
            for at, batch in enumerate(opened.iter_batches(_STATE_ROWS, columns=there)):
                rows = known_entries(batch)
                if self.is_divided:
                    rows = rows[self.followed.sessions_of(rows["incarnation"]) != UNKNOWN]
                if len(rows):
                    yield self._by_client(rows, KNOWN, at)


class LastMessages:
    """The last message of each client on each topic, of the chunks so far, as rows of `devices`."""

    def __init__(self) -> None:
        self._parts: list[pa.RecordBatch] = []
        self._bytes = self._bytes_kept = 0

    def add(self, messages: Messages) -> Iterator[pa.RecordBatch]:
        rows = messages.only(last_of(messages)).rows(_LAST_SCHEMA)
        self._parts.append(rows)
        self._bytes += rows.nbytes
        if self._bytes > _LAST_BYTES_MAX:
            self._parts = last_rows(pa.Table.from_batches(self._parts)).to_batches()
            self._bytes = sum(part.nbytes for part in self._parts)
            if self._bytes > _LAST_BYTES_MAX // 2:
                yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield what there is, shared out by a hash, so that the last of several partitions come together."""
        if not self._parts:
            return
        rows = last_rows(pa.Table.from_batches(self._parts))
        names = zip(*(rows[name].to_pylist() for name in ("tenant", "client_id", "topic")), strict=True)
        keys = np.array([zlib.crc32("\0".join(name).encode()) % _LAST_KEYS for name in names])
        order = np.argsort(keys, kind="stable")
        bounds = edges(keys[order])
        whole = rows.take(pa.array(order))
        for a, b in pairwise(bounds.tolist()):
            yield pack_tables(LAST, keys[order[a : a + 1]], 0, [whole.slice(a, b - a)])
        self._parts, self._bytes = [], 0


@dataclass(frozen=True)
class Events:
    """Reads the events of a range of the journal, for `mapInArrow`: numbers of partitions -> the events of sessions and
    subscriptions."""

    partitions: Sequence[JournalPartition]
    token: str
    schema: pa.Schema

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch["id"].to_pylist():
                for chunk in all_chunks(self.partitions[number], self.token):
                    events = chunk.only(chunk.kinds == KIND_EVENT)
                    if len(events.at):
                        yield from event_rows.record_batches(events, self.schema)


def known_entries(state: pa.RecordBatch) -> Rows:
    """Return KNOWN_ENTRY rows of the entries and draws among rows of `metrics_state`."""
    wanted = state.filter(pc.is_in(state["kind"], pa.array(["entry", "draw"])))
    rows = np.empty(wanted.num_rows, KNOWN_ENTRY)
    rows["incarnation"], rows["serial"] = wanted["incarnation"], wanted["serial"]
    published = wanted["publish_timestamp"].cast(pa.timestamp("us")).cast(pa.int64())
    rows["publish_us"] = published.fill_null(NO_TIME)
    rows["payload_bytes"] = wanted["payload_bytes"].fill_null(0)
    drawn = pc.equal(wanted["kind"], "draw").to_numpy(False)
    rows["payload_bytes"][drawn] = DRAWN
    if "gone" in wanted.schema.names:
        gone = wanted["gone"].fill_null(False).to_numpy(False)
        rows["payload_bytes"][gone] = np.where(drawn[gone], DRAWN_GONE, GONE)
    return rows


def outcomes(progress: Entries) -> Rows:
    """Return OUTCOME rows of one subkind."""
    fields = progress.fields
    made = np.empty(progress.count, OUTCOME)
    of_group = "group_id" in fields
    made["incarnation"] = -fields["group_id"] if of_group else fields["incarnation"]
    made["serial"] = fields["serial"]
    made["settled_us"] = progress.timestamps_us
    made["count"] = np.minimum(fields["count"], _SERIALS_MAX)
    if progress.subkind == DROPPED:
        reasons = fields["reason"]
        made["what"] = np.where(np.isin(reasons, list(DROP_REASONS)), reasons, UNNAMED)
    else:
        made["what"] = _OUTCOMES[progress.subkind]
    return made[made["count"] > 0]


_OUTCOMES: Final = {
    ACKED: ACKNOWLEDGED,
    DROPPED: UNNAMED,
    SHARED_FINISHED: OUT_OF_GROUP,
    SHARED_DRAWN: TO_MEMBER,
}
