"""The topics of a cluster: made once, and looked at before anything is trusted to them.

A setting that somebody changes may lose messages, by retention or by an unclean election, so each that a promise rests on
is looked at. What is more than a promise needs, like replication, is the user's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from headrace.errors import HeadraceError
from headrace.storage.kafka.cluster_state import (
    LOG_SETTINGS,
    ClusterState,
    PartitionState,
    Replication,
    added_partitions,
    differences,
    lack_of_replicas,
)
from headrace.storage.kafka.cluster_url import ClusterUrl

TIMEOUT_S: Final = 15.0
SETTLED_INTERVAL_S: Final = 0.1
_REFUSED: Final = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL)
_COMPACTED: Final = {"cleanup.policy": "compact", "unclean.leader.election.enable": "false"}


class KafkaUnusable(HeadraceError):
    """Kafka does not answer, or what the cluster needs of it is missing. `is_missing`: it says that there is no such
    topic."""

    def __init__(self, message: str, is_missing: bool = False) -> None:
        super().__init__(message)
        self.is_missing = is_missing


class TopicExists(HeadraceError):
    """There is a cluster of this name already."""


class Topics:
    """The topics of one cluster. Each call asks Kafka, and waits for its answer."""

    def __init__(self, url: ClusterUrl, timeout_s: float = TIMEOUT_S) -> None:
        """Reach the brokers of `url`; the first call connects. `timeout_s`: for one answer."""
        self._url = url
        self._timeout_s = timeout_s
        self._refused = ""  # why the brokers let nobody in by these settings
        try:
            self._admin = AdminClient(url.client | {"error_cb": self._on_error})
        except (KafkaException, ValueError, TypeError) as error:
            reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            raise KafkaUnusable(f"{url.properties_file or url.bootstrap}: {reason}") from None

    def _on_error(self, error: KafkaError) -> None:
        """Note why nobody answers, where that is known. Runs within `poll`."""
        if error.code() in _REFUSED:
            self._refused = error.str()

    def broker_count(self) -> int:
        """Return how many brokers Kafka has. Raises KafkaUnusable."""
        return len(self._listed().brokers)

    def create(self, shards: int, replication: Replication) -> ClusterState:
        """Make the topics of a cluster with so many shards, and wait until Kafka serves them; returns what they are like.
        Raises TopicExists, KafkaUnusable; then some may be made."""
        in_sync = {"min.insync.replicas": str(replication.in_sync_min)}
        wanted: dict[str, tuple[int, dict[str, str]]] = {
            self._url.journal: (shards, LOG_SETTINGS | in_sync),
            self._url.snapshots: (shards, LOG_SETTINGS | in_sync),
            self._url.shards: (shards, {}),
            self._url.owners: (1, _COMPACTED | in_sync),
        }
        there = self._listed().topics
        taken = [name for name in wanted if name in there]
        if taken:
            raise TopicExists(f"{self._url.bootstrap} has {', '.join(taken)} already")
        new = [NewTopic(name, n, replication.factor, config=config) for name, (n, config) in wanted.items()]
        for future in self._admin.create_topics(new, operation_timeout=self._timeout_s).values():
            self._asked(future.result)
        return self._settled()

    def _settled(self) -> ClusterState:
        """Return the state once there is one: Kafka says that a topic is made before all its brokers know it."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return self.state()
            except KafkaUnusable:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(SETTLED_INTERVAL_S)

    def identity(self) -> tuple[str, int]:
        """Return Kafka's own name of the journal, and how many shards there are: what nobody changes. Raises
        KafkaUnusable."""
        journal = self._described(self._url.journal)
        others = [self._described(topic) for topic in (self._url.snapshots, self._url.shards)]
        return str(journal.topic_id), min(len(one.partitions) for one in (journal, *others))

    def state(self) -> ClusterState:
        """Return what the topics are like now. Raises KafkaUnusable."""
        journal = self._described(self._url.journal)
        config = self._config(self._url.journal)
        in_sync_min = int(config.get("min.insync.replicas", "1"))
        counts = {
            self._url.journal: len(journal.partitions),
            self._url.snapshots: len(self._described(self._url.snapshots).partitions),
            self._url.shards: len(self._described(self._url.shards).partitions),
        }
        numbers = list(range(min(counts.values())))
        starts = self._offsets(numbers, OffsetSpec.earliest())
        ends = self._offsets(numbers, OffsetSpec.latest())
        shards = [
            PartitionState(
                partition.id,
                -1 if partition.leader is None else partition.leader.id,
                [node.id for node in partition.replicas],
                [node.id for node in partition.isr],
                starts[partition.id],
                ends[partition.id],
            )
            for partition in sorted(journal.partitions, key=lambda one: int(one.id))[: len(numbers)]
        ]
        unsafe = differences(self._url.journal, config)
        unsafe += differences(self._url.snapshots, self._config(self._url.snapshots))
        problems = [
            *unsafe,
            *added_partitions(counts),
            *lack_of_replicas(self._url.journal, shards, in_sync_min),
        ]
        return ClusterState(str(journal.topic_id), in_sync_min, shards, problems, unsafe)

    def _listed(self) -> Any:
        return self._asked(lambda: self._admin.list_topics(timeout=self._timeout_s))

    def _described(self, topic: str) -> Any:
        futures = self._admin.describe_topics(TopicCollection([topic]), request_timeout=self._timeout_s)
        try:
            return self._asked(futures[topic].result)
        except KafkaUnusable as error:
            if error.is_missing:
                raise KafkaUnusable(
                    f"{self._url.bootstrap} has no topic {topic}: `headrace cluster create` makes it", True
                ) from error
            raise

    def _config(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        (future,) = self._admin.describe_configs([resource], request_timeout=self._timeout_s).values()
        return {name: entry.value for name, entry in self._asked(future.result).items()}

    def _offsets(self, shards: list[int], spec: Any) -> dict[int, int]:
        asked = {TopicPartition(self._url.journal, shard): spec for shard in shards}
        futures = self._admin.list_offsets(asked, request_timeout=self._timeout_s)
        return {place.partition: self._asked(future.result).offset for place, future in futures.items()}

    def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except KafkaException as error:
            reason = error.args[0]
            self._admin.poll(0)  # tells what went wrong with connections
            is_missing = reason.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            why = f" ({self._refused})" if self._refused else ""
            raise KafkaUnusable(f"{self._url.bootstrap}: {reason.str()}{why}", is_missing) from error
