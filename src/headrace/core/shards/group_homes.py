"""The home of shared subscriptions: the members that other shards have, each with a stand-in here.

Runs on the loop. A stand-in is a session of this shard under a client id of its own (`$member/SHARD/INCARNATION`), with
the subscriptions that its member has at this home. So a group, its queue, its draws, their records, replay and snapshots
know no difference; a stand-in whose member is connected has a `MemberLink`, whose messages leave as frames. What it may
be lent is `granted - ended`: who is told twice of a grant, or of an end, gains nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Final

from mypy_extensions import i64

from headrace.core.commit import Deferred, GroupCommit
from headrace.core.homes import MEMBER_PREFIX
from headrace.core.outbound.delivery import Delivery
from headrace.core.ports.link import Link, Rendering, WorkerPort
from headrace.core.ports.rights import Rights
from headrace.core.records.event import (
    SessionClosed,
    SessionEnded,
    SessionOpened,
    SessionResumed,
    Subscribed,
    SubscriptionRow,
    Unsubscribed,
)
from headrace.core.records.message import NO_EXPIRY, Message
from headrace.core.records.record import DROP_SESSION_ENDED, FLAG_QOS, FLAG_RETAIN, FLAG_V5, FLAG_WILL
from headrace.core.records.stream_record import RETURNED, stream_record
from headrace.core.shards import group_frames as frames
from headrace.core.shards.far_link import FarLink
from headrace.core.shards.group_wires import GroupWires
from headrace.core.shards.holding import Held, Holding
from headrace.core.shards.peer import Hearing, Wire
from headrace.core.state.groups import Draw, Group, draws_of, groups_of, membership_of
from headrace.core.state.queue import REF_QOS
from headrace.core.state.session import DEVICE, NEVER_EXPIRES, Session
from headrace.core.state.state import Fold

DENIED_MAX: Final = 256  # topics that a home remembers of a member who may not read them
DENIED_BYTES_MAX: Final = 128 << 10  # of such topics, each of which may have 64 KiB
DENIED_FOR_MS: Final = 10_000  # then the member is asked again: its rights may have changed
_NO_CONNECTION: Final = 0  # those of members are numbered from 1 on
_KEPT_FLAGS: Final = FLAG_QOS | FLAG_RETAIN | FLAG_V5 | FLAG_WILL


class FarMember:
    """A member elsewhere: its session here, and what that is subscribed to once all records on their way are applied."""

    def __init__(self, shard: int, session: Session) -> None:
        self.shard = shard
        self.session = session
        self.rows = {name: _plain(found.row()) for name, found in (session.subscriptions or {}).items()}

    def link(self) -> MemberLink | None:
        """Return the link on which the member is reached now."""
        link = self.session.link
        return link if isinstance(link, MemberLink) else None


class GroupHomes:
    """The stand-ins of one shard: what is said of them by the shards of the members, and what is said to those."""

    def __init__(
        self,
        fold: Fold,
        commit: GroupCommit,
        delivery: Delivery,
        worker: WorkerPort,
        holding: Holding,
        wires: GroupWires,
    ) -> None:
        self._fold = fold
        self._commit = commit
        self._delivery = delivery
        self._worker = worker
        self._holding = holding
        self._wires = wires
        self._members: dict[tuple[int, int], FarMember] = {}  # by shard, and incarnation there
        # By shard and incarnation: the filters of a session of which not all have come.
        self._begun: dict[tuple[int, int], set[str]] = {}
        self._listed: dict[int, set[int]] = {}  # by shard: the incarnations that its wire has told of
        self._enlisted: dict[
            int, Wire
        ] = {}  # by shard: its wire, on which it has told of all since the last timer
        # Who may not read something, and until when that is believed; the oldest first.
        self._denied: OrderedDict[MemberLink, int] = OrderedDict()

    def begin(self) -> None:
        """Find the stand-ins that the journal has left: nobody is connected."""
        for session in list(self._fold.by_incarnation.values()):
            if session.stands_in:
                _, shard, incarnation = session.client_id.split("/")
                self._members[int(shard), int(incarnation)] = FarMember(int(shard), session)

    # Wires

    def knows(self, shard: int) -> bool:
        """Return whether a shard has members here."""
        return any(key[0] == shard for key in self._members)

    def opened(self, shard: int) -> None:
        """Begin with the newest wire of a shard: it tells of all its members."""
        self._listed[shard] = set()
        self._begun = {key: names for key, names in self._begun.items() if key[0] != shard}

    def closed(self, shard: int) -> None:
        """Note that the wire of a shard has ended: what its members had at QoS 1 goes back to their groups."""
        self._enlisted.pop(shard, None)
        for stand in [stand for stand in self._members.values() if stand.shard == shard]:
            self._depart(stand)

    def hears(self, of_follower: Hearing[Wire]) -> None:
        """Say what is done with what the shard of members says on its newest wire."""
        of_follower.on(frames.Finished, self._finished)
        of_follower.on(frames.Granted, self._granted)
        of_follower.on(frames.Present, self._present)
        of_follower.on(frames.Absent, self._absent)
        of_follower.on(frames.Enrol, self._enrol)
        of_follower.on(frames.Enlisted, self._enlist)

    def _enlist(self, wire: Wire, frame: frames.Enlisted) -> None:
        self._ask(wire.far, wire)
        self._enlisted[wire.far] = wire

    def _absent(self, wire: Wire, frame: frames.Absent) -> None:
        stand = self._members.get((wire.far, frame.incarnation))
        link = None if stand is None else stand.link()
        if stand is not None and link is not None and link.connection == frame.connection:
            self._depart(stand)

    def _ask(self, shard: int, wire: Wire) -> None:
        """Ask what has become of the members that a shard has not told of."""
        listed = self._listed.get(shard, set())
        for key in self._members:
            if key[0] == shard and key[1] not in listed:
                wire.say(frames.Asked(key[1]))

    def _ask_for_unsent(self, shard: int, wire: Wire) -> None:
        """Ask about the QoS 2 of members that are away, on a connection that there is not: what was on its way when a
        wire broke was never sent, and their shard gives it back."""
        for key, stand in self._members.items():
            if key[0] != shard or stand.link() is not None:
                continue
            session = stand.session
            for draw in draws_of(session):
                if draw.ref & REF_QOS == 2:
                    nothing = session.message(self._worker.clock.now_us, 2, 0, b"", b"", NO_EXPIRY, b"")
                    serial, packet_id = draw.serial, draw.packet_id
                    wire.say(
                        frames.Drawn(
                            key[1], _NO_CONNECTION, draw.group.incarnation, serial, packet_id, 4, b"", nothing
                        )
                    )

    # Who is a member

    def _enrol(self, wire: Wire, frame: frames.Enrol) -> None:
        """Make the subscriptions of a stand-in those that its session has there; answer when that is durable."""
        shard = wire.far
        key = (shard, frame.incarnation)
        self._listed.setdefault(shard, set()).add(frame.incarnation)
        if frame.life in (frames.ENDED, frames.HAS_NOTHING):
            self._begun.pop(key, None)
            if frame.life == frames.HAS_NOTHING:
                self._take_all_back(key)
            self._end(key)
            self._commit.then(None, partial(self.enrolled, None, wire, frame.number))
            return
        stand = self._members.get(key)
        if stand is None:
            stand = self._members[key] = FarMember(shard, self._open(key, frame.tenant))
        rows = {row.filter: row for row in frame.rows}
        gone = self._left(key, stand, frame, rows)
        new = [row for name, row in rows.items() if stand.rows.get(name) != row]
        session, now_us = stand.session, self._worker.clock.now_us
        if gone:
            self._commit.append(Unsubscribed.at(now_us, session.named(), gone))
        if new:
            self._commit.append(Subscribed.at(now_us, session.named(), new))
        for name in gone:
            del stand.rows[name]
        stand.rows.update(rows)
        session.subscribing += 1
        self._commit.then(None, partial(self.enrolled, session, wire, frame.number))

    def _left(
        self, key: tuple[int, int], stand: FarMember, frame: frames.Enrol, rows: dict[str, SubscriptionRow]
    ) -> list[str]:
        """Return the filters of a stand-in that its session has left: of what is told whole, when all of it has come."""
        if frame.life == frames.CHANGED:
            return [name for name in frame.left if name in stand.rows]
        begun = self._begun.pop(key, None)
        if frame.life == frames.CONTINUES:
            self._begun[key] = set(rows) if begun is None else begun | rows.keys()
            return []
        return [name for name in stand.rows if name not in rows and (begun is None or name not in begun)]

    def enrolled(self, session: Session | None, wire: Wire, number: int) -> None:
        """Go on with members whose records are durable: once other shards look for their filters, that is said."""
        if session is not None:
            session.subscribing -= 1
            self._delivery.pump(session)
        held = _Enrolled(wire, number)
        if not self._holding.hold(held):
            held.finish()

    def _open(self, key: tuple[int, int], tenant: str) -> Session:
        event = SessionOpened.at(
            self._worker.clock.now_us,
            tenant,
            f"{MEMBER_PREFIX}{key[0]}/{key[1]}",
            session_type=DEVICE,
            expiry_s=NEVER_EXPIRES,
            version=5,
            will=None,
            sent_limit=0,
            user=None,
        )
        self._commit.append(event)
        session = self._fold.opened(event)
        self._note_closed(session)
        return session

    def _end(self, key: tuple[int, int]) -> None:
        """End the stand-in of a session that is gone: QoS 1 goes back, QoS 2 to nobody else [MQTT-4.8.2-5]."""
        stand = self._members.pop(key, None)
        if stand is None:
            return
        session = stand.session
        session.detach()
        self._commit.append(
            SessionEnded.at(self._worker.clock.now_us, session.named(), 0, "member of a group ended", -1)
        )
        self._fold.leave(session)

    # Which of them are connected

    def _present(self, wire: Wire, frame: frames.Present) -> None:
        stand = self._members.get((wire.far, frame.incarnation))
        if stand is None:
            return
        before = stand.link()
        if before is not None:
            if frame.connection <= before.connection:
                return
            self._depart(stand)
        session = stand.session
        link = MemberLink(self._worker, self._wires, wire, frame)
        event = SessionResumed.at(
            self._worker.clock.now_us, session.named(), NEVER_EXPIRES, frame.version, None, 0, None
        )
        self._commit.append(event)
        self._fold.resumed(session, event)
        session.attach(link)
        link.ready = True
        self._delivery.resumed(session, link)

    def _depart(self, stand: FarMember) -> None:
        """Note that a member is not connected any more: what it had at QoS 1 goes back to its groups."""
        session = stand.session
        link = stand.link()
        if link is None:
            return
        link.closed = True
        session.detach()
        self._note_closed(session)
        self._hand_out(groups_of(session))

    def _note_closed(self, session: Session) -> None:
        event = SessionClosed.at(self._worker.clock.now_us, session.named(), NEVER_EXPIRES, 0, will_set=False)
        self._commit.append(event)
        self._fold.closed(session, event)

    def _hand_out(self, groups: list[Group]) -> None:
        for group in groups:
            if group.returned:
                self._delivery.hand_out_later(group)

    # What became of draws

    def _granted(self, wire: Wire, frame: frames.Granted) -> None:
        stand = self._members.get((wire.far, frame.incarnation))
        link = None if stand is None else stand.link()
        if stand is not None and link is not None and link.connection == frame.connection:
            link.grant(frame.granted)
            self._delivery.pump(stand.session)

    def _finished(self, wire: Wire, frame: frames.Finished) -> None:
        stand = self._members.get((wire.far, frame.incarnation))
        group = self._fold.groups.by_id.get(frame.group)
        draw = None if group is None else group.drawn.get(frame.serial)
        if stand is not None:
            link = stand.link()
            current = link is not None and link.connection == frame.connection
            if draw is not None and draw.session is stand.session:
                self._settle(stand, link, draw, frame, current)
            if link is not None and current:
                link.grant(frame.granted)
            self._delivery.pump(stand.session)
        if frame.qos == 2 and frame.outcome == frames.DONE:
            self._commit.defer(_Settled(wire, frame.group, frame.serial))

    def _settle(
        self, stand: FarMember, link: MemberLink | None, draw: Draw, frame: frames.Finished, current: bool
    ) -> None:
        """Finish a draw, or take it back from a member who was not sent it, unless it was drawn again since."""
        is_done = frame.outcome == frames.DONE
        if not (is_done and frame.qos == 2) and (
            draw.packet_id != frame.draw or not (current or link is None)
        ):
            return
        membership = membership_of(stand.session)
        redraw = None if membership is None else membership.redraw
        if redraw and draw.packet_id in redraw:
            del redraw[draw.packet_id]
        elif link is not None:
            link.end_one(draw.packet_id)
        if is_done:
            draw.group.finish(draw.serial)
            self._commit.progress.shared_finished(draw.group.incarnation, draw.serial)
            return
        if link is not None and frame.outcome == frames.NOT_ALLOWED:
            self._deny(link, draw)
        self._take_back(draw.group, draw.serial)

    def _deny(self, link: MemberLink, draw: Draw) -> None:
        message = self._delivery.reader.fetch(draw.group, draw.serial, draw.ref)
        if isinstance(message, Message):
            link.deny(message.topic)
            self._denied.setdefault(link, self._worker.clock.mono_ms + DENIED_FOR_MS)

    def on_timer(self) -> None:
        """Ask members again, after a while, for what they were not allowed to read; and shards, behind who is connected,
        for what their members were never sent."""
        enlisted, self._enlisted = self._enlisted, {}
        for shard, wire in enlisted.items():
            self._ask_for_unsent(shard, wire)
        now_ms = self._worker.clock.mono_ms
        while self._denied:
            link, until_ms = next(iter(self._denied.items()))
            if until_ms > now_ms:
                break
            self._denied.popitem(False)
            link.rights = None
            session = link.session
            if isinstance(session, Session):
                for group in groups_of(session):
                    if group.waiting:
                        self._delivery.hand_out_later(group)

    def _take_all_back(self, key: tuple[int, int]) -> None:
        """Take back what a session was never sent that is no member any more."""
        stand = self._members.get(key)
        if stand is not None:
            for draw in draws_of(stand.session):
                self._take_back(draw.group, draw.serial)

    def _take_back(self, group: Group, serial: int) -> None:
        self._commit.append_behind_progress(
            stream_record(RETURNED, self._worker.clock.now_us, [(group.incarnation, serial)])
        )
        group.take_back(serial)
        if group.members:
            self._delivery.hand_out_later(group)
        else:  # it is dissolved
            group.finish(serial)
            self._commit.progress.shared_finished(group.incarnation, serial)
            group.tenant.count_drop(DROP_SESSION_ENDED, 1)


class MemberRights(Rights):
    """What a member elsewhere may not read, as far as it has said so: its own shard asks for every message."""

    def __init__(self) -> None:
        super().__init__()
        self._denied_bytes = 0

    def deny(self, topic: bytes) -> None:
        """Note a topic that the member may not read. Of too many, or too long ones, all are forgotten, and the member
        refuses them again."""
        if self.receive.get(topic) is False:
            return
        if len(self.receive) >= DENIED_MAX or self._denied_bytes + len(topic) > DENIED_BYTES_MAX:
            self.receive.clear()
            self._denied_bytes = 0
        self.receive[topic] = False
        self.received = b""
        self._denied_bytes += len(topic)

    def refresh(self) -> None:
        """Keep what is known: it ends with the connection."""

    def ask_receive(self, topic: bytes) -> bool:
        return True

    def may_subscribe(self, topic_filter: str) -> bool:
        return True

    def ended(self) -> None:
        """Note nothing: nobody was asked."""


class MemberLink(FarLink):
    """The connection of a member elsewhere: it has as much room as its shard has granted."""

    def __init__(self, worker: WorkerPort, wires: GroupWires, wire: Wire, frame: frames.Present) -> None:
        super().__init__(worker, wire, frame.connection)
        self.incarnation = frame.incarnation
        self.version = frame.version
        self.max_packet_size = frame.max_packet_size
        self.rendering = _Drawing(wire)
        self._wires = wires
        self._granted = frame.granted
        self._ended = 0  # draws that were sent on it and are no more
        self._sizes: dict[int, int] = {}  # of those that are, by packet id
        self.window = frame.granted

    def grant(self, granted: int) -> None:
        """Note how many entries may be lent on this connection in all."""
        self._granted = max(self._granted, granted)
        self.window = self._granted - self._ended

    def sent(self, packet_id: int, size: int) -> None:
        """Note that a draw of so many bytes was sent."""
        self.drawing += size - self._sizes.get(packet_id, 0)
        self._sizes[packet_id] = size

    def end_one(self, packet_id: int) -> None:
        """Note that a draw is in flight no more; there is room for another one when that is granted."""
        self.drawing -= self._sizes.pop(packet_id, 0)
        self._ended += 1
        self.window = self._granted - self._ended

    def deny(self, topic: bytes) -> None:
        """Note a topic that the member may not read: others get its messages."""
        rights = self.rights
        if not isinstance(rights, MemberRights):
            rights = self.rights = MemberRights()
        rights.deny(topic)

    def close(self) -> None:
        """End the wire: what went wrong here begins anew on the next one."""
        if not self.closed:
            self.closed = True
            self.ready = False
            self._wires.end(self.wire)


class _Drawing(Rendering):
    """Sends what a stand-in is given as frames."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    def write(self, link: Link, message: Message, qos: i64, packet_id: i64, first: i64, ids: bytes) -> None:
        if not isinstance(link, MemberLink):
            return
        group, serial = 0, 0
        if qos:
            session = link.session
            membership = membership_of(session) if isinstance(session, Session) else None
            draw = None if membership is None else membership.draws.get(int(packet_id))
            if draw is None:
                return
            group, serial = draw.group.incarnation, draw.serial
            link.sent(draw.packet_id, int(message.size))
        plain = message.of_nobody(message.topic, int(message.flags & _KEPT_FLAGS))
        self._wire.say(
            frames.Drawn(
                link.incarnation, link.connection, group, serial, int(packet_id), int(first), ids, plain
            )
        )

    def size(self, link: Link, message: Message, qos: i64, ids: bytes) -> i64:
        return message.rendered_size(link.version, qos, ids)


class _Enrolled(Held):
    """Answers an Enrol once other shards look for the filters of its groups."""

    def __init__(self, wire: Wire, number: int) -> None:
        super().__init__()
        self._wire = wire
        self._number = number

    def finish(self) -> None:
        self._wire.say(frames.Enrolled(self._number))


class _Settled(Deferred):
    """Tells the shard of a member that a draw at QoS 2 is finished here, durably."""

    def __init__(self, wire: Wire, group: int, serial: int) -> None:
        super().__init__()
        self._wire = wire
        self._group = group
        self._serial = serial

    def run(self) -> None:
        self._wire.say(frames.Settled(self._group, self._serial))


def _plain(row: SubscriptionRow) -> SubscriptionRow:
    """Return what an Enrol says of a subscription."""
    return SubscriptionRow(row.filter, row.qos, False, row.retain_as_published, 2, row.subscription_id)
