"""SUBSCRIBE and UNSUBSCRIBE: grant, journal, take effect when durable, then answer (sections 3.8 to 3.11)."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from headrace.core.commit import Deferred, GroupCommit, Reply
from headrace.core.outbound.delivery import Delivery
from headrace.core.outbound.retained_replay import (
    SUBSCRIPTION_BYTES,
    DirectRetained,
    RetainedReplay,
    first_page,
    sizes_of,
    toll_of,
)
from headrace.core.ports.link import Host, Link
from headrace.core.ports.settings import BrokerSettings
from headrace.core.ports.witness import Testimony
from headrace.core.records.record import SUBSCRIBED, UNSUBSCRIBED, Event
from headrace.core.state.session import Session, session_of
from headrace.core.state.state import subscription_from
from headrace.core.state.subscriptions import Subscription, memory_of
from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.codec import encode_suback, encode_unsuback
from headrace.mqtt.packets import Subscribe, SubscriptionRequest, Unsubscribe
from headrace.mqtt.topics import SHARE_PREFIX, filter_error, split_share

_FILTER_WORK: Final = 2  # of a filter in a packet, beside the packet: it goes through the journal


class Subscribing:
    """Subscriptions on their way in and out."""

    def __init__(
        self, commit: GroupCommit, retained: RetainedReplay, testimony: Testimony, host: Host
    ) -> None:
        self.commit = commit
        self.clock = host.clock
        self._retained = retained
        self._testimony = testimony
        self._settings = host.settings

    def subscribe(self, link: Link, packet: Subscribe) -> None:
        session = session_of(link)
        if session is None:
            return
        self._check_answer(link, len(packet.filters))
        link.spend(_FILTER_WORK * len(packet.filters))
        if link.version == 5 and session.incoming is not None and packet.packet_id in session.incoming:
            in_use = [rc.PACKET_IDENTIFIER_IN_USE] * len(packet.filters)
            self.commit.defer(Reply(link, encode_suback(5, packet.packet_id, in_use)))
            return
        codes: list[int] = []
        rows: list[list[object]] = []
        fresh: list[Subscription] = []
        room = _Room(session, link, self._settings)
        for request in packet.filters:
            code = self._grant(link, request, room)
            codes.append(code)
            if code >= 0x80:
                self._note_refused(link, session, request.filter, code)
            if code <= 2:
                if link.bridge:
                    _as_bridge(request)
                row = _row(request, packet.subscription_id)
                rows.append(row)
                if _may_want_retained(request):
                    fresh.append(subscription_from(session, row))
        always = [subscription for subscription in fresh if subscription.retain_handling == 0]
        held = _Held(link, session, [s.filter for s in fresh if s.retain_handling == 1])
        if len(always) < len(fresh):
            self.commit.defer(held)
        listed = first_page(session, always, self.clock.now_us) if session.persistent else []
        below = self.commit.next_offset
        if rows:
            fields = session.named()
            fields["subs"] = rows
            fields["ret"] = listed
            if listed:
                fields["rs"] = sizes_of(session, listed)
            self.commit.append(Event(SUBSCRIBED, self.clock.now_us, fields))
        suback = encode_suback(link.version, packet.packet_id, codes)
        room.begin()
        toll = toll_of(session, fresh) if fresh else 0
        self.commit.defer(
            _Subscribed(self._retained, link, session, fresh, held, listed, below, suback, room, toll)
        )
        if toll:
            self.commit.charge(link, toll)

    def _check_answer(self, link: Link, codes: int) -> None:
        """SUBACK and UNSUBACK must fit into the client's Maximum Packet Size [MQTT-3.1.2-24]."""
        if link.max_packet_size and codes + 10 > link.max_packet_size:
            raise ProtocolError(
                rc.PACKET_TOO_LARGE, "the answer would exceed the client's Maximum Packet Size"
            )

    def _grant(self, link: Link, request: SubscriptionRequest, room: _Room) -> int:
        if filter_error(request.filter):
            return rc.TOPIC_FILTER_INVALID
        levels_max = self._settings.filter_levels_max
        if levels_max and split_share(request.filter)[1].count("/") >= levels_max:
            return rc.QUOTA_EXCEEDED
        access = link.access
        if access is not None and not access.may_subscribe(link, request.filter):
            return rc.NOT_AUTHORIZED
        return request.qos if room.takes(request.filter) else rc.QUOTA_EXCEEDED

    def _note_refused(self, link: Link, session: Session, topic_filter: str, code: int) -> None:
        session.tenant.counters.refuse("subscribe", code)
        if code != rc.NOT_AUTHORIZED:  # of that access control tells
            self._testimony.rejected(link, "subscribe", topic_filter, code)

    def unsubscribe(self, link: Link, packet: Unsubscribe) -> None:
        session = session_of(link)
        if session is None:
            return
        self._check_answer(link, len(packet.filters))
        link.spend(_FILTER_WORK * len(packet.filters))
        packet_id = packet.packet_id
        if link.version == 5 and session.incoming is not None and packet_id in session.incoming:
            in_use = [rc.PACKET_IDENTIFIER_IN_USE] * len(packet.filters)
            self.commit.defer(Reply(link, encode_unsuback(5, packet_id, in_use)))
            return
        held = _Held(link, session, packet.filters)
        self.commit.defer(held)
        fields = session.named()
        fields["f"] = packet.filters
        self.commit.append(Event(UNSUBSCRIBED, self.clock.now_us, fields))
        self.commit.defer(_Unsubscribed(link, packet_id, packet.filters, held))


