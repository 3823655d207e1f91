"""The live state: tenants, sessions by incarnation, groups, and what the events of the journal change in it.

The broker calls these methods when it appends a session's record or applies a durable one; `replay` calls the same ones
at a start. So the state is a fold over the journal, live and replayed alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from headrace.core.homes import Homes
from headrace.core.ports.journal import PageReader
from headrace.core.ports.limits import Limits
from headrace.core.ports.tenancy import Quotas
from headrace.core.records.event import (
    BrokerStarted,
    ClientConnected,
    RetainedListing,
    SessionClosed,
    SessionEvent,
    SessionOpened,
    SessionResumed,
    Subscribed,
    Unsubscribed,
)
from headrace.core.records.message import encode_varint
from headrace.core.records.message_id import Origin
from headrace.core.records.record import (
    DROP_SESSION_ENDED,
)
from headrace.core.state.away import AllAtHome
from headrace.core.state.counters import Counters
from headrace.core.state.groups import GROUP_NUMBER_SHIFT, Group, draws_of, give_back, groups_of
from headrace.core.state.packet_ids import PacketIds
from headrace.core.state.queue import REF_QOS, reference
from headrace.core.state.retained_homes import RecentRetained, RetainedHome
from headrace.core.state.roster import Roster
from headrace.core.state.session import Session, Subscription
from headrace.core.state.shared_groups import SharedGroups
from headrace.core.state.streams import Streams
from headrace.core.state.subscription_tree import memory_of
from headrace.core.state.subscriptions import subscription_from
from headrace.core.state.tenant import Tenant
from headrace.core.state.topic_queues import TopicQueues
from headrace.core.state.wanted import Unasked
from headrace.mqtt.topics import SHARE_PREFIX

if TYPE_CHECKING:
    from headrace.core.ports.link import Link
    from headrace.core.ports.owned import Owned

NONE_LISTED: Final = 1 << 62


def _note_owner(session: Session, event: ClientConnected) -> None:
    """Note the user of a session; the first one keeps it."""
    user = event.user
    if user is not None:
        session.own(user)


class Fold:
    """The tenants, the sessions by incarnation, and what a record does to them."""

    def __init__(self, pages: PageReader, ids: PacketIds | None = None, quotas: Quotas | None = None) -> None:
        """Begin empty. `quotas` are the limits of the worker's tenants; a reader of files has the usual ones."""
        self._pages = pages
        self._quotas = Quotas(Limits()) if quotas is None else quotas
        self._ids = PacketIds() if ids is None else ids
        self.tenants: dict[str, Tenant] = {}
        self.strangers = Counters()  # of those who were refused, of tenants that are not here
        self.by_incarnation: dict[int, Session] = {}
        self.in_stores: dict[
            int, Session
        ] = {}  # by incarnation: those of which a store has, or had, something
        self.roster = Roster()
        self.queues = TopicQueues(pages, self._quotas)
        self.streams = Streams()
        self.origin: Origin | None = None  # of which journal the oldest records are copies
        self.epochs: list[tuple[int, int]] = []  # of the journal, as `JournalName` takes them
        self.wanted = Unasked()
        self.recent = RecentRetained(0)
        self._homes: Homes | None = None  # where there are other shards
        self._shard = 0
        self.away = AllAtHome()
        self.groups = SharedGroups(self.tenants)
        # Draws in a snapshot whose member was opened behind it: group, serial, packet id, PUBREC seen.
        self.unbound: dict[int, list[tuple[Group, int, int, bool]]] = {}
        self._leaving: list[Session] = []  # ended, with subscriptions still in the tree
        # Ended, and members of groups until their `ended` record has taken effect: by incarnation.
        self.departing: dict[int, Session] = {}
        # Groups that have something back of one who had left them before it ended: by incarnation, as long.
        self._regained: dict[int, list[Group]] = {}
        self.gone: list[int] = []  # sessions that ended and are in a snapshot
        # The oldest retained message that a subscription was given since a snapshot was begun, by its offset.
        self.lowest_listed: int = NONE_LISTED
        self.recorded_us = 0  # when the last record before this start was written; 0: nobody knows
        self._collects_drops = False
        self._owned: Owned | None = None  # where there are other shards
        self._owned_devices: Owned | None = None

    def tenant(self, name: str) -> Tenant:
        """Return a tenant that was made. Raises KeyError: a look makes nothing; `tenants` is for who may find none."""
        return self.tenants[name]

    def make(self, name: str) -> Tenant:
        """Return a tenant that history knows, or of which a client is let in: it is made, unless it was."""
        tenant = self.tenants.get(name)
        if tenant is None:
            tenant = Tenant(name, self._pages, self._ids, self._quotas.of(name))
            tenant.drops = {} if self._collects_drops else None
            tenant.queues = self.queues.of_tenant(name)
            tenant.of_all_shards = self._owned
            tenant.devices.of_all_shards = self._owned_devices
            self._house(tenant)
            self.tenants[name] = tenant
        return tenant

    def spread(self, homes: Homes, shard: int) -> None:
        """Be the state of one shard of several, before any record is applied: of retained messages it keeps those that
        are at home here."""
        self._homes = homes
        self._shard = shard
        self.recent = RecentRetained(shard)
        for tenant in self.tenants.values():
            self._house(tenant)

    def count_owned_in(self, owned: Owned, devices: Owned) -> None:
        """Count the subscriptions and the devices of users with those of other shards, before any record is applied."""
        self._owned, self._owned_devices = owned, devices
        for tenant in self.tenants.values():
            tenant.of_all_shards = owned
            tenant.devices.of_all_shards = devices

    def _house(self, tenant: Tenant) -> None:
        if self._homes is not None:
            tenant.retained.home = RetainedHome(self._homes, self._shard, tenant.name_utf8, self.recent)
            tenant.devices.homes, tenant.devices.shard = self._homes, self._shard

    def tenant_of(self, link: Link) -> Tenant:
        """Return the tenant of a connection that is let in, here or in another shard: it is made with its first one."""
        tenant = self.tenants.get(link.identity.tenant)
        return self.make(link.identity.tenant) if tenant is None else tenant

    def let_in(self, link: Link) -> Tenant:
        """Return the tenant of a connection that is let in now, and have the connection keep its limits."""
        tenant = self.tenant_of(link)
        identity = link.identity
        if identity.limits is not tenant.limits:
            link.identity = tenant.identity_of(identity.user)
        return tenant

    def counters_of(self, link: Link) -> Counters:
        """Return where a connection is counted that may not have been let in: nothing is made for a tenant by that."""
        tenant = self.tenants.get(link.identity.tenant)
        return self.strangers if tenant is None else tenant.counters

    def collect_drops(self) -> None:
        """Note drops for `drop_events` from now on; those of the history that was replayed were told in their time."""
        self._collects_drops = True
        for tenant in self.tenants.values():
            tenant.drops = {}

    # Records of sessions

    def add(self, session: Session) -> None:
        """Put a session into the directory (opened, or restored from a snapshot). A stand-in for a member elsewhere is no
        client's: it is found by its incarnation alone, and not counted among the tenant's sessions."""
        tenant = self.tenants[session.tenant.name]
        held = tenant.sessions.get(session.client_id)
        if not session.stands_in and (held is None or held.incarnation < session.incarnation):
            # A fuzzy snapshot may hold the next session of this client already.
            tenant.hold(session)
        self.by_incarnation[session.incarnation] = session
        self.roster.add(session)
        for group, serial, packet_id, received in self.unbound.pop(session.incarnation, ()):
            group.bind(serial, session, packet_id, received)

    def opened(self, event: SessionOpened) -> Session:
        tenant = self.make(event.tenant)
        session = Session(tenant, event.client_id, event.incarnation, event.session_type, event.expiry_s)
        session.opened_limit = event.sent_limit
        _note_owner(session, event)
        session.will = event.will
        self.add(session)
        return session

    def resumed(self, session: Session, event: SessionResumed) -> None:
        session.changed = True
        session.expiry_s = event.expiry_s
        session.will = event.will
        session.closed_at_us = 0
        _note_owner(session, event)
        session.opened_limit = event.sent_limit
        queue = session.queue
        if queue is not None:
            queue.sent_limit = event.sent_limit
            queue.reserving = event.sent_limit

    def closed(self, session: Session, event: SessionClosed) -> None:
        session.changed = True
        session.expiry_s = event.expiry_s
        session.closed_at_us = event.timestamp_us
        if not event.will_set:
            session.will = None
        limit = event.sent_limit
        session.opened_limit = limit  # a queue that begins behind this record was promised nothing
        queue = session.queue
        if queue is not None:
            queue.close(limit)
        give_back(session)

    def ended(self, session: Session, at: int) -> None:
        """End a session that is gone: its queue, its subscriptions, its place in the directory. `at`: offset of the
        record."""
        self._depart(session)
        self._regained.pop(session.incarnation, None)  # nobody is connected in a replay
        for topic_filter in list(session.subscriptions or {}):
            self.unsubscribe(session, topic_filter, at)
        self.away.ended(session)

    def leave(self, session: Session) -> None:
        """Do as `ended`, when the record is appended. Its subscriptions are left for `sweep`: whoever routes live
        asks whether a session has ended. Its groups are left for `departed`: the next member may be on its way."""
        self._take_out(
            session
        )  # first: whoever comes back, whatever fails below, finds no session that has ended
        groups = groups_of(session)
        for group in groups:
            if session.subscriptions is not None:
                session.subscriptions.pop(group.carrier.client_id, None)
        borrows = self.away.set_aside(session)
        if groups or draws_of(session) or session.subscribing or borrows:
            self.departing[session.incarnation] = session
        if session.subscriptions:
            self._leaving.append(session)
        self._depart(session)

    def departed(self, incarnation: int, at: int) -> list[Group]:
        """Apply the `ended` record at offset `at`: the session is in no group any more. Returns those that it was
        in, or that have something back of it."""
        session = self.departing.pop(incarnation, None)
        if session is None:
            return []
        if draws_of(session):
            self._hand_back(session)  # something failed when it left
        groups = groups_of(session)
        for group in groups:
            self._leave(session, group.carrier.client_id, at)
        self.away.ended(session)
        return groups + self._regained.pop(incarnation, [])

    def changed_departing(self, event: SessionEvent) -> None:
        """Apply a `subscribed` or `unsubscribed` record of a session that ended after it was appended: groups are made
        and kept as in a replay."""
        session = self.departing.get(event.incarnation)
        if session is None:
            return
        if isinstance(event, Unsubscribed):
            for topic_filter in event.filters:
                group = self.tenants[session.tenant.name].groups.get(topic_filter)
                if group is None or session in group.members:
                    self._leave(session, topic_filter, event.offset)
        elif isinstance(event, Subscribed):
            for at, row in enumerate(event.subscriptions):
                subscription = subscription_from(session, row)
                if subscription.filter.startswith(SHARE_PREFIX):
                    self._join(session, subscription, event.offset << GROUP_NUMBER_SHIFT | at)

    def _depart(self, session: Session) -> None:
        """Take a session out of the directory, and what it has out of queues. What may fail for want of memory comes
        last: what is left of it then is done by `departed`."""
        self._take_out(session)
        if session.written:
            self.gone.append(session.incarnation)
        self._hand_back(session)

    def _take_out(self, session: Session) -> None:
        """Take a session that has ended out of the directory, with its queue. Does nothing the second time."""
        tenant = self.tenants[session.tenant.name]
        if not session.ended:
            session.end()
        tenant.drop(session)
        queue, session.queue = session.queue, None
        if queue is not None:
            queue.backlog.discard()
        session.incoming = None
        self.in_stores.pop(session.incarnation, None)
        if self.by_incarnation.pop(session.incarnation, None) is session:
            self.roster.remove(session)

    def _hand_back(self, session: Session) -> None:
        """Hand back what a session that has ended has in flight of groups: QoS 1 to the other members, also of a group
        that it had left, QoS 2 to nobody else [MQTT-4.8.2-5]."""
        give_back(session)
        for draw in draws_of(session):
            group = draw.group
            if draw.ref & REF_QOS == 1 and group.members:
                group.give_back(draw)
                self._regained.setdefault(session.incarnation, []).append(group)
            else:
                group.finish(draw.serial)
                session.count_drop(DROP_SESSION_ENDED, 1)

    def sweep(self, most: int) -> bool:
        """Remove up to `most` subscriptions of sessions that have left; True if there are more."""
        while self._leaving:
            session = self._leaving[-1]
            if not session.subscriptions:
                self._leaving.pop()
                continue
            if most == 0:
                return True
            most -= 1
            self.unsubscribe(session, next(reversed(session.subscriptions)), session.incarnation)
        return False

    def started(self, event: BrokerStarted) -> None:
        """Apply that the broker came back: whoever was connected is not any more; what may have been sent is
        NOT-ACKED."""
        for session in self.by_incarnation.values():
            if session.closed_at_us == 0 and session.applied < event.offset:
                session.closed_at_us = event.timestamp_us
                queue = session.queue
                if queue is not None:
                    queue.replay_sent_up_to(queue.sent_limit)
                    queue.close(queue.last_sent())
                session.opened_limit = 0
                give_back(session)
            if session.queue is not None:
                session.queue.settle()
        self.queues.restart()
        if self._homes is not None:
            self.streams.started(event.offset, event.timestamp_us)
        self.away.started(self.by_incarnation)
        self.groups.started(event.offset)

    # Records of subscriptions and retained messages

    def subscribed(self, session: Session, event: Subscribed) -> i64:
        """Apply subscriptions; return how many things were done, as the others do."""
        rows = event.subscriptions
        for at, row in enumerate(rows):
            self.subscribe(session, subscription_from(session, row), event.offset << GROUP_NUMBER_SHIFT | at)
        return len(rows) + self.retained_queued(session, event)

    def subscribe(self, session: Session, subscription: Subscription, group_id: int) -> None:
        """Add or replace one subscription; a shared one joins its group, or makes it under `group_id`."""
        session.subscribe(subscription)
        if subscription.filter.startswith(SHARE_PREFIX):
            self._join(session, subscription, group_id)
        else:
            new = session.tenant.tree.add(subscription.filter, subscription)
            if new:
                self.wanted.add(session.tenant.name, subscription.filter)

    def unsubscribe(self, session: Session, topic_filter: str, at: int) -> None:
        """Remove one subscription, by the record at offset `at`."""
        subscriptions = session.subscriptions
        if subscriptions is None or topic_filter not in subscriptions:
            return
        session.changed = True
        if topic_filter.startswith(SHARE_PREFIX):
            self._leave(session, topic_filter, at)
        else:
            had = session.tenant.tree.remove(topic_filter, session)
            if had:
                self.wanted.remove(session.tenant.name, topic_filter)
        del subscriptions[topic_filter]  # last: what raises before is tried again
        session.filter_bytes -= memory_of(topic_filter)
        session.count_owned(-1)

    def _join(self, session: Session, subscription: Subscription, group_id: int) -> None:
        if not self.away.join(session, subscription.filter):
            self.groups.join(session, subscription, group_id)

    def _leave(self, session: Session, topic_filter: str, at: int) -> None:
        if not self.away.leave(session, topic_filter):
            self.groups.leave(session, topic_filter, at)

    def retained_queued(self, session: Session, event: RetainedListing) -> i64:
        """Queue the retained messages that the record lists: offset, QoS, subscription identifier; and their sizes,
        which older records have not."""
        session.settle()
        listed, sizes = event.retained, event.sizes
        for at in range(0, len(listed), 3):
            encoded = b"\x0b" + encode_varint(listed[at + 2]) if listed[at + 2] else b""
            ref = reference(listed[at], session.ids_index(encoded), True, listed[at + 1])
            self.lowest_listed = min(self.lowest_listed, listed[at])
            session.outbound().push(ref, sizes[at // 3])
        return len(listed)

    def unsubscribed(self, session: Session, event: Unsubscribed) -> i64:
        filters = event.filters
        for topic_filter in filters:
            self.unsubscribe(session, topic_filter, event.offset)
        return len(filters)
