"""A cluster as one of its nodes joins it: how many shards there are, what each journal is called, and its clients."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from confluent_kafka import KafkaException

from headrace import __version__
from headrace.core.records.message_id import JournalName
from headrace.errors import ConfigError, HeadraceError
from headrace.journal.reader import DIRECTORY as JOURNAL
from headrace.services.watchdog import Watchdog
from headrace.storage.kafka.candidate import Candidate
from headrace.storage.kafka.claims import Claims
from headrace.storage.kafka.cluster_state import ClusterState
from headrace.storage.kafka.cluster_url import ClusterUrl
from headrace.storage.kafka.consumer_topic import consumed_up_to
from headrace.storage.kafka.enrolment import DEAD_WITHIN_S, Enrolment, NotAdmitted, wait_for_absence
from headrace.storage.kafka.envelope import LEVEL, uuid_of
from headrace.storage.kafka.group import Group
from headrace.storage.kafka.mailbox import Hearer
from headrace.storage.kafka.partition_client import PartitionClient
from headrace.storage.kafka.presence import as_object
from headrace.storage.kafka.registry import presence_now
from headrace.storage.kafka.roster import NodeEntry
from headrace.storage.kafka.storage import KafkaSettings, KafkaStorage, SnapshotIntervals
from headrace.storage.kafka.topics import KafkaUnusable, Topics

QUIET_S: Final = 1.0  # from an owner that appends nothing for so long a shard is taken


class UnsafeTopics(HeadraceError):
    """A topic has settings by which acknowledged messages may be lost."""


class ForeignData(ConfigError):
    """The data directory holds what no cache is."""

    def __init__(self, message: str) -> None:
        super().__init__(f"data_dir: {message}")


def check_directory(directory: Path) -> None:
    """Look whether a shard may have its cache in a directory. Raises ForeignData."""
    if (directory / JOURNAL).exists():
        raise ForeignData(
            f"{directory} holds a journal of its own, and a node of a cluster has a cache there: give it another "
            "directory"
        )


class Cluster:
    """The topics of a cluster, as they were when the node started. `warnings` has a line for what is not as it should be,
    and may be by and by."""

    def __init__(
        self,
        url: ClusterUrl,
        node: str,
        state: ClusterState,
        intervals: SnapshotIntervals,
        watchdog: Watchdog,
    ) -> None:
        """Join with a `state` that is safe. `node` is what the node is called, "": what its machine is."""
        self._intervals = intervals
        self._watchdog = watchdog
        self._url = url
        self.node = node or socket.gethostname()
        self._topic_id = state.topic_id
        self._candidate: Candidate | None = None
        self._group: Group | None = None
        self._is_over = False
        self.shards = len(state.shards)
        self.warnings = state.problems

    @classmethod
    def open(cls, text: str, node: str, intervals: SnapshotIntervals, watchdog: Watchdog) -> Cluster:
        """Ask Kafka for the cluster at an address, and refuse one whose journals may lose something. `intervals`: when
        snapshots of its shards are due. Raises BadClusterUrl, KafkaUnusable, UnsafeTopics."""
        url = ClusterUrl.parse(text)
        state = Topics(url).state()
        if state.unsafe:
            raise UnsafeTopics(f"{'; '.join(state.unsafe)}: put that back, then start again")
        return cls(url, node, state, intervals, watchdog)

    @staticmethod
    def check(directories: Iterable[Path]) -> None:
        """Look whether shards may have their caches in directories. Raises ForeignData."""
        for directory in directories:
            check_directory(directory)

    def look(self) -> list[str]:
        """Ask Kafka what the topics are like now; return a line for everything that is not as it must be. May be called
        on any thread, and waits. Raises KafkaUnusable."""
        state = Topics(self._url).state()
        is_another = state.topic_id != self._topic_id
        made_again = [f"{self._url.journal}: it was deleted and made again"] if is_another else []
        return made_again + state.problems

    def status(self) -> dict[str, Any]:
        """Ask Kafka which nodes there are, who owns what and how the journals are; return what `headrace cluster status
        --json` prints. May be called on any thread, and waits. Raises KafkaUnusable."""
        state = Topics(self._url).state()
        found = presence_now(self._url, state.topic_id, len(state.shards))
        return as_object(self._url.name, state, found)

    def candidate(self, report: Callable[[str], None]) -> Candidate:
        """Join the group of the cluster's nodes, one of which owns its shards. `report` hears lines for the log. Raises
        KafkaUnusable, NotAdmitted."""
        sharing = wait_for_absence(self._url, self._url.shards, bool, DEAD_WITHIN_S)
        if sharing:
            raise NotAdmitted(
                f"peer_listen: the nodes of this cluster share its shards, as {sharing.partition('/')[0]} does: start "
                "this one with it too"
            )
        self._candidate = Candidate(self._url, f"{self.node}/0", report)
        return self._candidate

    @property
    def id(self) -> bytes:
        """Return 16 bytes that all nodes of the cluster have, and no others."""
        return blake2b(self._topic_id.encode(), digest_size=16).digest()

    def names(self) -> dict[int, JournalName]:
        """Return what the journal of each shard is called."""
        return {
            shard: JournalName(str(UUID(bytes=uuid_of(self._topic_id, shard))))
            for shard in range(self.shards)
        }

    def enter(self, peer: str, config: str) -> Enrolment:
        """Enter the roster of the cluster's nodes, which share its shards, as one that is reached at `peer` and has a
        configuration with this digest. Raises NotAdmitted, KafkaUnusable."""
        enrolment = Enrolment(self._url, self.node, self._topic_id)
        enrolment.enter(NodeEntry(peer, __version__, LEVEL, config))
        return enrolment

    def join(self, claims: Claims) -> Group:
        """Join the group that shares out the shards. Raises KafkaUnusable."""
        try:
            self._group = Group(self._url.client, self._url.shards, f"{self.node}/0", claims)
        except (KafkaException, RuntimeError) as error:
            raise KafkaUnusable(
                f"{self._url.bootstrap}: a client of Kafka cannot be made: {error}"
            ) from error
        return self._group

    def rest(self) -> None:
        """Have no shard taken any more: what is under way ends soon."""
        self._is_over = True

    def _asking(self, shard: int) -> Callable[[Callable[[], None]], None]:
        """Return how the group is asked for a shard."""
        if self._group is not None:
            return partial(self._group.ask, shard)
        assert self._candidate is not None, "it has stood by"
        return self._candidate.ask

    def storage(self, shard: int, directory: Path, report: Callable[[str], None]) -> KafkaStorage:
        """Open the storage of a shard, with its cache in `directory`. `report` hears lines for the log. Raises
        ForeignData, JournalError, OSError."""
        check_directory(directory)

        def connect(topic: str, hearer: Hearer) -> PartitionClient:
            return PartitionClient(self._url.client, topic, shard, hearer)

        settings = KafkaSettings(
            self._topic_id,
            shard,
            f"{self.node}/0",
            partial(connect, self._url.journal),
            partial(connect, self._url.snapshots),
            self._intervals,
            self._watchdog,
            self._asking(shard),
            QUIET_S,
            lambda: self._is_over,
            partial(consumed_up_to, self._url, self._topic_id, shard),
        )
        return KafkaStorage(settings, directory, report)