class _Room:
    """What one SUBSCRIBE adds to its session, within the limits of a session, of the listener and of the user."""

    def __init__(self, session: Session, link: Link, settings: BrokerSettings) -> None:
        self._session = session
        self._owner = session.owner
        self._most: i64 = link.subscriptions_max or settings.subscriptions_max
        self._most_owned: i64 = settings.user_subscriptions_max
        self._most_bytes: i64 = settings.subscription_bytes_max
        self._new: set[str] = set()
        self._bytes: i64 = 0
        self._granted: i64 = 0

    def takes(self, topic_filter: str) -> bool:
        """Whether there is room for this filter. One that the session has takes none, but who names the same ones over
        and over in one packet gets no more of it done than the limit."""
        session = self._session
        held = session.subscriptions
        has: i64 = 0 if held is None else len(held)
        if self._most and self._granted >= self._most + has:
            return False
        self._granted += 1
        if (held is not None and topic_filter in held) or topic_filter in self._new:
            return True
        count: i64 = has + session.subscribing + len(self._new)
        memory = memory_of(topic_filter)
        taken = session.filter_bytes + session.subscribing_bytes + self._bytes + memory
        if (self._most and count >= self._most) or (self._most_bytes and taken > self._most_bytes):
            return False
        if self._owner is not None and self._most_owned:
            owned: i64 = session.tenant.owned.get(self._owner, 0) + len(self._new)
            if owned >= self._most_owned:
                return False
        self._new.add(topic_filter)
        self._bytes += memory
        return True

    def begin(self) -> None:
        """They are on their way through the journal: those of the next packet find less room."""
        self._session.subscribing += len(self._new)
        self._count_owned(len(self._new))
        self._session.subscribing_bytes += self._bytes

    def end(self) -> None:
        """They have taken effect, and are counted with what the session has."""
        self._session.subscribing -= len(self._new)
        self._count_owned(-len(self._new))
        self._session.subscribing_bytes -= self._bytes

    def _count_owned(self, more: int) -> None:
        if self._owner is not None and more:
            self._session.tenant.count_owned(self._owner, more)


