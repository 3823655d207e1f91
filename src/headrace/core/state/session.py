"""A session: what outlives the connection of a client; its subscriptions, and what it shares with the others of its
tenant.

A session is identified by its *incarnation*, the offset of its `opened` record (decision 4). Everything durable in it is
a fold over journal records; `state` does that, `snapshots` writes it down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from mypy_extensions import i64

from headrace.core.homes import MEMBER_PREFIX
from headrace.core.ports.identity import Identity
from headrace.core.ports.limits import Limits
from headrace.core.ports.waiting import QueueOwner
from headrace.core.records.event import SessionName, SubscriptionRow
from headrace.core.records.message import Message
from headrace.core.records.record import DROP_REASONS, NORMAL_DROPS
from headrace.core.state.backlog import BacklogSpace
from headrace.core.state.counters import Counters
from headrace.core.state.devices import DeviceRoster
from headrace.core.state.packet_ids import PacketIds
from headrace.core.state.producers import Producers
from headrace.core.state.queue import REF_IDS_MAX, OutboundQueue
from headrace.core.state.retained import RetainedStore
from headrace.core.state.subscription_tree import Entry, SubscriptionTree, memory_of

if TYPE_CHECKING:
    from headrace.core.ports.journal import PageReader
    from headrace.core.ports.link import Link
    from headrace.core.ports.owned import Owned
    from headrace.core.ports.timers import Timer
    from headrace.core.state.topic_queues import TopicQueue
    from headrace.mqtt.packets import Will

# What a session remembers of the sets of identifiers that its references name. Beyond that they are those of its
# subscriptions when the message is sent.
ID_SETS_MAX: Final = 16_384
ID_SETS_BYTES_MAX: Final = 1 << 20
IDS_LOOKED_UP: Final = REF_IDS_MAX

DEVICE: Final = 0
APPLICATION: Final = 1
TYPE_NAMES: Final = {DEVICE: "DEVICE", APPLICATION: "APPLICATION"}

NEVER_EXPIRES: Final = 0xFFFFFFFF
_MERGED_TARGET: Final = 32  # what one for several matching filters costs to remember, in targets
BRIDGE_PREFIX: Final = "$bridge/"  # of the client ids of our own bridges; refused to everybody else
OWN_PREFIXES: Final = (BRIDGE_PREFIX, MEMBER_PREFIX)


class Target(Entry):
    """Says how one session gets a message: the granted QoS, Retain As Published, its encoded Subscription Identifiers.

    `members` are the single subscriptions behind it when several overlap (one copy is sent, with the highest QoS and
    all identifiers [MQTT-3.3.4-2, MQTT-3.3.4-4]).
    """

    def __init__(
        self, session: Session, qos: int, retain_as_published: bool, ids: bytes, no_local: bool
    ) -> None:
        self.session = session
        self.qos: i64 = qos
        self.retain_as_published = retain_as_published
        self.ids = ids
        self.ids_index: i64 = session.ids_index(ids)
        self.no_local = no_local
        self.members: list[Target] | None = None

    def holder(self) -> object:
        return self.session

    def weight(self) -> i64:
        return 1 if self.members is None else 1 + _MERGED_TARGET + len(self.members)


class FarAudience:
    """Says who wants one topic in other shards, to whoever passes messages on to them (`routing.Passing`)."""


class Route:
    """Says who gets what is published to one topic, while the tree's `changes` are so many. `elsewhere`: as far as that
    is known."""

    def __init__(self, topic: bytes, changes: i64, targets: list[Target]) -> None:
        self.topic = topic
        self.changes: i64 = changes
        self.targets = targets
        self.elsewhere: FarAudience | None = None


class Subscription(Target):
    """One filter of one session with its options (3.8.3.1). `subscription_id` 0 is none."""

    def __init__(
        self,
        session: Session,
        topic_filter: str,
        qos: int,
        no_local: bool,
        retain_as_published: bool,
        retain_handling: int,
        subscription_id: int,
        encoded_id: bytes,
    ) -> None:
        super().__init__(session, qos, retain_as_published, encoded_id, no_local)
        self.filter = topic_filter
        self.retain_handling = retain_handling
        self.subscription_id = subscription_id

    def row(self) -> SubscriptionRow:
        """Return what events and snapshots have of a subscription."""
        return SubscriptionRow(
            self.filter,
            self.qos,
            self.no_local,
            self.retain_as_published,
            self.retain_handling,
            self.subscription_id,
        )


def merge(members: list[Target]) -> Target:
    """Return one target for the overlapping subscriptions of one session."""
    ids: list[bytes] = []
    qos = 0
    rap = False
    no_local = False
    for member in members:
        qos = max(qos, member.qos)
        rap = rap or member.retain_as_published
        no_local = no_local or member.no_local
        if member.ids:
            ids.append(member.ids)
    ids.sort()  # equal ones too (3.3.2.3.8)
    target = Target(members[0].session, qos, rap, b"".join(ids), no_local)
    target.members = members
    return target


# Under which the subscriptions and sessions of a whole tenant are counted among those of its users: no user name has a
# NUL [MQTT-1.5.4-2].
ALL_SUBSCRIPTIONS: Final = "\0subscriptions"
ALL_SESSIONS: Final = "\0sessions"


class Commons:
    """What the sessions of a tenant share: who subscribes to what, what is retained, who published what already, the
    room for backlogs and the packet ids, what is counted, and the limits of all that."""

    def __init__(
        self, name: str, pages: PageReader, ids: PacketIds | None = None, limits: Limits | None = None
    ) -> None:
        self.name = name
        self.name_utf8 = name.encode("utf-8")
        self.name_bytes: i64 = len(self.name_utf8)
        self.tree: SubscriptionTree[Target] = SubscriptionTree(merge)
        self.shared_tree: SubscriptionTree[Target] = SubscriptionTree(merge)  # of shared subscriptions
        self.retained = RetainedStore()
        self.producers = Producers()
        self.devices = DeviceRoster(name)
        self.queues: dict[bytes, TopicQueue] = {}  # by topic; the fold's
        self.queues_elsewhere: i64 = 0  # in the other shards of the node, when it was asked last
        self.counters = Counters()
        self.space = BacklogSpace(pages)
        self.ids = PacketIds() if ids is None else ids
        self.owned: dict[str, int] = {}  # user -> subscriptions of the sessions that belong to it
        self.subscribed: int = 0  # subscriptions of all sessions
        self.of_all_shards: Owned | None = None  # the same over all shards, where there are several
        # (client id, DropReason) -> messages not yet told of; None: nobody is told (`drop_events`)
        self.drops: dict[tuple[str, int], int] | None = None
        self.limits = Limits() if limits is None else limits

    def identity_of(self, user: str | None) -> Identity:
        """Return whom access control lets in as this user of the tenant; None: nobody in particular."""
        return Identity(self.name, user, self.limits)

    def is_heard(self, topic: bytes) -> bool:
        """Return whether any subscription, shared or not, matches this topic."""
        return bool(self.tree.match(topic)) or (
            self.shared_tree.count > 0 and bool(self.shared_tree.match(topic))
        )

    def count_owned(self, user: str, more: int) -> None:
        """Count so many more subscriptions, or fewer, for the sessions of a user."""
        count = self.owned.get(user, 0) + more
        if count:
            self.owned[user] = count
        else:
            self.owned.pop(user, None)
        if self.of_all_shards is not None:
            self.of_all_shards.add(self.name, user, more)

    def owned_by(self, user: str) -> int:
        """Return how many subscriptions the sessions of a user have, in all shards."""
        if self.of_all_shards is not None:
            return self.of_all_shards.count(self.name, user)
        return self.owned.get(user, 0)

    def count_subscribed(self, more: int) -> None:
        """Count so many subscriptions more, or fewer, for all sessions together."""
        self.subscribed += more
        if self.of_all_shards is not None:
            self.of_all_shards.add(self.name, ALL_SUBSCRIPTIONS, more)

    def subscribed_together(self) -> int:
        """Return how many subscriptions the sessions of the tenant have, in all shards."""
        if self.of_all_shards is not None:
            return self.of_all_shards.count(self.name, ALL_SUBSCRIPTIONS)
        return self.subscribed

    def count_drop(self, reason: int, count: int) -> None:
        dropped = self.counters.dropped
        dropped[reason] = dropped.get(reason, 0) + count


class Shared:
    """What a session has of shared subscriptions, as far as it touches the session: what it is in (`groups.Membership`),
    or what it stands for (`groups.StandIn`)."""

    def in_flight(self) -> i64:
        """Return how many entries were sent and are not finished, against the client's Receive Maximum."""
        raise NotImplementedError

    def detach(self) -> None:
        """Note that the client is connected no more."""
        raise NotImplementedError

    def takes(self, ref: int, size: int) -> bool:
        """Put what is owed into a queue that is not the session's own; False: it is that one's."""
        raise NotImplementedError


