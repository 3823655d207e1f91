"""The broker: what happens at each packet. This file is the table of contents of the core and reads like section 3.

Runs on the loop, called by connections (`on_*`) and by the worker (`end_tick`, `after_flush`, `on_timer`), which has
what is not of one shard. A record takes effect when the journal's high watermark has passed it (`applying`): PUBACK
means that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from headrace.core.applying import Applying
from headrace.core.commit import SAY_PINGRESP, Answer, GroupCommit
from headrace.core.inbound.acknowledging import Acknowledging
from headrace.core.inbound.bridging import Bridging
from headrace.core.inbound.connect import Sessions
from headrace.core.inbound.consuming import Consuming
from headrace.core.inbound.devices import Devices
from headrace.core.inbound.dropping import Dropping
from headrace.core.inbound.forwarding import Forwarding
from headrace.core.inbound.gate import Gate
from headrace.core.inbound.leaving import Leaving
from headrace.core.inbound.posting import Posting
from headrace.core.inbound.publishing import Publishing
from headrace.core.inbound.queue_talk import QueueTalk
from headrace.core.inbound.subscribing import Subscribing
from headrace.core.outbound.clusters import Clusters
from headrace.core.outbound.delivery import Delivery
from headrace.core.outbound.drop_events import DropEvents
from headrace.core.outbound.group_delivery import SharedDelivery
from headrace.core.outbound.journal_queues import JournalQueues
from headrace.core.outbound.removing import Removing
from headrace.core.outbound.retained_expiry import expire_retained
from headrace.core.outbound.retained_replay import RetainedReplay
from headrace.core.outbound.routing import Router
from headrace.core.outbound.stored_queues import Choosing, Placed, StoredQueues
from headrace.core.outbound.system_topics import SystemTopics
from headrace.core.outbound.unread import Unread
from headrace.core.ports.journal import JournalPort
from headrace.core.ports.latencies import Latencies
from headrace.core.ports.link import BrokerPort, Link, WorkerPort
from headrace.core.ports.queue_reader import QueueReader
from headrace.core.ports.timers import Timers
from headrace.core.ports.witness import Testimony
from headrace.core.shards.alone import Alone
from headrace.core.shards.neighbours import Neighbours
from headrace.core.shards.routes import Routes
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.state.packet_ids import PacketIds
from headrace.core.state.session import session_of
from headrace.core.state.state import Fold
from headrace.core.storing.notes import StoringSettings
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

PENDING_BYTES_MAX: Final = 1 << 20
LATENCY_INTERVAL_US: Final = 1000  # between samples: a flush may be one message's
# Of the end of a tick, when everything was written, by failures' places.
_STEP_PLACES: Final[list[str]] = ["delivery", "sweep", "read"]
_STEPS: Final = 3


class Broker(BrokerPort):
    """The MQTT behaviour of one shard over its journal: what its clients do, what becomes durable, what is delivered.

    `timers` are those of its sessions and topic queues. `journal_failed` hears of a journal that takes nothing more.
    """

    def __init__(
        self,
        shard: int,
        journal: JournalPort,
        worker: WorkerPort,
        testimony: Testimony,
        reader: QueueReader | None = None,
    ) -> None:
        """Begin empty. `reader` reads queues that are not in the journal alone."""
        clock, settings = worker.clock, worker.settings
        self.shard = shard
        self.worker = worker
        self.timers = Timers()
        self.fold = Fold(journal, PacketIds(settings.direct_ids, settings.upper_ids), worker.quotas)
        self.fold.make(worker.anyone.tenant)
        self.commit = GroupCommit(journal, worker, settings.deliveries_at_once)
        reader = reader or JournalQueues(journal)
        self.unread = Unread(worker)
        reader.attach(self.unread)
        self.delivery = Delivery(self.commit, reader, self.unread, clock, settings)
        self.sharing = self.delivery.sharing = SharedDelivery(self.delivery, self.commit, clock, settings)
        self.router = Router(self.delivery, self.sharing, self.commit, worker)
        self.sessions = Sessions(self.fold, self.commit, self.delivery, self.timers, testimony, worker, shard)
        self.dropping = Dropping(self.fold, self.commit, self.sessions)
        self.system = SystemTopics(self.delivery, clock)
        self.retained = RetainedReplay(self.commit, self.delivery, self.system, clock)
        self.drop_events = DropEvents(self.commit, clock)
        self.gate = Gate(self.commit, worker)
        self.publishing = Publishing(
            self.commit, self.gate, self.router, self.sessions.admission, testimony, worker
        )
        self.forwarding = Forwarding(self.publishing, self.router, self.commit, settings)
        self.acknowledging = Acknowledging(self.commit, self.delivery, self.sharing)
        self.subscribing = Subscribing(self.commit, self.retained, testimony, worker)
        self.clusters = Clusters(
            self.fold, self.commit, reader, self.unread, self.delivery.spilling, self.timers, worker
        )
        self.removing = Removing(self.fold, self.clusters, self.commit, worker)
        consuming = Consuming(shard, self.fold, self.commit, self.clusters, worker)
        self.devices = Devices(self.fold, self.commit, self.sessions, self.gate, consuming, worker)
        self.journal_failed: Callable[[BaseException], None] | None = None
        self._acknowledged_us = self._delivered_us = 0  # when it was told of one last
        self.neighbours = Alone()
        self.stored: StoredQueues | None = None  # where queues have stores
        self.behind = False  # more is due than the last call of `on_timer` did
        self._leaving: Leaving | None = None  # once the shard is being given up
        self._applying = Applying(
            self.fold, self.delivery, self.publishing, self.sessions, self.clusters, worker
        )
        self.commit.attach(self._applying)

    def join(self, journal: JournalPort, routes: Routes, settings: StreamSettings) -> Neighbours:
        """Be one of several shards; to be called before the state is recovered. `routes` is this shard's own
        table."""
        consuming, owners = self.devices.consuming, self.devices.owners
        talk = QueueTalk(self.shard, self.fold, self.commit, consuming, owners, self.worker, settings)
        neighbours = Neighbours(
            self.shard,
            self.fold,
            self.commit,
            self.router,
            self.delivery,
            journal,
            self.worker,
            routes,
            settings,
            self.gate,
            talk,
        )
        self.neighbours = self.subscribing.neighbours = consuming.neighbours = neighbours
        self.router.others = self.drop_events.others = neighbours.followers
        self._applying.neighbours = neighbours
        self.devices.requests = talk.far
        self.retained.others = neighbours.asking
        self.sharing.lending = neighbours.members
        self.acknowledging.loans = neighbours.members.loans
        self.forwarding.hold_all()
        self.fold.spread(self.worker.homes, self.shard)
        self.fold.count_owned_in(self.worker.owned, self.worker.owned_devices)
        return neighbours

    def keep_queues_in(self, placed: list[Placed], choosing: Choosing, settings: StoringSettings) -> None:
        """Have long queues lie in stores from now on, in those that `choosing` says; to be called once the state is
        recovered."""
        delivery = self.delivery
        stored = StoredQueues(
            self.fold, self.commit, delivery.reader, self.worker, placed, choosing, settings
        )
        self.stored = self._applying.stored = delivery.reader = delivery.stores = stored

    def leave(self, most: int) -> bool:
        """End the connections of at most so many sessions: the shard is being given up, and no client comes any more.
        True if there are more."""
        if self._leaving is None:
            self._leaving = Leaving(self.fold, self.commit, self.sessions, self.devices)
        return self._leaving.end_connections(most)

    def bridging(self) -> Bridging:
        """Return what opens and attaches the sessions of our own bridges."""
        return Bridging(self.fold, self.commit, self.sessions, self.retained, self.worker)

    def posting(self) -> Posting:
        """Return what takes the messages that are posted over no connection."""
        return Posting(self.fold, self.commit, self.gate, self.router, self.sessions.admission, self.worker)

    # CONNECT, DISCONNECT and the end of a connection: `connect`

    def on_connect(self, link: Link, packet: Connect) -> None:
        link.broker = self
        self.sessions.connect(link, packet)

    def on_disconnect(self, link: Link, packet: Disconnect) -> None:
        self.sessions.partings.disconnect(link, packet)

    def on_connection_lost(self, link: Link) -> None:
        self.sessions.partings.connection_lost(link)
        self.commit.forget(link)

    def on_auth(self, link: Link, packet: Auth) -> None:
        raise ProtocolError(rc.PROTOCOL_ERROR, "no authentication exchange is in progress")

    def on_protocol_error(self, link: Link, error: ProtocolError) -> None:
        self.sessions.partings.protocol_error(link, error)

    def put_out(self, link: Link, code: int, why: str) -> None:
        self.sessions.partings.put_out(link, code, why)

    def on_pingreq(self, link: Link) -> None:
        if link.ready:
            link.pingresp()
        else:
            self.commit.defer(Answer(link, SAY_PINGRESP))

    # PUBLISH from a client: `publishing`, and `forwarding` for those that leave as they came

    def on_publish(self, link: Link, packet: Publish) -> None:
        self.publishing.publish(link, packet)

    def on_plain_publish(self, link: Link, topic: bytes, packet: bytes, payload_at: i64) -> None:
        self.forwarding.publish(link, topic, packet, payload_at)

    def on_pubrel(self, link: Link, packet_id: int) -> None:
        self.publishing.pubrel(link, packet_id)

    def set_storage_full(self, full: bool, is_of_disk: bool = True) -> None:
        """Note that the journal's disk is full, or that it has space again. Not `is_of_disk`: nothing can be written, for
        want of descriptors, which is no concern of other shards."""
        self.gate.set_storage_full(full)
        self.neighbours.set_storage_full(full, is_of_disk)

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
        link.effective_at = self.commit.entered
        self.gate.keep_pace(link)

    def on_unsubscribe(self, link: Link, packet: Unsubscribe) -> None:
        self.subscribing.unsubscribe(link, packet)
        link.effective_at = self.commit.entered
        self.gate.keep_pace(link)

    # Ticks

    @property
    def idle(self) -> bool:
        """Return True when nothing waits, for the journal or for its turn."""
        return self.commit.idle and not self.router.fan_out.busy

    def end_tick(self) -> None:
        """End a tick before anything is written: hand over a batch, and go on with a message to many."""
        try:
            self.delivery.spilling.begin_pass()
            self.commit.flush()
        except Exception as error:  # noqa: BLE001  the other steps are others' work
            self._step_failed("journal", error)
        try:
            if self.router.fan_out.deliver_some():
                self.worker.request_tick()
            self.gate.let_go()
        except Exception as error:  # noqa: BLE001
            self._step_failed("delivery", error)

    def after_flush(self) -> None:
        """End a tick when everything was written: do a share of what is left, and read on."""
        step: i64 = 0
        while step < _STEPS:
            try:  # one for all of them: to enter it costs as much as a step that has nothing to do
                if step < 1:
                    step = 1
                    if self.unread.has_news and self.unread.try_again():
                        self.worker.request_tick()
                    if self.delivery.feed_hungry():
                        self.worker.request_tick()
                    if self.stored is not None and self.stored.ask_stores():
                        self.worker.request_tick()
                if step < 2:
                    step = 2
                    if self.fold.sweep(self.worker.settings.deliveries_at_once):
                        self.worker.request_tick()
                if step < _STEPS:
                    step = _STEPS
                    self.gate.read_on()
                    self.neighbours.end_pass()
            except Exception as error:  # noqa: BLE001  the other steps are others' work
                self._step_failed(_STEP_PLACES[step - 1], error)

    def _step_failed(self, place: str, error: Exception) -> None:
        self.worker.contain(place, None, error)
        self.worker.request_tick()
        if self.commit.failed is not None and self.journal_failed is not None:
            self.journal_failed(error)

    def tell_latencies(self, latencies: Latencies | None) -> None:
        """Tell of the oldest message that was acknowledged, and of the oldest that was delivered, by what was just
        written."""
        acknowledged, self.publishing.sampled_us = self.publishing.sampled_us, 0
        delivered, self.delivery.sampled_us = self.delivery.sampled_us, 0
        if latencies is None:
            return
        now_us = self.worker.clock.now_us
        try:
            if acknowledged and not 0 <= now_us - self._acknowledged_us < LATENCY_INTERVAL_US:
                self._acknowledged_us = now_us
                latencies.acknowledged(acknowledged)
            if delivered and not 0 <= now_us - self._delivered_us < LATENCY_INTERVAL_US:
                self._delivered_us = now_us
                latencies.delivered(delivered)
        except Exception as error:  # noqa: BLE001  what was written has been written
            self.worker.failures.note("latencies", "", error)

    def on_writable(self, link: Link) -> None:
        """Note that the socket's buffer fell below its low mark."""
        session = session_of(link)
        link.hungry = False
        if session is not None and session.link is link:
            self.delivery.pump(session)
        self.commit.writable(link)

    def on_timer(self, most: int) -> None:
        """Do what time has decided, a bounded part of it, of which `most` are timers; `behind` says that more is due
        now."""
        self.behind = True
        if self.commit.pending_bytes > PENDING_BYTES_MAX:
            return
        try:
            self.unread.retry()
        except Exception as error:  # noqa: BLE001
            self.worker.contain("unread", None, error)
        if self.stored is not None:
            try:
                self.stored.on_timer()
            except Exception as error:  # noqa: BLE001
                self.worker.contain("store", None, error)
        try:
            self.neighbours.on_timer()
        except Exception as error:  # noqa: BLE001
            self.worker.contain("timer", None, error)
        due = self.worker.fire(self.timers, most)
        if self.worker.settings.drop_events and not self.gate.full:
            try:
                self.drop_events.publish(list(self.fold.tenants.values()))
            except Exception as error:  # noqa: BLE001
                self.worker.contain("events", None, error)
        self.behind = expire_retained(self.fold, self.commit, self.worker) or due
