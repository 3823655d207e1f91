"""`headrace cluster`: what is asked of Kafka, what is refused before, and what is printed."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from headrace.commands.cluster import lines, replication_for
from headrace.commands.main import cli
from headrace.storage.kafka.cluster_state import ClusterState, PartitionState, Replication
from headrace.storage.kafka.presence import NodePresence, Ownership, Presence, as_object


@pytest.mark.parametrize(
    ("brokers", "factor", "least", "found"),
    [
        (1, None, None, Replication(1, 1)),
        (1, 1, 1, Replication(1, 1)),
        (3, None, None, Replication(3, 2)),
        (5, None, None, Replication(3, 2)),
        (5, 5, 3, Replication(5, 3)),
        (3, 2, None, Replication(2, 2)),
        (3, 1, None, Replication(1, 1)),
        (3, 3, 1, Replication(3, 1)),
    ],
)
def test_replication_is_what_was_asked_for_or_the_usual_one(
    brokers: int, factor: int | None, least: int | None, found: Replication
) -> None:
    assert replication_for(brokers, factor, least) == found


@pytest.mark.parametrize(
    ("brokers", "factor", "least", "named"),
    [
        (2, None, None, "--replication"),
        (1, 3, None, "--replication"),
        (3, 4, None, "--replication"),
        (3, 2, 3, "--min-insync"),
        (1, None, 2, "--min-insync"),
    ],
)
def test_what_so_many_brokers_cannot_give_is_refused_by_its_option(
    brokers: int, factor: int | None, least: int | None, named: str
) -> None:
    with pytest.raises(click.BadParameter) as error:
        replication_for(brokers, factor, least)
    assert error.value.param_hint == named


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["create", "redis://127.0.0.1:1/x", "--shards", "2"], "URL"),
        (["create", "kafka://127.0.0.1:1/x"], "--shards"),
        (["create", "kafka://127.0.0.1:1/x", "--shards", "0"], "--shards"),
        (["create", "kafka://127.0.0.1:1/x", "--shards", "2", "--replication", "0"], "--replication"),
        (["create", "kafka://127.0.0.1:1/x", "--shards", "2", "--min-insync", "no"], "--min-insync"),
        (["status", "--cluster", "127.0.0.1:1/x"], "--cluster"),
        (["status"], "--cluster"),
        (["status", "--cluster", "kafka://127.0.0.1:1/x", "--admin", "http://127.0.0.1:1"], "--cluster"),
    ],
)
def test_wrong_use_ends_with_2_and_the_option_before_kafka_is_asked(arguments: list[str], named: str) -> None:
    result = CliRunner().invoke(cli, ["cluster", *arguments])
    assert result.exit_code == 2
    assert named in result.output


def test_a_person_is_told_of_each_shard_and_of_what_is_wrong() -> None:
    shards = [PartitionState(0, 1, [1, 2, 3], [1, 3], 0, 17), PartitionState(1, -1, [2, 3, 1], [], 4, 4)]
    state = ClusterState("AAAA", 2, shards, ["fleet.journal: retention.ms is 1, and must be -1"], [])
    owners = [Ownership(0, "n0", 3), Ownership(1, "", -1)]
    alone = Presence([], owners, [])
    assert lines(as_object("fleet", state, alone)) == [
        "cluster fleet: 2 shards, topic AAAA, min.insync.replicas 2",
        "shard 0: leader 1, 1,3 of 1,2,3 in sync, offsets 0 to 17",
        "shard 1: no leader, none of 2,3,1 in sync, offsets 4 to 4",
        "problem: fleet.journal: retention.ms is 1, and must be -1",
    ]
    nodes = [NodePresence("n0", False, "127.0.0.1:7000", "1.0", 1, "ab", 5, [0])]
    assert lines(as_object("fleet", state, Presence(nodes, owners, [])))[1:4] == [
        "node n0: 1 shards, peer 127.0.0.1:7000, version 1.0, format 1, configuration ab, away",
        "shard 0: owner n0, epoch 3, leader 1, 1,3 of 1,2,3 in sync, offsets 0 to 17",
        "shard 1: owner nobody, epoch -1, no leader, none of 2,3,1 in sync, offsets 4 to 4",
    ]
    found = as_object("fleet", state, Presence(nodes, owners, ["node n0 is away"]))
    asked = found | {"asked": "n1", "links": [{"node": "n0", "heard": False}]}
    assert lines(asked)[-3:] == [
        "link of node n1 to node n0: not heard",
        "problem: fleet.journal: retention.ms is 1, and must be -1",
        "problem: node n0 is away",
    ]
    printed, listed = found["shards"], found["nodes"]
    assert isinstance(printed, list)
    assert isinstance(listed, list)
    assert [(shard["owner"], shard["epoch"], shard["end"]) for shard in printed] == [
        ("n0", 3, 17),
        ("", -1, 4),
    ]
    assert (listed[0]["node"], listed[0]["shards"]) == ("n0", [0])
