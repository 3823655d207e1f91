"""Out to the subscribers: window, packet id, Receive Maximum, pages.

Runs on the loop. `offer` is called once per (message, matched session) in journal order; `pump` whenever a session may
have got room: an acknowledgement, a resumed connection, a drained socket. Nothing beyond a session's durable
`sent_limit` is sent, and nothing is sent while the socket is above its high mark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, trait

from headrace.core.commit import GroupCommit
from headrace.core.outbound.reserving import Pump, Reserving
from headrace.core.outbound.spilling import Spilling
from headrace.core.ports.clock import Clock
from headrace.core.ports.journal import FORGOTTEN, NOT_NOW, Absent
from headrace.core.ports.link import Link
from headrace.core.ports.queue_reader import QueueReader
from headrace.core.ports.waiting import QueueOwner, Waiting, Waker
from headrace.core.records.message import Message
from headrace.core.records.record import (
    DROP_BYTES_LIMIT,
    DROP_EXPIRED,
    DROP_LIMIT,
    DROP_PERMISSION,
    DROP_QOS0_AWAY,
    DROP_QOS0_SLOW,
    DROP_STORE_FORGOT,
    DROP_TENANT_BYTES_LIMIT,
    DROP_TOO_LARGE,
    DROP_UNREADABLE,
    FLAG_QOS,
    FLAG_RETAIN,
)
from headrace.core.state.groups import group_of
from headrace.core.state.inflight import NOT_IN_FLIGHT
from headrace.core.state.queue import (
    REF_IDS_MAX,
    REF_QOS,
    REF_RETAIN,
    OutboundQueue,
    reference,
)
from headrace.core.state.session import APPLICATION, Session

if TYPE_CHECKING:
    from headrace.core.ports.settings import BrokerSettings
    from headrace.core.state.groups import Group
    from headrace.core.state.session import Target

_CHUNK_LIMIT: Final = 16_384


def is_too_large(link: Link, message: Message, qos: i64, ids: bytes) -> bool:
    """Return whether a PUBLISH, without a topic alias, is above the client's Maximum Packet Size, and so is dropped for
    it [MQTT-3.1.2-25]."""
    if not link.max_packet_size:
        return False
    if link.rendering is not None:
        return link.rendering.size(link, message, qos, ids) > link.max_packet_size
    return message.rendered_size(link.version, qos, ids) > link.max_packet_size


class Sharing:
    """Whoever gives a session what waits in its shared subscriptions (`group_delivery`)."""

    def resend(self, session: Session, link: Link) -> None:
        """Send PUBLISH with DUP, or PUBREL, again, as far as the window allows [MQTT-3.3.4-9]."""
        raise NotImplementedError

    def pump(self, session: Session, link: Link) -> None:
        """Let a member draw that got room."""
        raise NotImplementedError

    def hand_out(self, group: Group, most: i64) -> bool:
        """Give what waits to those who have room, `most` entries of it; True if there is more to do."""
        raise NotImplementedError

    def resumed(self, session: Session, link: Link) -> None:
        """Go on with a member that is connected again: what it has in flight is to be sent again, then it draws."""
        raise NotImplementedError


class Lateness:
    """Whoever wants to know which connected sessions do not get at once what they are given."""

    def grown(self, session: Session, queue: OutboundQueue) -> None:
        """Note that a message was put behind others in the queue of a session."""
        raise NotImplementedError


@trait
class Stores:
    """Whoever puts long queues into stores (`stored_queues`)."""

    def grown(self, session: Session) -> None:
        """Note that more waits for a session than before."""
        raise NotImplementedError


def _reason_of(absent: Absent) -> int:
    """Return why a message that nothing has any more is dropped."""
    return DROP_STORE_FORGOT if absent is FORGOTTEN else DROP_UNREADABLE


class Delivery(Pump, Waker):
    """Sends queue entries to connected sessions and keeps queues inside their limits."""

    def __init__(
        self,
        commit: GroupCommit,
        reader: QueueReader,
        unread: Waiting,
        clock: Clock,
        settings: BrokerSettings,
    ) -> None:
        self._commit = commit
        self.reader = reader
        self.unread = unread
        self._clock = clock
        self._settings = settings
        self._high: i64 = settings.write_buffer_high
        self.hungry: list[Session] = []
        self.written: i64 = 0  # messages, into the buffers of connections
        self.sharing: Sharing | None = None
        self.lateness: Lateness | None = None
        self.stores: Stores | None = None
        self.spilling = Spilling(commit, clock, settings)
        self.sampled_us: i64 = 0  # when a message arrived that was sent since the last flush; 0: none was
        self.reserving = Reserving(commit, self)

    def offer(self, target: Target, message: Message) -> None:
        """Give a message to a session: send it now, or number it and put it behind the backlog."""
        session = target.session
        qos: i64 = message.flags & FLAG_QOS
        if target.qos < qos:
            qos = target.qos
        retain = target.retain_as_published and message.flags & FLAG_RETAIN != 0
        if qos == 0:
            self.offer_qos0(session, message, retain, target.ids)
            return
        self.offer_stored(session, message, reference(message.offset, target.ids_index, retain, qos))

    def offer_qos0(self, session: Session, message: Message, retain: bool, ids: bytes) -> None:
        """Try a message at QoS 0 once; it is never stored (O1)."""
        link = session.link
        if link is None or not link.ready:
            session.count_drop(DROP_QOS0_AWAY, 1)
        elif message.message_expiry_s >= 0 and message.is_late(self._clock.now_us):
            # Of a session that counts what the journal says of its queue, so a replay gives the same.
            session.tenant.count_drop(DROP_EXPIRED, 1)
        elif not self._permitted(link, message):
            session.count_drop(DROP_PERMISSION, 1)
        elif link.paused or link.buffered() > self._high:
            session.count_drop(DROP_QOS0_SLOW, 1)
        elif is_too_large(link, message, 0, ids):
            session.count_drop(DROP_TOO_LARGE, 1)
        else:
            self.write(link, message, 0, 0, 0x31 if retain else 0x30, ids)
            counters = session.tenant.counters
            counters.publishes_sent += 1
            counters.bytes_sent += len(message.payload)

    def write(self, link: Link, message: Message, qos: i64, packet_id: i64, first: i64, ids: bytes) -> None:
        """Write one PUBLISH into the buffer of a connection."""
        self.written += 1
        if qos and self.sampled_us == 0 and first & 1 == 0 and message.timestamp_us >= link.since_us:
            self.sampled_us = message.timestamp_us
        if link.alias_maximum:
            self._write_aliased(link, message, qos, packet_id, first, ids)
        elif link.rendering is not None:
            link.rendering.write(link, message, qos, packet_id, first, ids)
        else:
            message.render(link.writer(), link.version, qos, packet_id, first, ids, self._clock.now_us)

    def _write_aliased(
        self, link: Link, message: Message, qos: i64, packet_id: i64, first: i64, ids: bytes
    ) -> None:
        """Write a PUBLISH with a topic alias: the first topics of a connection get one each, up to the client's maximum
        [MQTT-3.3.2-11]."""
        aliases = link.aliases
        if aliases is None:
            aliases = {}
            link.aliases = aliases
        alias = aliases.get(message.topic, 0)
        known = alias != 0 and (len(message.topic) > 3 or link.max_packet_size == 0)
        properties = ids
        if known:
            properties = b"\x23" + alias.to_bytes(2, "big") + ids
        elif alias == 0 and len(aliases) < link.alias_maximum:
            alias = len(aliases) + 1  # never 0 [MQTT-3.3.2-8]
            properties = b"\x23" + alias.to_bytes(2, "big") + ids
            limit = link.max_packet_size
            if limit and message.rendered_size(link.version, qos, properties) > limit:
                properties = ids  # it only fits without one
            else:
                aliases[message.topic] = alias
        now_us = self._clock.now_us
        message.render(link.writer(), link.version, qos, packet_id, first, properties, now_us, known)

    def offer_stored(self, session: Session, message: Message, ref: i64) -> None:
        """Send a durable message now, or put it behind the backlog. One that may not leave, since it has expired on its
        way here or for another reason, is put there too: it has its number in every replay, and its drop is recorded."""
        queue = session.queue
        if queue is None:
            queue = session.outbound()
        link = session.link
        if link is not None and link.ready and queue.backlog.count == 0 and not queue.resend:
            serial: i64 = queue.next_serial
            if self._room(session, link, queue, serial) and self._may_leave(session, link, message, ref):
                queue.inflight.put(serial, ref)
                queue.next_serial = serial + 1
                self._send(session, link, queue, serial, ref, message, False)
                return
        if session.owed is not None:
            session.settle()
        queue.push(ref, message.size)
        message.waits = True
        if link is None or queue.backlog.count > 1:
            self._grown(session, link, queue)
        else:
            self.pump(session)  # asks for what is missing, or drops what is too large for the client

    def _grown(self, session: Session, link: Link | None, queue: OutboundQueue) -> None:
        if link is not None and self.lateness is not None:
            self.lateness.grown(session, queue)
        self.keep_limits(session, queue)

    def _room(self, session: Session, link: Link, queue: OutboundQueue, serial: i64) -> bool:
        """Return whether `serial` may be sent now. Asks the journal for a higher `sent_limit` or boundary ahead of
        need."""
        if serial > queue.boundary_due:
            self.reserving.move_boundary(session, queue)
        if serial + (link.chunk >> 1) > queue.sent_limit:
            self.reserving.raise_limit(session, link, queue, serial)
            if serial > queue.sent_limit:
                link.chunk = min(
                    2 * link.chunk, _CHUNK_LIMIT
                )  # faster than the journal: reserve more at a time
                return False
        if session.window_used() >= link.window:
            return False
        if link.paused or link.buffered() > self._high:
            self.feed_later(session, link)
            return False
        return True

    def feed_later(self, session: Session, link: Link) -> None:
        """Try again at the end of this tick, or when the socket drains."""
        if not link.hungry:
            link.hungry = True
            self.hungry.append(session)

    def _may_leave(self, session: Session, link: Link, message: Message, ref: i64) -> bool:
        """Return whether a message that was not queued is not to be dropped."""
        if message.message_expiry_s >= 0 and message.is_late(self._clock.now_us):
            return False
        if link.max_packet_size and self._too_large(session, link, message, ref):
            return False
        return self._permitted(link, message)

    def _too_large(self, session: Session, link: Link, message: Message, ref: i64) -> bool:
        """Return whether an entry of a queue is above the client's Maximum Packet Size."""
        if not link.max_packet_size:
            return False
        ids = session.ids_of(ref >> 3 & REF_IDS_MAX, message.topic)
        return is_too_large(link, message, ref & REF_QOS, ids)

    def _permitted(self, link: Link, message: Message) -> bool:
        """Return whether the client may read this topic. Asked when it is sent: permission may be withdrawn
        (decision 11: counted drops)."""
        rights = link.rights
        return rights is None or rights.may_receive(message.topic)

    def _send(
        self,
        session: Session,
        link: Link,
        queue: OutboundQueue,
        serial: i64,
        ref: i64,
        message: Message,
        dup: bool,
    ) -> None:
        qos: i64 = ref & REF_QOS
        first: i64 = 0x30 | qos << 1
        if ref & REF_RETAIN:
            first |= 1
        if dup:
            first |= 8  # [MQTT-3.3.1-1]
        ids_index: i64 = ref >> 3 & REF_IDS_MAX
        ids = b"" if ids_index == 0 else session.ids_of(ids_index, message.topic)
        packet_id: i64 = 1 + (serial - 1) % queue.direct
        if queue.bound is not None:
            packet_id = queue.packet_id(serial)
        self.write(link, message, qos, packet_id, first, ids)
        counters = session.tenant.counters
        counters.publishes_sent += 1
        counters.bytes_sent += len(message.payload)

    # A session that has got room

    def pump(self, session: Session) -> None:
        """Send NOT-ACKED entries, then the backlog, at most one page; what is left goes on in the next tick."""
        link = session.link
        queue = session.queue
        if link is None or not link.ready or link.closed:
            return
        if session.shared is not None and self.sharing is not None:
            self.sharing.resend(session, link)
        if queue is not None:
            self._pump_queue(session, link, queue)
        if session.shared is not None and self.sharing is not None:
            self.sharing.pump(session, link)

    def _pump_queue(self, session: Session, link: Link, queue: OutboundQueue) -> None:
        if link.unread:
            return
        budget = self._settings.page_messages
        while queue.resend or queue.backlog.count:
            if session.window_used() >= link.window:
                return
            if budget == 0 or link.paused or link.buffered() > self._high:
                self.feed_later(session, link)
                return
            budget -= 1
            sent = (
                self._resend(session, link, queue) if queue.resend else self._send_head(session, link, queue)
            )
            if not sent:
                return

    def _resend(self, session: Session, link: Link, queue: OutboundQueue) -> bool:
        """Send the oldest NOT-ACKED entry again: PUBLISH with DUP, or PUBREL [MQTT-4.4.0-1]. False: it has to wait."""
        serial = queue.resend.pop()
        ref = queue.inflight.get(serial)
        if ref == NOT_IN_FLIGHT:
            queue.resend_gone -= 1
            return True
        if queue.inflight.is_received(serial):
            link.pubrel(queue.packet_id(serial))
            return True
        message = self.reader.fetch(session, serial, ref)
        if not isinstance(message, Message):
            if message is NOT_NOW:
                queue.resend.append(serial)
                self.wait_for_read(session, link)
                return False
            queue.finish(serial)
            self._record_drop(session, serial, _reason_of(message))
        elif self._too_large(session, link, message, ref):
            queue.finish(serial)
            self._record_drop(session, serial, DROP_TOO_LARGE)
        elif not self._permitted(link, message):  # somebody else's connection, or other rules than before
            queue.finish(serial)
            self._record_drop(session, serial, DROP_PERMISSION)
        else:
            self._send(session, link, queue, serial, ref, message, True)
        return True

    def _send_head(self, session: Session, link: Link, queue: OutboundQueue) -> bool:
        """Send the head of the backlog, or drop it with its reason; False when it has to wait."""
        serial: i64 = queue.head_serial()
        if not self._room(session, link, queue, serial):
            return False
        ref = queue.backlog.peek()
        message = self.reader.fetch(session, serial, ref)
        reason = 0
        if not isinstance(message, Message):
            if message is NOT_NOW:
                self.wait_for_read(session, link)
                return False
            queue.drop_head(1)
            self._record_drop(session, serial, _reason_of(message))
            return True
        if message.expired(self._clock.now_us):
            reason = DROP_EXPIRED
        elif self._too_large(session, link, message, ref):
            reason = DROP_TOO_LARGE
        elif not self._permitted(link, message):
            reason = DROP_PERMISSION
        if reason:
            queue.drop_head(1)
            self._record_drop(session, serial, reason)
            return True
        queue.take()
        self._send(session, link, queue, serial, ref, message, False)
        return True

    def wait_for_read(self, session: Session, link: Link) -> None:
        """Wait until what the session is to get next can be read: nothing is dropped for that, `wake` goes on."""
        link.unread = True
        self.unread.add(session, self)

    def wake(self, owner: QueueOwner) -> bool:
        """Go on with a session whose next entry could not be read, and perhaps can be now. False if nobody waits: its
        client may have gone, or have come back to a read that succeeded."""
        if not isinstance(owner, Session):
            return False
        link = owner.link
        if link is None or not link.unread:
            return False
        link.unread = False
        try:
            self.pump(owner)
        except Exception as error:  # noqa: BLE001  it costs this connection, and those behind it have their turn
            link.worker.contain("unread", link, error)
        return True

    def _record_drop(self, session: Session, serial: int, reason: int) -> None:
        session.count_drop(reason, 1)
        if session.persistent:
            self._commit.progress.dropped(session.incarnation, serial, 1, reason)

    def keep_limits(self, session: Session, queue: OutboundQueue) -> None:
        """Drop the oldest unsent entries above the limits of session and tenant, counted with their reason (T6)."""
        backlog = queue.backlog
        limits = session.tenant.limits
        bytes_max: i64 = limits.application_backlog_bytes_max
        if session.session_type != APPLICATION:
            bytes_max = limits.backlog_bytes_max
            if backlog.count > limits.backlog_messages_max:
                self._trim(session, queue, backlog.count - limits.backlog_messages_max, 0, DROP_LIMIT)
        if bytes_max and backlog.bytes > bytes_max:
            self._trim(session, queue, 0, backlog.bytes - bytes_max, DROP_BYTES_LIMIT)
        excess = session.tenant.space.excess(limits.tenant_backlog_bytes_max)
        if excess:
            self._trim(session, queue, 0, excess, DROP_TENANT_BYTES_LIMIT)
        if backlog.loose() >= self.spilling.limit:
            self.spilling.spill_queue(session.incarnation, queue)
        if self.stores is not None:
            self.stores.grown(session)

    def _trim(self, session: Session, queue: OutboundQueue, count: i64, size: i64, reason: int) -> None:
        """Drop the oldest unsent entries: `count` of them, and on until `size` bytes are free."""
        backlog = queue.backlog
        first = queue.head_serial()
        left = backlog.bytes - size
        dropped: i64 = 0
        while backlog.count and (dropped < count or backlog.bytes > left):
            queue.drop_head(1)
            dropped += 1
        if dropped:
            session.count_drop(reason, dropped)
            if session.persistent:
                self._commit.progress.dropped(session.incarnation, first, dropped, reason)

    def feed_hungry(self) -> bool:
        """End of a tick: go on with sessions that stopped at a page or at a full socket, those who wait longest first.
        True if more is to do."""
        if not self.hungry:
            return False
        sessions = self.hungry
        self.hungry = []
        left: i64 = self._settings.deliveries_at_once
        for at, session in enumerate(sessions):
            if left <= 0:
                self.hungry = sessions[at:] + self.hungry
                break
            left -= 1 - self.written
            link = session.link
            group = group_of(session)
            if group is not None:
                self._hand_out(group)
            elif link is not None and link.hungry and not link.paused:
                link.hungry = False
                try:
                    self.pump(session)
                except Exception as error:  # noqa: BLE001  it costs this connection, and those behind it go on
                    link.worker.contain("delivery", link, error)
            left -= self.written
        return len(self.hungry) > 0

    def hand_out_later(self, group: Group) -> None:
        """Hand out what waits in a group, at the end of this tick, to the members that have room. It is among the
        hungry as its `carrier`."""
        if not group.hungry:
            group.hungry = True
            self.hungry.append(group.carrier)

    def _hand_out(self, group: Group) -> None:
        group.hungry = False
        if self.sharing is not None and self.sharing.hand_out(group, self._settings.page_messages):
            self.hand_out_later(group)

    def resumed(self, session: Session, link: Link) -> None:
        """Go on with a connection that is ready: everything in flight is to be sent again, oldest first, then the
        backlog."""
        queue = session.queue
        if queue is not None:
            queue.start_resend()
        if session.shared is not None and self.sharing is not None:
            self.sharing.resumed(session, link)  # before `pump` draws anything new
        self.pump(session)
