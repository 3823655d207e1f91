"""Shared groups of several shards are counted once, where they are at home, and their members where these are."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from librt.strings import BytesWriter

from harness import Harness
from headrace.core.homes import MEMBER_PREFIX
from headrace.core.records.event import BROKER_STARTED, SESSION_CLOSED, SESSION_RESUMED, Event
from headrace.core.records.message import decode_batch
from headrace.journal.log import LogSettings, SegmentedLog
from headrace.storage.embedded.bootstrap import bootstrap
from headrace_spark.metrics.remembered import LOADED
from headrace_spark.metrics.session_rows import connection_rows, followed_of
from headrace_spark.metrics.sessions import Sessions, groups_of
from headrace_spark.source.journal_range import Place
from shard_wires import WiredShards
from spark.conftest import Writer
from spark.journals import Made
from spark.metrics.test_remembered import SINCE_US, added, known, nothing, session, subscription
from spark.metrics.test_settling import Counted, sums
from unit.core.shards.test_group_members import member, publish, share_in
from unit.storage.embedded.test_bootstrap import quietly, snapshot

SHARDS = 3
AT = 1_900_000_000_000_000


def written(shards: WiredShards, data_dir: Path) -> list[Writer]:
    """The journals of shards on disk."""
    found = []
    for number in range(SHARDS):
        writer, made, offset = Writer(data_dir / str(number)), Made(), 0
        for body in shards[number].journal.bodies:
            records = decode_batch(body, offset)
            offset += len(records)
            for record in records:
                made.add(record)
        writer.write(made)
        found.append(writer)
    return found


@pytest.mark.parametrize("cuts", [1, 3])
@pytest.mark.parametrize("home", range(SHARDS))
def test_a_group_and_its_members_are_counted_once(tmp_path: Path, home: int, cuts: int) -> None:
    """Three members, one in each shard, of which one acknowledges nothing; the group is in one shard."""
    shards = WiredShards(SHARDS)
    share = share_in(shards, home)
    members = [member(shards, number, share) for number in range(SHARDS)]
    publish(shards, 0, [b"%d" % number for number in range(9)])
    acknowledged = 0
    for client in members[1:]:
        for packet_id, *_ in client.publishes():
            client.ack(packet_id)
            acknowledged += 1
    shards.carry()
    assert 0 < acknowledged < 9
    members[1].lose()
    shards.carry()
    connections: set[str | None] = set()
    outcomes: Counter[tuple[str, ...]] = Counter()
    backlog: Counter[str] = Counter()
    used = Counter[str]()
    for number, writer in enumerate(written(shards, tmp_path)):
        end = len(writer.made.records)
        counted = Counted(
            tmp_path / f"lake-{number}", writer.data_dir, random.Random(1), Place(number, SHARDS)
        )
        bounds = [end * cut // cuts for cut in range(cuts + 1)]
        for first, last in pairwise(bounds):
            counted.count(first, last)
        connections |= {client for _, client, _ in counted.connections.values()}
        outcomes += sums(counted.rows.get("deliveries", []), "messages", "client_id", "outcome")
        backlog.update({row["client_id"]: row["messages"] for row in counted.backlog})
        for row in counted.rows["usage"]:
            used.update({name: row[name] for name in ("messages_in", "messages_out", "connections")})
    assert not any(str(client).startswith(MEMBER_PREFIX) for client in connections)
    assert len(connections) == SHARDS + 1
    assert outcomes == {(share, "acked"): acknowledged}
    assert backlog == {share: 9 - acknowledged}
    assert (used["messages_in"], used["messages_out"]) == (9, acknowledged)
    assert used["connections"] == 1


def test_groups_of_other_shards_that_an_older_headrace_remembered_are_forgotten() -> None:
    shares = {share_in(WiredShards(SHARDS), home): home for home in range(SHARDS)}
    groups = [session(-70_000 - home, 5, client_id=share) for share, home in shares.items()]
    filters = [subscription(-70_000 - home, "a/#", 5) for home in shares.values()]
    members = [subscription(1, share, 5) for share in shares]
    before = known(*groups, *filters, *members, session(1, 5))
    for home in range(SHARDS):
        sessions = Sessions(before, Place(home, SHARDS))
        assert list(groups_of(sessions.remembered).values()) == [-70_000 - home]
        assert sorted(sessions.remembered.incarnations.tolist()) == [-70_000 - home, 1]
        assert np.isin(sessions.remembered.subscribers, [-70_000 - home, 1]).all()
        about = {"event_timestamp": SINCE_US, "journal_offset": 200, "incarnation": 1}
        sessions.apply(about | {"kind": "session_ended"})
        gone = [row["incarnation"] for row in added(sessions, nothing()) if row["gone"]]
        assert sorted(gone) == [-70_000 - home, 1]
    assert Sessions(before).remembered is before


def test_a_session_from_before_the_first_range_is_its_clients_and_its_connection_ends() -> None:
    """As the first sessions of a journal that `headrace reshard` has made."""
    about = {"tenant": "acme", "client_id": "one", "incarnation": 7, "session_expiry_s": 3600}
    first = Sessions(known())
    first.apply(
        about | {"kind": "session_resumed", "event_timestamp": SINCE_US, "journal_offset": 20, "item": 0}
    )
    state = [dict.fromkeys(LOADED) | row for row in added(first, nothing())]
    for row in state:
        row["connected_timestamp"] = SINCE_US
    later = Sessions(known(*({name: row[name] for name in LOADED} for row in state)))
    names = followed_of(later).names.to_pylist()
    assert names == [{"tenant": "acme", "client_id": "one"}]
    row = about | {"event_timestamp": SINCE_US + 5, "item": 0, "qos": 1, "no_local": False}
    later.apply(row | {"kind": "subscribed", "topic_filter": "a", "journal_offset": 30})
    later.apply(row | {"kind": "retained_queued", "journal_offset": 31})
    assert (later.subscriptions, later.retained) == ([], [])
    later.apply(row | {"kind": "session_closed", "journal_offset": 32})
    [ended] = connection_rows(later, "uuid").to_pylist()
    assert (ended["tenant"], ended["client_id"], ended["end"]) == ("acme", "one", "closed")


@pytest.mark.parametrize("cut", [None, 1, 5])
def test_what_a_bootstrap_brought_is_no_connection_and_costs_nothing(tmp_path: Path, cut: int | None) -> None:
    """Nobody was connected to this broker before it had started, though its journal begins with sessions."""
    before = Harness()
    for number in range(4):
        client = before.client(f"c{number}", version=5)
        client.subscribe(f"t/{number}")
        client.publish("kept", b"%d" % number, retain=True)
        if number % 2:
            client.lose()
    data = tmp_path / "data"
    bootstrap(snapshot(before, tmp_path), data, quietly)
    with closing(SegmentedLog.open(data, LogSettings(), lambda _line: None)) as log:
        for event in (
            Event(BROKER_STARTED, AT, {}),
            Event(
                SESSION_RESUMED, AT + 1, {"t": "default", "c": "c0", "inc": 4, "ex": 60, "v": 5, "lim": 32}
            ),
            Event(
                SESSION_CLOSED,
                AT + 3_600_001,
                {"t": "default", "c": "c0", "inc": 4, "ex": 60, "lim": 32, "will": 0},
            ),
        ):
            body = BytesWriter()
            event.encode_into(body)
            log.append(body.getvalue(), 1, AT, AT)
        end = log.next_offset
    counted = Counted(tmp_path / "lake", data, random.Random(1))
    bounds = [0, *([] if cut is None else [cut]), end]
    for first, last in pairwise(bounds):
        counted.count(first, last)
    assert counted.connections == {end - 2: ("default", "c0", "closed")}
    assert sums(counted.rows["usage"], "connections", "tenant") == {("default",): 1}
    assert sum(row["connected_s"] for row in counted.rows["usage"]) == 3.6
    assert sum(row["messages_in"] for row in counted.rows["usage"]) == 0
    assert [row["client_id"] for row in counted.backlog] == []
