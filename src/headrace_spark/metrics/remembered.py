"""What earlier ranges of the journal left of sessions and subscriptions, in columns: 150 bytes or so for each.

The table `metrics_state` gets the changes of each range. A row says with `up_to_offset` when it was written; of several
about one thing the newest counts, and one that is `gone` takes the thing away. So the order of files and rows means
nothing, and a compaction may mix them. Entries of queues are written once and taken away once
(`headrace_spark.metrics.deliveries.standing`).

When more rows are out of date than count, the range writes the state anew, as a whole. Runs on the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace_spark.lake.tables import METRICS_STATE
from headrace_spark.records.chunk import Integers, Mask
from headrace_spark.records.schema import arrow_schema

OFFLINE: Final = -1
LOADED: Final = (
    "kind", "incarnation", "tenant", "client_id", "next_serial", "connected_offset", "connected_timestamp",
    "topic_filter", "no_local", "up_to_offset", "gone",
)  # fmt: skip
_BEFORE: Final = -1  # `up_to_offset` of rows of an older headrace, which wrote all of them each time
_ROWS: Final = 100_000
_OUT_OF_DATE_MAX: Final = 100_000
_COLUMNS: Final = {
    "session": [
        "incarnation", "tenant", "client_id", "next_serial", "connected_offset", "connected_timestamp",
        "up_to_offset", "gone",
    ],
    "subscription": ["incarnation", "topic_filter", "no_local", "up_to_offset", "gone"],
}  # fmt: skip
_US: Final = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Remembered:
    """Sessions, ordered by incarnation, and their subscriptions, ordered by the incarnation of the subscriber."""

    incarnations: Integers
    tenants: pa.StringArray
    client_ids: pa.StringArray
    next_serials: Integers
    """Below zero: minus that, and the session ends with its connection."""
    connected_offsets: Integers
    """OFFLINE where a session is not connected."""
    connected_us: Integers
    subscribers: Integers
    filters: pa.StringArray
    no_local: npt.NDArray[np.bool_]
    entries: int = 0
    """Of queues, that wait."""
    rows_stored: int = 0
    """Of the table, with those that are out of date."""

    @cached_property
    def is_online(self) -> Mask:
        found: Mask = self.connected_offsets != OFFLINE
        return found

    @property
    def is_mostly_out_of_date(self) -> bool:
        """Return whether the table had better be written anew: so it never has more than twice the rows that count, but
        for a constant."""
        rows = len(self.incarnations) + len(self.subscribers) + self.entries
        return self.rows_stored > 2 * rows + _OUT_OF_DATE_MAX

    def row_of(self, incarnation: int) -> int | None:
        """Return the place of a session."""
        at = int(np.searchsorted(self.incarnations, incarnation))
        return at if at < len(self.incarnations) and self.incarnations[at] == incarnation else None

    def subscriptions_of(self, incarnation: int) -> range:
        """Return the places of its subscriptions."""
        begin, end = np.searchsorted(self.subscribers, [incarnation, incarnation + 1]).tolist()
        return range(begin, end)


def remembered(files: Iterable[Path]) -> Remembered:
    """Return what files of `metrics_state` tell."""
    found: dict[str, list[pa.RecordBatch]] = {kind: [] for kind in _COLUMNS}
    stored = entries = 0
    for file in files:
        for rows in _rows(file):
            for kind, columns in _COLUMNS.items():
                some = rows.filter(pc.equal(rows["kind"], kind))
                if some.num_rows:
                    found[kind].append(some.select(columns))
            others = rows.filter(pc.invert(pc.is_in(rows["kind"], pa.array(list(_COLUMNS)))))["gone"]
            stored += rows.num_rows
            entries += len(others) - 2 * (pc.sum(others).as_py() or 0)
    sessions, subscriptions = (
        pa.Table.from_batches(found[kind], pa.schema(map(STATE.field, columns)))
        for kind, columns in _COLUMNS.items()
    )
    return _of(sessions, subscriptions, entries, stored)


def of_rows(rows: pa.Table) -> Remembered:
    """Return what rows with the columns LOADED tell, times in microseconds."""
    sessions, subscriptions = (
        rows.filter(pc.equal(rows["kind"], kind)).select(columns) for kind, columns in _COLUMNS.items()
    )
    return _of(sessions, subscriptions, 0, rows.num_rows)


def _of(sessions: pa.Table, subscriptions: pa.Table, entries: int, rows_stored: int) -> Remembered:
    sessions, subscriptions = _newest(sessions), _newest(subscriptions)
    incarnations, subscribers = _integers(sessions, "incarnation"), _integers(subscriptions, "incarnation")
    # A session that has ended took its subscriptions with it.
    stays = np.isin(subscribers, incarnations)
    if not stays.all():
        subscriptions, subscribers = subscriptions.filter(pa.array(stays)), subscribers[stays]
    return Remembered(
        incarnations,
        _array(sessions, "tenant"),
        _array(sessions, "client_id"),
        _integers(sessions, "next_serial"),
        _integers(sessions, "connected_offset", OFFLINE),
        _integers(sessions, "connected_timestamp"),
        subscribers,
        _array(subscriptions, "topic_filter"),
        _array(subscriptions, "no_local").fill_null(False).to_numpy(zero_copy_only=False),
        entries,
        rows_stored,
    )


def _rows(file: Path) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the columns LOADED; one of an older headrace lacks some."""
    with pq.ParquetFile(file) as opened:
        there = [name for name in LOADED if name in opened.schema_arrow.names]
        for batch in opened.iter_batches(_ROWS, columns=there):
            columns = {name: batch[name] for name in there}
            columns["connected_timestamp"] = columns["connected_timestamp"].cast(_US).cast(pa.int64())
            arrays = [columns.get(each.name, pa.nulls(batch.num_rows, each.type)) for each in STATE]
            yield pa.RecordBatch.from_arrays(arrays, schema=STATE)


def _newest(rows: pa.Table) -> pa.Table:
    """Return the newest row of each incarnation and topic filter, if it is not gone, ordered by incarnation."""
    incarnations, written = _integers(rows, "incarnation"), _integers(rows, "up_to_offset", _BEFORE)
    filters = np.zeros(len(incarnations), np.int32)
    if "topic_filter" in rows.column_names:
        filters = _array(rows, "topic_filter").dictionary_encode("encode").indices.to_numpy()
    order = np.lexsort((written, filters, incarnations))
    one, other = incarnations[order], filters[order]
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = (one[1:] != one[:-1]) | (other[1:] != other[:-1])
    gone = _array(rows, "gone").fill_null(False).to_numpy(zero_copy_only=False)
    wanted = order[is_last & ~gone[order]]
    is_whole = len(wanted) == len(order) and (wanted[1:] > wanted[:-1]).all()
    return rows if is_whole else rows.take(pa.array(wanted))


def _array(rows: pa.Table, name: str) -> pa.Array:
    """Return a column in one piece."""
    column = rows[name].combine_chunks()
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _integers(rows: pa.Table, name: str, default: int = 0) -> Integers:
    found: Integers = _array(rows, name).fill_null(default).to_numpy()
    return found


STATE: Final = pa.schema(
    pa.field(name, pa.int64())
    if name == "connected_timestamp"
    else arrow_schema(METRICS_STATE.columns).field(name)
    for name in LOADED
)
