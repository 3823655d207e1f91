"""The reduce side of the job `metrics`: what belongs together comes together, and becomes files of its tables.

The files are written here, on the workers (ADR 0009): `traffic`, `deliveries`, and of `metrics_state` the entries that
wait. What goes to the driver is small: notes about the files, sums for `usage`, what waits for each session, and the
rows of `devices`. Runs on Spark's Python workers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from headrace_spark.lake.table_files import CODEC, TableFiles
from headrace_spark.lake.tables import DELIVERIES, METRICS_STATE, TableDefinition, as_dates, as_times
from headrace_spark.lake.tables import TRAFFIC as TRAFFIC_TABLE
from headrace_spark.metrics.deliveries import settle
from headrace_spark.metrics.packing import (
    DRAWN,
    DRAWN_GONE,
    GONE,
    KNOWN,
    LAST,
    NEW,
    NEWEST,
    NO_TIME,
    OUTCOMES,
    QUEUE,
    TRAFFIC,
    WAITING,
    Rows,
    unpack_rows,
    unpack_tables,
)
from headrace_spark.metrics.queues import Followed
from headrace_spark.metrics.traffic import LAST_READ, last_rows, summed
from headrace_spark.records.schema import MESSAGES, arrow_schema

FOUND: Final = StructType(
    [
        StructField("note", StringType()),
        StructField("waiting", BinaryType()),
        *(MESSAGES[name] for name in LAST_READ),
    ]
)
"""A note with WAITING rows, or a row of `devices`."""
HOUR_US: Final = 3_600_000_000
_BYTES_MAX: Final = 64 << 20
_ROWS_MAX: Final = 5_000
_OUT: Final = pa.array(["acked", "not_recorded"])
_SCHEMA: Final = arrow_schema(FOUND)


@dataclass
class Notes:
    """What a worker has to say, and what all of them have said."""

    files: dict[str, list[str]] = field(default_factory=dict)
    """`add` actions by table."""
    used: Counter[tuple[int, str | None, str]] = field(default_factory=Counter)
    """By hour, tenant and measure of `usage`."""
    waiting: list[Rows] = field(default_factory=list)
    """WAITING rows, which stand beside the text."""
    newest_us: int = NO_TIME

    def add(self, note: str, waiting: bytes) -> None:
        other = json.loads(note)
        for table, actions in other["files"].items():
            self.files.setdefault(table, []).extend(actions)
        for hour_us, tenant, measure, value in other["used"]:
            self.used[hour_us, tenant, measure] += value
        self.waiting.append(np.frombuffer(waiting, WAITING))
        self.newest_us = max(self.newest_us, other["newest_us"])

    def as_json(self) -> str:
        used = [[*key, value] for key, value in self.used.items()]
        return json.dumps({"used": used, "files": self.files, "newest_us": self.newest_us})

    @property
    def all_waiting(self) -> Rows:
        return np.concatenate([np.empty(0, WAITING), *self.waiting])


@dataclass(frozen=True)
class Settling:
    """Settles what belongs together, for `mapInArrow`: rows of `packing`, by family and key -> FOUND."""

    lake: Path
    followed: Followed
    window_s: int
    journal_uuid: str
    up_to_offset: int
    whole: bool
    """Whether the state is written as a whole; otherwise what changed."""
    codec: str = CODEC

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = {
            table.name: TableFiles(self.lake / table.name, table.layout.compressed(self.codec))
            for table in _WRITTEN
        }
        notes = Notes()
        try:
            for rows in whole_keys(batches):
                families = rows["family"].to_numpy()
                for family in np.unique(families).tolist():
                    packed = rows.filter(pa.array(families == family))
                    if family == LAST:
                        yield from _devices(packed)
                    elif family == TRAFFIC:
                        self._traffic(packed, files, notes)
                    elif family == QUEUE:
                        self._queues(packed, files, notes)
                    else:
                        assert family == NEWEST
                        notes.newest_us = max(notes.newest_us, pc.max(packed["at"]).as_py())
            notes.files = {name: table.finish() for name, table in files.items()}
        except BaseException:
            for table in files.values():
                table.abandon()
            raise
        waiting = pa.array([notes.all_waiting.tobytes()], pa.binary())
        yield _filled({"note": pa.array([notes.as_json()]), "waiting": waiting}, 1)

    def _traffic(self, packed: pa.Table, files: dict[str, TableFiles], notes: Notes) -> None:
        rows = summed(unpack_tables(packed))
        _use(notes, rows, messages_in="messages", bytes_in="payload_bytes")
        self._write(files, TRAFFIC_TABLE, rows)

    def _queues(self, packed: pa.Table, files: dict[str, TableFiles], notes: Notes) -> None:
        known, new, outcomes = (unpack_rows(packed, part) for part in (KNOWN, NEW, OUTCOMES))
        settled = settle(self.followed, known, new, outcomes, self.window_s)
        notes.waiting.append(settled.waiting)
        if settled.delivered.num_rows:
            out = pc.is_in(settled.delivered["outcome"], _OUT)
            _use(notes, settled.delivered.filter(out), messages_out="messages", bytes_out="payload_bytes")
            _use(notes, settled.delivered.filter(pc.invert(out)), messages_dropped="messages")
            self._write(files, DELIVERIES, settled.delivered)
        entries = settled.left if self.whole else settled.changes
        if len(entries):
            written = pa.array(np.full(len(entries), self.up_to_offset))
            rows = METRICS_STATE.rows(self.journal_uuid, **_state(entries), up_to_offset=written)
            files[METRICS_STATE.name].add(rows)

    def _write(self, files: dict[str, TableFiles], table: TableDefinition, rows: pa.Table) -> None:
        """Write parts with their window as a time, and where they come from."""
        windows = rows["window_us"].to_numpy()
        columns = {name: rows[name].combine_chunks() for name in rows.column_names if name != "window_us"}
        columns["window_start"] = as_times(windows)
        columns["up_to_offset"] = pa.array(np.full(rows.num_rows, self.up_to_offset))
        columns["window_s"] = pa.array(np.full(rows.num_rows, self.window_s))
        columns["date"] = as_dates(windows)
        files[table.name].add(table.rows(self.journal_uuid, **columns))


_WRITTEN: Final = (TRAFFIC_TABLE, DELIVERIES, METRICS_STATE)


def whole_keys(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield rows that are ordered by family and key, in tables that have all rows of their keys: as large as a worker
    can well hold, or as the rows of one key are."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if held_bytes > _BYTES_MAX:
            ends = _last_begin(held[-1], batch)
            if ends is not None:
                yield pa.Table.from_batches([*held, batch.slice(0, ends)])
                held, held_bytes, batch = [], 0, batch.slice(ends)
        held.append(batch)
        held_bytes += batch.nbytes
    if held:
        yield pa.Table.from_batches(held)


def _last_begin(before: pa.RecordBatch, batch: pa.RecordBatch) -> int | None:
    """Return the row of `batch` with which its last key begins; None if that is in `before`."""
    keys = [
        np.concatenate([before[name].to_numpy()[-1:], batch[name].to_numpy()]) for name in ("family", "key")
    ]
    begins = np.flatnonzero((keys[0][1:] != keys[0][:-1]) | (keys[1][1:] != keys[1][:-1]))
    return int(begins[-1]) if len(begins) else None


def _state(entries: Rows) -> dict[str, pa.Array]:
    drawn = np.isin(entries["payload_bytes"], (DRAWN, DRAWN_GONE))
    gone = np.isin(entries["payload_bytes"], (GONE, DRAWN_GONE))
    untimed = drawn | gone | (entries["publish_us"] == NO_TIME)
    return {
        "kind": pa.array(["entry", "draw"]).take(pa.array(drawn.astype(np.int8))),
        "incarnation": pa.array(np.ascontiguousarray(entries["incarnation"])),
        "serial": pa.array(np.ascontiguousarray(entries["serial"])),
        "publish_timestamp": as_times(entries["publish_us"], untimed),
        "payload_bytes": pa.array(entries["payload_bytes"], mask=drawn | gone),
        "gone": pa.array(gone),
    }


def _use(notes: Notes, rows: pa.Table, **measures: str) -> None:
    """Add the sums of these rows to those for `usage`."""
    hours = rows["window_us"].to_numpy() // HOUR_US * HOUR_US
    columns = {"hour_us": hours, "tenant": rows["tenant"]} | {to: rows[of] for to, of in measures.items()}
    groups = pa.table(columns).group_by(["hour_us", "tenant"], use_threads=False)
    for row in groups.aggregate([(name, "sum") for name in measures]).to_pylist():
        for name in measures:
            notes.used[row["hour_us"], row["tenant"], name] += row[f"{name}_sum"]


def _devices(packed: pa.Table) -> Iterator[pa.RecordBatch]:
    rows = last_rows(pa.concat_tables(unpack_tables(packed)))
    for batch in rows.to_batches(_ROWS_MAX):
        yield _filled({name: batch[name] for name in LAST_READ}, batch.num_rows)


def _filled(columns: dict[str, pa.Array], count: int) -> pa.RecordBatch:
    arrays = [columns.get(each.name, pa.nulls(count, each.type)) for each in _SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
