"""What `cluster status` makes of the roster and of the group's members."""

from __future__ import annotations

from dataclasses import replace

from headrace.storage.kafka.presence import presence
from headrace.storage.kafka.roster import (
    NodeEntry,
    Roster,
    ShardEntry,
    node_key,
    pack_entry,
    shard_key,
)

ENTRY = NodeEntry("127.0.0.1:7000", "1.0", 1, "abcd")


def roster(*entries: NodeEntry) -> Roster:
    """Nodes n0, n1 ..., each of which owns the shard of its number."""
    found = Roster("T")
    for number, entry in enumerate(entries):
        found.take(number, node_key(f"n{number}"), pack_entry("T", entry))
        found.take(50 + number, shard_key(number), pack_entry("T", ShardEntry(7, number)))
    return found


def test_all_is_well_where_every_shard_has_an_owner_that_lives() -> None:
    found = presence(roster(ENTRY, ENTRY), 2, {"n0/0": [0], "n1/0": [1]})
    assert found.problems == []
    assert [(node.node, node.lives, node.shards) for node in found.nodes] == [
        ("n0", True, [0]),
        ("n1", True, [1]),
    ]
    assert [(one.shard, one.owner, one.epoch) for one in found.owners] == [(0, "n0", 7), (1, "n1", 7)]


def test_who_is_away_and_what_nobody_owns_is_a_problem() -> None:
    found = presence(roster(ENTRY, ENTRY), 4, {"n1/0": []})
    assert found.problems == [
        "node n0 is away: start it, or remove it (headrace cluster remove n0)",
        "nobody owns shard 2, 3 now",
    ]


def test_nodes_that_differ_are_named_by_what_they_differ_in() -> None:
    other = replace(ENTRY, config="ef01", version="1.1")
    found = presence(roster(ENTRY, other), 2, {"n0/0": [], "n1/0": []})
    assert found.problems == [
        "the configurations of the nodes differ: abcd, ef01",
        "the releases of the nodes differ: 1.0, 1.1",
    ]


def test_a_cluster_whose_nodes_share_nothing_has_no_such_problems() -> None:
    assert presence(Roster("T"), 3, {}).problems == []
