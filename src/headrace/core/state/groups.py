"""Shared subscriptions: one queue for a group, drawn from by its members (decisions 9, 13).

A group is made by its first subscription and gone with its last. Its entries are numbered like a session's; a *draw*
binds an entry to a member and a packet id above 49151, and is a record. QoS 2 waits for that record, QoS 1 does not:
if it is lost in a crash the entry is simply still in the queue. When a member's connection ends, its unacknowledged
QoS 1 entries return to the head of the queue; QoS 2 completes with its member.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from headrace.core.ports.waiting import QueueOwner
from headrace.core.state.backlog import REF_OFFSET_SHIFT, Backlog
from headrace.core.state.queue import REF_QOS
from headrace.core.state.session import APPLICATION, NEVER_EXPIRES, Session, Shared

if TYPE_CHECKING:
    from headrace.core.state.session import Commons, Subscription

REF_MAYBE_SENT: Final = (
    0x8  # a group's references carry no subscription identifiers: their lowest bit is free
)

ANYBODY: Final = (
    -1
)  # among those that had an entry: they were too many to be remembered, or nobody noted them
GROUP_NUMBER_SHIFT: Final = (
    16  # a group's number: the offset of its first subscription, and its place in that record
)
_HAD_MAX: Final = 8


class Draw:
    """An entry that a member has: serial in the group, packet id, whether PUBREC was seen.

    `full_ref` is the group's reference, `ref` has the QoS that this member was granted.
    """

    def __init__(self, group: Group, serial: int, ref: int, session: Session, packet_id: int) -> None:
        self.group = group
        self.serial = serial
        self.full_ref = ref
        self.ref = ref
        self.session = session
        self.packet_id = packet_id
        self.received = False
        self.had: list[int] | None = None  # incarnations of the members that had the entry before

    def again(self) -> bool:
        """Return whether the entry may have been sent to this very session before: DUP [MQTT-3.3.1-1]."""
        if not self.full_ref & REF_MAYBE_SENT:
            return False
        had = self.had
        return had is None or ANYBODY in had or self.session.incarnation in had

    @property
    def choice(self) -> int:
        """Return packet id and, above its 16 bits, the QoS it is sent with: what the record and a snapshot keep."""
        return self.packet_id | (self.ref & REF_QOS) << 16


class Borrower:
    """What a session has of groups that are at home in another shard (`away`)."""

    def in_flight(self) -> i64:
        """Return how many of its entries take a place of the client's Receive Maximum."""
        raise NotImplementedError

    def ids_taken(self) -> int:
        """Return how many packet ids its entries have."""
        raise NotImplementedError

    def has_id(self, packet_id: int) -> bool:
        """Return whether one of its entries has this packet id."""
        raise NotImplementedError

    def detach(self) -> None:
        """Note that the client is connected no more."""
        raise NotImplementedError


