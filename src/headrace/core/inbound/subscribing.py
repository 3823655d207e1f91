"""SUBSCRIBE and UNSUBSCRIBE: grant, journal, take effect when durable, then answer (sections 3.8 to 3.11)."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from headrace.core.commit import ENTRY_BYTES, Deferred, GroupCommit
from headrace.core.outbound.delivery import Delivery
from headrace.core.outbound.retained_replay import (
    NOTHING_ELSEWHERE,
    SUBSCRIPTION_BYTES,
    DirectRetained,
    Inquiry,
    RetainedReplay,
    first_page,
    payloads_of,
    sizes_of,
    toll_of,
)
from headrace.core.ports.limits import NO_LIMIT
from headrace.core.ports.link import Link, WorkerPort
from headrace.core.ports.witness import Testimony
from headrace.core.records.event import Subscribed, SubscriptionRow, Unsubscribed
from headrace.core.shards.alone import Alone
from headrace.core.shards.enrolments import Enrolment
from headrace.core.state.session import Session, Subscription, session_of
from headrace.core.state.subscription_tree import memory_of
from headrace.core.state.subscriptions import subscription_from
from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import Subscribe, SubscriptionRequest, Unsubscribe
from headrace.mqtt.topics import SHARE_PREFIX, filter_error, split_share

_ADDED: Final = 4  # subscriptions whose retained messages are to be looked for: as much as one delivery


class _Answer:
    """What the filters of one SUBSCRIBE or UNSUBSCRIBE come to, which may come in parts."""

    def __init__(self, packet_id: int, in_use: bool) -> None:
        self.packet_id = packet_id
        self.in_use = in_use  # its packet id is that of a QoS 2 message under way
        self.codes: list[int] = []
        self.filters = 0
        self.open: i64 = 0  # parts that are on their way through the journal
        self.complete = False  # the last part has come
        self.elsewhere: list[_Elsewhere] = []


class _Elsewhere:
    """A shared subscription whose home, another shard, has to know of the member before SUBACK: where its code is."""

    def __init__(self, at: int, topic_filter: str, is_new: bool) -> None:
        self.at = at
        self.filter = topic_filter
        self.is_new = is_new  # for the session


class Subscribing:
    """Handles SUBSCRIBE and UNSUBSCRIBE of all sessions."""

    def __init__(
        self, commit: GroupCommit, retained: RetainedReplay, testimony: Testimony, worker: WorkerPort
    ) -> None:
        self.commit = commit
        self.clock = worker.clock
        self._retained = retained
        self._testimony = testimony
        self.neighbours = Alone()

    def subscribe(self, link: Link, packet: Subscribe) -> None:
        session = session_of(link)
        if session is None:
            return
        answer = self._answer_to(link, session, packet.answer, packet.packet_id, len(packet.filters))
        packet.answer = answer
        if answer.in_use:
            if not packet.more:
                self.commit.defer(_InUse(link, packet.packet_id, answer.codes, subscribes=True))
            return
        rows: list[SubscriptionRow] = []
        fresh: list[Subscription] = []
        room = _Room(session, link)
        for request in packet.filters:
            code = self._grant(link, session, request, room)
            answer.codes.append(code)
            if code <= 2:
                self._note_elsewhere(session, request.filter, answer)
                row = _row(link, request, code, packet.subscription_id)
                rows.append(row)
                if _may_want_retained(request):
                    fresh.append(subscription_from(session, row))
        answer.open += 1
        if not packet.more:
            answer.complete = True
        self._begin(link, session, rows, fresh, answer, room)

    def _begin(
        self,
        link: Link,
        session: Session,
        rows: list[SubscriptionRow],
        fresh: list[Subscription],
        answer: _Answer,
        room: _Room,
    ) -> None:
        """Journal what was granted, and defer the answer. `fresh` are those that may want retained messages."""
        always = [subscription for subscription in fresh if subscription.retain_handling == 0]
        held = _Held(link, session, [s.filter for s in fresh if s.retain_handling == 1])
        if len(always) < len(fresh):
            self.commit.defer(held)
        listed = first_page(session, always, self.clock.now_us) if session.persistent else []
        below = self.commit.next_offset
        if rows:
            sizes = sizes_of(session, listed) if listed else None
            payloads = payloads_of(session, listed) if listed else None
            event = Subscribed.at(self.clock.now_us, session.named(), rows, listed, sizes, payloads)
            self.commit.append(event)
        inquiry = self._retained.others.inquire(session, link, below) if fresh else NOTHING_ELSEWHERE
        room.begin()
        toll = toll_of(session, fresh) if fresh else 0
        self.commit.defer(
            _Subscribed(
                self.commit,
                self._retained,
                self.neighbours,
                link,
                session,
                fresh,
                held,
                listed,
                below,
                answer,
                room,
                toll,
                inquiry,
            )
        )
        if toll:
            self.commit.charge(link, toll)

    def _note_elsewhere(self, session: Session, topic_filter: str, answer: _Answer) -> None:
        """Note a shared subscription of which its home, another shard, does not know yet."""
        if topic_filter.startswith(SHARE_PREFIX) and self.neighbours.must_know(session, topic_filter):
            is_new = topic_filter not in (session.subscriptions or {})
            answer.elsewhere.append(_Elsewhere(len(answer.codes) - 1, topic_filter, is_new))

    def _answer_to(
        self, link: Link, session: Session, answer: object | None, packet_id: int, filters: int
    ) -> _Answer:
        """Return the answer that so many more filters belong to."""
        if not isinstance(answer, _Answer):
            incoming = session.incoming
            answer = _Answer(packet_id, link.version == 5 and incoming is not None and packet_id in incoming)
        answer.filters += filters
        self._check_answer(link, answer.filters)
        if answer.in_use:
            answer.codes += [rc.PACKET_IDENTIFIER_IN_USE] * filters
        return answer

    def _check_answer(self, link: Link, codes: int) -> None:
        """Check that SUBACK or UNSUBACK fits into the client's Maximum Packet Size [MQTT-3.1.2-24]."""
        if link.max_packet_size and codes + 10 > link.max_packet_size:
            raise ProtocolError(
                rc.PACKET_TOO_LARGE, "the answer would exceed the client's Maximum Packet Size"
            )

    def _grant(self, link: Link, session: Session, request: SubscriptionRequest, room: _Room) -> int:
        """Return the reason code of a filter: the QoS that is granted, or why none is."""
        code = self._code_of(link, session, request, room)
        if code >= 0x80:
            self._note_refused(link, session, request.filter, code)
        return code

    def _code_of(self, link: Link, session: Session, request: SubscriptionRequest, room: _Room) -> int:
        if filter_error(request.filter):
            return rc.TOPIC_FILTER_INVALID
        limits = session.tenant.limits
        levels_max = limits.filter_levels_max
        if levels_max and split_share(request.filter)[1].count("/") >= levels_max:
            return rc.QUOTA_EXCEEDED
        if not limits.shared_subscriptions and request.filter.startswith(SHARE_PREFIX):
            return rc.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        if not limits.wildcard_subscriptions and ("#" in request.filter or "+" in request.filter):
            return rc.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
        rights = link.rights
        if rights is not None and not rights.may_subscribe(request.filter):
            return rc.NOT_AUTHORIZED
        return min(request.qos, limits.maximum_qos) if room.takes(request.filter) else rc.QUOTA_EXCEEDED

    def _note_refused(self, link: Link, session: Session, topic_filter: str, code: int) -> None:
        session.tenant.counters.refuse("subscribe", code)
        if code != rc.NOT_AUTHORIZED:  # of that access control tells
            self._testimony.rejected(link, "subscribe", topic_filter, code)

    def unsubscribe(self, link: Link, packet: Unsubscribe) -> None:
        session = session_of(link)
        if session is None:
            return
        packet_id = packet.packet_id
        answer = self._answer_to(link, session, packet.answer, packet_id, len(packet.filters))
        packet.answer = answer
        if answer.in_use:
            if not packet.more:
                self.commit.defer(_InUse(link, packet_id, answer.codes, subscribes=False))
            return
        held = _Held(link, session, packet.filters)
        self.commit.defer(held)
        self.commit.append(Unsubscribed.at(self.clock.now_us, session.named(), packet.filters))
        self.commit.defer(_Unsubscribed(link, packet, answer, held))


