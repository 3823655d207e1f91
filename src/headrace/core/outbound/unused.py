"""The end of consumer clusters and topic queues that nobody uses: else whoever made them once would keep them for ever.

Runs on the loop. A cluster is unused that has no consumer and has had none of the messages that are there, so that one
which is made anew gets the same; a queue that is empty and has no cluster. When their time is over that is journaled, and
takes effect where the record stands among messages: a replay asks no clock. What somebody asks for meanwhile is behind
that record, so it makes the queue or the cluster anew.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.core.commit import GroupCommit
from headrace.core.outbound.cluster_readers import ClusterReaders
from headrace.core.ports.link import WorkerPort
from headrace.core.records.elapsed import elapsed_us
from headrace.core.records.queue_record import CLUSTER_ENDED, QUEUE_UNUSED, number_record

if TYPE_CHECKING:
    from headrace.core.state.topic_queues import Cluster, TopicQueue

_RESTARTED_MS: Final = 3_600_000  # for so long consumers may come back after a start


class Unused:
    """Ends clusters and queues of one shard. `readers` knows who reads them."""

    def __init__(self, readers: ClusterReaders, commit: GroupCommit, worker: WorkerPort) -> None:
        self._readers = readers
        self._commit = commit
        self._clock = worker.clock
        self._settings = worker.settings
        self._begun_ms = -1
        self.ending: set[int] = set()  # numbers of queues and clusters whose end is on its way to the journal

    def look(self, queue: TopicQueue) -> None:
        """End a queue, or clusters of it, that were not used for as long as is configured."""
        term_us = self._settings.unused_s * 1_000_000
        if not term_us:
            return
        self._note(queue)
        if self._begun_ms < 0:
            self._begun_ms = self._clock.mono_ms
        if self._clock.mono_ms - self._begun_ms < min(_RESTARTED_MS, self._settings.unused_s * 1000):
            return
        for cluster in list(queue.clusters.values()):
            if self._is_over(cluster.used_us, term_us) and self._is_unused(cluster):
                self._end(CLUSTER_ENDED, cluster.cluster_id)
        is_named = queue.topic.decode("utf-8") in self._settings.queue_topics
        is_empty = queue.count == 0 and not queue.clusters
        if is_empty and not is_named and self._is_over(queue.used_us, term_us):
            self._end(QUEUE_UNUSED, queue.queue_id)

    def _note(self, queue: TopicQueue) -> None:
        """Let the time of what an older broker has left begin now."""
        now_us = self._clock.now_us
        queue.used_us = queue.used_us or now_us
        for cluster in queue.clusters.values():
            cluster.used_us = cluster.used_us or now_us

    def _is_over(self, used_us: int, term_us: int) -> bool:
        """Return whether something was not used for so long."""
        return elapsed_us(used_us, self._clock.now_us) > term_us

    def _is_unused(self, cluster: Cluster) -> bool:
        """Return whether nobody reads a cluster, and one that is made anew would get what it would have got."""
        if cluster.has_begun() or (cluster.queue.count and self._settings.cluster_start_us):
            return False
        is_joined = self._readers.is_joined(cluster.queue, cluster)
        return self._readers.consumers_of(cluster) == 0 and not is_joined

    def _end(self, subkind: int, number: int) -> None:
        if number in self.ending:
            return
        self._commit.append(number_record(subkind, self._clock.now_us, [number]))
        self._commit.then(None, partial(self.ended, number))
        self.ending.add(number)

    def ends(self, cluster: Cluster) -> bool:
        """Return whether the record of a cluster's end is on its way: what it has finished is what that finds."""
        return cluster.cluster_id in self.ending

    def ended(self, number: int) -> None:
        """Note that the record of an end has taken effect."""
        self.ending.discard(number)
        self._readers.forget(number)
