"""What the state remembers: the newest row of each thing, whatever the order of files, and what a range adds to it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace_spark.lake.tables import METRICS_STATE
from headrace_spark.metrics.packing import WAITING, Rows
from headrace_spark.metrics.remembered import LOADED, STATE, Remembered, of_rows, remembered
from headrace_spark.metrics.session_rows import connection_rows, state_rows
from headrace_spark.metrics.sessions import Sessions
from headrace_spark.records.schema import arrow_schema

SINCE_US = 1_790_000_000_000_000
GROUP = "$share/g/a"


def session(incarnation: int, up_to: int | None, serial: int = 1, **about: Any) -> dict[str, Any]:
    named = {"tenant": "default", "client_id": f"client-{incarnation}", "next_serial": serial}
    return {"kind": "session", "incarnation": incarnation, "up_to_offset": up_to} | named | about


def subscription(incarnation: int, topic_filter: str, up_to: int | None, **about: Any) -> dict[str, Any]:
    found = {"kind": "subscription", "incarnation": incarnation, "topic_filter": topic_filter}
    return found | {"no_local": False, "up_to_offset": up_to} | about


def known(*rows: dict[str, Any]) -> Remembered:
    made = [dict.fromkeys(LOADED) | row for row in rows]
    return of_rows(pa.Table.from_pylist(made, STATE))


def told(of: Remembered) -> tuple[dict[int, int], set[tuple[int, str]]]:
    serials = dict(zip(of.incarnations.tolist(), of.next_serials.tolist(), strict=True))
    return serials, set(zip(of.subscribers.tolist(), of.filters.to_pylist(), strict=True))


def nothing() -> Rows:
    return np.empty(0, WAITING)


def added(sessions: Sessions, waiting: Rows, whole: bool = False) -> list[dict[str, Any]]:
    return [row for rows in state_rows(sessions, waiting, "uuid", 99, whole) for row in rows.to_pylist()]


@pytest.mark.parametrize("seed", range(5))
def test_the_newest_row_counts_in_any_order(seed: int) -> None:
    rows = [
        session(1, None, 5),
        session(1, 10, 7),
        session(2, 10, 3),
        session(2, 20, 3, gone=True),
        subscription(1, "a", None),
        subscription(1, "b", None),
        subscription(1, "b", 10, gone=True),
        subscription(1, "c", 10, gone=True),
        subscription(1, "c", 20, no_local=True),
        subscription(2, "a", 10),  # its session took it along
    ]
    random.Random(seed).shuffle(rows)
    found = known(*rows, rows[0])
    assert told(found) == ({1: 7}, {(1, "a"), (1, "c")})
    assert found.no_local.tolist() == [name == "c" for name in found.filters.to_pylist()]


def test_a_state_of_an_older_headrace_is_read(tmp_path: Path) -> None:
    schema = arrow_schema(METRICS_STATE.columns)
    names = [name for name in schema.names if name not in METRICS_STATE.added]
    rows = [
        session(7, None, -4),
        subscription(7, "a", None),
        {"kind": "entry", "incarnation": 7, "serial": 3},
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema).select(names), tmp_path / "old.parquet")
    assert "gone" not in pq.read_schema(tmp_path / "old.parquet").names
    found = remembered([tmp_path / "old.parquet"])
    assert told(found) == ({7: -4}, {(7, "a")})
    assert (found.entries, found.rows_stored) == (1, 3)


def test_the_state_is_written_anew_when_most_of_it_is_out_of_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace_spark.metrics.remembered._OUT_OF_DATE_MAX", 0)
    entries = [{"kind": "entry", "incarnation": 1, "serial": n} for n in range(4)]
    gone = [{"gone": True} | entry for entry in entries[:3]]
    schema = arrow_schema(METRICS_STATE.columns)
    for number, rows in enumerate(([session(1, 1), *entries], gone)):
        pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / f"{number}.parquet")
    first, both = remembered([tmp_path / "0.parquet"]), remembered(sorted(tmp_path.iterdir()))
    assert (first.entries, first.rows_stored, first.is_mostly_out_of_date) == (4, 5, False)
    assert (both.entries, both.rows_stored, both.is_mostly_out_of_date) == (1, 8, True)


def test_a_range_adds_what_changed() -> None:
    many = [session(n, 5, connected_offset=n, connected_timestamp=SINCE_US) for n in range(1, 1001)]
    held = [subscription(n, f"a/{n}", 5) for n in range(1, 1001)]
    sessions = Sessions(known(*many, *held))
    assert added(sessions, nothing()) == []
    about = {"event_timestamp": SINCE_US, "journal_offset": 2000, "item": 0, "incarnation": 7, "qos": 1}
    sessions.apply(about | {"kind": "unsubscribed", "topic_filter": "a/7"})
    sessions.apply(about | {"kind": "subscribed", "topic_filter": "b", "no_local": True})
    sessions.apply(about | {"kind": "session_ended", "incarnation": 8})
    waiting = np.array([(9, 12, 3, SINCE_US), (10, 1, 0, SINCE_US)], WAITING)
    found = added(sessions, waiting)
    about_sessions = [row for row in found if row["kind"] == "session"]
    assert sorted((row["incarnation"], row["next_serial"], bool(row["gone"])) for row in about_sessions) == [
        (7, 1, False),
        (8, 1, True),
        (9, 12, False),
    ]
    assert sorted(
        (row["incarnation"], row["topic_filter"], row["gone"]) for row in found if row["kind"] != "session"
    ) == [(7, "a/7", True), (7, "b", False)]
    assert {row["up_to_offset"] for row in found} == {99}
    assert len(sessions.met) == 2
    assert len(added(sessions, waiting, whole=True)) == 999 + 999


def test_a_broker_that_starts_again_ends_every_connection() -> None:
    many = [
        session(n, 5, connected_offset=n if n % 2 else None, connected_timestamp=SINCE_US if n % 2 else None)
        for n in range(1, 101)
    ]
    sessions = Sessions(known(*many))
    about = {"event_timestamp": SINCE_US + 5, "journal_offset": 200, "incarnation": 3}
    sessions.apply(about | {"kind": "session_closed"})
    sessions.apply(about | {"kind": "broker_started"})
    sessions.apply(about | {"kind": "broker_started"})
    sessions.apply(about | {"kind": "session_closed", "incarnation": 5})
    ends = {row["incarnation"]: row["end"] for row in connection_rows(sessions, "uuid").to_pylist()}
    assert ends == {n: "closed" if n == 3 else "broker_started" for n in range(1, 101, 2)}
    found = added(sessions, nothing())
    assert sorted(row["incarnation"] for row in found) == list(range(1, 101, 2))
    assert {row["connected_offset"] for row in found} == {None}


def test_a_group_ends_with_its_last_member() -> None:
    group = session(-70_000, 5, client_id=GROUP)
    members = [subscription(n, GROUP, 5) for n in (1, 2)]
    sessions = Sessions(known(group, session(1, 5), session(2, 5), *members, subscription(-70_000, "a", 5)))
    about = {"event_timestamp": SINCE_US, "journal_offset": 200, "topic_filter": GROUP}
    sessions.apply(about | {"kind": "unsubscribed", "incarnation": 1})
    assert -70_000 not in sessions.met
    sessions.apply(about | {"kind": "session_ended", "incarnation": 2})
    assert sessions.met[-70_000].ended_us == SINCE_US
