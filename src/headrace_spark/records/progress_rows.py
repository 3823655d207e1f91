"""Rows of `progress`: one for each group of numbers in the PROGRESS records of a chunk.

Acknowledgements are nearly as frequent as messages, so the numbers of all records of one subkind are handled
together; rows of one chunk are ordered by subkind, then by offset. Runs on Spark's Python workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.core.records.record import (
    ACKED,
    BACKLOG_PAGE,
    BOUND,
    DROP_REASONS,
    DROPPED,
    KIND_PROGRESS,
    LET_GO,
    PLACED,
    PROGRESS_WIDTH,
    RECEIVED,
    RELEASED,
    SENT_LIMIT,
    SHARED_BACKLOG_PAGE,
    SHARED_DRAWN,
    SHARED_FINISHED,
    SHARED_RECEIVED,
    SHORT_HEADER_SIZE,
    STORED,
    record_end,
)
from headrace.errors import CorruptRecord
from headrace_spark.records.chunk import Chunk, Integers
from headrace_spark.records.message_columns import DAY_US

_SUBKIND_AT: Final = 5
_TIMESTAMP_AT: Final = 8
_QOS_SHIFT: Final = 16
# What the numbers of an entry are, by subkind; the order is that of the record.
_FIELDS: Final[dict[int, tuple[str, tuple[str, ...]]]] = {
    ACKED: ("acked", ("incarnation", "serial")),
    RECEIVED: ("received", ("incarnation", "serial")),
    RELEASED: ("released", ("incarnation", "packet_id")),
    SENT_LIMIT: ("sent_limit", ("incarnation", "serial")),
    DROPPED: ("dropped", ("incarnation", "serial", "count", "reason")),
    SHARED_DRAWN: ("shared_drawn", ("group_id", "serial", "incarnation", "choice")),
    SHARED_FINISHED: ("shared_finished", ("group_id", "serial")),
    SHARED_RECEIVED: ("shared_received", ("group_id", "serial")),
    BOUND: ("bound", ("incarnation", "serial", "packet_id")),
}
# Where what waits lies, in pages of references or in a store: no news of any message.
_PLACES: Final = (BACKLOG_PAGE, SHARED_BACKLOG_PAGE, STORED, LET_GO, PLACED)


def record_batches(chunk: Chunk, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a chunk, a record batch for each subkind that occurs."""
    for entries in all_entries(chunk):
        arrays = [entries.column(name, schema.field(name).type) for name in schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def all_entries(chunk: Chunk) -> Iterator[Entries]:
    """Yield the entries of a chunk, subkind by subkind. Raises CorruptRecord for one that is not known."""
    subkinds = np.where(chunk.kinds == KIND_PROGRESS, chunk.bytes[chunk.at + _SUBKIND_AT], 0)
    for subkind in np.unique(subkinds[subkinds > 0]).tolist():
        if subkind in _PLACES:
            continue
        if subkind not in _FIELDS:
            raise CorruptRecord(f"after offset {chunk.offsets[0]}: progress of unknown kind {subkind}")
        entries = Entries(chunk, subkind, np.flatnonzero(subkinds == subkind))
        if entries.count:
            yield entries


class Entries:
    """The entries of all records of one subkind: `numbers[i]` are those of entry i, of record `record[i]`."""

    def __init__(self, chunk: Chunk, subkind: int, records: Integers) -> None:
        self.subkind = subkind
        self.kind, names = _FIELDS[subkind]
        self.chunk = chunk
        parts = [_numbers(chunk.body, int(at), PROGRESS_WIDTH[subkind]) for at in chunk.at[records]]
        lengths = [len(part) for part in parts]
        numbers = np.concatenate(parts)
        self.count = len(numbers)
        self.fields: dict[str, Integers] = dict(zip(names, numbers.T, strict=True))
        self.record: Integers = np.repeat(records, lengths)
        self.item = np.arange(self.count) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        self.timestamps_us = np.repeat(
            [_timestamp_us(chunk.body, int(at)) for at in chunk.at[records]], lengths
        )
        if "choice" in self.fields:
            choice = self.fields.pop("choice")
            self.fields |= {"packet_id": choice & 0xFFFF, "qos": choice >> _QOS_SHIFT}
        self.fields.setdefault("count", np.ones(self.count, np.int64))

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        made = _COLUMNS.get(name)
        if made is not None:
            return made(self)
        if name not in self.fields:
            return pa.nulls(self.count, kind)
        if name == "reason":
            return pa.array([DROP_REASONS.get(reason) for reason in self.fields[name].tolist()], kind)
        return pa.array(np.ascontiguousarray(self.fields[name])).cast(kind)


def _numbers(body: bytes, at: int, width: int) -> npt.NDArray[Any]:
    size = record_end(body, at) - at - SHORT_HEADER_SIZE
    if size < 0 or size % (8 * width):
        raise CorruptRecord(f"progress of {size} bytes")
    return np.frombuffer(body, "<i8", size // 8, at + SHORT_HEADER_SIZE).reshape(-1, width)


def _timestamp_us(body: bytes, at: int) -> int:
    return int.from_bytes(body[at + _TIMESTAMP_AT : at + _TIMESTAMP_AT + 8], "little")


_COLUMNS: Final[dict[str, Callable[[Entries], pa.Array]]] = {
    "kind": lambda e: pa.repeat(e.kind, e.count),
    "progress_timestamp": lambda e: pa.array(e.timestamps_us).cast(pa.timestamp("us", "UTC")),
    "journal_uuid": lambda e: pa.repeat(e.chunk.uuid, e.count),
    "journal_epoch": lambda e: pa.array(e.chunk.epochs[e.record]),
    "journal_offset": lambda e: pa.array(e.chunk.offsets[e.record]),
    "item": lambda e: pa.array(e.item.astype(np.int32)),
    "date": lambda e: pa.array((e.timestamps_us // DAY_US).astype(np.int32)).cast(pa.date32()),
}