class Membership(Shared):
    """What one session has to do with groups: those that it is a member of, and its draws. `borrower`: with those that
    are at home in another shard, where there are such.

    While its client is connected, `awaiting` are of its groups those that found it without room, the one whose turn it
    is first, `looked_at` how many of them were looked at since one gave something, and `shut` those that found its
    socket full for a message at QoS 0. `redraw` are its draws to be sent again on this connection, newest first.
    """

    def __init__(self) -> None:
        self.groups: dict[Group, None] = {}
        self.draws: dict[int, Draw] = {}  # by packet id
        self.redraw: dict[int, Draw] | None = None
        self.awaiting: OrderedDict[Group, None] | None = None
        self.looked_at: i64 = 0
        self.shut: dict[Group, None] | None = None
        self.next_id: int = 0  # the packet id of the next draw, if it is free
        self.borrower: Borrower | None = None

    def in_flight(self) -> i64:
        count: i64 = len(self.draws)
        if self.redraw is not None:
            count -= len(self.redraw)
        if self.borrower is not None:
            count += self.borrower.in_flight()
        return count

    def detach(self) -> None:
        self.awaiting = None
        self.looked_at = 0
        self.shut = None
        if self.borrower is not None:
            self.borrower.detach()

    def takes(self, ref: int, size: int) -> bool:
        return False  # they are the session's own

    def awaits(self, group: Group) -> None:
        """Note that the session looks at this group when it has room."""
        if self.awaiting is None:
            self.awaiting = OrderedDict()
        self.awaiting[group] = None
        self.looked_at = 0

    def shut_out(self, group: Group) -> None:
        """Note that the session gets nothing of this group at QoS 0 before its socket has drained."""
        if self.shut is None:
            self.shut = {}
        self.shut[group] = None

    def reopen(self, session: Session) -> None:
        """Let the groups that found the socket of this session full give it messages at QoS 0 again."""
        for group in self.shut or ():
            group.open[session] = None
        self.shut = None

    def leave(self, group: Group) -> None:
        """Note that the session is no member any more. What it has in flight stays with it."""
        self.groups.pop(group, None)
        if self.awaiting is not None:
            self.awaiting.pop(group, None)
        if self.shut is not None:
            self.shut.pop(group, None)

    def forget_draw(self, draw: Draw) -> None:
        """Forget a draw that is finished, or somebody else's; its packet id may have been given to the next one
        meanwhile."""
        if self.draws.get(draw.packet_id) is draw:
            del self.draws[draw.packet_id]


def membership_of(session: Session) -> Membership | None:
    """Return what a session has to do with groups; None: the session has never been in one."""
    shared = session.shared
    return shared if isinstance(shared, Membership) else None


def membership_in(session: Session) -> Membership:
    """Return what a session has to do with groups, made on first use: most of the sessions there may be millions of are
    in no group."""
    membership = membership_of(session)
    if membership is None:
        membership = Membership()
        session.shared = membership
    return membership


def groups_of(session: Session) -> list[Group]:
    """Return the groups that a session is a member of."""
    membership = membership_of(session)
    return [] if membership is None else list(membership.groups)


def draws_of(session: Session) -> list[Draw]:
    """Return what a session has of groups in flight, oldest first."""
    membership = membership_of(session)
    return [] if membership is None else list(membership.draws.values())


class StandIn(Shared):
    """What makes a session the stand-in of a group: in the subscription tree, among the hungry, and as who is owed what
    could not be put into the group's queue."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def in_flight(self) -> i64:
        return 0

    def detach(self) -> None:
        return

    def takes(self, ref: int, size: int) -> bool:
        self.group.backlog.mend()
        self.group.push(ref, size)
        return True


def carrier_of(group: Group) -> Session:
    """Make the session that stands for a group."""
    client_id = f"$share/{group.name}/{group.filter}"
    carrier = Session(group.tenant, client_id, group.incarnation, APPLICATION, NEVER_EXPIRES)
    carrier.shared = StandIn(group)
    return carrier


def group_of(session: Session) -> Group | None:
    """Return the group that a session stands for; None for a client's."""
    shared = session.shared
    return shared.group if isinstance(shared, StandIn) else None


