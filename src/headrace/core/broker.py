"""The broker: what happens at each packet. This file is the table of contents of the core and reads like section 3.

Runs on the loop, called by connections (`on_*`), by group commit (`apply`) and by the node (`end_tick`,
`on_timer`). A record takes effect when the journal's high watermark has passed it: PUBACK means that.
"""

from __future__ import annotations

from typing import Final, cast

from mypy_extensions import i64

from headrace.core.commit import ALIVE, Answer, BatchListener, Deferred, GroupCommit
from headrace.core.inbound.acknowledging import Acknowledging
from headrace.core.inbound.bridging import Bridging
from headrace.core.inbound.connect import Sessions
from headrace.core.inbound.consuming import Consuming
from headrace.core.inbound.devices import Devices
from headrace.core.inbound.forwarding import Forwarding
from headrace.core.inbound.publishing import Publishing
from headrace.core.inbound.subscribing import Subscribing
from headrace.core.inbound.turns import Turns
from headrace.core.outbound.clusters import Clusters
from headrace.core.outbound.delivery import Delivery
from headrace.core.outbound.drop_events import DropEvents
from headrace.core.outbound.group_delivery import SharedDelivery
from headrace.core.outbound.retained_replay import RetainedReplay
from headrace.core.outbound.routing import Router
from headrace.core.outbound.system_topics import SystemTopics
from headrace.core.ports.clock import Clock, Scheduler
from headrace.core.ports.failures import Failures
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.core.ports.journal import JournalPort
from headrace.core.ports.latencies import Latencies
from headrace.core.ports.link import Link
from headrace.core.ports.settings import BrokerSettings
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
    KIND_COPY,
    KIND_EVENT,
    KIND_MESSAGE,
    KIND_NONE,
    KIND_QUEUE,
    Record,
)
from headrace.core.records.stream_record import StreamRecord
from headrace.core.state.packet_ids import PacketIds
from headrace.core.state.session import Session, session_of
from headrace.core.state.state import Fold
from headrace.core.state.tenant import Tenant
from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import (
    Auth,
    Connect,
    Disconnect,
    Publish,
    Subscribe,
    Unsubscribe,
)

# What a call of the timer does at most: timers fired, retained messages removed. The rest is done in the next pass, but
# not faster than the journal takes it.
TIMERS_AT_ONCE: Final = 200
EXPIRED_AT_ONCE: Final = 256
PENDING_BYTES_MAX: Final = 1 << 20
LATENCY_INTERVAL_US: Final = 1000  # between samples: a flush may be one message's
_SUBSCRIPTION_WORK: Final = (
    4  # of one that comes or goes, in deliveries: the tree changes, and routes are forgotten
)
# Of the end of a tick, by failures' places.
_STEP_PLACES: Final[list[str]] = ["journal", "delivery", "flush", "delivery", "sweep", "read"]
_STEPS: Final = 6


