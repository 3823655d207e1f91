"""What a cluster's nodes tell each other in the compacted topic of owners: which nodes there are, and who owns shards.

A record's key says what it is of, and its value is JSON; the last record of a key counts, and one without a value takes
back what was told:

    node/NAME    {"level": 1, "cluster": topic id, "peer": HOST:PORT, "version": text, "format": level of the journal's
                 records, "config": digest of what all nodes should have alike}
    shard/N      {"level": 1, "cluster": topic id, "epoch": offset of the owner's OWNED, "run": of its node, or -1: it has
                 given the shard up}

`run` is the Kafka offset of a node's record: another one at each of its starts, and the higher the later. The topic id
is that of the journal: what was told of another one under the same name means nothing. A level that is not known, and a
record that makes no sense, are passed over. All of it is a hint to whoever looks for somebody: the epoch decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

LEVEL: Final = 1
NO_RUN: Final = -1
_NODE: Final = "node/"
_SHARD: Final = "shard/"


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """One node as it told of itself. `peer` is HOST:PORT where the others reach it."""

    peer: str
    version: str
    format: int
    config: str


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """The owner of a shard, as it told of itself: `epoch` orders owners. `run` NO_RUN: it has given the shard up."""

    epoch: int
    run: int


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node of the roster. `run` tells its starts apart."""

    name: str
    run: int
    entry: NodeEntry


def node_key(name: str) -> bytes:
    """Return the key of a node's record."""
    return f"{_NODE}{name}".encode()


def shard_key(shard: int) -> bytes:
    """Return the key of the record of a shard's owner."""
    return f"{_SHARD}{shard}".encode()


def pack_entry(topic_id: str, entry: NodeEntry | ShardEntry) -> bytes:
    """Return the value of a record."""
    return json.dumps({"level": LEVEL, "cluster": topic_id, **asdict(entry)}, sort_keys=True).encode()


@dataclass
class Roster:
    """The nodes and the owners of one cluster, as its records tell of them, given in their order. `nodes` is by name,
    `shards` by number."""

    topic_id: str
    nodes: dict[str, KnownNode] = field(default_factory=dict)
    shards: dict[int, ShardEntry] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    """The shards of which somebody has told who is not their owner any more: the topic keeps that until the owner tells
    again."""

    def take_all(self, records: Iterable[tuple[int, bytes | None, bytes | None]]) -> None:
        """Take records, each as Kafka offset, key and value."""
        for record in records:
            self.take(*record)

    def take(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Take the record at a Kafka offset."""
        try:
            kind, _, of = (key or b"").decode().partition("/")
            found = None if value is None else json.loads(value)
        except (UnicodeDecodeError, ValueError):
            return
        if found is not None and not self._is_of_cluster(found):
            return
        try:
            if kind == "node":
                self._take_node(of, offset, found)
            elif kind == "shard" and found is not None:
                self._take_shard(int(of), found)
        except (KeyError, TypeError, ValueError):
            return

    def _is_of_cluster(self, found: object) -> bool:
        return (
            isinstance(found, dict) and found.get("level") == LEVEL and found.get("cluster") == self.topic_id
        )

    def _take_node(self, name: str, offset: int, found: Mapping[str, Any] | None) -> None:
        if found is None:
            self.nodes.pop(name, None)
            return
        entry = NodeEntry(
            str(found["peer"]), str(found["version"]), int(found["format"]), str(found["config"])
        )
        self.nodes[name] = KnownNode(name, offset, entry)

    def _take_shard(self, shard: int, found: Mapping[str, Any]) -> None:
        """Note an owner, unless a later one is known: who was replaced may tell of itself late."""
        entry, known = ShardEntry(int(found["epoch"]), int(found["run"])), self.shards.get(shard)
        if known is not None and entry.epoch < known.epoch:
            self.late.add(shard)
        elif shard >= 0:
            self.shards[shard] = entry

    def with_run(self, run: int) -> KnownNode | None:
        """Return the node of a start, None once it has left or has been started again."""
        return next((node for node in self.nodes.values() if node.run == run), None)

    def owner(self, shard: int) -> KnownNode | None:
        """Return the node that owns a shard, as far as it is known and has not left."""
        entry = self.shards.get(shard)
        return None if entry is None else self.with_run(entry.run)
