"""`metrics` over a directory that was divided: the shards go on with the queues, and nothing of before stays behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from broker_process import BrokerProcess, headrace, make_broker
from e2e.raw import RawClient
from e2e.wire import NEVER, PUBACK, PUBLISH, SESSION_EXPIRY
from headrace.core.homes import MEMBER_PREFIX
from headrace.services.sessions import details
from headrace.storage.embedded.recovery import folded
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.source.journal import open_journals
from spark.jobs.test_metrics_shards import run

pytestmark = [pytest.mark.spark, pytest.mark.time_limit(300)]

CLIENTS = [f"device-{n}" for n in range(8)]
MEMBERS = ["member-0", "member-1"]
GROUPS = ["red", "green", "blue"]
SHARDS = 2
PERSISTENT: dict[str, Any] = {"clean": False, "properties": {SESSION_EXPIRY: NEVER}}


def client_of(broker: BrokerProcess, client_id: str, **connect: Any) -> RawClient:
    client = RawClient(broker.address, client_id, version=5)
    client.connect(**(connect or PERSISTENT))
    return client


def leave(client: RawClient) -> None:
    client.disconnect()
    client.close()


def take(client: RawClient, count: int) -> None:
    for _ in range(count):
        client.ack(PUBACK, client.expect(PUBLISH).packet_id)
    client.ping()


def waiting(data_dir: Path) -> Counter[str]:
    """What waits in the queue of each client that may come back, as the broker has it."""
    found = Counter[str]()
    for shard, journal in enumerate(open_journals(data_dir)):
        for session in folded(Path(journal.location), shard, SHARDS).by_incarnation.values():
            told: Any = details(session)
            if not session.client_id.startswith(MEMBER_PREFIX) and told["expiry_s"] != 0:
                found[session.client_id] += told["inflight"] + told["backlog"]
    return +found


def rows(lake: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(lake / table).to_pyarrow_table().to_pylist()
    return found


def before(broker: BrokerProcess) -> datetime:
    """Queues of sessions and groups, who was there for one connection, and who is connected when the broker is killed:
    that moment is returned. The shards keep a message that is older than all of it."""
    early = client_of(broker, "early")
    early.deliver("early", b"kept", 1, retain=True)
    leave(early)
    for client_id in CLIENTS:
        client = client_of(broker, client_id)
        client.subscribe(f"to/{client_id}", "all", qos=1)
        leave(client)
    for client_id in MEMBERS:
        client = client_of(broker, client_id)
        client.subscribe(*(f"$share/{group}/work" for group in GROUPS), qos=1)
        leave(client)
    passing = client_of(broker, "passing", clean=True)
    passing.subscribe("all", qos=1)
    publisher = client_of(broker, "publisher")
    for n in range(24):
        publisher.deliver(f"to/{CLIENTS[n % 5]}", b"%d" % n, 1)
    for n in range(4):
        publisher.deliver("all", b"%d" % n, 1)
        publisher.deliver("work", b"%d" % n, 1)
    broker.kill()
    passing.close()
    publisher.close()
    return datetime.now(UTC)


def after(broker: BrokerProcess) -> None:
    """Some are back, and take all or a part; others get more."""
    publisher = client_of(broker, "publisher")
    for client_id in CLIENTS[4:]:
        publisher.deliver(f"to/{client_id}", b"later", 1)
    publisher.deliver("all", b"later", 1)
    client = client_of(broker, CLIENTS[0])
    take(client, 5 + 4 + 1)
    leave(client)
    member = client_of(broker, MEMBERS[0])
    take(member, 4 * len(GROUPS))
    leave(member)
    leave(publisher)


@pytest.mark.parametrize(
    "places",
    [
        pytest.param((), id="not cut off", marks=pytest.mark.deep),
        pytest.param(range(2, 100, 5), id="cut off here and there"),
        pytest.param(range(1, 100), id="cut off anywhere", marks=pytest.mark.deep),
    ],
)
def test_shards_go_on_where_the_journal_ended(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: Sequence[int]
) -> None:
    lake = tmp_path / "lake"
    old = make_broker(tmp_path / "old").start()
    new = make_broker(tmp_path / "new", extra=["--workers", "2"])
    try:
        killed = before(old)
        [journal] = open_journals(old.data_dir)
        uuid = journal.uuid
        run(spark, old.data_dir, lake)
        count = {row["client_id"]: row["messages"] for row in rows(lake, "backlog")}
        assert sum(count[client_id] for client_id in CLIENTS) == 24 + 4 * len(CLIENTS)
        command = ("reshard", "--data-dir", str(old.data_dir), "--to", str(new.data_dir))
        done = headrace(*command, "--shards", str(SHARDS))
        assert done.returncode == 0, done.stderr
        new.start()
        after(new)
        new.stop()
    finally:
        old.end()
        new.end()
    if places:
        cut_off(spark, new.data_dir, lake, monkeypatch, places)
    run(spark, new.data_dir, lake)
    backlog = rows(lake, "backlog")
    assert {row["client_id"]: row["messages"] for row in backlog} == waiting(new.data_dir)
    assert uuid not in {row["journal_uuid"] for row in backlog}
    assert uuid not in {row["journal_uuid"] for row in rows(lake, "metrics_state")}
    connections = rows(lake, "connections")
    assert [row for row in connections if row["disconnected_timestamp"] is None] == []
    assert Counter(row["client_id"] for row in connections) == Counter(
        CLIENTS + MEMBERS + ["early", "passing", "publisher"] + ["publisher", CLIENTS[0], MEMBERS[0]]
    )
    assert all(row["disconnected_timestamp"] >= row["connected_timestamp"] for row in connections)
    cut = [row for row in connections if row["end"] == "broker_started"]
    assert {row["client_id"] for row in cut} == {"passing", "publisher"}
    assert all(killed <= row["disconnected_timestamp"] < datetime.now(UTC) for row in cut)
    connected_s = sum(
        (row["disconnected_timestamp"] - row["connected_timestamp"]).total_seconds() for row in connections
    )
    assert sum(row["connected_s"] for row in rows(lake, "usage")) == pytest.approx(connected_s)
    assert sum(row["connections"] for row in rows(lake, "usage")) == len(connections)
    delivered = Counter[str]()
    for row in rows(lake, "deliveries"):
        assert row["client_id"] is not None, row
        if row["outcome"] == "acked":
            delivered[row["client_id"]] += row["messages"]
            assert row["latency_ms"] is not None, "the message was published in the journal that was divided"
    assert delivered == {CLIENTS[0]: 10} | {f"$share/{group}/work": 4 for group in GROUPS}
    assert run(spark, new.data_dir, lake).rows == 0
    assert len(rows(lake, "connections")) == len(connections)


class Cut(Exception):
    """Stands for a kill -9 between two commits."""


def cut_off(
    spark: SparkSession, data_dir: Path, lake: Path, monkeypatch: pytest.MonkeyPatch, places: Sequence[int]
) -> None:
    """Let the job end before the commits of the tables at these places in turn, until it comes to its end."""
    add: Callable[..., None] = LakeTable.add_files
    for place in places:
        left = place

        def cut(of: LakeTable, *about: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Cut
            add(of, *about)

        with monkeypatch.context() as patch:
            patch.setattr(LakeTable, "add_files", cut)
            try:
                run(spark, data_dir, lake)
            except Cut:
                continue
            return
    raise AssertionError("it never came to its end")