class _Room:
    """What one SUBSCRIBE adds to its session, within the limits of a session, of the listener and of the user."""

    def __init__(self, session: Session, link: Link) -> None:
        limits = session.tenant.limits
        self._session = session
        self._owner = session.owner
        self._most: i64 = link.subscriptions_max or limits.subscriptions_max
        self._most_owned: i64 = limits.user_subscriptions_max
        self._most_together: i64 = limits.tenant_subscriptions_max
        self._most_bytes: i64 = limits.subscription_bytes_max
        self._new: set[str] = set()
        self._bytes: i64 = 0
        self._granted: i64 = 0

    def takes(self, topic_filter: str) -> bool:
        """Return whether there is room for this filter. One that the session has takes none, but who names the same
        ones over and over in one packet gets no more of it done than the limit."""
        session = self._session
        held = session.subscriptions
        has: i64 = 0 if held is None else len(held)
        if self._most and self._granted >= self._most + has:
            return False
        self._granted += 1
        if (held is not None and topic_filter in held) or topic_filter in self._new:
            return True
        memory = memory_of(topic_filter)
        if self._most and has + session.subscribing + len(self._new) >= self._most:
            return False
        taken = session.filter_bytes + session.subscribing_bytes + self._bytes + memory
        if (self._most_bytes and taken > self._most_bytes) or self._others_have_enough():
            return False
        self._new.add(topic_filter)
        self._bytes += memory
        return True

    def _others_have_enough(self) -> bool:
        return self._owner_has_enough() or self._tenant_has_enough()

    def _owner_has_enough(self) -> bool:
        if self._owner is None or not self._most_owned:
            return False
        owned: i64 = self._session.tenant.owned_by(self._owner) + len(self._new)
        return owned >= self._most_owned

    def _tenant_has_enough(self) -> bool:
        if self._most_together == NO_LIMIT:
            return False
        together: i64 = self._session.tenant.subscribed_together() + len(self._new)
        return together >= self._most_together

    def begin(self) -> None:
        """Note that subscriptions are on their way through the journal: those of the next packet find less room."""
        self._session.subscribing += len(self._new)
        self._count_owned(len(self._new))
        self._session.subscribing_bytes += self._bytes

    def end(self) -> None:
        """Note that subscriptions have taken effect, and are counted with what the session has."""
        self._session.subscribing -= len(self._new)
        self._count_owned(-len(self._new))
        self._session.subscribing_bytes -= self._bytes

    def _count_owned(self, more: int) -> None:
        if more:
            self._session.tenant.count_subscribed(more)
        if self._owner is not None and more:
            self._session.tenant.count_owned(self._owner, more)


