"""What is said of topics that somebody has changed, and of replicas that are missing."""

from __future__ import annotations

import pytest

from headrace.storage.kafka.cluster_state import (
    LOG_SETTINGS,
    PartitionState,
    added_partitions,
    differences,
    lack_of_replicas,
)


def test_topics_as_they_are_made_are_as_they_must_be() -> None:
    assert differences("t", LOG_SETTINGS | {"compression.type": "lz4"}) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "compact"),
        ("retention.ms", "604800000"),
        ("retention.bytes", "1073741824"),
        ("unclean.leader.election.enable", "true"),
        ("max.message.bytes", "1048588"),
    ],
)
def test_a_setting_that_may_lose_messages_is_named(name: str, value: str) -> None:
    (line,) = differences("t.journal", LOG_SETTINGS | {name: value})
    assert line == f"t.journal: {name} is {value}, and must be {LOG_SETTINGS[name]}"


def shard(number: int, replicas: list[int], in_sync: list[int]) -> PartitionState:
    return PartitionState(number, replicas[0], replicas, in_sync, 0, 0)


def test_replicas_that_are_away_are_named_where_too_few_are_left() -> None:
    shards = [shard(0, [1, 2, 3], [1, 2]), shard(1, [2, 3, 1], [2]), shard(2, [3, 1, 2], [3, 1, 2])]
    assert lack_of_replicas("t", shards, 2) == ["t: fewer than 2 replicas are in sync of shard 1"]
    assert lack_of_replicas("t", [shard(0, [1], [1])], 1) == []


def test_one_broker_that_acknowledges_alone_is_named() -> None:
    (line,) = lack_of_replicas("t", [shard(0, [1, 2, 3], [1, 2, 3])], 1)
    assert "one broker alone acknowledges" in line


def test_partitions_beyond_the_shards_are_named() -> None:
    assert added_partitions({"a.journal": 2, "a.snapshots": 2, "a.shards": 2}) == []
    (line,) = added_partitions({"a.journal": 2, "a.snapshots": 5, "a.shards": 2})
    assert line.startswith("a.snapshots: 5 partitions, and there are 2 shards")
