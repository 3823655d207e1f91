"""Retained messages for a new subscription, in pages.

A persistent session gets them through its queue, so each page is a record that lists their offsets (decisions 9). A
transient session, or a subscription at QoS 0, gets them directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.core.commit import Deferred, GroupCommit
from headrace.core.delivery import Delivery
from headrace.core.inflight import reference
from headrace.core.interfaces import Clock, Link
from headrace.core.message import Message
from headrace.core.record import FLAG_QOS, RETAINED_QUEUED, Event

if TYPE_CHECKING:
    from headrace.core.session import Session
    from headrace.core.subscriptions import Subscription

PAGE_MESSAGES: Final = 256
_PAGE_BYTES: Final = 256 << 10


def effective_qos(message: Message, subscription: Subscription) -> int:
    return min(message.flags & FLAG_QOS, subscription.qos)


def candidates(session: Session, subscription: Subscription) -> list[Message]:
    """The retained messages a subscription asks for; No Local takes out the client's own [MQTT-3.8.3-3]."""
    found = session.tenant.retained.matching(subscription.filter)
    if subscription.no_local:
        return [message for message in found if message.origin != session.origin]
    return found


def first_page(session: Session, subscriptions: list[Subscription], now_us: int) -> list[int]:
    """The retained entries that a `subscribed` record lists: offset, QoS, subscription identifier, flat."""
    listed: list[int] = []
    for subscription in subscriptions:
        for message in candidates(session, subscription):
            if len(listed) >= 3 * PAGE_MESSAGES:
                return listed
            qos = effective_qos(message, subscription)
            if qos and not message.expired(now_us):
                listed += [message.offset, qos, subscription.subscription_id]
    return listed


class QueuedRetained(Deferred):
    """Journals the pages behind the first one, then lets SUBACK go: an acknowledged subscription has them all.

    For persistent sessions, with or without a connection. Deferred: each page waits for the one before it.
    """

    def __init__(self, commit: GroupCommit, clock: Clock, session: Session, then: Deferred) -> None:
        super().__init__()
        self._commit = commit
        self._clock = clock
        self._session = session
        self._then = then
        self._messages: list[Message] = []
        self._subscriptions: list[Subscription] = []
        self._at = 0

    def add(self, subscription: Subscription, listed: set[int]) -> None:
        """Every retained message that goes through the queue and is not in the `subscribed` record."""
        for message in candidates(self._session, subscription):
            if message.offset not in listed and effective_qos(message, subscription):
                self._messages.append(message)
                self._subscriptions.append(subscription)

    def run(self) -> None:
        end = min(self._at + PAGE_MESSAGES, len(self._messages))
        if self._session.ended or self._at == end:
            self._then.run()
            return
        superseded = self._commit.retained_topics()
        queued: list[int] = []
        while self._at < end:
            message, subscription = self._messages[self._at], self._subscriptions[self._at]
            self._at += 1
            held = self._session.subscriptions
            if held is None or subscription.filter not in held:
                continue  # unsubscribed meanwhile [MQTT-3.10.4-2]
            if self._is_current(message) and message.topic not in superseded:
                queued += [message.offset, effective_qos(message, subscription), subscription.subscription_id]
        if queued:
            fields = self._session.named()
            fields["ret"] = queued
            self._commit.append(Event(RETAINED_QUEUED, self._clock.now_us, fields))
        self._commit.defer(self)

    def _is_current(self, message: Message) -> bool:
        """Replaced meanwhile: the new one was, or will be, delivered live."""
        kept = self._session.tenant.retained.at(message.offset)
        return kept is not None and not message.expired(self._clock.now_us)


class DirectRetained(Deferred):
    """Sends retained messages straight to the connection, a page at a time as its socket drains.

    For subscriptions at QoS 0 and for transient sessions: lost with the connection, like their queue.
    """

    def __init__(
        self, delivery: Delivery, commit: GroupCommit, clock: Clock, session: Session, link: Link
    ) -> None:
        super().__init__()
        self._delivery = delivery
        self._commit = commit
        self._clock = clock
        self._session = session
        self._link = link
        self._messages: list[Message] = []
        self._subscriptions: list[Subscription] = []
        self._at = 0

    def add(self, subscription: Subscription) -> None:
        messages = candidates(self._session, subscription)
        if subscription.filter.startswith("$SYS/"):
            messages += self._link.broker.system.matching(subscription.filter)
        for message in messages:
            if not self._session.persistent or not effective_qos(message, subscription):
                self._messages.append(message)
                self._subscriptions.append(subscription)

    def run(self) -> None:
        link = self._link
        if link.closed or self._session.link is not link:
            return
        if link.paused:
            link.when_writable(self)
            return
        for _ in range(PAGE_MESSAGES):
            if self._at == len(self._messages):
                return
            if link.buffered() > _PAGE_BYTES:
                break
            self._one(self._messages[self._at], self._subscriptions[self._at])
            self._at += 1
        self._commit.defer(self)

    def _one(self, message: Message, subscription: Subscription) -> None:
        session = self._session
        if message.offset >= 0 and session.tenant.retained.at(message.offset) is None:
            return  # replaced; what the broker says of itself has no offset
        if message.expired(self._clock.now_us):
            return
        qos = effective_qos(message, subscription)
        if qos == 0:
            self._delivery.offer_qos0(session, message, True, subscription.ids)
        else:
            ref = reference(message.offset, subscription.ids_index, True, qos)
            self._delivery.offer_stored(session, message, ref)
