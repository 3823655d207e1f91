"""What is durable takes effect, in order: messages, copies from other shards, events, and work that waited for them.

Runs on the loop, called by group commit. What is raised where nothing should be costs the connection that it concerns.
"""

from __future__ import annotations

from typing import Final, cast

from mypy_extensions import i64

from headrace.core.commit import BatchListener, Deferred
from headrace.core.inbound.connect import Sessions
from headrace.core.inbound.publishing import Publishing
from headrace.core.outbound.clusters import Clusters
from headrace.core.outbound.delivery import Delivery
from headrace.core.outbound.stored_queues import StoredQueues
from headrace.core.ports.link import HELD_FOR_SHARE, Link, WorkerPort
from headrace.core.records.event import (
    Event,
    RetainedExpired,
    RetainedListing,
    RetainedQueued,
    SessionEnded,
    Subscribed,
    Unsubscribed,
)
from headrace.core.records.message import Copy, Message
from headrace.core.records.queue_record import QueueRecord
from headrace.core.records.record import (
    FLAG_PRODUCER,
    FLAG_QOS,
    FLAG_RETAIN,
    KIND_COPY,
    KIND_EVENT,
    KIND_GIVEN,
    KIND_MESSAGE,
    KIND_NONE,
    KIND_QUEUE,
    Record,
)
from headrace.core.records.stream_record import StreamRecord
from headrace.core.shards.alone import Alone
from headrace.core.state.groups import groups_of
from headrace.core.state.session import Session
from headrace.core.state.state import Fold
from headrace.core.state.topic_queues import ENDINGS

_SUBSCRIPTION_WORK: Final = (
    4  # of one that comes or goes, in deliveries: the tree changes, and routes are forgotten
)


