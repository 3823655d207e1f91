"""What the shuffle of the job `metrics` carries: few rows with much in each.

A row of Spark for each entry of a queue, and for each acknowledgement, would cost several times what the numbers
themselves do. So what one chunk of records has for one client, or of one stretch of time, is one row: packed numbers,
or a table in Arrow's format of streams. Runs on Spark's Python workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, ByteType, LongType, StructField, StructType

from headrace_spark.records.chunk import Integers
from headrace_spark.records.schema import arrow_schema

Rows = npt.NDArray[Any]

PACKED: Final = StructType(
    [
        StructField("family", ByteType()),
        StructField("key", LongType()),
        StructField("part", ByteType()),
        StructField("at", LongType()),
        StructField("body", BinaryType()),
    ]
)
"""Rows of one (family, key) come together, ordered by `part` and `at`."""
TRAFFIC, LAST, QUEUE, NEWEST = range(4)
"""Families: `traffic.counted` by stretch of time; rows of `devices` by a hash; queues by client; and the newest record,
whose time is `at`."""
KNOWN, NEW, OUTCOMES = range(3)
"""Parts of QUEUE, and how their rows look."""
NO_TIME: Final = -(1 << 63)
DRAWN, GONE, DRAWN_GONE = -1, -2, -3
"""Instead of `payload_bytes`: an entry of a group that a member has had; and what takes either away."""
KNOWN_ENTRY: Final = np.dtype(
    [("incarnation", "<i8"), ("serial", "<i8"), ("publish_us", "<i8"), ("payload_bytes", "<i8")]
)
"""An entry that an earlier range left, or that a later one has taken away."""
NEW_ENTRY: Final = np.dtype(
    [
        ("incarnation", "<i8"),
        ("offset", "<i8"),
        ("publish_us", "<i8"),
        ("payload_bytes", "<i4"),
        ("item", "<i4"),
    ]
)
"""An entry of this range, not numbered yet; `publish_us` is NO_TIME for a retained message."""
OUTCOME: Final = np.dtype(
    [("incarnation", "<i8"), ("serial", "<i8"), ("settled_us", "<i8"), ("count", "<i4"), ("what", "<i4")]
)
"""What became of `count` entries: `what` is a reason of `DROP_REASONS`, or one of these."""
ACKNOWLEDGED, OUT_OF_GROUP, TO_MEMBER, UNNAMED, NOT_DRAWN, NOT_RECORDED = 0, -1, -2, -3, -4, -5
WAITING: Final = np.dtype(
    [("incarnation", "<i8"), ("next_serial", "<i8"), ("messages", "<i8"), ("oldest_us", "<i8")]
)
"""Of one session: the number of its next message, how many wait for it, and since when; NO_TIME is not known."""
LAYOUTS: Final = {KNOWN: KNOWN_ENTRY, NEW: NEW_ENTRY, OUTCOMES: OUTCOME}
_SCHEMA: Final = arrow_schema(PACKED)


def edges(keys: Integers) -> Integers:
    """Return where runs of equal keys begin, and the end of all."""
    if not len(keys):
        return np.zeros(1, np.int64)
    return np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1, [len(keys)]])


def pack_tables(family: int, keys: Integers, at: int, tables: Sequence[pa.Table]) -> pa.RecordBatch:
    """Pack a table for each key."""
    return _batch(family, keys, 0, at, pa.array(map(_stream, tables), pa.binary()))


def pack_rows(keys: Integers, part: int, at: int, rows: Rows) -> pa.RecordBatch:
    """Pack rows of QUEUE, each with its key."""
    if (keys[1:] < keys[:-1]).any():
        order = np.argsort(keys, kind="stable")
        keys, rows = keys[order], rows[order]
    bounds = edges(keys)
    ends = pa.py_buffer((bounds * rows.dtype.itemsize).astype(np.int32))
    bodies = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, ends, pa.py_buffer(rows.tobytes())])
    return _batch(QUEUE, keys[bounds[:-1]], part, at, bodies)


def pack_time(at_us: int) -> pa.RecordBatch:
    """Return the row of NEWEST."""
    return _batch(NEWEST, np.zeros(1, np.int64), 0, at_us, pa.array([b""]))


def unpack_tables(packed: pa.Table) -> list[pa.Table]:
    return [pa.ipc.open_stream(body.as_buffer()).read_all() for body in packed["body"]]


def unpack_rows(packed: pa.Table, part: int) -> Rows:
    """Return the rows of one part of QUEUE, in order."""
    layout, wanted = LAYOUTS[part], packed.filter(pc.equal(packed["part"], part))
    found = [np.frombuffer(_values(bodies), layout) for bodies in wanted["body"].chunks if len(bodies)]
    return np.concatenate([np.empty(0, layout), *found])


def _values(bodies: pa.BinaryArray) -> pa.Buffer:
    """Return the values of all rows: Arrow keeps them back to back."""
    _, ends, values = bodies.buffers()
    bounds = np.frombuffer(ends, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1]
    return values.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    return bytes(sink.getvalue())


def _batch(family: int, keys: Integers, part: int, at: int, bodies: pa.Array) -> pa.RecordBatch:
    count = len(keys)
    columns = [
        pa.array(np.full(count, family, np.int8)),
        pa.array(keys),
        pa.array(np.full(count, part, np.int8)),
        pa.array(np.full(count, at)),
        bodies,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
