"""What real clients sent through a broker is in every table, in every column, and in every number of the report, whatever
became of its journal meanwhile: trimmed, a file copy that goes on, divided into shards, and restored from a backup.

`messages` is read after each stage as `archive` reads it, without Spark; the jobs run where a test says. What must come
out is noted where it is sent (`odd_clients`), and in no journal.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from headrace.core.homes import MEMBER_PREFIX, Homes
from headrace_spark.report.figures import Figures, collect
from spark.clean.test_every_column import cleaned, place, repeats_of, table
from spark.journals import EPOCH
from spark.odd_clients import DEVICE, UNRECORDED, WATCHER
from spark.odd_values import TYPES
from spark.story import GONE, LOST, STAGES, Story

pytestmark = [pytest.mark.spark, pytest.mark.time_limit(1800)]
WINDOW_S: Final = 60
HOUR_S: Final = 3600
STATE_KEY: Final = ("journal_uuid", "kind", "incarnation", "topic_filter", "serial")
PASS_US: Final = 1_000_000
"""How much earlier than it was a broker may take a time to be, which reads its clock once a pass."""
US: Final = timedelta(microseconds=1)
Row = dict[str, Any]


@pytest.mark.parametrize(
    "tables_at",
    [
        pytest.param(("copied",), id="jobs-once"),
        pytest.param(STAGES, id="jobs-each-time", marks=pytest.mark.deep),
    ],
)
def test_what_was_sent_is_in_every_table(
    spark: SparkSession, tmp_path: Path, tables_at: tuple[str, ...]
) -> None:
    story = Story(spark, tmp_path, frozenset(tables_at))
    for stage, happens in zip(STAGES, (story.trim, story.copy, story.divide, story.restore), strict=True):
        happens()
        require_messages(story, story.journaled())
        if stage in tables_at:
            require_tables(story)


def require_tables(story: Story) -> None:
    story.run("archive")
    messages = story.rows("messages")
    require_messages(story, messages)
    story.run("metrics", window_s=WINDOW_S)
    require_traffic(story, messages)
    require_deliveries(story)
    require_connections(story)
    require_usage(story, messages)
    require_backlog(story, messages)
    require_remembered(story)
    if story.is_cleaned:
        story.run("clean", topic_schemas=str(story.folder / "schemas.toml"))
        require_cleaned(story, messages)
    require_report(story, messages)


# messages


def per_client(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["client_id"], []).append(row)
    return found


def require_messages(story: Story, rows: list[Row]) -> None:
    """Nothing is missing, nothing is there twice, nothing is other than it was sent."""
    assert len({place(row) for row in rows}) == len(rows)
    rows.sort(key=lambda row: (story.stage_of(row), row["journal_epoch"], row["journal_offset"]))
    found = per_client(rows)
    kept = len(found.get(LOST, ()))
    assert 0 < kept < GONE, "retention took all, or nothing"
    story.trimmed = GONE - kept
    wanted = per_client(story.sent())
    assert found.keys() == wanted.keys()
    for client_id, sent in wanted.items():
        own = [{name: row[name] for name in sent[0]} for row in found[client_id]]
        for row, expected in zip(own, sent, strict=False):
            others = [name for name, value in expected.items() if row[name] != value]
            assert not others, f"{client_id[:40]}: {[(name, row[name], expected[name]) for name in others]}"
        assert len(own) == len(sent), f"{client_id[:40]}: {len(own)} of {len(sent)}, sent last: {sent[-1]}"
        require_places(story, client_id, found[client_id])


def require_places(story: Story, client_id: str, rows: list[Row]) -> None:
    """Check the columns that the broker has made: of one client's rows, in the order in which they were sent."""
    stages = [stage for stage in story.clients.stages for row in story.sent_by(stage, client_id)]
    uuids = [story.homes[story.clients.stages.index(stage)] for stage in stages]
    for row, stage, homes in zip(rows, stages, uuids, strict=True):
        assert row["journal_uuid"] == homes[Homes(len(homes)).of_client("default", client_id)]
        assert stage.began_us <= us(row["publish_timestamp"]) <= stage.ended_us
        assert row["date"] == row["publish_timestamp"].date()
        own = [pair["value"] for pair in row["user_properties"] if pair["name"] == "message-id"][:1]
        name = client_id.replace("%", "%25").replace("/", "%2F")
        where = f"{row['journal_uuid']}:{row['journal_epoch']}:{row['journal_offset']}"
        wanted = f"client:default/{name}/{own[0]}" if own and own[0] else f"journal:{where}"
        assert row["message_id"] == wanted
        assert (row["incarnation"] == 0) == (client_id == DEVICE), "a frame has no session"
        assert row["incarnation"] <= row["journal_offset"]
    times = [row["publish_timestamp"] for row in rows]
    assert times == sorted(times)


