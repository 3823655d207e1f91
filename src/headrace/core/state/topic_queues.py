"""Topic queues: all messages of a topic in one line, and the consumer clusters that read it, each at its own place.

A queue is an index: one reference for each message, oldest first, in memory for the newest and in pages of the journal
before them (`backlog`), numbered 1, 2, 3, ... A cluster is a cursor in it, whatever the queue's length: all below `next`
was drawn by one of its consumers, and of these the few in `in_flight` and `returned` are not finished. So a cluster that
is far behind costs disk, and a queue is there once for all clusters.

A fold over the journal. What was in flight when the broker stopped is returned: `sent_limit`, reserved ahead, tells what
may have been delivered. Every change may come twice, from a snapshot and from a record behind it.
"""

from __future__ import annotations

import heapq
from array import array
from typing import Final, cast

from mypy_extensions import i64

from headrace.core.ports.journal import NOT_NOW, PageReader
from headrace.core.ports.limits import Limits
from headrace.core.ports.queue_reader import NO_REFERENCE, UNREADABLE_NOW
from headrace.core.ports.tenancy import Quotas
from headrace.core.ports.waiting import QueueOwner
from headrace.core.records.queue_record import (
    CLUSTER_ACKED,
    CLUSTER_DROPPED,
    CLUSTER_ENDED,
    CLUSTER_LIMIT,
    CLUSTER_MADE,
    QUEUE_CLOSED,
    QUEUE_OPENED,
    QUEUE_REMOVED,
    QUEUE_TRIMMED,
    QUEUE_UNUSED,
    QueueRecord,
    queue_number,
)
from headrace.core.state.backlog import REF_OFFSET_SHIFT, Behind, Page, read_page, refs_of_page, unpacked
from headrace.core.state.makers import NO_MAKER, Maker, Makers, maker_from
from headrace.core.state.queue import reference
from headrace.core.state.wanted import Unasked

ENDINGS: Final = (QUEUE_CLOSED, CLUSTER_ENDED, QUEUE_UNUSED, QUEUE_REMOVED)
_ROW: Final = 6
_SIZE_MAX: Final = 0xFFFFFFFF


class Draw:
    """A message that a consumer has. `holder` is that consumer; None once it is given back."""

    def __init__(self, serial: int, message_id: bytes, deadline_ms: int, holder: object) -> None:
        self.serial = serial
        self.message_id = message_id
        self.deadline_ms = deadline_ms
        self.holder: object | None = holder


