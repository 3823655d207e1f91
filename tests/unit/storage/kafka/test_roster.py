"""The roster of a cluster: what its records tell of nodes and owners, in whatever order and shape they come."""

from __future__ import annotations

import json

import pytest

from headrace.storage.kafka.roster import (
    NO_RUN,
    NodeEntry,
    Roster,
    ShardEntry,
    node_key,
    pack_entry,
    shard_key,
)

ENTRY = NodeEntry("127.0.0.1:7000", "1.0", 1, "abcd")


def node(name: str, offset: int, cluster: str = "T") -> tuple[int, bytes, bytes]:
    return offset, node_key(name), pack_entry(cluster, ENTRY)


def shard(number: int, epoch: int, run: int, cluster: str = "T") -> tuple[int, bytes, bytes]:
    return 99, shard_key(number), pack_entry(cluster, ShardEntry(epoch, run))


def roster(*records: tuple[int, bytes | None, bytes | None]) -> Roster:
    found = Roster("T")
    for record in records:
        found.take(*record)
    return found


def owner(found: Roster, number: int) -> str:
    known = found.owner(number)
    return "" if known is None else known.name


def test_a_node_is_known_by_its_newest_start_until_it_leaves() -> None:
    found = roster(node("a", 3), node("b", 4), node("a", 7))
    assert {name: known.run for name, known in found.nodes.items()} == {"a": 7, "b": 4}
    assert found.with_run(3) is None
    found.take(9, node_key("a"), None)
    assert list(found.nodes) == ["b"]


def test_the_owner_of_the_highest_epoch_counts_and_who_tells_late_is_noted() -> None:
    found = roster(node("a", 1), node("b", 2), shard(0, 10, 1), shard(0, 20, 2), shard(0, 10, 1))
    assert (owner(found, 0), found.late) == ("b", {0})
    assert owner(found, 1) == ""


def test_a_shard_of_a_node_that_has_left_or_begun_again_is_nobodys() -> None:
    assert owner(roster(node("a", 1), shard(0, 10, 1), node("a", 5)), 0) == ""
    assert owner(roster(node("a", 1), shard(0, 10, 1), (6, node_key("a"), None)), 0) == ""


def test_who_gives_a_shard_up_says_so_under_its_epoch() -> None:
    assert owner(roster(node("a", 1), shard(0, 10, 1), shard(0, 10, NO_RUN)), 0) == ""
    assert owner(roster(node("a", 1), node("b", 2), shard(0, 20, 2), shard(0, 10, NO_RUN)), 0) == "b"


def test_what_was_told_of_another_topic_means_nothing() -> None:
    found = roster(node("a", 1, "OLD"), shard(0, 1000, 1, "OLD"), node("b", 2), shard(0, 3, 2))
    assert (list(found.nodes), owner(found, 0)) == (["b"], "b")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"\xff", b"{}"),
        (b"node/a", b"no JSON"),
        (b"node/a", b"[1]"),
        (b"node/a", json.dumps({"level": 2, "cluster": "T"}).encode()),
        (b"node/a", json.dumps({"level": 1, "cluster": "T"}).encode()),
        (b"shard/x", pack_entry("T", ShardEntry(1, 1))),
        (b"shard/-1", pack_entry("T", ShardEntry(1, 1))),
        (b"shard/0", json.dumps({"level": 1, "cluster": "T", "epoch": [], "run": 1}).encode()),
        (b"shard/0", None),
        (b"else/0", b"{}"),
    ],
)
def test_a_record_that_makes_no_sense_is_passed_over(key: bytes | None, value: bytes | None) -> None:
    found = roster((5, key, value), node("b", 6))
    assert (list(found.nodes), found.shards) == (["b"], {})