def us(at: datetime) -> int:
    return (at - EPOCH) // US


# The tables of metrics


def sums(rows: Iterable[Row], measure: str, *key: str) -> dict[tuple[Any, ...], Any]:
    """Return what a measure adds up to, by key; keys of nothing are left out."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        found[tuple(row[name] for name in key)] += row[measure]
    return {key: value for key, value in found.items() if value}


def floored(at: datetime, unit_s: int) -> datetime:
    return EPOCH + timedelta(microseconds=us(at) // (unit_s * 1_000_000) * unit_s * 1_000_000)


def published(messages: Iterable[Row]) -> list[Row]:
    """Return the rows of `messages` with what `traffic` and `usage` count of them."""
    found = []
    for row in messages:
        at = row["publish_timestamp"]
        own = {"window_start": floored(at, WINDOW_S), "hour_start": floored(at, HOUR_S), "messages": 1}
        own |= {"topic_prefix": "/".join(row["topic"].split("/")[:2]), "payload_bytes": len(row["payload"])}
        found.append(row | own)
    return found


def require_traffic(story: Story, messages: list[Row]) -> None:
    sent, traffic = published(messages), story.rows("traffic")
    key = ("window_start", "date", "tenant", "topic_prefix", "client_id", "protocol", "journal_uuid")
    for measure in ("messages", "payload_bytes"):
        assert sums(traffic, measure, *key) == sums(sent, measure, *key)
    last = {}
    for row in sorted(messages, key=lambda row: (row["publish_timestamp"], row["journal_offset"])):
        last[row["client_id"], row["topic"]] = row
    devices = story.rows("devices")
    assert len(devices) == len(last)
    for row in devices:
        wanted = last[row["client_id"], row["topic"]]
        assert row == {name: wanted[name] for name in row}


def require_deliveries(story: Story) -> None:
    clients, deliveries = story.clients, story.rows("deliveries")
    assert {row["tenant"] for row in deliveries} == {"default"}
    for measure, wanted in (("messages", clients.delivered), ("payload_bytes", clients.delivered_bytes)):
        assert sums(of_known(deliveries), measure, "client_id", "outcome") == +wanted
    began, ended = floored(at(clients.stages[0].began_us), WINDOW_S), at(clients.stages[-1].ended_us)
    replayed = 0
    for row in deliveries:
        assert began <= row["window_start"] <= ended
        assert row["window_start"] == floored(row["window_start"], WINDOW_S)
        assert row["date"] == row["window_start"].date()
        if row["outcome"] != "acked":
            assert row["latency_ms"] is None
        elif row["latency_ms"] is None:
            replayed += row["messages"]
        else:
            assert 0 < row["latency_ms"] * 6 / 7 <= (ended - began) / timedelta(milliseconds=1)
    assert replayed == clients.replayed


def of_known(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows but those of what expired on its way to WATCHER: nobody knows from outside how much that was."""
    yield from (row for row in rows if (row["client_id"], row["outcome"]) != (WATCHER, "expired"))


def at(time_us: int) -> datetime:
    return EPOCH + timedelta(microseconds=time_us)


def require_connections(story: Story) -> None:
    found = per_client(story.rows("connections"))
    found.pop(LOST, None)  # retention may have taken the record of it
    wanted: dict[str, list[Any]] = {}
    for connection in story.clients.connections:
        if connection.client_id != LOST:
            wanted.setdefault(connection.client_id, []).append(connection)
    assert {name: len(rows) for name, rows in found.items()} == {
        name: len(rows) for name, rows in wanted.items()
    }
    for client_id, connections in wanted.items():
        rows = sorted(found[client_id], key=lambda row: row["connected_timestamp"])
        for row, connection in zip(rows, connections, strict=True):
            earliest, latest = connection.began_us
            assert earliest - PASS_US <= us(row["connected_timestamp"]) <= latest
            assert connection.ended_us <= us(row["disconnected_timestamp"])
            assert row["date"] == row["connected_timestamp"].date()
            assert row["incarnation"] <= row["connected_offset"]
            assert row["tenant"] == "default"
            assert row["end"] == ("closed" if connection.outlived else "ended")
        for row, later in pairwise(rows):
            assert row["disconnected_timestamp"] <= later["connected_timestamp"]