def _as_bridge(request: SubscriptionRequest) -> None:
    """3.x has no options for it: Mosquitto's bridges get nothing back, and retain flags as they were published."""
    request.no_local = True
    request.retain_as_published = True


def _row(request: SubscriptionRequest, subscription_id: int) -> list[object]:
    return [
        request.filter,
        request.qos,
        request.no_local,
        request.retain_as_published,
        request.retain_handling,
        subscription_id,
    ]


def _may_want_retained(request: SubscriptionRequest) -> bool:
    """Retain Handling [MQTT-3.3.1-9, MQTT-3.3.1-11]; whether 1 applies shows when the one before is applied."""
    if request.filter.startswith(SHARE_PREFIX):
        return False  # 4.8.2: retained messages are not sent to a shared subscription
    return request.retain_handling != 2


def _memory_of(filters: list[str]) -> i64:
    """Bytes that these filters and what is made of them take, about, while they wait."""
    held: i64 = 0
    for topic_filter in filters:
        held += SUBSCRIPTION_BYTES + len(topic_filter)
    return held


class _Held(Deferred):
    """Which of these filters the session holds, seen when everything before has been applied and nothing behind."""

    def __init__(self, link: Link, session: Session, filters: list[str]) -> None:
        super().__init__(link, _memory_of(filters))
        self._session = session
        self._filters = filters
        self.found: set[str] = set()

    def run(self) -> None:
        held = self._session.subscriptions
        if held is not None:
            self.found = {name for name in self._filters if name in held}


class _Unsubscribed(Deferred):
    """The subscriptions are gone: UNSUBACK, with a code for each filter in order [MQTT-3.11.3-1]."""

    def __init__(self, link: Link, packet_id: int, filters: list[str], held: _Held) -> None:
        super().__init__(link, held.weight)
        self._link = link
        self._packet_id = packet_id
        self._filters = filters
        self._held = held

    def run(self) -> None:
        left = set(self._held.found)
        codes: list[int] = []
        for name in self._filters:
            codes.append(rc.SUCCESS if name in left else rc.NO_SUBSCRIPTION_EXISTED)
            left.discard(name)
        self._link.send(encode_unsuback(self._link.version, self._packet_id, codes))


class _Subscribed(Deferred):
    """The subscriptions are durable and applied: queue what is retained, then SUBACK, then send the rest of it."""

    def __init__(
        self,
        retained: RetainedReplay,
        link: Link,
        session: Session,
        fresh: list[Subscription],
        held: _Held,
        listed: list[int],
        below: int,
        suback: bytes,
        room: _Room,
        toll: i64,
    ) -> None:
        super().__init__(link, len(suback) + _memory_of([subscription.filter for subscription in fresh]))
        self._retained = retained
        self._link = link
        self._session = session
        self._fresh = fresh
        self._held = held
        self._listed = listed
        self._below = below
        self._suback = suback
        self._room = room
        self._toll: i64 = toll

    def run(self) -> None:
        self._room.end()
        retained, link, session, below = self._retained, self._link, self._session, self._below
        direct = retained.direct(session, link, below, self._toll)
        then = _Suback(retained.delivery, link, self._suback, direct)
        queued = retained.queued(session, below, set(self._listed[::3]), then)
        for subscription in self._fresh:
            if subscription.retain_handling == 1 and subscription.filter in self._held.found:
                continue  # [MQTT-3.3.1-10]
            direct.add(subscription)
            if session.persistent:
                queued.add(subscription)
        queued.run()


class _Suback(Deferred):
    """SUBACK, then the retained messages that do not go through the queue."""

    def __init__(self, delivery: Delivery, link: Link, suback: bytes, direct: DirectRetained) -> None:
        super().__init__(link, len(suback))
        self._delivery = delivery
        self._link = link
        self._suback = suback
        self._direct = direct

    def run(self) -> None:
        self._link.send(self._suback)
        session = session_of(self._link)
        if session is not None:
            self._delivery.pump(session)
        self._direct.run()