class Cluster(QueueOwner):
    """The place of one consumer cluster in its queue.

    `sent_limit` is durable: nothing beyond it may have been delivered. `maybe_sent` is what it was at the start.
    `used_us`: when somebody has joined or left it, or acknowledged something, as far as it is known; 0: it is not.
    """

    def __init__(self, queue: TopicQueue, name: bytes, cluster_id: int, first: i64) -> None:
        self.queue = queue
        self.name = name
        self.cluster_id = cluster_id
        self.next: i64 = first
        self.in_flight: dict[int, Draw] = {}
        self.returned: dict[int, bool] = {}  # serial -> whether somebody may have had it
        self._order: list[int] = []  # heap of those returned; may name some that are gone
        self.sent_limit: i64 = first - 1
        self.maybe_sent: i64 = first - 1
        self.page: Page | None = None  # the one that it reads in
        self.used_us = 0
        self.maker = NO_MAKER

    def floor(self) -> i64:
        """Return the lowest serial that is not finished."""
        return min([self.next, *self.in_flight, *self.returned])

    def available(self) -> i64:
        """Return how many messages wait for a consumer."""
        return self.queue.next_serial - max(self.next, self.queue.first) + len(self.returned)

    def lag(self) -> i64:
        """Return how many messages are not finished."""
        return self.available() + len(self.in_flight)

    def has_begun(self) -> bool:
        """Return whether it has had some of the messages that are there: one that is made anew would begin before
        them."""
        return self.next > self.queue.first or bool(self.in_flight) or bool(self.returned)

    def has_finished(self, serial: i64) -> bool:
        return serial < self.next and serial not in self.in_flight and serial not in self.returned

    def head(self) -> tuple[int, bool]:
        """Return (serial, redelivered) of the message to draw next; serial 0 if none waits. What was returned goes
        first."""
        order = self._order
        while order:
            if order[0] in self.returned:
                return order[0], self.returned[order[0]]
            heapq.heappop(order)
        serial: i64 = max(self.next, self.queue.first)
        if serial >= self.queue.next_serial:
            return 0, False
        return int(serial), serial <= self.maybe_sent

    def draw(self, draw: Draw) -> None:
        """Give the head to a consumer."""
        self.in_flight[draw.serial] = draw  # first: what is neither there nor in line counts as finished
        self._pass(draw.serial)

    def give_back(self, draw: Draw) -> None:
        """Take a message back whose consumer has gone, or has held it for too long: somebody else gets it, and is told
        so. Where that raises, the consumer holds it still."""
        if self.in_flight.get(draw.serial) is draw:
            self._return(draw.serial, True)
            del self.in_flight[draw.serial]

    def finish(self, serial: i64) -> bool:
        """Finish a message that is acknowledged or dropped. Returns False if it was before (replays)."""
        if serial < self.queue.first or self.has_finished(serial):
            return False
        self._pass(serial)
        self.in_flight.pop(int(serial), None)
        return True

    def _pass(self, serial: i64) -> None:
        """Take a message out of the line. Those before it that nobody has drawn, in a replay, are returned."""
        if self.returned.pop(int(serial), None) is not None:
            if (
                self._order and self._order[0] == serial
            ):  # or it would be there twice when it is given back again
                heapq.heappop(self._order)
            return
        at: i64 = max(self.next, self.queue.first)
        while at < serial:
            self._return(int(at), True)
            at += 1
        self.next = max(self.next, serial + 1)

    def _return(self, serial: int, redelivered: bool) -> None:
        heapq.heappush(self._order, serial)
        self.returned[serial] = redelivered

    def forget(self, serial: int) -> None:
        """Forget the oldest message, which the queue has dropped."""
        self.next = max(self.next, serial + 1)
        self.returned.pop(serial, None)
        self.in_flight.pop(serial, None)

    def forget_below(self, first: i64) -> None:
        """Forget all messages below this serial, which the queue has dropped."""
        self.next = max(self.next, first)
        for serial in [serial for serial in self.in_flight if serial < first]:
            self.in_flight.pop(serial).holder = None
        for serial in [serial for serial in self.returned if serial < first]:
            del self.returned[serial]

    def restart(self) -> None:
        """Take everything back from consumers: the broker came back, and whoever had something is gone."""
        for draw in list(self.in_flight.values()):
            self.give_back(draw)
        self.maybe_sent = self.sent_limit

    # Snapshots

    def fields(self) -> list[object]:
        left = [*self.in_flight, *self.returned]
        return [self.name, self.cluster_id, int(self.next), left, int(self.sent_limit)]

    def restore(self, left: list[int], sent_limit: int) -> None:
        for serial in left:
            self._return(serial, True)
        self.sent_limit = self.maybe_sent = sent_limit


