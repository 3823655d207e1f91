"""A cluster as one of its nodes joins it: how many shards there are, what each journal is called, and its clients."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from headrace.errors import ConfigError, HeadraceError
from headrace.journal.reader import DIRECTORY as JOURNAL
from headrace.services.watchdog import Watchdog
from headrace.storage.kafka.candidate import Candidate
from headrace.storage.kafka.cluster_state import ClusterState
from headrace.storage.kafka.cluster_url import ClusterUrl
from headrace.storage.kafka.mailbox import Hearer
from headrace.storage.kafka.partition_client import PartitionClient
from headrace.storage.kafka.storage import KafkaSettings, KafkaStorage, SnapshotIntervals
from headrace.storage.kafka.topics import Topics

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
        self._node = node or socket.gethostname()
        self._topic_id = state.topic_id
        self._candidate: Candidate | None = None
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

    def candidate(self, report: Callable[[str], None]) -> Candidate:
        """Join the group of the cluster's nodes, one of which owns its shards. `report` hears lines for the log. Raises
        KafkaUnusable."""
        self._candidate = Candidate(self._url, f"{self._node}/0", report)
        return self._candidate

    def storage(self, shard: int, directory: Path, report: Callable[[str], None]) -> KafkaStorage:
        """Open the storage of a shard, with its cache in `directory`. `report` hears lines for the log. Raises
        ForeignData, JournalError, OSError."""
        assert self._candidate is not None, "it has stood by"
        check_directory(directory)

        def connect(topic: str, hearer: Hearer) -> PartitionClient:
            return PartitionClient(self._url.bootstrap, topic, shard, hearer)

        settings = KafkaSettings(
            self._topic_id,
            shard,
            f"{self._node}/0",
            partial(connect, self._url.journal),
            partial(connect, self._url.snapshots),
            self._intervals,
            self._watchdog,
            self._candidate.ask,
            QUIET_S,
        )
        return KafkaStorage(settings, directory, report)
