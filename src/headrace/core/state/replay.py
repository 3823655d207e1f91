"""Replay: what brings the live state to where the records of the journal lead, at a start.

A snapshot comes first, then every record behind it. Records that a session's snapshot already contains
(`Session.applied`) change nothing, which makes snapshots fuzzy: every session in one may have a position of its own.
Events go through the same methods of the state as they do live; messages and their progress go straight into queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from librt.strings import read_i64_le
from mypy_extensions import i64

from headrace.core.records.event import (
    BrokerStarted,
    Event,
    RetainedExpired,
    RetainedQueued,
    SessionClosed,
    SessionEnded,
    SessionEvent,
    SessionOpened,
    SessionResumed,
    Subscribed,
    Unsubscribed,
    WillCancelled,
    WillFired,
)
from headrace.core.records.message import Copy, FrameMessage, Message, decode_record
from headrace.core.records.queue_record import DEVICE_OWNED, QueueRecord
from headrace.core.records.record import (
    ACKED,
    BACKLOG_PAGE,
    BOUND,
    DROPPED,
    FLAG_FRAME,
    FLAG_PRODUCER,
    FLAG_QOS,
    FLAG_RETAIN,
    KIND_COPY,
    KIND_EVENT,
    KIND_GIVEN,
    KIND_MESSAGE,
    KIND_PROGRESS,
    KIND_QUEUE,
    LET_GO,
    MESSAGE_HEADER_SIZE,
    PLACED,
    PROGRESS_WIDTH,
    RECEIVED,
    RELEASED,
    SENT_LIMIT,
    SHARED_BACKLOG_PAGE,
    SHARED_DRAWN,
    SHARED_FINISHED,
    SHARED_RECEIVED,
    STORED,
    Progress,
    Record,
    record_end,
)
from headrace.core.records.stream_record import ANEW, LENT, RETURNED, STARTED, StreamRecord
from headrace.core.state.backlog import Page
from headrace.core.state.devices import seen_of
from headrace.core.state.groups import group_of
from headrace.core.state.queue import OutboundQueue, reference
from headrace.core.state.queue_replay import replay_bound, replay_dropped, replay_finished, replay_received
from headrace.core.state.session import Session, Target
from headrace.core.state.state import Fold
from headrace.core.state.subscriptions import for_publisher
from headrace.core.state.tenant import Tenant

if TYPE_CHECKING:
    from array import array


class Replay:
    """Applies records to a state, in the order of their offsets; `count` says how many so far."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self.count = 0
        self._last_tenant: Tenant | None = None

    def batch(self, body: bytes, base_offset: i64, position: i64) -> None:
        """Apply the records of a batch body from offset `position` on. Raises `CorruptRecord`."""
        pos: i64 = 0
        size: i64 = len(body)
        offset = base_offset
        while pos < size:
            end: i64 = record_end(body, pos)
            if offset >= position:
                if body[pos + 4] == KIND_MESSAGE and self._in_place(body, pos, end, offset):
                    self.count += 1
                else:
                    record, _ = decode_record(body, pos)
                    record.offset = offset
                    self.record(record)
            offset += 1
            pos = end

    def _in_place(self, body: bytes, pos: i64, end: i64, offset: i64) -> bool:
        """Take the usual message, QoS 0 or 1 and nothing else, without an object: its header says all. Returns False
        for the others."""
        flags: i64 = body[pos + 5]
        qos: i64 = flags & FLAG_QOS
        if flags & (FLAG_RETAIN | FLAG_PRODUCER | FLAG_FRAME) or qos > 1:
            return False
        if qos == 0:
            return True
        tenant_at: i64 = pos + MESSAGE_HEADER_SIZE
        tenant_len: i64 = body[pos + 28]
        client_low: i64 = body[pos + 30]
        client_high: i64 = body[pos + 31]
        topic_low: i64 = body[pos + 32]
        topic_high: i64 = body[pos + 33]
        topic_at: i64 = tenant_at + tenant_len + (client_low | client_high << 8)
        topic_end: i64 = topic_at + (topic_low | topic_high << 8)
        if topic_end > end:
            return False  # `decode_record` says what is wrong
        name = body[tenant_at : tenant_at + tenant_len]
        tenant = self._last_tenant
        if tenant is None or tenant.name_utf8 != name:
            tenant = self._fold.make(name.decode("utf-8"))
            self._last_tenant = tenant
        if tenant.shares():
            return False
        targets = tenant.tree.match(body[topic_at:topic_end])
        for target in targets:
            if target.no_local:
                return False
        bytes_counted: i64 = end - topic_at
        for target in targets:
            if target.qos and target.session.applied < offset:
                queue = target.session.outbound()
                queue.push(reference(offset, target.ids_index, False, 1), bytes_counted)
        return True

    def record(self, record: Record) -> None:
        """Apply one record, with its offset. Raises CorruptRecord."""
        self.count += 1
        self._fold.recorded_us = record.timestamp_us
        if record.kind == KIND_MESSAGE:
            self._message(cast(Message, record))
        elif record.kind == KIND_EVENT:
            self._event(cast(Event, record))
        elif record.kind == KIND_QUEUE:
            self._queue(cast(QueueRecord, record))
        elif record.kind == KIND_PROGRESS:
            self._progress(cast(Progress, record))
        elif record.kind == KIND_COPY:
            self._copy(cast(Copy, record))
        elif record.kind != KIND_GIVEN:
            self._stream(cast(StreamRecord, record))

    def _stream(self, record: StreamRecord) -> None:
        """Apply positions of streams, or what became of entries of groups between shards."""
        if record.subkind == RETURNED:
            numbers = record.numbers()
            for at in range(0, len(numbers), 2):
                group = self._fold.groups.by_id.get(numbers[at])
                if group is not None and group.applied < record.offset:
                    group.take_back(numbers[at + 1])
        elif record.subkind < LENT or record.subkind in (STARTED, ANEW):
            self._fold.streams.apply(record)
        else:
            self._fold.away.replay(record)

    def _copy(self, copy: Copy) -> None:
        """Apply a message of another shard, unless it is here already."""
        if not self._fold.streams.takes(copy):
            return
        tenant = self._fold.make(copy.tenant)
        qos = copy.flags & FLAG_QOS
        if qos:
            self._route(tenant, copy, qos)
        if copy.flags & FLAG_RETAIN:
            tenant.retained.apply(copy)

    def _route(self, tenant: Tenant, message: Message, qos: int) -> None:
        """Put a message of QoS 1 or 2 behind what waits for the sessions, the groups and the queue of its topic."""
        for target in tenant.tree.match(message.topic):
            self._entry(target, message, qos)
        for target in tenant.shared_tree.match(message.topic):
            group = group_of(target.session)
            if group is not None and group.applied < message.offset:
                retain = message.flags & FLAG_RETAIN != 0
                group.push(reference(message.offset, 0, retain, qos), message.size)
        if tenant.queues:
            _put_into_queue(tenant, message)

    def _message(self, message: Message) -> None:
        tenant = self._fold.make(message.tenant)
        qos = message.flags & FLAG_QOS
        if qos == 2 and message.packet_id:
            self._incoming(message)
        if qos:
            self._route(tenant, message, qos)
        if message.flags & FLAG_RETAIN:
            tenant.retained.apply(message)
        if message.flags & (FLAG_PRODUCER | FLAG_FRAME):
            _remember(tenant, message)

    def _incoming(self, message: Message) -> None:
        """Note that the packet id of a message is taken until PUBREL."""
        publisher = self._fold.by_incarnation.get(message.incarnation)
        if publisher is not None and publisher.applied < message.offset:
            if publisher.incoming is None:
                publisher.incoming = {}
            publisher.incoming[message.packet_id] = message.offset

    def _queue(self, record: QueueRecord) -> None:
        if record.subkind == DEVICE_OWNED:
            fields = record.fields()
            self._fold.make(str(fields["t"])).devices.own(str(fields["c"]), str(fields["u"]))
            return
        for tenant, reason, count in self._fold.queues.replay(record):
            if count:
                self._fold.make(tenant).count_drop(reason, count)

    def _entry(self, target: Target, message: Message, qos: int) -> None:
        session = target.session
        if session.applied >= message.offset:
            return
        granted = for_publisher(target, message)
        if granted is None:
            return
        qos = min(qos, granted.qos)
        if qos:
            retain = granted.retain_as_published and message.flags & FLAG_RETAIN != 0
            session.outbound().push(reference(message.offset, granted.ids_index, retain, qos), message.size)

    def _event(self, event: Event) -> None:
        self._fold.groups.replaying = True
        if isinstance(event, SessionOpened):
            if event.incarnation not in self._fold.by_incarnation:
                self._fold.opened(event)
        elif isinstance(event, BrokerStarted):
            self._fold.started(event)
        elif isinstance(event, RetainedExpired):
            retained = self._fold.make(event.tenant).retained
            retained.remove(event.topic.encode("utf-8"), event.message_offset)
        elif isinstance(event, SessionEvent):
            session = self._fold.by_incarnation.get(event.incarnation)
            if session is not None and session.applied < event.offset:
                self._session_event(session, event)
            if isinstance(event, SessionEnded):  # what a snapshot knows of it only by its groups
                self._fold.departed(event.incarnation, event.offset)

    def _session_event(self, session: Session, event: SessionEvent) -> None:
        if isinstance(event, SessionResumed):
            self._fold.resumed(session, event)
        elif isinstance(event, SessionClosed):
            self._fold.closed(session, event)
        elif isinstance(event, SessionEnded):
            self._fold.ended(session, event.offset)
        elif isinstance(event, Subscribed):
            self._fold.subscribed(session, event)
        elif isinstance(event, Unsubscribed):
            self._fold.unsubscribed(session, event)
        elif isinstance(event, RetainedQueued):
            self._fold.retained_queued(session, event)
        elif isinstance(event, (WillFired, WillCancelled)):
            session.will = None

    def _acked(self, progress: Progress) -> None:
        """Apply acknowledgements, the most frequent of all; those of one session come in runs."""
        packed = progress.packed
        last: i64 = -1
        queue: OutboundQueue | None = None
        for at in range(0, len(packed), 16):
            incarnation: i64 = read_i64_le(packed, at)
            if incarnation != last:
                last = incarnation
                session = self._fold.by_incarnation.get(incarnation)
                known = session is not None and session.applied < progress.offset
                queue = session.outbound() if session is not None and known else None
            if queue is not None:
                replay_finished(queue, read_i64_le(packed, at + 8))

    def _progress(self, progress: Progress) -> None:
        if progress.subkind == ACKED:
            self._acked(progress)
            return
        if progress.subkind in (BACKLOG_PAGE, SHARED_BACKLOG_PAGE):
            self._page(progress)
            return
        values = progress.values()
        width = PROGRESS_WIDTH[progress.subkind]
        for at in range(0, len(values), width):
            if progress.subkind in (SHARED_DRAWN, SHARED_FINISHED, SHARED_RECEIVED):
                self._shared(progress, values, at)
                continue
            session = self._fold.by_incarnation.get(values[at])
            if session is not None and session.applied < progress.offset:
                self._one(session, progress.subkind, values, at)

    def _page(self, progress: Progress) -> None:
        """Let references go that are in memory by now: they can be read again from the page of this record."""
        page = Page(progress.packed)
        if progress.subkind == SHARED_BACKLOG_PAGE:
            group = self._fold.groups.by_id.get(page.owner)
            queue_of_topic = self._fold.queues.by_id.get(page.owner)
            if group is not None and group.applied < progress.offset:
                group.backlog.replay_page(page, progress.offset, group.next_serial - group.backlog.count)
            elif queue_of_topic is not None and queue_of_topic.applied < progress.offset:
                queue_of_topic.replay_page(page, progress.offset)
            return
        session = self._fold.by_incarnation.get(page.owner)
        if session is not None and session.applied < progress.offset and session.queue is not None:
            queue = session.queue
            queue.backlog.replay_page(page, progress.offset, queue.head_serial())

    def _shared(self, progress: Progress, values: array[int], at: int) -> None:
        group = self._fold.groups.by_id.get(values[at])
        if group is None or group.applied >= progress.offset:
            return
        serial: int = values[at + 1]
        if progress.subkind == SHARED_DRAWN:
            session = self._fold.by_incarnation.get(values[at + 2])
            if session is not None:
                choice: int = values[at + 3]
                group.draw(serial, session, choice & 0xFFFF, choice >> 16)
        elif progress.subkind == SHARED_FINISHED:
            group.finish(serial)
        elif serial in group.drawn:
            group.drawn[serial].received = True

    def _one(self, session: Session, subkind: int, values: array[int], at: int) -> None:
        value: int = values[at + 1]
        if subkind == RELEASED:
            if session.incoming is not None:
                session.incoming.pop(value, None)
            return
        queue: OutboundQueue = session.outbound()
        if subkind == RECEIVED:
            replay_received(queue, value)
        elif subkind == SENT_LIMIT:
            queue.sent_limit = value
            queue.reserving = value
        elif subkind == BOUND:
            replay_bound(queue, value, values[at + 2])
        elif subkind == DROPPED:
            dropped = replay_dropped(queue, value, values[at + 2])
            if dropped:
                session.count_drop(values[at + 3], dropped)
        elif subkind == STORED:
            queue.stored_rows().stored(value, values[at + 2], values[at + 3])
            self._fold.in_stores[session.incarnation] = session
        elif subkind == LET_GO:
            queue.stored_rows().note_let_go(value)
        elif subkind == PLACED:
            queue.stored_rows().place(value)


def _put_into_queue(tenant: Tenant, message: Message) -> None:
    """Give a message its place in the queue of its topic, if that has one."""
    queue = tenant.queues.get(message.topic)
    if queue is not None and queue.applied < message.offset:
        queue.push(message.offset, message.size)


def _remember(tenant: Tenant, message: Message) -> None:
    """Note a message that its publisher may send again."""
    if message.flags & FLAG_PRODUCER:
        tenant.producers.apply(message)
    if message.flags & FLAG_FRAME:
        tenant.devices.note(seen_of(cast(FrameMessage, message)))
