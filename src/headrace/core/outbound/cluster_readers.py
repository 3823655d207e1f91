"""Who reads the clusters of a shard: consumers, the connections that they are on, and their PULLs.

Runs on the loop. Nothing of it is in the journal: it ends with its connections, or with the broker.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from typing import Final

from mypy_extensions import i64

from headrace.core.ports.link import Link, WorkerPort
from headrace.core.ports.reading import Reading
from headrace.core.ports.timers import Timer
from headrace.core.ports.voice import Voice
from headrace.core.state.state import Fold
from headrace.core.state.topic_queues import Cluster, Draw, TopicQueue

_RATE_OVER_MS: Final = 10_000  # what happened longer ago counts for less and less


class Consumer:
    """One device's part in a cluster, on one connection. `asking`: its PULLs that are not answered."""

    def __init__(self, guest: Guest, sn: bytes, cluster: Cluster) -> None:
        self.guest = guest
        self.sn = sn
        self.cluster = cluster
        self.asking: i64 = 0
        self.reading = Reading(guest.link, guest.voice.device(sn), cluster.queue.topic)
        self.holds: dict[int, Draw] = {}


class Pull:
    """A PULL that is not answered: `over` says that its consumer has left."""

    def __init__(self, consumer: Consumer, most: i64, until_ms: int) -> None:
        self.consumer = consumer
        self.most: i64 = most
        self.until_ms = until_ms
        self.timer: Timer | None = None
        self.reserving = False
        self.over = False


class Caller:
    """One connection whose devices ask for something of topic queues."""

    def __init__(self, link: Link, voice: Voice) -> None:
        self.link = link
        self.voice = voice


class Guest(Caller):
    """A connection as the clusters of this shard see it: its consumers, by SN, topic and cluster, and its PULLs in order.
    `joining`: JOINs that are not durable yet."""

    def __init__(self, link: Link, voice: Voice) -> None:
        super().__init__(link, voice)
        self.joining: i64 = 0
        self.consumers: dict[tuple[bytes, bytes, bytes], Consumer] = {}
        self.pulls: deque[Pull] = deque()


class Live:
    """What a cluster has while the broker runs: its consumers, who waits, and when what is held is overdue. Those in
    `idle` are to be told of messages: they have no PULL, and were told of none since the last one."""

    def __init__(self) -> None:
        self.consumers: dict[Consumer, None] = {}
        self.idle: OrderedDict[Consumer, None] = OrderedDict()
        self.waiting: OrderedDict[Guest, None] = OrderedDict()
        self.deadlines: deque[Draw] = deque()
        self.by_id: dict[bytes, list[int]] = {}  # what is held or was given back
        self.timer: Timer | None = None
        self.unread = False  # the next message cannot be read now
        self.reserving: i64 = 0
        self._acked = 0.0  # a second, as of `_acked_ms`
        self._acked_ms = 0

    def acked(self, count: int, now_ms: int) -> None:
        """Count acknowledgements."""
        self._acked = self.acked_per_s(now_ms) + count * 1000 / _RATE_OVER_MS
        self._acked_ms = now_ms

    def acked_per_s(self, now_ms: int) -> float:
        """Return how many messages were acknowledged in a second lately: the mean, weighted by exp(-age / 10 s)."""
        return self._acked * math.exp((self._acked_ms - now_ms) / _RATE_OVER_MS)


class Attendance:
    """The readers of a cluster: consumers, connections that wait with a PULL, and messages acknowledged a second."""

    def __init__(self, consumers: int, waiting: int, acked_per_s: float) -> None:
        self.consumers = consumers
        self.waiting = waiting
        self.acked_per_s = acked_per_s


class ClusterReaders:
    """The readers of each cluster, and the JOINs that are on their way."""

    def __init__(self, fold: Fold, worker: WorkerPort) -> None:
        self._fold = fold
        self._worker = worker
        self.used: dict[Cluster, Live] = {}
        self._by_id: dict[int, Cluster] = {}  # of those in `used`, by number
        # By tenant and topic: names of clusters, and how many JOINs to each are on their way
        self._joining: dict[tuple[str, bytes], dict[bytes, int]] = {}

    def live(self, cluster: Cluster) -> Live:
        found = self.used.get(cluster)
        if found is None:
            found = self.used[cluster] = Live()
            self._by_id[cluster.cluster_id] = cluster
        return found

    def forget(self, number: int) -> None:
        cluster = self._by_id.get(number)
        if cluster is not None and number not in self._fold.queues.clusters:
            del self._by_id[number]
            timer = self.used.pop(cluster).timer
            if timer is not None:
                timer.cancel()

    def consumers_of(self, cluster: Cluster) -> int:
        live = self.used.get(cluster)
        return 0 if live is None else len(live.consumers)

    def joins(self, tenant: str, topic: bytes, name: bytes, more: int) -> None:
        """Note that so many JOINs more are on their way to a cluster, or fewer."""
        found = self._joining.setdefault((tenant, topic), {})
        found[name] = found.get(name, 0) + more
        if found[name] <= 0:
            del found[name]
        if not found:
            del self._joining[(tenant, topic)]

    def is_joined(self, queue: TopicQueue, cluster: Cluster | None = None) -> bool:
        found = self._joining.get((queue.tenant, queue.topic), {})
        return len(found) > 0 if cluster is None else cluster.name in found

    def readers(self, cluster: Cluster, most: int) -> list[str]:
        """Return the client ids of some of the consumers of a cluster."""
        live = self.used.get(cluster)
        consumers = [] if live is None else list(live.consumers)[:most]
        return [consumer.guest.voice.device(consumer.sn) for consumer in consumers]

    def attendance(self, cluster: Cluster) -> Attendance:
        """Tell who reads a cluster now, and how fast."""
        live = self.used.get(cluster)
        if live is None:
            return Attendance(0, 0, 0.0)
        per_s = live.acked_per_s(self._worker.clock.mono_ms)
        return Attendance(len(live.consumers), len(live.waiting), per_s)
