"""One node's entry in the roster of its cluster: it says that the node is there and which shards it owns, and hears the
same of the others.

Entering waits for Kafka. A name is that of one node: where a member of the group of nodes has it, whoever comes second is
refused, once that one has had the time in which Kafka notices that a member is dead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from headrace.errors import ConfigError
from headrace.storage.kafka.cluster_url import ClusterUrl
from headrace.storage.kafka.group import SESSION_S, group_of
from headrace.storage.kafka.registry import Record, Registry, members_of
from headrace.storage.kafka.roster import (
    NO_RUN,
    NodeEntry,
    Roster,
    ShardEntry,
    node_key,
    pack_entry,
    shard_key,
)

DEAD_WITHIN_S: Final = SESSION_S + 4.0  # a member that was killed is none any more
AGAIN_S: Final = 0.5


class NotAdmitted(ConfigError):
    """The cluster has what this node is not to be beside."""


def wait_for_absence(url: ClusterUrl, topic: str, is_foreign: Callable[[str], bool], within_s: float) -> str:
    """Wait until no member of the group over a topic is foreign; return the name of one that stays so long, else ""."""
    deadline = time.monotonic() + within_s
    while True:
        found = next((name for name in members_of(url, group_of(topic)) if is_foreign(name)), "")
        if not found or time.monotonic() >= deadline:
            return found
        time.sleep(AGAIN_S)


class Enrolment:
    """A node in the roster. `run` is the number of this start of it, NO_RUN before it has entered."""

    def __init__(self, url: ClusterUrl, node: str, topic_id: str) -> None:
        """Begin without a word to Kafka. Raises KafkaUnusable."""
        self.node = node
        self.run = NO_RUN
        self.roster = Roster(topic_id)
        self._url = url
        self._topic_id = topic_id
        self._registry = Registry(url)

    def enter(self, entry: NodeEntry, within_s: float = DEAD_WITHIN_S) -> None:
        """Enter the roster. Raises NotAdmitted, KafkaUnusable."""
        taken = wait_for_absence(self._url, self._url.shards, lambda name: name == self.member, within_s)
        self.roster.take_all(self._registry.read())
        if taken:
            other = self.roster.nodes.get(self.node)
            at = "" if other is None else f", at {other.entry.peer}"
            raise NotAdmitted(
                f"node: the cluster has a node {self.node} that lives{at}: give one another name"
            )
        alone = wait_for_absence(self._url, self._url.owners, bool, within_s)
        if alone:
            raise NotAdmitted(
                f"peer_listen: {alone.partition('/')[0]} serves all shards of this cluster without it: stop the nodes "
                "that were started so, then start them with it"
            )
        value = pack_entry(self._topic_id, entry)
        self.run = self._registry.write(node_key(self.node), value)
        self.roster.take(self.run, node_key(self.node), value)

    @property
    def member(self) -> str:
        """Return what the node is called in the group."""
        return f"{self.node}/0"

    def start(self, deliver: Callable[[list[Record]], None]) -> None:
        """Hand out what is told from now on, on a thread of its own; the roster takes nothing by itself."""
        self._registry.start(deliver)

    def tell_owner(self, shard: int, epoch: int) -> None:
        """Tell that this node owns a shard."""
        self._tell(shard, ShardEntry(epoch, self.run))

    def tell_given_up(self, shard: int, epoch: int) -> None:
        """Tell that nobody owns a shard that this node owned under an epoch."""
        self._tell(shard, ShardEntry(epoch, NO_RUN))

    def _tell(self, shard: int, entry: ShardEntry) -> None:
        self._registry.tell(shard_key(shard), pack_entry(self._topic_id, entry))

    def leave(self) -> None:
        """Take the entry back, unless it is another's by now. Waits for Kafka, and not for long."""
        known = self.roster.nodes.get(self.node)
        if self.run != NO_RUN and known is not None and known.run == self.run:
            self._registry.tell(node_key(self.node), None)
        self._registry.close()