class Group(QueueOwner):
    """`$share/name/filter` in one tenant. `carrier` stands for the group in the subscription tree."""

    def __init__(self, tenant: Commons, name: str, topic_filter: str, incarnation: int) -> None:
        self.tenant = tenant
        self.name = name
        self.filter = topic_filter
        self.incarnation = incarnation
        self.members: dict[Session, Subscription] = {}
        self.next_serial: i64 = 1
        self.backlog = Backlog(tenant.space)
        self.drawn: dict[int, Draw] = {}
        self.returned: dict[int, int] = {}  # serial -> reference: behind nobody, before the backlog
        self.had: dict[int, list[int]] = {}  # of those returned: incarnations of the members that had them
        self._returned_order: list[int] = []  # heap of their serials; may name some that are gone again
        self.applied: int = -1
        self.unread = False  # its next entry cannot be read now
        self.hungry = False  # what was given back is to go to those who have room
        # Members that may have room for an entry of the queue, and those that may be given a message at QoS 0, which
        # takes none of a window: whose turn it is first. Who is found to have none is taken out until it has some, so
        # that nobody is asked again and again, however many the members are.
        self.free: OrderedDict[Session, None] = OrderedDict()
        self.open: OrderedDict[Session, None] = OrderedDict()
        self.carrier = carrier_of(self)

    def push(self, ref: int, size: int) -> None:
        self.backlog.push(ref, size)
        self.next_serial += 1  # last: what raises is numbered when it is tried again

    def is_newest(self, offset: int) -> bool:
        """Return whether the entry that was numbered last is the message at this offset, wherever that is by now."""
        return self.backlog.newest() >> REF_OFFSET_SHIFT == offset

    @property
    def waiting(self) -> bool:
        return self.backlog.count > 0 or len(self.returned) > 0

    def head(self) -> tuple[int, int]:
        """Return (serial, reference) of the next entry to draw; what was returned goes first, oldest first. The
        reference is 0 if the entry's page cannot be read now."""
        if self.returned:
            serial = self._first_returned()
            return serial, self.returned[serial]
        return self.next_serial - self.backlog.count, self.backlog.peek()

    def pop_head(self) -> None:
        if self.returned:
            serial = self._first_returned()
            del self.returned[serial]
            self.had.pop(serial, None)
        else:
            self.backlog.pop()

    def put_back(self, serial: int, ref: int) -> None:
        """Put an entry back that nobody has in flight any more, or not yet."""
        heapq.heappush(self._returned_order, serial)
        self.returned[serial] = ref

    def _first_returned(self) -> int:
        order = self._returned_order
        while order[0] not in self.returned:
            heapq.heappop(order)
        return order[0]

    def floor(self) -> int:
        """Return the lowest serial number that is not finished."""
        return min([self.next_serial - self.backlog.count, *self.returned, *self.drawn])

    # The fold

    def draw(self, serial: int, session: Session, packet_id: int, qos: int = 0) -> Draw | None:
        """Bind entry `serial` to a member; None when the group does not hold it any more (replays).

        In replays `qos` is the one it was sent with: the member may have subscribed anew since.
        """
        ref = self.returned.pop(serial, -1)
        if ref == -1:
            ref = self._take(serial)
        if ref == -1:
            ref = self._drawn_again(serial, session, packet_id)
        if ref == -1:
            return None
        found = Draw(self, serial, ref, session, packet_id)
        found.had = self.had.pop(serial, None)
        member = self.members.get(session)
        if qos:
            found.ref = ref - (ref & REF_QOS) + qos
        elif member is not None and member.qos < ref & REF_QOS:  # [MQTT-4.8.2-3]
            found.ref = ref - (ref & REF_QOS) + member.qos
        self.drawn[serial] = found
        membership_in(session).draws[packet_id] = found
        return found

    def _drawn_again(self, serial: int, session: Session, packet_id: int) -> int:
        """Take an entry in a replay from the member that has it. Its connection ended while its UNSUBSCRIBE was on its
        way through the journal: it was a member still, and gave the entry back; in the journal it had left by then.
        Returns the reference, -1 if nobody has the entry, or this draw is the one that a snapshot has restored."""
        before = self.drawn.get(serial)
        if before is None or (before.session is session and before.packet_id == packet_id):
            return -1
        self.give_back(before)
        return self.returned.pop(serial)

    def bind(self, serial: int, session: Session, choice: int, received: bool) -> None:
        """Restore a draw as a snapshot has it; `choice` as in `Draw.choice`."""
        draw = self.draw(serial, session, choice & 0xFFFF, choice >> 16)
        if draw is not None:
            draw.received = received

    def _take(self, serial: int) -> int:
        """Take `serial` out of the backlog; older ones still there are kept as returned."""
        while self.backlog.count and self.next_serial - self.backlog.count <= serial:
            at = self.next_serial - self.backlog.count
            ref = self.backlog.pop()
            if at == serial:
                return ref
            self.put_back(at, ref)
        return -1

    def finish(self, serial: int) -> None:
        """Finish a serial: acked, refused or dropped; unknown serials are ignored (replays)."""
        found = self.drawn.pop(serial, None)
        if found is None:
            if self.returned.pop(serial, -1) == -1:
                self._take(serial)
            self.had.pop(serial, None)
            return
        _forget(found)

    def give_back(self, draw: Draw) -> None:
        """Give an unacknowledged QoS 1 entry of a member whose connection ended back to the head of the queue."""
        self.had[draw.serial] = _had_with(draw)
        self.put_back(draw.serial, draw.full_ref | REF_MAYBE_SENT)
        self.drawn.pop(draw.serial, None)
        _forget(draw)

    def take_back(self, serial: int) -> bool:
        """Take an entry back from a member elsewhere who was never sent it; False: nobody has it."""
        draw = self.drawn.pop(serial, None)
        if draw is None:
            return False
        if draw.had is not None:
            self.had[serial] = draw.had
        self.put_back(serial, draw.full_ref)
        _forget(draw)
        return True

    def dissolve(self) -> int:
        """Dissolve the group, whose last member has left: what waits is dropped, what is in flight completes. Returns
        how many were dropped."""
        left: int = self.backlog.count + len(self.returned)
        self.backlog.discard()
        self.backlog = Backlog(self.tenant.space)
        self.returned = {}
        self.had = {}
        self._returned_order = []
        return left

    def lowest_offset(self) -> int:
        lowest = self.backlog.lowest_offset()
        for ref in [*self.returned.values(), *[draw.ref for draw in self.drawn.values()]]:
            offset = ref >> 20
            lowest = offset if lowest == -1 else min(lowest, offset)
        return lowest

    # Which member

    def join(self, session: Session, subscription: Subscription) -> None:
        """Add a member, or one that has subscribed anew. If something waits, the member looks here when it has room."""
        membership = membership_in(session)
        membership.groups[self] = None
        self.members[session] = subscription
        self.free[session] = None
        self.open[session] = None
        if self.waiting and session.link is not None:
            membership.awaits(self)

    def leave(self, session: Session) -> None:
        """Remove a member. What it has in flight stays with it."""
        self.members.pop(session, None)
        self.free.pop(session, None)
        self.open.pop(session, None)
        membership_in(session).leave(self)

    def found_none(self, session: Session, stored: bool) -> None:
        """Note that a member whose turn it was has no room, for an entry of the queue or for a message that is not
        `stored`."""
        if stored:
            del self.free[session]
            membership_in(session).awaits(self)
        else:
            del self.open[session]
            membership_in(session).shut_out(self)


def give_back(session: Session) -> None:
    """Give what a session has unacknowledged at QoS 1 back to the groups that it is a member of: its connection
    ended."""
    membership = membership_of(session)
    if membership is None:
        return
    for draw in list(membership.draws.values()):
        if draw.ref & REF_QOS == 1 and draw.group in membership.groups:
            draw.group.give_back(draw)


def forget_redraws(session: Session) -> None:
    """Forget what was to be sent again on a connection that ended."""
    membership = membership_of(session)
    if membership is not None:
        membership.redraw = None


def _forget(draw: Draw) -> None:
    membership = membership_of(draw.session)
    if membership is not None:
        membership.forget_draw(draw)


def _had_with(draw: Draw) -> list[int]:
    """Return who has had the entry, this member among them."""
    had = draw.had
    if had is None:
        had = [ANYBODY] if draw.full_ref & REF_MAYBE_SENT else []
    incarnation = draw.session.incarnation
    if ANYBODY in had or incarnation in had:
        return had
    return [*had, incarnation] if len(had) < _HAD_MAX else [ANYBODY]
