"""Consumer clusters: who gets the next message of a topic queue, when it is asked for, and when somebody else does.

Runs on the loop. Consumers pull: a message goes to whoever asks first, so none is idle while messages wait. Where nobody
waits with a PULL, the consumers of each cluster are notified in turn, once until they pull again. What a consumer holds
beyond the visibility time-out, or when its connection ends, goes to another one and says that it was delivered before.
What is raised when a consumer is given or told something costs that one its connection, and no other one anything.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final

from mypy_extensions import i64

from headrace.core.commit import GroupCommit
from headrace.core.outbound.cluster_readers import ClusterReaders, Consumer, Guest, Live, Pull
from headrace.core.outbound.spilling import Spilling
from headrace.core.outbound.trimming import Trimming
from headrace.core.outbound.unused import Unused
from headrace.core.ports.journal import NOT_NOW
from headrace.core.ports.link import WorkerPort
from headrace.core.ports.queue_reader import QueueReader
from headrace.core.ports.timers import Alarm, Timer, Timers
from headrace.core.ports.voice import Draught
from headrace.core.ports.waiting import QueueOwner, Waiting, Waker
from headrace.core.records.message import Message
from headrace.core.records.message_id import JournalName
from headrace.core.records.queue_record import (
    CLUSTER_ACKED,
    CLUSTER_DROPPED,
    CLUSTER_LIMIT,
    number_record,
)
from headrace.core.records.record import DROP_EXPIRED, DROP_UNREADABLE
from headrace.core.state.session import Commons
from headrace.core.state.state import Fold
from headrace.core.state.topic_queues import Cluster, Draw, TopicQueue
from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc

PULLED_MAX: Final = 256  # messages in one answer
PULLED_BYTES_MAX: Final = 1 << 20
_RESERVED: Final = 256  # at a time, beyond what is asked for
PULLS_MAX: Final = 1024  # that wait on one connection
CONSUMERS_MAX: Final = 10_000  # of one connection
_FORGOTTEN: Final = 1000  # messages that are done with, of which something is remembered


class Clusters(Waker):
    """Gives the messages of topic queues to consumers, and takes their acknowledgements. `trimming` keeps their
    limits."""

    def __init__(
        self,
        fold: Fold,
        commit: GroupCommit,
        reader: QueueReader,
        unread: Waiting,
        spilling: Spilling,
        timers: Timers,
        worker: WorkerPort,
    ) -> None:
        self.journal_name = JournalName()
        self._fold = fold
        self._commit = commit
        self.reader = reader
        self._unread = unread
        self._spilling = spilling
        self._worker = worker
        self._timers = timers
        self._settings = worker.settings
        self.readers = ClusterReaders(fold, worker)
        self._changed: dict[TopicQueue, None] = {}  # messages have come
        self.trimming = Trimming(fold, commit, reader, timers, worker)
        self.unused = self.trimming.unused = Unused(self.readers, commit, worker)

    # Messages come

    def arrived(self, tenant: Commons, message: Message) -> None:
        """Put a message at QoS 1 or 2 that is durable into the queue of its topic, if that has one."""
        queue = tenant.queues.get(message.topic)
        if queue is None:
            return
        queue.push(message.offset, message.size)
        message.waits = True
        self._changed[queue] = None
        self.trimming.keep_limits(queue)
        if queue.behind.loose() >= self._spilling.limit:
            self._spilling.spill_topic(queue)
        self.trimming.begin()

    def end_batch(self) -> None:
        """Answer those who wait for what has come, and notify others."""
        if self._changed:
            changed, self._changed = self._changed, {}
            for queue in changed:
                for cluster in list(queue.clusters.values()):
                    self.serve(cluster)
        self.trimming.note()

    def serve(self, cluster: Cluster) -> None:
        """Give what waits to those who have asked, the longest waiting first; notify others of the rest."""
        live = self.readers.used.get(cluster)
        if live is None:
            return
        left = len(live.waiting)
        while left > 0 and live.waiting and self._gives(cluster, live):
            left -= 1
            guest, _ = live.waiting.popitem(last=False)
            self.resume(guest)
        if cluster.available() > 0 and not live.waiting:
            self._notify(cluster, live)

    def _gives(self, cluster: Cluster, live: Live) -> bool:
        """Return whether somebody who asks may get something: else nobody need be asked."""
        is_full = len(cluster.in_flight) >= cluster.queue.limits.cluster_in_flight_max
        return cluster.available() > 0 and not live.unread and not is_full

    def _notify(self, cluster: Cluster, live: Live) -> None:
        available = cluster.available()
        left: i64 = min(available, len(live.idle))
        while left > 0:
            left -= 1
            consumer, _ = live.idle.popitem(last=False)
            try:
                if consumer.reading.holds():
                    topic, name = cluster.queue.topic, cluster.name
                    consumer.guest.voice.notify(consumer.sn, topic, name, available)
            except Exception as error:  # noqa: BLE001
                self._worker.contain("group", consumer.guest.link, error)

    # JOIN and LEAVE

    def join(self, guest: Guest, sn: bytes, cluster: Cluster) -> None:
        """Let a consumer join, or join again."""
        key = (sn, cluster.queue.topic, cluster.name)
        consumer = guest.consumers.get(key)
        if consumer is None or consumer.cluster is not cluster:
            consumer = Consumer(guest, sn, cluster)
            guest.consumers[key] = consumer
        live = self.readers.live(cluster)
        live.consumers[consumer] = None
        if consumer.asking == 0:
            live.idle[consumer] = None
        if cluster.available() > 0:
            self._notify(cluster, live)

    def leave(self, guest: Guest, sn: bytes, topic: bytes, name: bytes) -> bool:
        """Let a consumer leave: what it holds goes to others. False if it was none."""
        consumer = guest.consumers.pop((sn, topic, name), None)
        if consumer is None:
            return False
        for pull in guest.pulls:
            if pull.consumer is consumer:
                pull.over = True
        self._gone(consumer)
        self.answer_pulls(guest)
        return True

    def lost(self, guest: Guest) -> None:
        """Note that the connection has ended."""
        for pull in guest.pulls:
            if pull.timer is not None:
                pull.timer.cancel()
        guest.pulls.clear()
        consumers, guest.consumers = list(guest.consumers.values()), {}
        for consumer in consumers:
            try:
                self._gone(consumer)
            except Exception as error:  # noqa: BLE001  what it still holds goes back when it is overdue
                self._worker.contain("group", None, error)

    def _gone(self, consumer: Consumer) -> None:
        cluster, guest = consumer.cluster, consumer.guest
        live = self.readers.live(cluster)
        cluster.used_us = self._worker.clock.now_us
        live.consumers.pop(consumer, None)
        live.idle.pop(consumer, None)
        if not guest.pulls or guest.pulls[0].consumer is consumer:  # else another one of the connection waits
            live.waiting.pop(guest, None)
        for draw in list(consumer.holds.values()):
            cluster.give_back(draw)
            _let_go(draw)
        self.serve(cluster)

    # PULL

    def pull(self, pull: Pull) -> None:
        """Answer a PULL now, when there is something, or when its time is over; PULLs before it come first."""
        guest = pull.consumer.guest
        if len(guest.pulls) >= PULLS_MAX:
            raise ProtocolError(rc.RECEIVE_MAXIMUM_EXCEEDED, "more PULLs than may wait")
        pull.consumer.asking += 1
        self.readers.live(pull.consumer.cluster).idle.pop(pull.consumer, None)
        guest.pulls.append(pull)
        if len(guest.pulls) == 1:
            self.answer_pulls(guest)

    def answer_pulls(self, guest: Guest) -> None:
        """Answer the PULLs of a connection, as far as they can be."""
        while guest.pulls:
            pull = guest.pulls[0]
            if not self._answered(pull):
                return
            if pull.timer is not None:
                pull.timer.cancel()
                pull.timer = None
            if guest.pulls and guest.pulls[0] is pull:
                guest.pulls.popleft()
                self._asks_less(pull.consumer)

    def resume(self, guest: Guest) -> None:
        """Go on with a connection on somebody else's behalf, who does not hear what that raises."""
        try:
            self.answer_pulls(guest)
        except Exception as error:  # noqa: BLE001
            self._worker.contain("group", guest.link, error)

    def _asks_less(self, consumer: Consumer) -> None:
        """Note that a PULL of a consumer is answered."""
        consumer.asking -= 1
        live = self.readers.live(consumer.cluster)
        if consumer.asking == 0 and consumer in live.consumers:
            live.idle[consumer] = None

    def _answered(self, pull: Pull) -> bool:
        """Answer a PULL, or have it wait."""
        consumer = pull.consumer
        link, voice = consumer.guest.link, consumer.guest.voice
        if pull.over or pull.most == 0:
            voice.pulled(consumer.sn, [])
            return True
        if pull.reserving or link.paused:
            return False
        if link.buffered() > self._settings.write_buffer_high:
            return self._answer_later(pull)  # whether it reads is known behind the write
        if not consumer.reading.holds():
            consumer.reading.end()
            return False
        cluster = consumer.cluster
        if self._must_reserve(pull):
            return False
        lag = cluster.lag()
        found = self._draw(consumer, pull.most)
        if not found and cluster.lag() < lag:
            return self._answer_later(pull)  # all that it came to was dropped
        if not found and self._worker.clock.mono_ms < pull.until_ms:
            self._wait(pull)
            return False
        live = self.readers.live(cluster)
        live.waiting.pop(consumer.guest, None)
        voice.pulled(consumer.sn, found)
        if found:
            link.spend(len(found))
        return True

    def _answer_later(self, pull: Pull) -> bool:
        self._commit.then(pull.consumer.guest.link, partial(self.continued, pull))
        pull.reserving = True
        return False

    def _wait(self, pull: Pull) -> None:
        guest = pull.consumer.guest
        self.readers.live(pull.consumer.cluster).waiting[guest] = None
        if pull.timer is None:
            pull.timer = _PullOver(self, guest)
            self._timers.schedule(pull.until_ms, pull.timer)

    def _must_reserve(self, pull: Pull) -> bool:
        """Return whether what is to be drawn may not be sent yet: that it may have been is to be durable first."""
        cluster = pull.consumer.cluster
        queue = cluster.queue
        most: i64 = min(pull.most, PULLED_MAX)
        last: i64 = min(queue.next_serial - 1, max(cluster.next, queue.first) + most - 1)
        if last <= cluster.sent_limit or last < cluster.next:
            return False
        live = self.readers.live(cluster)
        if live.reserving < last:
            limit: i64 = last + _RESERVED
            numbers = [cluster.cluster_id, int(limit)]
            self._commit.append(number_record(CLUSTER_LIMIT, self._worker.clock.now_us, numbers))
            live.reserving = limit  # behind it: what failed before is not on its way
        self._commit.then(pull.consumer.guest.link, partial(self.reserved, pull, live.reserving))
        pull.reserving = True
        return True

    def reserved(self, pull: Pull, limit: i64) -> None:
        """Note that the limit of what a PULL reserved is durable."""
        cluster = pull.consumer.cluster
        cluster.sent_limit = max(cluster.sent_limit, limit)
        self.continued(pull)

    def continued(self, pull: Pull) -> None:
        """Note that what a PULL waited for has happened."""
        pull.reserving = False
        self.answer_pulls(pull.consumer.guest)

    def _draw(self, consumer: Consumer, most: i64) -> list[Draught]:
        """Take messages out of the line for a consumer, as many as are there and one answer may have."""
        found: list[Draught] = []
        cluster = consumer.cluster
        in_flight_max = cluster.queue.limits.cluster_in_flight_max
        left: i64 = min(most, PULLED_MAX, in_flight_max - len(cluster.in_flight))
        size = 0
        while left > 0 and size < PULLED_BYTES_MAX:
            serial, redelivered = cluster.head()
            if serial == 0 or serial > cluster.sent_limit:
                break
            ref = cluster.queue.ref_at(serial, cluster)
            message = self.reader.fetch(cluster.queue, serial, ref)
            if message is NOT_NOW:
                self.readers.live(cluster).unread = True
                self._unread.add(cluster, self)
                break
            left -= 1
            if not isinstance(message, Message):
                self._drop(cluster, serial, DROP_UNREADABLE)
            elif message.expired(self._worker.clock.now_us) and not redelivered:
                self._drop(cluster, serial, DROP_EXPIRED)
            else:
                size += message.size
                found.append(self._give(consumer, serial, message, redelivered))
        if found:
            counters = self._fold.make(cluster.queue.tenant).counters
            counters.publishes_sent += len(found)
            counters.bytes_sent += size
        return found

    def wake(self, owner: QueueOwner) -> bool:
        """Look whether what could not be read can be by now. False if the cluster does not wait, or has ended."""
        if not isinstance(owner, Cluster):
            return False
        live = self.readers.used.get(owner)
        if live is None or not live.unread:
            return False
        live.unread = False
        self.serve(owner)
        return True

    def _give(self, consumer: Consumer, serial: int, message: Message, redelivered: bool) -> Draught:
        """Give the head of a cluster to a consumer. It is drawn last: where something raises, it waits as before."""
        cluster = consumer.cluster
        found = self.journal_name.id_of(message)
        draw = Draw(serial, found, self._worker.clock.mono_ms + self._settings.visibility_ms, consumer)
        draught = Draught(found, redelivered, message)
        live = self.readers.live(cluster)
        serials = live.by_id.setdefault(found, [])
        if serial not in serials:
            serials.append(serial)
        if live.timer is None:
            timer = Alarm(partial(self.overdue, cluster))
            self._timers.schedule(draw.deadline_ms, timer)
            live.timer = timer
        live.deadlines.append(draw)
        consumer.holds[serial] = draw
        cluster.draw(draw)
        return draught

    def _drop(self, cluster: Cluster, serial: int, reason: int) -> None:
        cluster.finish(serial)
        self._fold.make(cluster.queue.tenant).count_drop(reason, 1)
        numbers = [cluster.cluster_id, serial, reason]
        self._commit.append(number_record(CLUSTER_DROPPED, self._worker.clock.now_us, numbers))

    # ACK

    def ack(self, cluster: Cluster, ids: list[bytes]) -> bool:
        """Finish messages that are acknowledged. False if one of them is not known, or was done with before; the others
        are finished."""
        live = self.readers.live(cluster)
        is_full = len(cluster.in_flight) >= cluster.queue.limits.cluster_in_flight_max
        numbers = [cluster.cluster_id]
        known = True
        for found in ids:
            serials = live.by_id.pop(found, None)
            if serials is None:
                known = False
                continue
            done = [serial for serial in serials if self._finish(cluster, serial)]
            known = known and len(done) > 0
            numbers += done
        if len(numbers) > 1:
            live.acked(len(numbers) - 1, self._worker.clock.mono_ms)
            cluster.used_us = self._worker.clock.now_us
            self._commit.append(number_record(CLUSTER_ACKED, self._worker.clock.now_us, numbers))
            self._tidy(cluster, live)
            if is_full:  # who has asked may have more now
                self.serve(cluster)
        return known

    def _tidy(self, cluster: Cluster, live: Live) -> None:
        """Forget what is remembered of messages that are done with, once it is more than what is needed."""
        most = 2 * (len(cluster.in_flight) + len(cluster.returned)) + _FORGOTTEN
        if len(live.deadlines) > most:
            left: deque[Draw] = deque()
            for draw in live.deadlines:
                if cluster.in_flight.get(draw.serial) is draw:
                    left.append(draw)
                else:
                    _let_go(draw)
            live.deadlines = left
        if len(live.by_id) > most:
            live.by_id = {
                found: serials for found, serials in live.by_id.items() if _is_unfinished(cluster, serials)
            }

    def _finish(self, cluster: Cluster, serial: int) -> bool:
        draw = cluster.in_flight.get(serial)
        if draw is not None:
            _let_go(draw)
        return cluster.finish(serial)

    def overdue(self, cluster: Cluster) -> None:
        """Give back what consumers have held for too long, and look again when the next one is due."""
        live = self.readers.live(cluster)
        live.timer = None
        now_ms = self._worker.clock.mono_ms
        deadlines = live.deadlines
        given = 0
        while deadlines and (deadlines[0].holder is None or deadlines[0].deadline_ms <= now_ms):
            draw = deadlines[0]
            if draw.holder is not None:
                cluster.give_back(draw)
                _let_go(draw)
                given += 1
            deadlines.popleft()
            if cluster.has_finished(draw.serial):
                live.by_id.pop(draw.message_id, None)
        self._tidy(cluster, live)
        deadlines = live.deadlines
        if deadlines:
            live.timer = Alarm(partial(self.overdue, cluster))
            self._timers.schedule(deadlines[0].deadline_ms, live.timer)
        if given:
            self.serve(cluster)

    # Stop

    def stop(self) -> None:
        """Stop on SIGTERM: note exactly what was delivered, so that nothing else says that it may have been."""
        for cluster in self._fold.queues.clusters.values():
            last = cluster.next - 1
            if cluster.sent_limit > last:
                cluster.sent_limit = last
                numbers = [cluster.cluster_id, int(last)]
                self._commit.append(number_record(CLUSTER_LIMIT, self._worker.clock.now_us, numbers))


def _let_go(draw: Draw) -> None:
    """Take a message off the list of who holds it."""
    holder = draw.holder
    draw.holder = None
    if isinstance(holder, Consumer):
        holder.holds.pop(draw.serial, None)


def _is_unfinished(cluster: Cluster, serials: list[int]) -> bool:
    """Return whether one of these messages is not done with."""
    return any(not cluster.has_finished(serial) for serial in serials)


class _PullOver(Timer):
    """Ends the oldest PULL of a connection when its time is over."""

    def __init__(self, clusters: Clusters, guest: Guest) -> None:
        super().__init__()
        self._clusters = clusters
        self._guest = guest

    def fire(self, now_ms: int) -> None:
        pulls = self._guest.pulls
        if pulls and pulls[0].timer is self:
            pulls[0].timer = None
        self._clusters.answer_pulls(self._guest)