class TopicQueue(QueueOwner):
    """The messages of one topic. `queue_id` names it in the journal, `first` is the oldest message that is kept;
    `used_us`: when it was opened or the last message went, as far as it is known."""

    def __init__(self, tenant: str, topic: bytes, queue_id: int, pages: PageReader, limits: Limits) -> None:
        self.tenant = tenant
        self.limits = limits  # of its tenant
        self.topic = topic
        self.queue_id = queue_id
        self.clusters: dict[bytes, Cluster] = {}
        self.first: i64 = 1
        self.next_serial: i64 = 1
        self.bytes: i64 = 0
        self.used_us = 0
        self.maker = NO_MAKER
        self.applied: int = -1  # recovery: records up to this offset are in the snapshot
        self.behind = Behind(1, array("Q"), array("I"))
        # Offsets and sizes of what there was no memory for: they come before whatever is put in next.
        self.owed: list[tuple[int, int]] = []
        self._pages = pages

    @property
    def count(self) -> int:
        return int(self.next_serial - self.first)

    def push(self, offset: int, size: int) -> None:
        """Put a message behind the others, once. One that cannot be is owed, or the serials of those behind it would not
        be those of a replay."""
        try:
            if self.owed:
                self.settle()
            self._put(offset, size)
        except BaseException:
            self.owed.append((offset, size))
            raise

    def settle(self) -> None:
        """Put into the queue what is owed. Raises what is raised once more: then the rest is owed still."""
        while self.owed:
            offset, size = self.owed[0]
            self._put(offset, size)
            del self.owed[0]

    def _put(self, offset: int, size: int) -> None:
        behind = self.behind
        if len(behind.refs) > len(behind.sizes):  # one has failed half way
            behind.refs.pop()
        if behind.refs and behind.refs[-1] >> REF_OFFSET_SHIFT >= offset:
            return
        behind.refs.append(reference(offset, 0, False, 1))
        behind.sizes.append(min(size, _SIZE_MAX))
        self.next_serial += 1
        self.bytes += size

    def ref_at(self, serial: i64, cluster: Cluster | None = None) -> int:
        """Return the reference of a message; UNREADABLE_NOW, or NO_REFERENCE if its page is lost."""
        behind = self.behind
        if serial >= behind.first:
            return behind.refs[serial - behind.first]
        page = None if cluster is None else cluster.page
        if page is None or not page.first <= serial < page.first + page.count:
            found = read_page(self._pages, self._page_of(serial))
            if found is NOT_NOW:
                return UNREADABLE_NOW
            if not isinstance(found, Page) or not found.first <= serial < found.first + found.count:
                return NO_REFERENCE
            page = found
            if cluster is not None:
                cluster.page = page
        return page.refs[serial - page.first]

    def _page_of(self, serial: i64) -> int:
        """Return where the page is that has this serial."""
        behind = self.behind
        table = behind.table
        low: i64 = behind.next_row
        high: i64 = len(table) // _ROW
        while high - low > 1:
            middle: i64 = (low + high) >> 1
            if table[middle * _ROW + 1] <= serial:
                low = middle
            else:
                high = middle
        return table[low * _ROW]

    def drop_first(self) -> None:
        """Forget the oldest message."""
        behind = self.behind
        if behind.has_page():
            self.bytes -= behind.shorten_row()
        else:
            self.bytes -= behind.sizes[0]
            del behind.refs[0]
            del behind.sizes[0]
            behind.first += 1
            behind.pending = max(0, behind.pending - 1)
        self.first += 1

    def trim(self, first: i64) -> None:
        """Forget all below this serial."""
        while self.first < min(first, self.next_serial):
            self.drop_first()
        for cluster in self.clusters.values():
            cluster.forget_below(self.first)

    def wanted(self, serial: i64) -> bool:
        """Return whether some cluster has not finished this message."""
        return any(not cluster.has_finished(serial) for cluster in self.clusters.values())

    def unfinished(self) -> int:
        """Return how many messages some cluster has not finished: all from the place of the last cluster on, and those
        before it that others have begun."""
        if not self.clusters:
            return 0
        clusters = self.clusters.values()
        low: i64 = max(self.first, min([cluster.next for cluster in clusters]))
        begun: set[int] = set()
        for cluster in clusters:
            begun.update([serial for serial in cluster.in_flight if self.first <= serial < low])
            begun.update([serial for serial in cluster.returned if self.first <= serial < low])
        return int(self.next_serial - low) + len(begun) + len(self.owed)

    def oldest_page(self) -> tuple[int, int]:
        """Return (messages, offset of the newest one) of the oldest page; (0, 0) if there is none."""
        behind = self.behind
        if not behind.has_page():
            return 0, 0
        row = behind.row()
        return row[2], row[5]

    def replay_page(self, page: Page, offset: int) -> None:
        """Let references of the tail go: they can be read again from the page at `offset`."""
        behind = self.behind
        left: i64 = page.first + page.count - behind.first
        if page.first <= behind.first and 0 < left <= len(behind.refs):
            same = behind.refs[:left] == page.refs[page.count - left :]
            if same:
                behind.put_away(offset, int(left))

    # What it refers to: as `Backlog`

    def lowest_offset(self) -> int:
        """Return the oldest journal offset that is still needed, -1 when empty."""
        behind = self.behind
        if behind.has_page():
            return behind.row()[4]
        if behind.refs:
            return behind.refs[0] >> REF_OFFSET_SHIFT
        return self.owed[0][0] if self.owed else -1

    def in_memory(self) -> array[int]:
        """Return a copy of the references that are in no page."""
        refs = self.behind.refs[:]
        refs.extend([reference(offset, 0, False, 1) for offset, _ in self.owed])
        return refs

    def page_offsets(self) -> list[int]:
        """Return where the pages of the queue are."""
        return list(self.behind.rows()[::_ROW])

    def page_refs(self, offset: int) -> array[int] | None:
        """Return the references in a page, as `refs_of_page`."""
        return refs_of_page(self._pages, offset)

    def pages_between(self, start: int, end: int) -> list[int]:
        """Return the offsets of the pages that refer to something from `start` up to `end`."""
        return self.behind.pages_between(start, end)

    # Snapshots

    def fields(self) -> list[object]:
        behind = self.behind
        return [
            int(self.next_serial),
            int(self.first),
            int(self.bytes),
            behind.rows().tobytes(),
            int(behind.first),
            behind.refs.tobytes(),
            behind.sizes.tobytes(),
        ]

    def load(self, numbers: list[int], rows: bytes, first: int, refs: bytes, sizes: bytes) -> None:
        """Take over the `fields` of another one."""
        self.next_serial, self.first, self.bytes = numbers[0], numbers[1], numbers[2]
        self.behind = Behind(first, *unpacked(refs, sizes))
        self.behind.table.frombytes(rows)


