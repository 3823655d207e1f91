"""A session: what outlives the connection of a client.

A session is identified by its *incarnation*, the offset of its `opened` record (decision 4). Everything durable in it is
a fold over journal records; `state` does that, `snapshots` writes it down.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, cast

from mypy_extensions import i64

from headrace.core.records.event import SessionName
from headrace.core.records.message import Message
from headrace.core.records.record import DROP_REASONS, NORMAL_DROPS
from headrace.core.state.queue import REF_IDS_MAX, OutboundQueue
from headrace.core.state.subscriptions import Route, memory_of

if TYPE_CHECKING:
    from headrace.core.ports.link import Link
    from headrace.core.ports.timers import Timer
    from headrace.core.state.groups import Draw, Group
    from headrace.core.state.subscriptions import Subscription
    from headrace.core.state.tenant import Tenant
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
BRIDGE_PREFIX: Final = "$bridge/"  # of the client ids of our own bridges; refused to everybody else


class Session:
    """One client's session in one tenant.

    `expiry_s` 0 makes it transient (it ends with its connection), 0xFFFFFFFF never expires. `closed_at_us` is 0 while
    connected. Dictionaries are made on first use: there may be millions of sessions.
    """

    def __init__(
        self, tenant: Tenant, client_id: str, incarnation: int, session_type: int, expiry_s: int
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
        # While it is connected: to whom goes what its client published to last (`routing`); of its shared subscriptions,
        # those that found it without room, the one whose turn it is first; how many were looked at since one of them gave
        # something; and those that found its socket full for a message at QoS 0.
        self.route: Route | None = None
        self.awaiting: OrderedDict[Group, None] | None = None
        self.looked_at: i64 = 0
        self.shut: dict[Group, None] | None = None
        self.ended: bool = False
        self.closed_at_us: int = 0
        self.subscriptions: dict[str, Subscription] | None = None
        self.filter_bytes: i64 = 0  # what these take in memory, about (`subscriptions.memory_of`)
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
        self.groups: dict[Group, None] | None = None  # shared subscriptions this session is a member of
        self.draws: dict[int, Draw] | None = None  # what it has of them in flight, by packet id
        # References and sizes of what there was no memory for, in its queue or, of a stand-in, in its group's: they come
        # before whatever is put in next.
        self.owed: list[tuple[int, int]] | None = None
        self.redraw: dict[int, Draw] | None = (
            None  # of them, to be sent again on this connection, newest first
        )
        self.next_shared_id: int = 0
        self.group: Group | None = None  # set when this is not a client's session but a group's stand-in
        self.changed = True  # apart from its queue, since it was written into a snapshot
        self.written = False  # some snapshot that a start would load has it
        self.place: i64 = -1  # in the roster
        self.applied: int = -1  # recovery: records up to this offset are in the snapshot

    def named(self) -> SessionName:
        """Return the name that its events have for it."""
        return SessionName(self.incarnation, self.tenant.name, self.client_id)

    @property
    def persistent(self) -> bool:
        return self.expiry_s != 0

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
        """A message that its client publishes, or leaves as its will."""
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
        """A message could not be put into the queue. Nothing may be sent before it is there, or the numbers would not be
        those of a replay: its connection is to go."""
        if self.owed is None:
            self.owed = []
        self.owed.append((ref, size))

    def settle(self) -> None:
        """Put in what is owed. Raises what is raised once more: then the rest is owed still."""
        while self.owed:
            ref, size = self.owed[0]
            group = self.group
            if group is not None:
                group.backlog.mend()
                group.push(ref, size)
            else:
                self.outbound().backlog.mend()
                self.outbound().push(ref, size)
            self.changed = True
            del self.owed[0]
        self.owed = None

    def attach(self, link: Link) -> None:
        """Note that its client is connected."""
        self.link = link
        link.session = self

    def detach(self) -> None:
        """Note that its client is connected no more: forget what was for its connection."""
        if self.link is not None:
            self.link.session = None
        self.link = None
        self.route = None
        self.awaiting = None
        self.looked_at = 0
        self.shut = None

    def awaits(self, group: Group) -> None:
        """Note that it is a member of this group, and looks there when it has room."""
        if self.awaiting is None:
            self.awaiting = OrderedDict()
        self.awaiting[group] = None
        self.looked_at = 0

    def shut_out(self, group: Group) -> None:
        """Note that it is a member of this group, and gets nothing of it at QoS 0 before its socket has drained."""
        if self.shut is None:
            self.shut = {}
        self.shut[group] = None

    def window_used(self) -> i64:
        """Messages sent and not finished, against the client's Receive Maximum."""
        queue = self.queue
        used: i64 = 0
        if queue is not None:
            used = queue.inflight.count - len(queue.resend) + queue.resend_gone
        if self.draws is not None:
            used += len(self.draws)
            if self.redraw is not None:
                used -= len(self.redraw)
        return used

    def forget_draw(self, draw: Draw) -> None:
        """Forget a draw that is finished, or somebody else's; its packet id may have been given to the next one
        meanwhile."""
        draws = self.draws
        if draws is not None and draws.get(draw.packet_id) is draw:
            del draws[draw.packet_id]

    def ids_index(self, encoded: bytes) -> int:
        """The index under which references name these Subscription Identifiers; 0 is the empty set. A client that has
        had very many sets gets IDS_LOOKED_UP for a new one."""
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
        """The encoded Subscription Identifiers that a reference names, of a message on this topic."""
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
        """Count so many subscriptions more, or fewer, for the owner; those of a session that has ended count no more."""
        owner = self.owner
        if owner is not None and more and not self.ended:
            self.tenant.count_owned(owner, more)

    def end(self) -> None:
        """End the session: its subscriptions, which go later, are its owner's no more."""
        self.count_owned(-len(self.subscriptions or {}))
        self.ended = True

    def own(self, user: str) -> None:
        """Give the session to this user, if it belongs to nobody yet."""
        if self.owner is None:
            self.owner = user
            self.count_owned(len(self.subscriptions or {}))

    def subscribe(self, subscription: Subscription) -> None:
        self.changed = True
        if self.subscriptions is None:
            self.subscriptions = {}
        if subscription.filter not in self.subscriptions:
            self.filter_bytes += memory_of(subscription.filter)
            self.count_owned(1)
        self.subscriptions[subscription.filter] = subscription


def session_of(link: Link) -> Session | None:
    """The session that is attached to a link."""
    return cast("Session | None", link.session)