def _as_bridge(request: SubscriptionRequest) -> None:
    """Give a subscription of Mosquitto's bridges what 3.x has no options for: nothing comes back, and retain flags stay
    as published."""
    request.no_local = True
    request.retain_as_published = True


def _row(link: Link, request: SubscriptionRequest, granted: int, subscription_id: int) -> SubscriptionRow:
    if link.bridge:
        _as_bridge(request)
    return SubscriptionRow(
        request.filter,
        granted,
        request.no_local,
        request.retain_as_published,
        request.retain_handling,
        subscription_id,
    )


def _may_want_retained(request: SubscriptionRequest) -> bool:
    """Return whether Retain Handling may ask for retained messages [MQTT-3.3.1-9, MQTT-3.3.1-11]; whether 1 applies
    shows when the one before is applied."""
    if request.filter.startswith(SHARE_PREFIX):
        return False  # 4.8.2: retained messages are not sent to a shared subscription
    return request.retain_handling != 2


def _memory_of(filters: list[str]) -> i64:
    """Return about how many bytes these filters and what is made of them take while they wait."""
    held: i64 = 0
    for topic_filter in filters:
        held += SUBSCRIPTION_BYTES + len(topic_filter)
    return held


class _Held(Deferred):
    """Knows which of these filters the session holds, seen when everything before has been applied and nothing behind."""

    def __init__(self, link: Link, session: Session, filters: list[str]) -> None:
        super().__init__(link, _memory_of(filters))
        self._session = session
        self._filters = filters
        self.found: set[str] = set()

    def run(self) -> None:
        held = self._session.subscriptions
        if held is not None:
            self.found = {name for name in self._filters if name in held}


class _InUse(Deferred):
    """Sends the SUBACK or UNSUBACK that refuses all filters of a packet, behind what was appended before it."""

    def __init__(self, link: Link, packet_id: int, codes: list[int], subscribes: bool) -> None:
        super().__init__(link, len(codes))
        self._link = link
        self._packet_id = packet_id
        self._codes = codes
        self._subscribes = subscribes

    def run(self) -> None:
        if self._subscribes:
            self._link.suback(self._packet_id, self._codes)
        else:
            self._link.unsuback(self._packet_id, self._codes)


