"""What a cluster's topics in Kafka are like, and what of it is not as it must be. Needs no client of Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

RECORD_BYTES_MAX: Final = 16 << 20
# What journals and snapshots need: nothing in them goes by itself, and no broker leads that lacks what was acknowledged.
LOG_SETTINGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
    "max.message.bytes": str(RECORD_BYTES_MAX),
}


@dataclass(frozen=True, slots=True)
class Replication:
    """The number of brokers that hold each partition, and of those that must before an append is acknowledged."""

    factor: int
    in_sync_min: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One shard's journal: the brokers that lead it, hold it and are in sync; its Kafka offsets, from the oldest record
    to behind the newest."""

    shard: int
    leader: int
    replicas: list[int]
    in_sync: list[int]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What a cluster's topics are like now. `topic_id` is Kafka's own name of the journal, another one for each topic
    that is ever made; `problems` has a line for everything that is not as it must be, and `unsafe` those of them by
    which acknowledged messages may be lost."""

    topic_id: str
    in_sync_min: int
    shards: list[PartitionState]
    problems: list[str]
    unsafe: list[str]


def differences(topic: str, config: dict[str, str]) -> list[str]:
    """Return a line for each setting of a topic that is not what a journal needs."""
    return [
        f"{topic}: {name} is {config.get(name)}, and must be {wanted}"
        for name, wanted in LOG_SETTINGS.items()
        if config.get(name) != wanted
    ]


def added_partitions(counts: dict[str, int]) -> list[str]:
    """Return a line for each topic with more partitions than there are shards. `counts` has those of all topics that are
    made with one a shard: whoever adds some does so to one topic, and nothing of them is used."""
    shards = min(counts.values())
    return [
        f"{topic}: {count} partitions, and there are {shards} shards, for good: the others are not used"
        for topic, count in counts.items()
        if count > shards
    ]


def lack_of_replicas(topic: str, shards: list[PartitionState], in_sync_min: int) -> list[str]:
    """Return a line for what cannot be acknowledged now, and one if a broker alone acknowledges what several hold."""
    problems = []
    short = [str(one.shard) for one in shards if len(one.in_sync) < in_sync_min]
    if short:
        problems.append(f"{topic}: fewer than {in_sync_min} replicas are in sync of shard {', '.join(short)}")
    if in_sync_min < 2 and any(len(one.replicas) > 1 for one in shards):
        problems.append(f"{topic}: min.insync.replicas is {in_sync_min}, so one broker alone acknowledges")
    return problems
