"""Topic queues and consumer clusters that somebody removes, who operates the broker.

Runs on the loop. That a queue or a cluster ends is a record, and takes effect where it stands among messages, so a replay
finds the same left to lose. From the record on its way until then nobody acknowledges or drops anything of it, and who
publishes or joins has a queue and a cluster behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.core.commit import Deferred, GroupCommit
from headrace.core.outbound.clusters import Clusters
from headrace.core.ports.link import WorkerPort
from headrace.core.records.queue_record import CLUSTER_ENDED, QUEUE_CLOSED, QUEUE_REMOVED, number_record
from headrace.core.records.record import DROP_REMOVED
from headrace.core.state.state import Fold
from headrace.errors import InUse, NotThere

if TYPE_CHECKING:
    from headrace.core.state.topic_queues import Cluster, TopicQueue

_NAMED: Final = 5  # readers that a refusal names


class Removal(Deferred):
    """A removal on its way. `over`: it is durable, and has taken effect; then `unfinished` messages were lost with it, or
    where it `was_refused` are left: they came while it was on its way."""

    def __init__(self, removing: Removing, queue: TopicQueue, cluster: Cluster | None, force: bool) -> None:
        super().__init__()
        self._removing = removing
        self.queue = queue
        self.cluster = cluster
        self.force = force
        self.unfinished = 0
        self.over = False
        self.was_refused = False

    def numbers(self) -> list[int]:
        """Return the numbers of what ends with it."""
        if self.cluster is not None:
            return [self.cluster.cluster_id]
        return [self.queue.queue_id, *[cluster.cluster_id for cluster in self.queue.clusters.values()]]

    def run(self) -> None:
        self._removing.took_effect(self)


class _Said(Deferred):
    """Ends a removal, whose queue is gone, when it is durable that readers without messages are told so."""

    def __init__(self, removal: Removal) -> None:
        super().__init__()
        self._removal = removal

    def run(self) -> None:
        self._removal.over = True


class Removing:
    """Removes queues and clusters of one shard."""

    def __init__(self, fold: Fold, clusters: Clusters, commit: GroupCommit, worker: WorkerPort) -> None:
        self._queues = fold.queues
        self._clusters = clusters
        self._commit = commit
        self._worker = worker

    def remove_queue(self, tenant: str, topic: bytes, force: bool) -> Removal:
        """Begin to remove the queue of a topic with its clusters; without `force` only if they have nothing to finish.
        Raises NotThere; InUse where somebody reads it, or has something to finish."""
        queue = self._queue(tenant, topic)
        text = topic.decode("utf-8")
        if text in self._worker.settings.queue_topics:
            raise InUse(f"frames.queue_topics names {text}: it would be there again at the next start")
        for cluster in queue.clusters.values():
            self._check_unread(cluster)
        if self._clusters.readers.is_joined(queue):
            raise InUse(f"somebody joins a cluster of {text} just now")
        left = queue.unfinished()
        if left and not force:
            raise InUse(unfinished(text, left))
        now_us = self._worker.clock.now_us
        if force:
            return self._begin(queue, None, QUEUE_CLOSED, [queue.queue_id, DROP_REMOVED], now_us)
        return self._begin(queue, None, QUEUE_REMOVED, [queue.queue_id], now_us)

    def remove_cluster(self, tenant: str, topic: bytes, name: bytes) -> Removal:
        """Begin to remove a cluster; the queue keeps its messages. Raises NotThere; InUse where somebody reads it."""
        queue = self._queue(tenant, topic)
        cluster = queue.clusters.get(name)
        if cluster is None or self._clusters.unused.ends(cluster):
            raise NotThere(f"{topic.decode('utf-8')} has no cluster {name.decode('utf-8')}")
        self._check_unread(cluster)
        if self._clusters.readers.is_joined(queue, cluster):
            raise InUse(f"somebody joins {name.decode('utf-8')} just now")
        numbers = [cluster.cluster_id, DROP_REMOVED]
        return self._begin(queue, cluster, CLUSTER_ENDED, numbers, self._worker.clock.now_us)

    def _queue(self, tenant: str, topic: bytes) -> TopicQueue:
        queue = self._queues.find(tenant, topic)
        if queue is None or queue.queue_id in self._clusters.unused.ending:
            raise NotThere(f"tenant {tenant} has no queue of the topic {topic.decode('utf-8')}")
        return queue

    def _check_unread(self, cluster: Cluster) -> None:
        count = self._clusters.readers.consumers_of(cluster)
        if count:
            named = ", ".join(self._clusters.readers.readers(cluster, _NAMED))
            more = f" and {count - _NAMED} more" if count > _NAMED else ""
            raise InUse(
                f"cluster {cluster.name.decode('utf-8')} is read by {named}{more}: they have to leave first"
            )

    def _begin(
        self, queue: TopicQueue, cluster: Cluster | None, subkind: int, numbers: list[int], now_us: int
    ) -> Removal:
        self._clusters.trimming.note()  # what was dropped already is in the journal before it
        removal = Removal(self, queue, cluster, subkind != QUEUE_REMOVED)
        self._commit.append(number_record(subkind, now_us, numbers))
        self._commit.defer(removal)
        self._clusters.unused.ending.update(removal.numbers())
        return removal

    def took_effect(self, removal: Removal) -> None:
        """Note that the record of a removal has taken effect."""
        for number in removal.numbers():
            self._clusters.unused.ended(number)
        queue = removal.queue
        is_there = self._queues.by_id.get(queue.queue_id) is queue
        if removal.cluster is not None:
            removal.unfinished = int(removal.cluster.lag()) + len(queue.owed)
        else:
            removal.unfinished = queue.unfinished()
            removal.was_refused = is_there
        if removal.cluster is None and not is_there and not removal.force:
            numbers = [queue.queue_id]
            self._commit.append(number_record(QUEUE_CLOSED, self._worker.clock.now_us, numbers))
            self._commit.defer(_Said(removal))
            return
        removal.over = True


def unfinished(topic: str, count: int) -> str:
    """Return why a queue is not removed."""
    return f"clusters of {topic} have {count} messages to finish, which would be lost: force says to remove it still"