class Applying(BatchListener):
    """Lets the records of one shard take effect. `neighbours` are its other shards, `stored` where its queues have
    stores."""

    def __init__(
        self,
        fold: Fold,
        delivery: Delivery,
        publishing: Publishing,
        sessions: Sessions,
        clusters: Clusters,
        worker: WorkerPort,
    ) -> None:
        self.fold = fold
        self.delivery = delivery
        self.publishing = publishing
        self.sessions = sessions
        self.clusters = clusters
        self.worker = worker
        self.commit = publishing.commit
        self.gate = publishing.gate
        self.router = publishing.router
        self.neighbours = Alone()
        self.stored: StoredQueues | None = None

    def apply(self, record: Record) -> i64:
        if self.router.unfinished():
            return self.router.route_on()
        if record.kind == KIND_MESSAGE:
            return self._apply_message(cast(Message, record))
        if record.kind == KIND_NONE:
            deferred = cast(Deferred, record)
            self.commit.ran(deferred)
            written = self.delivery.written
            deferred.run()
            return max(deferred.work(), 1 + self.delivery.written - written)
        if record.kind == KIND_EVENT:
            return self._apply_event(cast(Event, record))
        return self._apply_other(record) if record.kind >= KIND_QUEUE else 0

    def _apply_other(self, record: Record) -> i64:
        if record.kind == KIND_COPY:
            return self._apply_copy(cast(Copy, record))
        if record.kind == KIND_QUEUE:
            self._apply_of_queues(cast(QueueRecord, record))
        elif record.kind != KIND_GIVEN:
            self.fold.streams.apply(cast(StreamRecord, record))
        return 0

    def _apply_of_queues(self, record: QueueRecord) -> None:
        if record.subkind not in ENDINGS:
            self.fold.queues.apply(record)
            return
        for tenant, reason, count in self.fold.queues.end(record):
            self.fold.make(tenant).count_drop(reason, count)

    def end_part(self) -> None:
        """End a part of a batch: what the next part has for the same connections leaves in one write with this one,
        unless they are so many that their writes would be too much for one pass."""
        self.gate.let_go()
        if 2 * self.worker.dirty > self.worker.settings.deliveries_at_once:
            self.worker.flush()

    def end_batch(self) -> None:
        if self.fold.queues.by_id:
            self._end_batch_of_queues()
        self.gate.let_go()
        self.worker.flush()

    def _end_batch_of_queues(self) -> None:
        try:
            self.clusters.end_batch()
        except Exception as error:  # noqa: BLE001  what waits is answered when the next message comes
            self.worker.contain("group", None, error)

    def _apply_message(self, message: Message) -> i64:
        link: Link | None = None
        session: Session | None = None
        if message.link is not None:
            link = cast(Link, message.link)
            message.link = None
            session = cast("Session | None", link.session)
            try:
                self.publishing.acknowledge(link, message)
            except Exception as error:  # noqa: BLE001  who waits for the message does not wait for this
                self.worker.contain("acknowledge", link, error)
        tenant = self.fold.make(message.tenant) if session is None else session.tenant
        if message.flags & FLAG_PRODUCER:
            try:
                tenant.producers.apply(message)
            except Exception as error:  # noqa: BLE001
                self.worker.contain("apply", link, error)
        if tenant.queues and message.flags & FLAG_QOS:
            try:
                self.clusters.arrived(tenant, message)
            except Exception as error:  # noqa: BLE001  who is subscribed gets it all the same
                self.worker.contain("apply", None, error)
        return self.router.apply(tenant, message, None if session is None else link)

    def _apply_copy(self, copy: Copy) -> i64:
        """Apply a copy of a message of another shard, which is durable here: it goes to the sessions of this shard,
        unless it did before."""
        self.neighbours.took(copy)
        if not self.fold.streams.takes(copy):
            return 1
        tenant = self.fold.make(copy.tenant)
        if copy.flags & FLAG_RETAIN:
            self.router.keep(tenant, copy)
        if copy.flags & FLAG_QOS == 0:  # in order with what comes live of its shard
            return self.router.route(tenant, copy.of_nobody(copy.topic, copy.flags), None)
        if tenant.queues:
            try:
                self.clusters.arrived(tenant, copy)
            except Exception as error:  # noqa: BLE001  who is subscribed gets it all the same
                self.worker.contain("apply", None, error)
        return self.router.route(tenant, copy, None)

    def _apply_event(self, event: Event) -> i64:
        """Apply only what waits for durability; the other events took effect when they were appended."""
        if isinstance(event, RetainedExpired):
            tenant = self.fold.make(event.tenant)
            tenant.retained.remove(event.topic.encode("utf-8"), event.message_offset)
            return 1
        if isinstance(event, SessionEnded):
            if self.stored is not None:
                self.stored.ended(event.incarnation)
            if self.fold.departing:
                self.sessions.absences.hand_out(self.fold.departed(event.incarnation, event.offset))
            return 0
        if not isinstance(event, (RetainedListing, Unsubscribed)):
            return 0
        session = self.fold.by_incarnation.get(event.incarnation)
        if session is None:
            self.fold.changed_departing(event)
            return 1
        numbered = 0 if session.queue is None else session.queue.next_serial - 1
        try:
            work = self._apply_to(session, event)
        except Exception as error:  # noqa: BLE001
            self.worker.contain("apply", session.link, error)
            work = self._apply_rest(session, event, numbered)
        if not isinstance(event, RetainedQueued):
            work *= _SUBSCRIPTION_WORK
        queue = session.queue
        if not isinstance(event, Unsubscribed) and queue is not None and queue.backlog.count:
            self.delivery.keep_limits(session, queue)
        return work

    def _apply_to(self, session: Session, event: RetainedListing | Unsubscribed) -> i64:
        if isinstance(event, Unsubscribed):
            return self.fold.unsubscribed(session, event)
        if isinstance(event, Subscribed):
            work = self.fold.subscribed(session, event)
            if session.link is None:
                self.sessions.absences.hand_out(groups_of(session))
            return work
        return self.fold.retained_queued(session, event)

    def _apply_rest(self, session: Session, event: RetainedListing | Unsubscribed, numbered: i64) -> i64:
        """Apply an event that failed somewhere, from there on: the session's connection goes, but its state is what a
        replay makes of the journal. Raises what is there to stay."""
        if isinstance(event, Unsubscribed):
            return self._apply_to(session, event)
        queue = session.queue
        done: i64 = 0 if queue is None else queue.next_serial - 1 - numbered
        return self._apply_to(session, event.without(done))

    def failed(self, record: Record, error: Exception) -> None:
        link: Link | None = None
        place = "apply"
        if record.kind == KIND_NONE:
            link = cast(Deferred, record).payer
            place = "deferred"
        self.router.give_up()
        self.worker.contain(place, link, error)

    def hold_back(self, link: Link) -> None:
        self.gate.hold(link, HELD_FOR_SHARE)