class Session(QueueOwner):
    """One client's session in one tenant.

    `expiry_s` 0 makes it transient (it ends with its connection), 0xFFFFFFFF never expires. `closed_at_us` is 0 while
    connected. Dictionaries are made on first use: there may be millions of sessions.
    """

    def __init__(
        self, tenant: Commons, client_id: str, incarnation: int, session_type: int, expiry_s: int
    ) -> None:
        self.tenant = tenant
        self.client_id = client_id
        self.origin = tenant.name_utf8 + client_id.encode("utf-8")
        self.incarnation = incarnation
        self.session_type = session_type
        self.expiry_s = expiry_s
        self.owner: str | None = None  # the user who opened it, or came first where it had none
        self.opened_limit: int = 0  # sent_limit of the `opened` record, until there is a queue
        self.link: Link | None = None
        # While it is connected: to whom goes what its client published to last (`routing`).
        self.route: Route | None = None
        self.ended: bool = False
        self.closed_at_us: int = 0
        self.subscriptions: dict[str, Subscription] | None = None
        self.filter_bytes: i64 = 0  # what these take in memory, about (`subscription_tree.memory_of`)
        self.subscribing: i64 = 0  # on their way through the journal: new ones, and what they will take
        self.subscribing_bytes: i64 = 0
        self.queue: OutboundQueue | None = None
        # QoS 2 packet ids -> offset of their message; -1 if its producer repeated it and nothing was journaled
        self.incoming: dict[int, int] | None = None
        self.will: Will | None = None
        self.timer: Timer | None = None  # of a disconnected session: its will delay or its expiry
        self.id_sets: list[bytes] | None = None  # encoded Subscription Identifiers, by index - 1
        self._id_places: dict[bytes, int] | None = None  # the other way round
        self._id_bytes = 0
        self.dropped: dict[int, int] | None = None  # DropReason -> messages
        self.shared: Shared | None = None  # once it has had a shared subscription
        # References and sizes of what there was no memory for, in its queue or, of a stand-in, in its group's: they come
        # before whatever is put in next.
        self.owed: list[tuple[int, int]] | None = None
        self.changed = True  # apart from its queue, since it was written into a snapshot
        self.written = False  # some snapshot that a start would load has it
        self.place: i64 = -1  # in the roster
        self.applied: int = -1  # recovery: records up to this offset are in the snapshot

    def at_hand(self, offset: int) -> Message | None:
        return self.tenant.retained.at(offset)

    def named(self) -> SessionName:
        """Return the name that the session's events have for it."""
        return SessionName(self.incarnation, self.tenant.name, self.client_id)

    @property
    def persistent(self) -> bool:
        return self.expiry_s != 0

    @property
    def stands_in(self) -> bool:
        """Return whether it stands in for a member of a group whose session is in another shard: no client's session."""
        return self.client_id.startswith(MEMBER_PREFIX)

    def outbound(self) -> OutboundQueue:
        queue = self.queue
        if queue is None:
            queue = OutboundQueue(self.tenant.space, self.tenant.ids.direct)
            queue.sent_limit = self.opened_limit
            queue.reserving = self.opened_limit
            self.queue = queue
        return queue

    def message(
        self,
        now_us: int,
        flags: i64,
        packet_id: i64,
        topic: bytes,
        properties: bytes,
        message_expiry_s: i64,
        payload: bytes,
    ) -> Message:
        """Return a message that the session's client publishes, or leaves as its will."""
        tenant = self.tenant
        return Message(
            now_us,
            flags,
            packet_id,
            self.incarnation,
            tenant.name,
            self.origin,
            tenant.name_bytes,
            topic,
            properties,
            message_expiry_s,
            payload,
        )

    def owe(self, ref: int, size: int) -> None:
        """Note that a message could not be put into the queue. Nothing may be sent before it is there, or the numbers
        would not be those of a replay: its connection is to go."""
        if self.owed is None:
            self.owed = []
        self.owed.append((ref, size))

    def settle(self) -> None:
        """Put into the queue what is owed. Raises what is raised once more: then the rest is owed still."""
        while self.owed:
            ref, size = self.owed[0]
            if self.shared is None or not self.shared.takes(ref, size):
                self.outbound().backlog.mend()
                self.outbound().push(ref, size)
            self.changed = True
            del self.owed[0]
        self.owed = None

    def attach(self, link: Link) -> None:
        """Note that the session's client is connected."""
        self.link = link
        link.session = self

    def detach(self) -> None:
        """Note that the session's client is connected no more: forget what was for its connection."""
        if self.link is not None:
            self.link.session = None
        self.link = None
        self.route = None
        if self.shared is not None:
            self.shared.detach()

    def window_used(self) -> i64:
        """Return how many messages were sent and are not finished, against the client's Receive Maximum."""
        queue = self.queue
        used: i64 = 0
        if queue is not None:
            used = queue.inflight.count - len(queue.resend) + queue.resend_gone
        if self.shared is not None:
            used += self.shared.in_flight()
        return used

    def ids_index(self, encoded: bytes) -> int:
        """Return the index under which references name these Subscription Identifiers; 0 is the empty set. A client
        that has had very many sets gets IDS_LOOKED_UP for a new one."""
        if not encoded:
            return 0
        sets = self.id_sets
        if sets is None:
            sets = []
            self.id_sets = sets
        places = self._id_places
        if places is None:
            places = {found: at + 1 for at, found in enumerate(sets)}
            self._id_places = places
            self._id_bytes = sum([len(found) for found in sets])
        index = places.get(encoded, 0)
        if index == 0:
            if len(sets) >= ID_SETS_MAX or self._id_bytes + len(encoded) > ID_SETS_BYTES_MAX:
                return IDS_LOOKED_UP
            sets.append(encoded)
            index = len(sets)
            places[encoded] = index
            self._id_bytes += len(encoded)
            self.changed = True
        return index

    def ids_of(self, index: i64, topic: bytes) -> bytes:
        """Return the encoded Subscription Identifiers that a reference names, of a message on this topic."""
        if index == 0:
            return b""
        if index == IDS_LOOKED_UP:
            for target in self.tenant.tree.match(topic):
                if target.session is self:
                    return target.ids
            return b""
        sets = self.id_sets
        return b"" if sets is None else sets[index - 1]

    def count_drop(self, reason: int, count: int) -> None:
        self.changed = True
        if self.dropped is None:
            self.dropped = {}
        self.dropped[reason] = self.dropped.get(reason, 0) + count
        self.tenant.count_drop(reason, count)
        drops = self.tenant.drops
        if drops is not None and reason not in NORMAL_DROPS:
            key = (self.client_id, reason)
            drops[key] = drops.get(key, 0) + count

    def drops_by_name(self) -> dict[str, int]:
        return {DROP_REASONS[reason]: count for reason, count in (self.dropped or {}).items()}

    def count_owned(self, more: int) -> None:
        """Count so many subscriptions more, or fewer, for the tenant and the owner; those of a session that has ended
        count no more, those of a stand-in count where its member is at home."""
        if not more or self.ended or self.stands_in:
            return
        self.tenant.count_subscribed(more)
        owner = self.owner
        if owner is not None:
            self.tenant.count_owned(owner, more)

    def end(self) -> None:
        """End the session: its subscriptions, which go later, are its owner's no more."""
        self.count_owned(-len(self.subscriptions or {}))
        self.ended = True

    def own(self, user: str) -> None:
        """Give the session to this user, if it belongs to nobody yet."""
        if self.owner is None:
            self.owner = user
            held = len(self.subscriptions or {})
            if held and not self.ended:
                self.tenant.count_owned(user, held)

    def subscribe(self, subscription: Subscription) -> None:
        self.changed = True
        if self.subscriptions is None:
            self.subscriptions = {}
        if subscription.filter not in self.subscriptions:
            self.filter_bytes += memory_of(subscription.filter)
            self.count_owned(1)
        self.subscriptions[subscription.filter] = subscription


def session_of(link: Link) -> Session | None:
    """Return the session that is attached to a link."""
    return cast("Session | None", link.session)


def attached_to(link: Link) -> Session:
    """Return the session of a link that is known to have one: nobody looks at each use of it whether it is there."""
    return cast("Session", link.session)