class TopicQueues:
    """All topic queues and clusters, by the ids that the journal has of them."""

    def __init__(self, pages: PageReader, quotas: Quotas | None = None) -> None:
        self._pages = pages
        self._quotas = Quotas(Limits()) if quotas is None else quotas
        self.by_id: dict[int, TopicQueue] = {}
        self.clusters: dict[int, Cluster] = {}
        self._by_topic: dict[str, dict[bytes, TopicQueue]] = {}
        self.wanted = Unasked()
        self.names_bytes: i64 = 0  # of topics and names of clusters
        self.makers = Makers()

    def of_tenant(self, tenant: str) -> dict[bytes, TopicQueue]:
        """Return the queues of a tenant, by topic: one object for ever."""
        return self._by_topic.setdefault(tenant, {})

    def opened(self, tenant: str, topic: bytes, queue_id: int, maker: Maker = NO_MAKER) -> None:
        """Give a topic a queue, unless it has one."""
        queues = self.of_tenant(tenant)
        if topic not in queues:
            queue = TopicQueue(tenant, topic, queue_id, self._pages, self._quotas.of(tenant))
            queues[topic] = queue
            self.names_bytes += len(topic)
            queue.maker = maker
            self.makers.add(tenant, maker, 1)
            self.by_id[queue_id] = queue
            self.wanted.add(tenant, topic.decode("utf-8"))

    def find(self, tenant: str, topic: bytes) -> TopicQueue | None:
        """Return the queue of a topic, if there is one; nothing is made of a tenant that nobody knows."""
        return self._by_topic.get(tenant, {}).get(topic)

    def closed(self, queue: TopicQueue) -> None:
        """Forget the queue of a topic that has none any more."""
        held = self.of_tenant(queue.tenant).pop(queue.topic, None)
        if self.by_id.pop(queue.queue_id, None) is not None:
            self.names_bytes -= len(queue.topic) + sum([len(name) for name in queue.clusters])
            self.makers.add(queue.tenant, queue.maker, -1)
            for cluster in queue.clusters.values():
                self.makers.add(queue.tenant, cluster.maker, -1)
        if held is not None:
            self.wanted.remove(queue.tenant, queue.topic.decode("utf-8"))
        for cluster in queue.clusters.values():
            self.clusters.pop(cluster.cluster_id, None)

    def ended(self, cluster: Cluster) -> None:
        """Forget a cluster."""
        self.clusters.pop(cluster.cluster_id, None)
        if cluster.queue.clusters.get(cluster.name) is cluster:
            del cluster.queue.clusters[cluster.name]
            self.names_bytes -= len(cluster.name)
            self.makers.add(cluster.queue.tenant, cluster.maker, -1)

    def made(
        self, queue: TopicQueue, name: bytes, cluster_id: int, first: int, maker: Maker = NO_MAKER
    ) -> Cluster:
        """Return the cluster of this name, made unless it is there: it begins at serial `first`, where 0 is the oldest
        message and -1 is behind the newest."""
        cluster = queue.clusters.get(name)
        if cluster is None:
            at: i64 = queue.next_serial if first < 0 else max(queue.first, min(first, queue.next_serial))
            cluster = Cluster(queue, name, cluster_id, at)
            queue.clusters[name] = cluster
            self.names_bytes += len(name)
            cluster.maker = maker
            self.makers.add(queue.tenant, maker, 1)
            self.clusters[cluster_id] = cluster
        return cluster

    def apply(self, record: QueueRecord) -> Cluster | None:
        """Apply a record that takes effect when it is durable: a queue is opened, or a cluster is made, which is
        returned."""
        if record.subkind == QUEUE_OPENED:
            fields = record.fields()
            number = queue_number(record.offset)
            self.opened(str(fields["t"]), cast(bytes, fields["topic"]), number, maker_from(fields))
            opened = self.of_tenant(str(fields["t"]))[cast(bytes, fields["topic"])]
            opened.used_us = max(opened.used_us, record.timestamp_us)
        elif record.subkind == CLUSTER_MADE:
            fields = record.fields()
            queue = self.of_tenant(str(fields["t"])).get(cast(bytes, fields["topic"]))
            if queue is not None:
                at = cast(int, fields["at"])
                name = cast(bytes, fields["name"])
                cluster = self.made(queue, name, record.offset, at, maker_from(fields))
                cluster.used_us = max(cluster.used_us, record.timestamp_us)
                return cluster
        return None

    def end(self, record: QueueRecord) -> list[tuple[str, int, int]]:
        """Apply a record of `ENDINGS`, where it stands among messages. Returns (tenant, reason, messages) of what is
        lost by it."""
        numbers = record.numbers()
        if record.subkind == CLUSTER_ENDED:
            cluster = self.clusters.get(numbers[0])
            if cluster is None:
                return []
            lost = int(cluster.lag()) + len(cluster.queue.owed)
            self.ended(cluster)
            return _lost(cluster.queue.tenant, numbers, lost)
        queue = self.by_id.get(numbers[0])
        if queue is None or queue.applied >= record.offset:
            return []
        lost = queue.unfinished()
        if record.subkind == QUEUE_UNUSED and (queue.clusters or queue.count):
            return []
        if record.subkind == QUEUE_REMOVED and lost:
            return []
        self.closed(queue)
        return _lost(queue.tenant, numbers, lost)

    def replay(self, record: QueueRecord) -> list[tuple[str, int, int]]:
        """Apply any record of theirs. Returns (tenant, reason, messages) of what it says was dropped."""
        subkind = record.subkind
        if subkind in (QUEUE_OPENED, CLUSTER_MADE):
            self.apply(record)
            return []
        if subkind in ENDINGS:
            return self.end(record)
        numbers = record.numbers()
        if subkind == QUEUE_TRIMMED:
            queue = self.by_id.get(numbers[0])
            if queue is None or queue.applied >= record.offset:
                return []
            queue.used_us = max(queue.used_us, record.timestamp_us)
            return _trimmed(queue, numbers)
        cluster = self.clusters.get(numbers[0])
        if cluster is None or cluster.queue.applied >= record.offset:
            return []
        cluster.used_us = max(cluster.used_us, record.timestamp_us)
        if subkind == CLUSTER_ACKED:
            for serial in numbers[1:]:
                cluster.finish(serial)
        elif subkind == CLUSTER_LIMIT:
            cluster.sent_limit = numbers[1]
        elif subkind == CLUSTER_DROPPED and cluster.finish(numbers[1]):
            return [(cluster.queue.tenant, numbers[2], 1)]
        return []

    def restart(self) -> None:
        for cluster in self.clusters.values():
            cluster.restart()


def _lost(tenant: str, numbers: array[int], lost: int) -> list[tuple[str, int, int]]:
    """Return what is lost under the reason that a record has behind its number, if it has one."""
    return [(tenant, numbers[1], lost)] if lost and len(numbers) > 1 else []


def _trimmed(queue: TopicQueue, numbers: array[int]) -> list[tuple[str, int, int]]:
    """Forget what a record says that a queue has dropped; returns what was lost of it."""
    if numbers[1] <= queue.first:
        return []
    queue.trim(numbers[1])
    return [(queue.tenant, numbers[at], numbers[at + 1]) for at in range(2, len(numbers), 2)]