def require_usage(story: Story, messages: list[Row]) -> None:
    usage, deliveries = story.rows("usage"), story.rows("deliveries")
    key = ("hour_start", "tenant", "journal_uuid")
    sent = published(messages)
    assert sums(usage, "messages_in", *key) == sums(sent, "messages", *key)
    assert sums(usage, "bytes_in", *key) == sums(sent, "payload_bytes", *key)
    done = [row | {"hour_start": floored(row["window_start"], HOUR_S)} for row in deliveries]
    out = [row for row in done if row["outcome"] in ("acked", UNRECORDED)]
    assert sums(usage, "messages_out", *key) == sums(out, "messages", *key)
    assert sums(usage, "bytes_out", *key) == sums(out, "payload_bytes", *key)
    dropped = [row for row in done if row["outcome"] not in ("acked", UNRECORDED)]
    assert sums(usage, "messages_dropped", *key) == sums(dropped, "messages", *key)
    connected = [
        row
        | {
            "hour_start": floored(row["disconnected_timestamp"], HOUR_S),
            "connections": 1,
            "us": (row["disconnected_timestamp"] - row["connected_timestamp"]) // US,
        }
        for row in story.rows("connections")
    ]
    assert sums(usage, "connections", *key) == sums(connected, "connections", *key)
    assert sums(usage, "connected_s", *key) == pytest.approx(
        {key: value / 1e6 for key, value in sums(connected, "us", *key).items()}
    )
    for row in usage:
        assert row["date"] == row["hour_start"].date()


def require_backlog(story: Story, messages: list[Row]) -> None:
    """What waits for each session, and what the job remembers of it."""
    clients, backlog = story.clients, story.rows("backlog")
    waiting = {client_id: sizes for client_id, sizes in clients.waiting.items() if sizes}
    rows = {row["client_id"]: row for row in backlog if row["client_id"] != WATCHER}
    assert {name: row["messages"] for name, row in rows.items()} == {
        name: len(each) for name, each in waiting.items()
    }
    counted = sorted(row["publish_timestamp"] for row in messages if row["topic"] == "count")
    for client_id, row in rows.items():
        assert row["oldest_timestamp"] == counted[-len(waiting[client_id])]
        assert (
            row["journal_uuid"]
            == story.homes[-1][Homes(len(story.homes[-1])).of_client("default", client_id)]
        )
    for row in backlog:
        assert clients.stages[-1].began_us <= us(row["as_of_timestamp"]) <= clients.stages[-1].ended_us
        assert row["tenant"] == "default"


def require_remembered(story: Story) -> None:
    """What the job goes on with: the sessions that are there, none of them connected, and what waits for each."""
    uuids = story.homes[-1]
    newest: dict[tuple[Any, ...], Row] = {}
    for row in sorted(story.rows("metrics_state"), key=lambda row: row["up_to_offset"]):
        assert row["journal_uuid"] in uuids, "a journal that nobody writes any more"
        newest[tuple(row[name] for name in STATE_KEY)] = row
    left = [row for row in newest.values() if not row["gone"]]
    sessions = {
        (row["journal_uuid"], row["incarnation"]): row["client_id"]
        for row in left
        if row["kind"] == "session"
    }
    # Those of MQTT 3 that leave with their connection, and what a shard keeps for members elsewhere.
    named = {name for name in sessions.values() if name and not name.startswith(("$", MEMBER_PREFIX))}
    assert named == {each.client_id for each in story.clients.connections if each.outlived}
    assert not [row for row in left if row["connected_offset"] is not None]
    waiting: dict[str, list[int]] = {}
    for row in sorted((row for row in left if row["kind"] == "entry"), key=lambda row: row["serial"]):
        waiting.setdefault(sessions[row["journal_uuid"], row["incarnation"]], []).append(row["payload_bytes"])
    waiting.pop(WATCHER, None)
    assert waiting == {client_id: sizes for client_id, sizes in story.clients.waiting.items() if sizes}


# clean, and the report


