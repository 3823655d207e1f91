"""Topic queues and their consumer clusters, a page at a time: for somebody who looks.

There may be a million queues, so each page looks at some of them, with passes of the loop in between, and says where the
next one goes on. Queues and clusters are numbered by the journal, and a number is never used again: whatever comes and
goes between two pages, each is met once. What a row says is as of the moment at which the walk came by.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

from headrace.core.outbound.clusters import Clusters
from headrace.core.ports.clock import Clock
from headrace.core.records.elapsed import elapsed_us
from headrace.core.records.message import Message
from headrace.core.state.state import Fold
from headrace.core.state.topic_queues import Cluster, TopicQueue
from headrace.mqtt.topics import matches
from headrace.services.paging import Place, Rows

WORK: Final = 1000  # in a pass of the loop: one for each queue or cluster that is looked at, ...
_ROW_WORK: Final = 50  # ... and so much for a row: its oldest message is read
LOOKED_AT_MAX: Final = 50_000  # in a page, whether or not they are wanted


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """A cluster of a queue; `cluster` is None in the one row of a queue that has none. `messages` and `bytes` are what
    the queue keeps, read or not. `lag` was not finished, of which `in_flight` is with consumers; `waiting` connections
    have a PULL that is not answered. `acked_per_s` is of the last ten seconds or so. `oldest_s` is the age of the oldest
    message that is not finished (without a cluster: that is kept), None where there is none or it cannot be read now."""

    tenant: str
    topic: str
    messages: int
    bytes: int
    cluster: str | None
    lag: int
    in_flight: int
    consumers: int
    waiting: int
    acked_per_s: float
    oldest_s: float | None


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue. `messages` and `bytes` are what it keeps, read or not; of these some cluster has not finished
    `unfinished`. `clusters` read it, with so many `consumers` in all. `oldest_s` is the age of the oldest message that is
    kept, None where there is none or it cannot be read now. `user` and `device` have begun it, "" where nobody did."""

    tenant: str
    topic: str
    messages: int
    bytes: int
    clusters: int
    consumers: int
    unfinished: int
    oldest_s: float | None
    user: str
    device: str


@dataclass(frozen=True, slots=True)
class RowChoice:
    """A choice of rows: those of a tenant, of topics that a topic filter matches, of clusters of one name; "" is any.
    `whole`: a row for each queue, instead of one for each cluster."""

    tenant: str = ""
    topics: str = ""
    cluster: str = ""
    whole: bool = False

    def has(self, queue: TopicQueue) -> bool:
        if self.tenant and queue.tenant != self.tenant:
            return False
        return not self.topics or matches(self.topics, queue.topic.decode("utf-8"))


class ClusterRows:
    """Lists the queues and clusters of one broker. Runs on the loop."""

    def __init__(self, fold: Fold, clusters: Clusters, clock: Clock) -> None:
        self._queues = fold.queues
        self._clusters = clusters
        self._clock = clock

    async def page(self, wanted: RowChoice, limit: int, place: Place) -> tuple[Rows, Place | None]:
        """Return (at most `limit` rows from `place` on, where the next page goes on or None). A page may be short, even
        empty, and not the last one: where much was looked at that is not wanted."""
        found: Rows = []
        work = 0
        for seen, (queue, cluster, behind) in enumerate(self._walk(wanted, place), 1):
            work += 1
            if queue is not None:
                row = self._whole(queue) if wanted.whole else self._row(queue, cluster)
                found.append(asdict(row))
                read = queue.clusters.values() if wanted.whole else [] if cluster is None else [cluster]
                work += _ROW_WORK + sum([_unfinished(one) // _ROW_WORK + 1 for one in read])
            if len(found) >= limit or seen >= LOOKED_AT_MAX:
                return found, behind
            if work >= WORK:
                work = 0
                await asyncio.sleep(0)
        return found, None

    def _walk(
        self, wanted: RowChoice, place: Place
    ) -> Iterator[tuple[TopicQueue | None, Cluster | None, Place]]:
        """Yield what is looked at from `place` on, and where it would go on behind it; no queue: not wanted."""
        numbers = list(self._queues.by_id)  # the journal gives them in ascending order
        for at in range(bisect_left(numbers, place.number), len(numbers)):
            number = numbers[at]
            after = Place(number + 1)
            queue = self._queues.by_id.get(number)
            if queue is None or not wanted.has(queue):
                yield None, None, after
            elif wanted.whole or not queue.clusters:
                yield None if wanted.cluster else queue, None, after
            else:
                begun = place.inner if number == place.number else -1
                for cluster in _behind(queue, begun):
                    named = not wanted.cluster or cluster.name == wanted.cluster.encode("utf-8")
                    yield queue if named else None, cluster, Place(number, cluster.cluster_id)

    def _whole(self, queue: TopicQueue) -> QueueRow:
        consumers = sum([self._clusters.readers.consumers_of(cluster) for cluster in queue.clusters.values()])
        return QueueRow(
            queue.tenant,
            queue.topic.decode("utf-8"),
            queue.count,
            int(queue.bytes),
            len(queue.clusters),
            consumers,
            queue.unfinished(),
            self._age(queue, int(queue.first)),
            queue.maker.user,
            queue.maker.device,
        )

    def _row(self, queue: TopicQueue, cluster: Cluster | None) -> ClusterRow:
        topic = queue.topic.decode("utf-8")
        kept = (queue.tenant, topic, queue.count, int(queue.bytes))
        if cluster is None:
            return ClusterRow(*kept, None, 0, 0, 0, 0, 0.0, self._age(queue, int(queue.first)))
        attendance = self._clusters.readers.attendance(cluster)
        return ClusterRow(
            *kept,
            cluster.name.decode("utf-8"),
            int(cluster.lag()),
            len(cluster.in_flight),
            attendance.consumers,
            attendance.waiting,
            round(attendance.acked_per_s, 3),
            self._age(queue, int(cluster.floor())),
        )

    def _age(self, queue: TopicQueue, serial: int) -> float | None:
        """Return the seconds since a message was received, None if it is not there or cannot be read now."""
        at = max(serial, int(queue.first))
        if at >= queue.next_serial:
            return None
        message = self._clusters.reader.fetch(queue, at, queue.ref_at(at))
        if not isinstance(message, Message):
            return None
        return elapsed_us(message.timestamp_us, self._clock.now_us) / 1_000_000


def _behind(queue: TopicQueue, number: int) -> list[Cluster]:
    """Return the clusters of a queue behind the one of this number."""
    clusters = [cluster for cluster in queue.clusters.values() if cluster.cluster_id > number]
    return sorted(clusters, key=lambda cluster: cluster.cluster_id)


def _unfinished(cluster: Cluster) -> int:
    """Return how many messages are looked at for the oldest one."""
    return len(cluster.in_flight) + len(cluster.returned)
