"""Delivery of shared subscriptions: which member gets the next entry of a group, and when.

Runs on the loop. Entries are drawn by members that have quota, so a slow member holds up nobody; with several ready the
configured strategy chooses (`member_choice`). With every member away, messages stay in the group's queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from headrace.core.commit import Deferred, GroupCommit
from headrace.core.outbound.delivery import Delivery, Sharing, is_too_large
from headrace.core.outbound.member_choice import MemberChoice, admitted, may_read
from headrace.core.ports.clock import Clock
from headrace.core.ports.journal import NOT_NOW, Absent
from headrace.core.ports.link import Link
from headrace.core.ports.waiting import QueueOwner, Waker
from headrace.core.records.message import Message
from headrace.core.records.record import (
    DROP_BYTES_LIMIT,
    DROP_EXPIRED,
    DROP_PERMISSION,
    DROP_QOS0_AWAY,
    DROP_REFUSED,
    DROP_TENANT_BYTES_LIMIT,
    DROP_TOO_LARGE,
    DROP_UNREADABLE,
    FLAG_QOS,
    FLAG_RETAIN,
)
from headrace.core.state.free_ids import free_draw_id
from headrace.core.state.groups import (
    REF_MAYBE_SENT,
    Draw,
    Group,
    Membership,
    membership_of,
)
from headrace.core.state.queue import REF_QOS, REF_RETAIN, reference
from headrace.core.state.session import Session
from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc

if TYPE_CHECKING:
    from headrace.core.ports.settings import BrokerSettings


class Lending:
    """Brings a session the entries of groups that are at home in other shards, and takes what the client answers; this
    one, of a shard alone, has nothing to bring."""

    def pump(self, session: Session, link: Link) -> None:
        """Send what has come and waits for room."""

    def resumed(self, session: Session, link: Link) -> None:
        """Go on with a client that is connected again."""

    # What the client answers. False: the packet id is of no such entry.

    def puback(self, session: Session, packet_id: int, reason_code: int) -> bool:
        return False

    def pubrec(self, session: Session, link: Link, packet_id: int, reason_code: int) -> bool:
        return False

    def pubcomp(self, session: Session, packet_id: int) -> bool:
        return False


class SharedDelivery(Sharing, Waker):
    """Gives the entries of shared subscriptions to members, takes their acknowledgements and keeps the limits of
    groups."""

    def __init__(
        self,
        delivery: Delivery,
        commit: GroupCommit,
        clock: Clock,
        settings: BrokerSettings,
    ) -> None:
        self._delivery = delivery
        self._commit = commit
        self._choice = MemberChoice(delivery, settings)
        self._reader = delivery.reader
        self._clock = clock
        self._settings = settings
        self.lending = Lending()

    def offer(self, group: Group, message: Message) -> None:
        """Give a message to a group: one of its members has it, or it waits."""
        if message.flags & FLAG_QOS == 0:
            self._offer_qos0(group, message)
            return
        group.carrier.settle()
        retain, qos = message.flags & FLAG_RETAIN != 0, message.flags & FLAG_QOS
        group.push(reference(message.offset, 0, retain, qos), message.size)
        message.waits = True
        self._keep_limit(group)
        self.serve(group, message)

    def _offer_qos0(self, group: Group, message: Message) -> None:
        session = self._choice.choose(group, message, {}, False)
        if session is None:
            group.tenant.count_drop(DROP_QOS0_AWAY, 1)
            return
        member = group.members[session]
        retain = member.retain_as_published and message.flags & FLAG_RETAIN != 0
        self._give_qos0(session, message, retain, member.ids)

    def _give_qos0(self, session: Session, message: Message, retain: bool, ids: bytes) -> None:
        link = session.link
        try:
            self._delivery.offer_qos0(session, message, retain, ids)
        except Exception as error:
            if link is None:
                raise
            link.worker.contain("group", link, error)

    def _keep_limit(self, group: Group) -> None:
        limits = group.tenant.limits
        while group.backlog.bytes > limits.application_backlog_bytes_max:
            self._drop_oldest(group, DROP_BYTES_LIMIT)
        space = group.tenant.space
        while group.backlog.count and space.excess(limits.tenant_backlog_bytes_max):
            self._drop_oldest(group, DROP_TENANT_BYTES_LIMIT)
        if group.backlog.loose() >= self._delivery.spilling.limit:
            self._delivery.spilling.spill_group(group)

    def _drop_oldest(self, group: Group, reason: int) -> None:
        serial = group.next_serial - group.backlog.count
        group.backlog.skip()
        self._drop(group, serial, reason)

    def serve(self, group: Group, message: Message) -> None:
        """Let members draw as long as they have room: `message` joined the queue. Of much that waits before it, and takes
        no room, one page comes now."""
        passed: dict[Session, None] = {}  # by them, the head
        left: i64 = self._settings.page_messages
        while group.waiting and not group.unread and group.free:
            if left == 0:
                self._delivery.hand_out_later(group)
                return
            left -= 1
            chosen = self._choice.choose(group, message, passed, True)
            if chosen is None:
                return
            self._try_draw(group, chosen, passed)

    def pump(self, session: Session, link: Link) -> None:
        """Let a member that got room draw from those of its groups that found it without, in turn: one page at most,
        counting what it draws and where it looks."""
        membership = membership_of(session)
        if membership is None:
            return
        self._reopen(session, link, membership)
        awaiting = membership.awaiting
        left: i64 = self._settings.page_messages
        while awaiting and left > 0 and membership.looked_at < len(awaiting):
            if not self._choice.ready(session):
                break
            group, _ = awaiting.popitem(last=False)
            if session not in group.members:
                continue
            group.free[session] = None
            drawn = self._draw_some(group, session, left)
            left -= drawn + 1
            membership.looked_at = 0 if drawn else membership.looked_at + 1
            if group.waiting:
                awaiting[group] = None
        if left > 0:
            membership.looked_at = 0
        else:
            self._delivery.feed_later(session, link)

    def _reopen(self, session: Session, link: Link, membership: Membership) -> None:
        """Go on with what waits of groups elsewhere, and with groups that found the socket full."""
        if membership.borrower is not None:
            self.lending.pump(session, link)
        if membership.shut and self._choice.writable(session):
            membership.reopen(session)

    def _draw_some(self, group: Group, session: Session, most: i64) -> i64:
        """Let a member draw up to so many entries of one group; returns how many it took or dropped."""
        drawn: i64 = 0
        while (
            drawn < most
            and group.waiting
            and not group.unread
            and self._choice.ready(session)
            and admitted(group, session)
        ):
            serial, ref = group.head()
            message = self._fetch(group, serial, ref)
            if message is NOT_NOW or not self._give(group, session, serial, ref, message):
                break
            drawn += 1
        return drawn

    def hand_out(self, group: Group, most: i64) -> bool:
        """Give what waits to those who have room, `most` entries of it; True if there is more to do."""
        passed: dict[Session, None] = {}
        while group.waiting and not group.unread:
            if most == 0:
                return True
            most -= 1
            session = self._choice.choose(group, None, passed, True)
            if session is None:
                return False
            self._try_draw(group, session, passed)
        return False

    def _try_draw(self, group: Group, session: Session, passed: dict[Session, None]) -> None:
        """Let a member draw the head. If it may not read it, or fails at it, it is among those who passed it on."""
        serial, ref = group.head()
        message = self._fetch(group, serial, ref)
        if message is NOT_NOW:
            return
        try:
            drawn = self._give(group, session, serial, ref, message)
        except Exception as error:  # noqa: BLE001  it costs this member its connection
            self._choice.failed(session, error)
            drawn = False
        if drawn:
            passed.clear()
        else:
            passed[session] = None

    def wake(self, owner: QueueOwner) -> bool:
        """Go on with a group whose next entry could not be read, and perhaps can be now. False if it does not wait."""
        if not isinstance(owner, Group) or not owner.unread:
            return False
        owner.unread = False
        if self.hand_out(owner, self._settings.page_messages):
            self._delivery.hand_out_later(owner)
        return True

    def _fetch(self, group: Group, serial: int, ref: int) -> Message | Absent:
        """Return the message of the group's head. If it cannot be read now, nothing is drawn until `wake`."""
        message = self._reader.fetch(group, serial, ref)
        if message is NOT_NOW:
            group.unread = True
            self._delivery.unread.add(group, self)
        return message

    def _give(self, group: Group, session: Session, serial: int, ref: int, message: Message | Absent) -> bool:
        """Give the head to a member, or drop it with its reason. False if it stays: this member may not read it."""
        link = session.link
        if link is None:
            return False
        if not isinstance(message, Message):
            return self._drop_head(group, serial, DROP_UNREADABLE)
        member = group.members[session]
        if message.expired(self._clock.now_us) and not ref & REF_MAYBE_SENT:
            return self._drop_head(group, serial, DROP_EXPIRED)
        if not may_read(session, message):
            return False
        qos = min(ref & REF_QOS, member.qos)
        if is_too_large(link, message, qos, member.ids):
            return self._drop_head(group, serial, DROP_TOO_LARGE)
        if qos == 0:
            group.pop_head()
            self._commit.progress.shared_finished(group.incarnation, serial)
            retain = member.retain_as_published and ref & REF_RETAIN != 0
            self._give_qos0(session, message, retain, member.ids)
        else:
            self._send_head(group, serial, session, link, message, qos)
        return True

    def _drop_head(self, group: Group, serial: int, reason: int) -> bool:
        group.pop_head()
        self._drop(group, serial, reason)
        return True

    def _send_head(
        self, group: Group, serial: int, session: Session, link: Link, message: Message, qos: int
    ) -> None:
        """Give the head to this member from now on: at QoS 2 it leaves when that is durable."""
        packet_id = free_draw_id(session)
        draw = group.draw(serial, session, packet_id)
        if draw is not None:
            self._commit.progress.drawn(group.incarnation, serial, session.incarnation, draw.choice)
            if qos == 1:
                self.send(link, draw, message, draw.again())
            else:
                self._commit.defer(_DrawDurable(self, link, draw, message))
                link.drawing += message.size
                self._delivery.written += 1  # it is as much work, and leaves later

    def drawn(self, session: Session, link: Link, size: i64) -> None:
        """Note that so many bytes of what a member is given wait no longer for their record; it goes on if they were too
        many."""
        high: i64 = self._settings.write_buffer_high
        was_full = link.drawing > high
        link.drawing -= size
        if was_full and link.drawing <= high and session.link is link:
            self._delivery.feed_later(session, link)

    def send(self, link: Link, draw: Draw, message: Message, dup: bool) -> None:
        member = draw.group.members.get(draw.session)
        retain = member is not None and member.retain_as_published and draw.ref & REF_RETAIN != 0
        qos: i64 = draw.ref & REF_QOS
        first: i64 = 0x30 | qos << 1 | (1 if retain else 0) | (8 if dup else 0)
        try:
            self._delivery.write(link, message, qos, draw.packet_id, first, _ids_of(draw))
        except Exception as error:  # noqa: BLE001  it may be half written: this member's connection goes, no other
            link.worker.contain("group", link, error)
            return
        counters = draw.session.tenant.counters
        counters.publishes_sent += 1
        counters.bytes_sent += len(message.payload)

    def resumed(self, session: Session, link: Link) -> None:
        """Go on with a member that is connected again: QoS 2 completes with its member, so all that it has is to be
        sent again. Then it draws where something waits."""
        membership = membership_of(session)
        if membership is None:
            return
        draws = membership.draws
        if draws:
            membership.redraw = {packet_id: draws[packet_id] for packet_id in reversed(draws)}
        for group in membership.groups:
            group.open[session] = None
            if group.waiting:
                membership.awaits(group)
            else:
                group.free[session] = None
        if membership.borrower is not None:
            self.lending.resumed(session, link)

    def resend(self, session: Session, link: Link) -> None:
        """Send PUBLISH with DUP, or PUBREL, again, as far as the window allows [MQTT-3.3.4-9]."""
        membership = membership_of(session)
        redraw = None if membership is None else membership.redraw
        if link.unread:
            return
        while redraw and self._choice.has_room(session):
            key, draw = redraw.popitem()
            if draw.received:
                link.pubrel(draw.packet_id)
                continue
            message = self._reader.fetch(draw.group, draw.serial, draw.ref)
            if message is NOT_NOW:
                redraw[key] = draw
                self._delivery.wait_for_read(session, link)
                return
            if isinstance(message, Message):
                self._send_again(session, link, draw, message)
            else:
                self._drop(draw.group, draw.serial, DROP_UNREADABLE)

    def _send_again(self, session: Session, link: Link, draw: Draw, message: Message) -> None:
        """Send an entry again, unless the client may not have it any more: then nobody gets it, since this one may have
        had it. Of a member elsewhere its own shard knows all of that."""
        if not session.stands_in:
            if not may_read(session, message):
                self._drop(draw.group, draw.serial, DROP_PERMISSION)
                return
            if is_too_large(link, message, draw.ref & REF_QOS, _ids_of(draw)):
                self._drop(draw.group, draw.serial, DROP_TOO_LARGE)
                return
        self.send(link, draw, message, True)

    def _drop(self, group: Group, serial: int, reason: int) -> None:
        group.finish(serial)
        group.tenant.count_drop(reason, 1)
        self._commit.progress.shared_finished(group.incarnation, serial)

    # Acknowledgements: packet ids above the direct ones

    def puback(self, session: Session, draw: Draw, reason_code: int) -> None:
        if draw.ref & REF_QOS != 1:
            raise ProtocolError(rc.PROTOCOL_ERROR, "PUBACK for a QoS 2 message")
        self._finish(session, draw, reason_code)

    def pubrec(self, session: Session, link: Link, draw: Draw, reason_code: int) -> None:
        if draw.ref & REF_QOS != 2:
            raise ProtocolError(rc.PROTOCOL_ERROR, "PUBREC for a QoS 1 message")
        if reason_code >= 0x80:
            self._finish(session, draw, reason_code)
            return
        self._commit.progress.shared_received(draw.group.incarnation, draw.serial)
        self._commit.defer(_SharedRelease(link, draw))

    def pubcomp(self, session: Session, draw: Draw) -> None:
        if not draw.received:
            raise ProtocolError(rc.PROTOCOL_ERROR, "PUBCOMP before PUBREL")
        self._finish(session, draw, 0)

    def _finish(self, session: Session, draw: Draw, reason_code: int) -> None:
        """Finish a draw; a refused message does not go to another member (decision 13)."""
        draw.group.finish(draw.serial)
        membership = membership_of(session)
        if membership is not None and membership.redraw:
            membership.redraw.pop(draw.packet_id, None)
        self._commit.progress.shared_finished(draw.group.incarnation, draw.serial)
        if reason_code >= 0x80:
            session.count_drop(DROP_REFUSED, 1)
        self._delivery.pump(session)


def _ids_of(draw: Draw) -> bytes:
    """Return the encoded Subscription Identifiers of an entry: none if its member has left."""
    member = draw.group.members.get(draw.session)
    return b"" if member is None else member.ids


class _DrawDurable(Deferred):
    """Sends a QoS 2 entry once the choice of its member is durable."""

    def __init__(self, sharing: SharedDelivery, link: Link, draw: Draw, message: Message) -> None:
        super().__init__(link)
        self._sharing = sharing
        self._link = link
        self._draw = draw
        self._message = message

    def run(self) -> None:
        session = self._draw.session
        membership = membership_of(session)
        held = None if membership is None else membership.draws.get(self._draw.packet_id)
        self._sharing.drawn(session, self._link, self._message.size)
        if session.link is self._link and held is self._draw:
            self._sharing.send(self._link, self._draw, self._message, False)


class _SharedRelease(Deferred):
    """Sends PUBREL once PUBREC of a shared entry is durable."""

    def __init__(self, link: Link, draw: Draw) -> None:
        super().__init__(link)
        self._link = link
        self._draw = draw

    def run(self) -> None:
        self._draw.received = True
        self._link.pubrel(self._draw.packet_id)