class _Unsubscribed(Deferred):
    """Sends UNSUBACK once the subscriptions are gone, with a code for each filter in order [MQTT-3.11.3-1]."""

    def __init__(self, link: Link, packet: Unsubscribe, answer: _Answer, held: _Held) -> None:
        super().__init__(link, held.weight)
        self._link = link
        self._packet = packet
        self._answer = answer
        self._held = held

    def run(self) -> None:
        left = set(self._held.found)
        packet, codes = self._packet, self._answer.codes
        for name in packet.filters:
            codes.append(rc.SUCCESS if name in left else rc.NO_SUBSCRIPTION_EXISTED)
            left.discard(name)
        if not packet.more:
            self._link.unsuback(packet.packet_id, codes)


class _Subscribed(Deferred):
    """Goes on once the subscriptions are durable and applied: queue what is retained, then SUBACK, then send the rest
    of it."""

    def __init__(
        self,
        commit: GroupCommit,
        retained: RetainedReplay,
        neighbours: Alone,
        link: Link,
        session: Session,
        fresh: list[Subscription],
        held: _Held,
        listed: list[int],
        below: int,
        answer: _Answer,
        room: _Room,
        toll: i64,
        inquiry: Inquiry,
    ) -> None:
        super().__init__(link, ENTRY_BYTES + _memory_of([subscription.filter for subscription in fresh]))
        self._commit = commit
        self._retained = retained
        self._neighbours = neighbours
        self._link = link
        self._session = session
        self._fresh = fresh
        self._held = held
        self._listed = listed
        self._below = below
        self._answer = answer
        self._room = room
        self._toll: i64 = toll
        self._inquiry = inquiry

    def work(self) -> i64:
        return 1 + len(self._fresh) // _ADDED

    def run(self) -> None:
        self._room.end()
        retained, link, session, below = self._retained, self._link, self._session, self._below
        inquiry = self._inquiry
        direct = retained.direct(session, link, below, inquiry, self._toll)
        then = _Suback(self._commit, retained.delivery, self._neighbours, link, session, self._answer, direct)
        queued = retained.queued(session, below, set(self._listed[::3]), then, inquiry)
        for subscription in self._fresh:
            if subscription.retain_handling == 1 and subscription.filter in self._held.found:
                continue  # [MQTT-3.3.1-10]
            direct.add(subscription)
            inquiry.add(subscription)
            if session.persistent:
                queued.add(subscription)
        queued.run()


class _Suback(Enrolment):
    """Sends SUBACK, if no part is still on its way, then the retained messages that do not go through the queue; both
    once the homes of groups elsewhere know of the member, and the other shards look for what was subscribed."""

    def __init__(
        self,
        commit: GroupCommit,
        delivery: Delivery,
        neighbours: Alone,
        link: Link,
        session: Session,
        answer: _Answer,
        direct: DirectRetained,
    ) -> None:
        super().__init__(link, len(answer.codes), session)
        self._commit = commit
        self._delivery = delivery
        self._neighbours = neighbours
        self._link = link
        self._answer = answer
        self._direct = direct
        self._is_known = False  # at the homes of its groups

    def run(self) -> None:
        self.keys = [found.filter for found in self._answer.elsewhere]
        if not self.keys or not self._neighbours.enrol(self):
            self.finish()

    def refuse(self, keys: list[str]) -> list[str]:
        """Answer with 0x83 for groups whose homes are out of reach. Who was no member before is none [MQTT-3.8.4-5]."""
        gone: list[str] = []
        for found in self._answer.elsewhere:
            if found.filter in keys:
                self._answer.codes[found.at] = rc.IMPLEMENTATION_SPECIFIC_ERROR
                self.session.tenant.counters.refuse("subscribe", rc.IMPLEMENTATION_SPECIFIC_ERROR)
                if found.is_new and found.filter in (self.session.subscriptions or {}):
                    gone.append(found.filter)
        if gone:
            now_us = self._link.worker.clock.now_us
            self._commit.append(Unsubscribed.at(now_us, self.session.named(), gone))
        return gone

    def finish(self) -> None:
        if not self._is_known:
            self._is_known = True
            if self._neighbours.hold(self):
                return
        self._send()

    def _send(self) -> None:
        answer = self._answer
        answer.open -= 1
        if answer.complete and not answer.open:
            self._link.suback(answer.packet_id, answer.codes)
        session = session_of(self._link)
        if session is not None:
            self._delivery.pump(session)
        self._direct.run()