class Broker(BatchListener):
    """One node's MQTT behaviour over its ports."""

    def __init__(
        self, journal: JournalPort, scheduler: Scheduler, clock: Clock, settings: BrokerSettings
    ) -> None:
        fold = Fold(journal, PacketIds(settings.direct_ids, settings.upper_ids))
        super().__init__(clock, settings, fold.tenant(DEFAULT_TENANT).identity_of(None))
        self.fold = fold
        self.commit = GroupCommit(journal, clock, settings.deliveries_at_once)
        self.delivery = Delivery(self.commit, journal, clock, settings)
        self.sharing = SharedDelivery(self.delivery, self.commit, journal, clock, settings)
        self.delivery.sharing = self.sharing
        self.router = Router(self.delivery, self.sharing, self.commit, self)
        self.sessions = Sessions(self.fold, self.commit, self.delivery, self)
        self.system = SystemTopics(self.delivery, clock)
        self.retained = RetainedReplay(self.commit, self.delivery, self.system, clock)
        self.drop_events = DropEvents(self.commit, clock)
        self.publishing = Publishing(
            self.commit, self.router, self.sessions.admission, self.sessions.testimony, self
        )
        self.forwarding = Forwarding(self.publishing, self.router, self.commit, settings)
        self.acknowledging = Acknowledging(self.commit, self.delivery, self.sharing)
        self.subscribing = Subscribing(self.commit, self.retained, self.sessions.testimony, self)
        self.clusters = Clusters(self.fold, self.commit, journal, self.delivery.spilling, self)
        consuming = Consuming(self.fold, self.commit, self.clusters, self)
        self.devices = Devices(self.fold, self.commit, self.sessions, self.publishing, consuming, self)
        self._scheduler = scheduler
        self._tick_requested = False
        self.turns = Turns(self)
        self.failures = Failures()
        self.latencies: Latencies | None = None
        self._acknowledged_us = 0  # when it was told of one last
        self._delivered_us = 0
        self.sessions.testimony.failures = self.failures
        self._broken: list[Link] = []  # something raised on their behalf: to be closed
        self.behind = False  # timers are due that the last call of `on_timer` left
        self.ticks = 0
        self.commit.attach(self)

    def bridging(self) -> Bridging:
        """What opens and attaches the sessions of our own bridges."""
        return Bridging(self.fold, self.commit, self.sessions, self.retained, self)

    # CONNECT, DISCONNECT and the end of a connection: `connect`

    def on_connect(self, link: Link, packet: Connect) -> None:
        self.sessions.connect(link, packet)

    def on_disconnect(self, link: Link, packet: Disconnect) -> None:
        self.sessions.disconnect(link, packet)

    def on_connection_lost(self, link: Link) -> None:
        self.sessions.connection_lost(link)
        self.commit.forget(link)

    def on_auth(self, link: Link, packet: Auth) -> None:
        raise ProtocolError(rc.PROTOCOL_ERROR, "no authentication exchange is in progress")

    def on_protocol_error(self, link: Link, error: ProtocolError) -> None:
        self.sessions.protocol_error(link, error)

    def on_pingreq(self, link: Link) -> None:
        if link.ready:
            link.pingresp()
        else:
            self.commit.defer(Answer(link, ALIVE))

    # PUBLISH from a client: `publishing`, and `forwarding` for those that leave as they came

    def on_publish(self, link: Link, packet: Publish) -> None:
        self.publishing.publish(link, packet)

    def on_plain_publish(self, link: Link, topic: bytes, packet: bytes, payload_at: i64) -> None:
        self.forwarding.publish(link, topic, packet, payload_at)

    def on_pubrel(self, link: Link, packet_id: int) -> None:
        self.publishing.pubrel(link, packet_id)

    def set_storage_full(self, full: bool) -> None:
        """The journal's disk is full, or has space again."""
        self.publishing.set_storage_full(full)

    # Acknowledgements of a subscriber: `acknowledging`

    def on_puback(self, link: Link, packet_id: int, reason_code: int) -> None:
        self.acknowledging.puback(link, packet_id, reason_code)

    def on_pubrec(self, link: Link, packet_id: int, reason_code: int) -> None:
        self.acknowledging.pubrec(link, packet_id, reason_code)

    def on_pubcomp(self, link: Link, packet_id: int, reason_code: int) -> None:
        self.acknowledging.pubcomp(link, packet_id, reason_code)

    # SUBSCRIBE, UNSUBSCRIBE: `subscribing`

    def on_subscribe(self, link: Link, packet: Subscribe) -> None:
        self.subscribing.subscribe(link, packet)
        self.publishing.keep_pace(link)

    def on_unsubscribe(self, link: Link, packet: Unsubscribe) -> None:
        self.subscribing.unsubscribe(link, packet)
        self.publishing.keep_pace(link)

    # What is durable takes effect, in order

    def apply(self, record: Record) -> i64:
        if self.router.unfinished():
            return self.router.go_on()
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
            self.fold.queues.apply(cast(QueueRecord, record))
        else:
            self.fold.streams.apply(cast(StreamRecord, record))
        return 0

    def end_part(self) -> None:
        """What the next part has for the same connections leaves in one write with this one, unless they are so many that
        their writes would be too much for one pass."""
        self.publishing.let_go()
        if 2 * self._dirty > self.settings.deliveries_at_once:
            self._flush()

    def end_batch(self) -> None:
        if self.fold.queues.by_id:
            self._end_batch_of_queues()
        self.publishing.let_go()
        self._flush()

    def _end_batch_of_queues(self) -> None:
        try:
            self.clusters.end_batch()
        except Exception as error:  # noqa: BLE001  what waits is answered when the next message comes
            self.contain("group", None, error)

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
                self.contain("acknowledge", link, error)
        tenant = self.fold.tenant(message.tenant) if session is None else session.tenant
        if message.flags & FLAG_PRODUCER:
            try:
                tenant.producers.apply(message)
            except Exception as error:  # noqa: BLE001
                self.contain("apply", link, error)
        if tenant.queues and message.flags & FLAG_QOS:
            try:
                self.clusters.arrived(tenant, message)
            except Exception as error:  # noqa: BLE001  who is subscribed gets it all the same
                self.contain("apply", None, error)
        return self.router.apply(tenant, message, None if session is None else link)

    def _apply_copy(self, copy: Copy) -> i64:
        """A message of another shard is durable here: it goes to the sessions of this one, unless it did before."""
        if not self.fold.streams.takes(copy):
            return 1
        tenant = self.fold.tenant(copy.tenant)
        if tenant.queues:
            try:
                self.clusters.arrived(tenant, copy)
            except Exception as error:  # noqa: BLE001  who is subscribed gets it all the same
                self.contain("apply", None, error)
        return self.router.route(tenant, copy, None)

    def _apply_event(self, event: Event) -> i64:
        """Apply only what waits for durability; the other events took effect when they were appended."""
        if isinstance(event, RetainedExpired):
            tenant = self.fold.tenant(event.tenant)
            tenant.retained.remove(event.topic.encode("utf-8"), event.message_offset)
            return 1
        if isinstance(event, SessionEnded):
            if self.fold.departing:
                self.sessions.hand_out(self.fold.departed(event.incarnation, event.offset))
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
            self.contain("apply", session.link, error)
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
            return self.fold.subscribed(session, event)
        return self.fold.retained_queued(session, event)

    def _apply_rest(self, session: Session, event: RetainedListing | Unsubscribed, numbered: i64) -> i64:
        """The session's connection goes, but its state is what a replay makes of the journal: apply an event that
        failed somewhere, from there on. Raises what is there to stay."""
        if isinstance(event, Unsubscribed):
            return self._apply_to(session, event)
        queue = session.queue
        done: i64 = 0 if queue is None else queue.next_serial - 1 - numbered
        return self._apply_to(session, event.without(done))

    # What is raised where nothing should be: it costs the connection that it concerns

    def failed(self, record: Record, error: Exception) -> None:
        link: Link | None = None
        place = "apply"
        if record.kind == KIND_NONE:
            link = cast(Deferred, record).payer
            place = "deferred"
        self.router.give_up()
        self.contain(place, link, error)

    def contain(self, place: str, link: Link | None, error: Exception) -> None:
        """Note that something failed at this place, for this connection or for nobody in particular, and have the
        connection closed. What it was to be sent may be half written: it is thrown away, and nothing is added."""
        self.failures.note(place, "" if link is None else link.client_id, error)
        if link is not None and not link.closed and not link.broken:
            link.broken = True
            if link.out is not None:
                link.out.truncate(0)
            self._broken.append(link)
            self.request_tick()

    def _close_broken(self) -> None:
        """Say why, if the version has words for it, and close."""
        while self._broken:
            link = self._broken.pop()
            try:
                if link.out is not None:
                    link.out.truncate(0)
                self.sessions.protocol_error(link, _failure())
            except Exception as error:  # noqa: BLE001
                self.failures.note("close", link.client_id, error)
                self._cut(link)

    def _cut(self, link: Link) -> None:
        """Close it without a word."""
        try:
            self.sessions.connection_lost(link)
        except Exception as error:  # noqa: BLE001
            self.failures.note("close", link.client_id, error)
        link.close()

    # Ticks

    @property
    def idle(self) -> bool:
        """True when nothing waits, for the journal or for its turn."""
        return self.commit.idle and not self.router.fan_out.busy

    def request_tick(self) -> None:
        if not self._tick_requested:
            self._tick_requested = True
            self._scheduler.request_tick()

    def end_tick(self) -> None:
        """Do what comes after everything readable was read: one append to the journal, one write per connection."""
        self._tick_requested = False
        self.clock.stale = True
        self.ticks += 1
        step: i64 = 0
        while step < _STEPS:
            try:  # one for all of them: to enter it costs as much as a step that has nothing to do
                if step < 1:
                    step = 1
                    self.delivery.spilling.begin_pass()
                    self.commit.flush()
                if step < 2:
                    step = 2
                    if self.router.fan_out.go_on():
                        self.request_tick()
                    self.publishing.let_go()
                if step < 3:
                    step = 3
                    self._close_broken()
                    self._flush()
                if step < 4:
                    step = 4
                    if self.delivery.feed_hungry():
                        self.request_tick()
                if step < 5:
                    step = 5
                    if self.fold.sweep(self.settings.deliveries_at_once):
                        self.request_tick()
                if step < _STEPS:
                    step = _STEPS
                    self.publishing.read_on()
                    self._take_turns()
            except Exception as error:  # noqa: BLE001  the other steps are others' work
                self._step_failed(_STEP_PLACES[step - 1], error)

    def _step_failed(self, place: str, error: Exception) -> None:
        self.contain(place, None, error)
        self.request_tick()
        failed = self.failures.journal_failed
        if self.commit.failed is not None and failed is not None:
            failed(error)

    def hold_back(self, link: Link) -> None:
        self.publishing.hold_back(link)

    def take_turns(self, link: Link) -> None:
        """A link has read more than its share: it goes on in the next pass, when the others were read."""
        self.turns.take(link)
        self.request_tick()

    def _take_turns(self) -> None:
        if self.turns.waiting:
            self.turns.go_on(self.commit.behind)
            if self.turns.waiting:
                self.request_tick()

    def _flush(self) -> None:
        following = self._first_dirty
        if following is not None:
            self._first_dirty = self._last_dirty = None
            self._dirty = 0
            link = following
            while following is not None:
                try:
                    while following is not None:
                        link = following
                        following = link.next_dirty
                        link.next_dirty = None
                        link.dirty = False
                        link.flush()
                except Exception as error:  # noqa: BLE001
                    self.contain("flush", link, error)
            self._tell_latencies()

    def _tell_latencies(self) -> None:
        acknowledged, self.publishing.sampled_us = self.publishing.sampled_us, 0
        delivered, self.delivery.sampled_us = self.delivery.sampled_us, 0
        latencies = self.latencies
        if latencies is None:
            return
        now_us = self.clock.now_us
        try:
            if acknowledged and not 0 <= now_us - self._acknowledged_us < LATENCY_INTERVAL_US:
                self._acknowledged_us = now_us
                latencies.acknowledged(acknowledged)
            if delivered and not 0 <= now_us - self._delivered_us < LATENCY_INTERVAL_US:
                self._delivered_us = now_us
                latencies.delivered(delivered)
        except Exception as error:  # noqa: BLE001  what was written has been written
            self.failures.note("latencies", "", error)

    def on_writable(self, link: Link) -> None:
        """The socket's buffer fell below its low mark."""
        session = session_of(link)
        link.hungry = False
        if session is not None and session.link is link:
            self.delivery.pump(session)
        self.commit.writable(link)

    def on_timer(self) -> None:
        """What time has decided, a bounded part of it; `behind` says that more is due now."""
        self.behind = True
        if self.commit.pending_bytes > PENDING_BYTES_MAX:
            return
        try:
            self.delivery.retry_unread()
        except Exception as error:  # noqa: BLE001
            self.contain("unread", None, error)
        due = self._run_timers()
        if self.settings.drop_events and not self.publishing.storage_full:
            try:
                self.drop_events.publish(list(self.fold.tenants.values()))
            except Exception as error:  # noqa: BLE001
                self.contain("events", None, error)
        left = self._expire_retained()
        self.behind = due or left == 0

    def _run_timers(self) -> bool:
        """Fire what is due; one that fails is tried again later, and the others have their turn."""
        now_ms = self.clock.mono_ms
        for _ in range(TIMERS_AT_ONCE):
            try:
                return self.timers.run(now_ms, TIMERS_AT_ONCE)
            except Exception as error:  # noqa: BLE001
                self.contain("timer", None, error)
                self.timers.retry(now_ms)
        return True

    def _expire_retained(self) -> int:
        """Journal the expiry of retained messages; returns how many more it would have taken."""
        left = EXPIRED_AT_ONCE
        for tenant in self.fold.tenants.values():
            try:
                left -= self._expire_some(tenant, left)
            except Exception as error:  # noqa: BLE001
                self.contain("expiry", None, error)
        return left

    def _expire_some(self, tenant: Tenant, most: int) -> int:
        expired = tenant.retained.take_expired(self.clock.now_us, most)
        for message in expired:
            try:
                self._expire(tenant, message)
            except Exception as error:  # noqa: BLE001
                self.contain("expiry", None, error)
                tenant.retained.expire_later(message)
        return len(expired)

    def _expire(self, tenant: Tenant, message: Message) -> None:
        topic = message.topic.decode("utf-8")
        self.commit.append(RetainedExpired.at(self.clock.now_us, tenant.name, topic, message.offset))


def _failure() -> ProtocolError:
    return ProtocolError(rc.IMPLEMENTATION_SPECIFIC_ERROR, "the broker failed to serve this connection")
