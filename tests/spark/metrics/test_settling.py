"""What is counted of made-up histories, range by range and task by task, without Spark: it must be what happened."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.core.records.message import Message, copy_of
from headrace.journal.reader import JournalReader
from headrace_spark.lake.delta_commit import paths_of
from headrace_spark.lake.table_files import TableFiles
from headrace_spark.lake.tables import METRICS_STATE
from headrace_spark.metrics.counting import Counting, Events, known_entries
from headrace_spark.metrics.deliveries import standing
from headrace_spark.metrics.packing import DRAWN, PACKED
from headrace_spark.metrics.queues import Followed
from headrace_spark.metrics.remembered import remembered
from headrace_spark.metrics.session_rows import (
    backlog_rows,
    connection_rows,
    followed_of,
    in_us,
    state_rows,
)
from headrace_spark.metrics.sessions import EVENTS_READ, KINDS, Sessions, behind_hole
from headrace_spark.metrics.settling import Notes, Settling, whole_keys
from headrace_spark.metrics.usage import MEASURES, usage_rows
from headrace_spark.records.schema import EVENTS, arrow_schema
from headrace_spark.source.journal_range import ALONE, Place
from headrace_spark.source.reading import JournalPartition
from spark.conftest import Writer
from spark.histories import History
from spark.journals import Made

WINDOW_S = 7
_SCHEMA = pa.schema([arrow_schema(EVENTS).field(name) for name in EVENTS_READ])


@dataclass
class Counted:
    """The job without Spark and without Delta: files of a range are read as they are written."""

    lake: Path
    data_dir: Path
    draw: random.Random
    place: Place = ALONE
    state: list[Path] = field(default_factory=list)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    last: dict[tuple[str, str, str], bytes] = field(default_factory=dict)
    connections: dict[int, tuple[str | None, str | None, str | None]] = field(default_factory=dict)
    backlog: list[dict[str, Any]] = field(default_factory=list)

    def count(self, start: int, end: int, is_behind_hole: bool = False) -> None:
        reader = JournalReader(self.data_dir)
        for name in ("traffic", "deliveries", "usage", METRICS_STATE.name):
            (self.lake / name).mkdir(parents=True, exist_ok=True)
        cut = self.draw.randint(start, end)
        partitions = [
            JournalPartition(reader.location, reader.uuid, reader.epoch, *bounds)
            for bounds in ((start, cut), (cut, end))
            if bounds[0] < bounds[1]
        ]
        known = remembered(self.state)
        if is_behind_hole:
            known, self.state = behind_hole(known), []
        sessions = Sessions(known, self.place)
        for row in in_us(events_of(partitions), "event_timestamp").to_pylist():
            if row["kind"] in KINDS:
                sessions.apply(row)
        followed, files = followed_of(sessions), [str(path) for path in self.state]
        whole = self.draw.random() < 0.2 or is_behind_hole
        groups = [group for group in (files[::2], files[1::2]) if group]
        counting = Counting(partitions, groups, "", followed, WINDOW_S, 2)
        settling = Settling(self.lake, followed, WINDOW_S, reader.uuid, end, whole)
        notes = Notes()
        for task in self.shuffled(counting, len(partitions) + len(groups)):
            for found in settling(iter(task)):
                self.take(found, notes)
        for name, actions in notes.files.items():
            for path in paths_of(self.lake / name, actions):
                self.rows.setdefault(name, []).extend(pq.read_table(path, partitioning=None).to_pylist())
        self.finish(sessions, followed, notes, reader.uuid, end, whole)

    def shuffled(self, counting: Counting, tasks: int) -> Iterator[list[pa.RecordBatch]]:
        """As Spark does: each key to one of two tasks, in order, cut into batches somewhere."""
        packed = pa.Table.from_batches(
            [rows for n in range(tasks) for rows in counting(iter([ids(n)]))], arrow_schema(PACKED)
        )
        order = [(name, "ascending") for name in PACKED.names[:4]]
        for task in range(2):
            mine = pa.array([(family + key) % 2 == task for family, key in zip(
                packed["family"].to_pylist(), packed["key"].to_pylist(), strict=True
            )], pa.bool_())  # fmt: skip
            yield packed.filter(mine).sort_by(order).combine_chunks().to_batches(self.draw.randint(1, 30))

    def take(self, found: pa.RecordBatch, notes: Notes) -> None:
        for row in found.to_pylist():
            if row["note"] is not None:
                notes.add(row["note"], row["waiting"])
            else:
                self.last[row["tenant"], row["client_id"], row["topic"]] = row["payload"]

    def finish(
        self, sessions: Sessions, followed: Followed, notes: Notes, uuid: str, end: int, whole: bool
    ) -> None:
        waiting = notes.all_waiting
        self.backlog = backlog_rows(followed, waiting, notes.newest_us, uuid).to_pylist()
        changed = connection_rows(sessions, uuid)
        self.rows.setdefault("usage", []).extend(usage_rows(notes, changed, uuid, end).to_pylist())
        for row in changed.to_pylist():
            self.connections[row["connected_offset"]] = row["tenant"], row["client_id"], row["end"]
        files = TableFiles(self.lake / METRICS_STATE.name, METRICS_STATE.layout)
        for rows in state_rows(sessions, waiting, uuid, end, whole):
            files.add(rows)
        actions = [*files.finish(), *notes.files[METRICS_STATE.name]]
        added = paths_of(self.lake / METRICS_STATE.name, actions)
        self.state = added if whole else [*self.state, *added]
        self.draw.shuffle(self.state)


def ids(number: int) -> pa.RecordBatch:
    return pa.record_batch({"id": [number]})


def events_of(partitions: list[JournalPartition]) -> pa.Table:
    read = Events(partitions, "", _SCHEMA)
    return pa.Table.from_batches(
        [rows for n in range(len(partitions)) for rows in read(iter([ids(n)]))], _SCHEMA
    )


def sums(rows: list[dict[str, Any]], measure: str, *key: str) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        found[tuple(row[name] or "" for name in key)] += row[measure]
    return +found


@pytest.mark.parametrize(
    "seed",
    [
        *range(8),
        *(pytest.param(seed, marks=[pytest.mark.spark, pytest.mark.deep]) for seed in range(8, 20)),
    ],
)
def test_what_happened(journal: Writer, tmp_path: Path, seed: int) -> None:
    history, draw = History(seed, 400), random.Random(seed)
    journal.write(history.made)
    counted = Counted(tmp_path / "lake", journal.data_dir, draw)
    end = len(history.made.records)
    cuts = sorted({0, end, *(draw.randrange(end) for _ in range(draw.randrange(8)))})
    for first, last in itertools.pairwise(cuts):
        counted.count(first, last)

    rows = counted.rows
    by_prefix = ("tenant", "topic_prefix", "client_id")
    assert sums(rows["traffic"], "messages", *by_prefix) == history.traffic
    assert sums(rows["traffic"], "payload_bytes", *by_prefix) == +history.traffic_bytes
    frames = [row for row in rows["traffic"] if row["protocol"] == "frame"]
    assert sums(frames, "messages", *by_prefix) == history.frames
    assert {row["protocol"] for row in rows["traffic"]} <= {"mqtt", "frame"}
    assert {row["window_s"] for row in [*rows["traffic"], *rows["deliveries"]]} == {WINDOW_S}
    by_outcome = ("tenant", "client_id", "outcome")
    assert sums(rows["deliveries"], "messages", *by_outcome) == history.delivered
    assert sums(rows["deliveries"], "payload_bytes", *by_outcome) == +history.delivered_bytes
    unknown = [row for row in rows["deliveries"] if row["latency_ms"] is None]
    assert sums(unknown, "messages", *by_outcome) == +history.unknown
    assert counted.connections == history.connections
    assert counted.last == history.last
    waiting = {(row["tenant"], row["client_id"]): row["messages"] for row in counted.backlog}
    assert waiting == history.backlog
    states = [pq.read_table(path, partitioning=None).to_batches() for path in counted.state]
    entries = standing(np.concatenate([known_entries(rows) for some in states for rows in some]))
    assert remembered(counted.state).entries == len(entries)
    assert (entries["payload_bytes"] != DRAWN).sum() == sum(history.backlog.values())
    check_usage(history, rows["usage"])


@pytest.mark.parametrize("seed", range(6))
def test_what_another_shard_published_is_delivered_here_and_counted_there(
    journal: Writer, tmp_path: Path, seed: int
) -> None:
    """The same history, with a copy in the place of each message."""
    history, draw, copied = History(seed, 300), random.Random(seed), Made()
    for offset, record in enumerate(history.made.records):
        copied.add(copy_of(record, 1, offset) if isinstance(record, Message) else record)
    journal.write(copied)
    counted = Counted(tmp_path / "lake", journal.data_dir, draw)
    end = len(copied.records)
    for first, last in itertools.pairwise([0, end // 3, end]):
        counted.count(first, last)
    by_outcome = ("tenant", "client_id", "outcome")
    rows = counted.rows
    assert sums(rows["deliveries"], "messages", *by_outcome) == history.delivered
    assert sums(rows["deliveries"], "payload_bytes", *by_outcome) == +history.delivered_bytes
    unknown = [row for row in rows["deliveries"] if row["latency_ms"] is None]
    assert sums(unknown, "messages", *by_outcome) == +history.unknown
    waiting = {(row["tenant"], row["client_id"]): row["messages"] for row in counted.backlog}
    assert waiting == history.backlog
    assert (rows.get("traffic", []), counted.last) == ([], {})
    assert sum(row["messages_in"] for row in rows["usage"]) == 0


@pytest.mark.parametrize("seed", range(6))
def test_behind_records_that_are_gone_nothing_waits_that_may_be_acknowledged(
    journal: Writer, tmp_path: Path, seed: int
) -> None:
    """What is acknowledged by sessions of before is theirs, and of unknown latency; new sessions are followed."""
    history, draw = History(seed, 600), random.Random(seed)
    journal.write(history.made)
    counted = Counted(tmp_path / "lake", journal.data_dir, draw)
    end = len(history.made.records)
    hole = end // 3, end // 2
    counted.count(0, hole[0])
    known = {client for _, client, _ in counted.connections.values()}
    before = {name: len(rows) for name, rows in counted.rows.items()}
    counted.count(hole[1], end * 3 // 4, is_behind_hole=True)
    counted.count(end * 3 // 4, end)
    assert known
    waiting = {(row["tenant"], row["client_id"]): row["messages"] for row in counted.backlog}
    plain = {key: count for key, count in waiting.items() if not key[1].startswith("$share/")}
    assert all(history.backlog.get(key) == count for key, count in plain.items())
    later = counted.rows["deliveries"][before["deliveries"] :]
    timed = sums([row for row in later if row["latency_ms"] is not None], "messages", "tenant", "client_id")
    acked = sums([row for row in later if row["outcome"] == "acked"], "messages", "tenant", "client_id")
    assert all(timed[key] <= acked[key] for key in timed)
    online = {
        (tenant, client) for offset, (tenant, client, how) in counted.connections.items() if how is None
    }
    still = {(tenant, client) for tenant, client, how in history.connections.values() if how is None}
    opened_again = {
        (tenant, client) for offset, (tenant, client, _) in history.connections.items() if offset >= hole[1]
    }
    assert online & opened_again <= still


def check_usage(history: History, rows: list[dict[str, Any]]) -> None:
    used = {name: sum(row[name] for row in rows) for name in MEASURES}
    sent = [key for key in history.delivered if key[2] in ("acked", "not_recorded")]
    out = sum(history.delivered[key] for key in sent)
    assert used.pop("connected_s") >= 0
    assert used == {
        "messages_in": history.traffic.total(),
        "bytes_in": history.traffic_bytes.total(),
        "messages_out": out,
        "bytes_out": sum(history.delivered_bytes[key] for key in sent),
        "messages_dropped": history.delivered.total() - out,
        "connections": sum(end is not None for _, _, end in history.connections.values()),
    }


def test_a_clock_that_was_set_back_takes_nothing_off_a_bill() -> None:
    times = [(10, 40), (50, 20), (30, None)]
    us = pa.timestamp("us", "UTC")
    connections = pa.record_batch(
        {
            "tenant": ["acme"] * 3,
            "client_id": ["one", "two", "three"],
            "connected_timestamp": pa.array([begin * 1_000_000 for begin, _ in times]).cast(us),
            "disconnected_timestamp": pa.array(
                [end and end * 1_000_000 for _, end in times], pa.int64()
            ).cast(us),
        }
    )
    [row] = usage_rows(Notes(), connections, "uuid", 7).to_pylist()
    assert (row["connections"], row["connected_s"]) == (2, 30.0)


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
def test_rows_of_one_key_stay_together(batch_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_spark.metrics.settling._BYTES_MAX", 0)
    keys = [0, 0, 0, 1, 2, 2, 2, 2, 2, 3]
    rows = pa.table({"family": [int(n > 1) for n in keys], "key": keys})
    found = [table["key"].to_pylist() for table in whole_keys(iter(rows.to_batches(batch_rows)))]
    assert [key for some in found for key in some] == keys
    assert all(not set(one) & set(other) for one, other in itertools.pairwise(found))
    assert batch_rows > 3 or len(found) > 1