def require_cleaned(story: Story, messages: list[Row]) -> None:
    """Each message is in one of `clean`, `quarantine` and `repeats`, with the value that it was sent with."""
    tables = {name: table(story.lake, name) for name in ("clean", "quarantine", "repeats")}
    assert sum(map(len, tables.values())) == len(messages)
    repeated = repeats_of(messages)
    assert tables["repeats"].keys() == repeated
    for row in messages:
        name, own = ("repeats", {}) if place(row) in repeated else cleaned(story.lake, row)
        found = tables[name].get(place(row))
        assert found is not None, (name, own, row["payload"])
        if (whole := found.get("whole")) is not None:
            rescued = json.loads(whole.pop("_rescued") or "{}", parse_float=Decimal)
            given = json.loads(row["payload"].decode().removeprefix("\ufeff"), parse_float=Decimal)
            assert rescued == {key: value for key, value in given.items() if key not in TYPES}
        wanted = {column: row[column] for column in found if column in row} | own
        assert found == wanted, row["payload"]


def require_report(story: Story, messages: list[Row]) -> None:
    """Every number of the report's page is that of the tables, which are what was sent."""
    figures = collect(story.lake, 3, WINDOW_S)
    assert figures.missing == ([] if story.is_cleaned else ["quarantine"])
    require_reported_traffic(story, figures, published(messages))
    require_reported_deliveries(story, figures)
    require_reported_sessions(story, figures, messages)
    if story.is_cleaned:
        quarantine = Counter(row["reason"] for row in story.rows("quarantine"))
        assert figures.quarantine == sorted(quarantine.items(), key=lambda pair: (-pair[1], pair[0]))


def require_reported_traffic(story: Story, figures: Figures, sent: list[Row]) -> None:
    assert figures.traffic is not None
    traffic = figures.traffic
    assert traffic.messages == len(sent)
    assert traffic.payload_bytes == sum(row["payload_bytes"] for row in sent)
    assert traffic.publishers == len({row["client_id"] for row in sent})
    assert dict(traffic.protocols) == Counter(row["protocol"] for row in sent)
    assert traffic.devices == 1
    topics = Counter(row["topic_prefix"] for row in sent)
    assert traffic.topics == sorted(topics.items(), key=lambda pair: (-pair[1], pair[0]))[:10]
    windows = Counter(row["window_start"] for row in sent)
    assert [(at, round(rate * WINDOW_S)) for at, rate in traffic.rates if rate] == sorted(windows.items())


def require_reported_deliveries(story: Story, figures: Figures) -> None:
    settled = [row for row in story.rows("deliveries") if row["outcome"] != UNRECORDED]
    outcomes: Counter[str] = Counter()
    latencies: list[float] = []
    for row in settled:
        outcomes[row["outcome"]] += row["messages"]
        latencies += [row["latency_ms"]] * row["messages"] if row["latency_ms"] is not None else []
    assert figures.deliveries is not None
    deliveries = figures.deliveries
    assert (deliveries.acked, deliveries.settled) == (outcomes["acked"], outcomes.total())
    assert deliveries.accuracy == outcomes["acked"] / outcomes.total()
    assert dict(deliveries.drops) == {name: count for name, count in outcomes.items() if name != "acked"}
    latencies.sort()
    for share, found in deliveries.latency_ms.items():
        assert found == latencies[-(-len(latencies) * share // 100) - 1]


def require_reported_sessions(story: Story, figures: Figures, messages: list[Row]) -> None:
    connections, backlog = story.rows("connections"), story.rows("backlog")
    online_s = sum(
        (row["disconnected_timestamp"] - row["connected_timestamp"]).total_seconds() for row in connections
    )
    assert figures.connections is not None
    said = figures.connections
    clients = {row["client_id"] for row in connections}
    assert (said.online, said.sessions, said.clients) == (0, len(connections), len(clients))
    assert said.online_s == pytest.approx(online_s)
    assert figures.usage is not None
    [used] = figures.usage
    deliveries = sums(story.rows("deliveries"), "messages", "outcome")
    out = deliveries["acked",] + deliveries[UNRECORDED,]
    assert (used.tenant, used.messages_in, used.messages_out) == ("default", len(messages), out)
    assert used.messages_dropped == sum(deliveries.values()) - out
    assert used.bytes_in == sum(len(row["payload"]) for row in messages)
    assert used.bytes_out == sum(
        row["payload_bytes"] for row in story.rows("deliveries") if row["outcome"] in ("acked", UNRECORDED)
    )
    assert used.connections == len(connections)
    assert used.connected_s == pytest.approx(online_s)
    assert figures.backlog is not None
    assert figures.backlog.messages == sum(row["messages"] for row in backlog)
    assert dict(figures.backlog.longest) == {
        f"default/{row['client_id']}": row["messages"] for row in backlog
    }
    oldest = max((row["as_of_timestamp"] - row["oldest_timestamp"]).total_seconds() for row in backlog)
    assert figures.backlog.oldest_s == pytest.approx(oldest)
