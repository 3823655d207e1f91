"""Retained messages for a new subscription, in pages.

A persistent session gets them through its queue, so each page is a record that lists their offsets (decision 9). A
transient session, or a subscription at QoS 0, gets them directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from headrace.core.commit import ENTRY_BYTES, Deferred, GroupCommit
from headrace.core.outbound.delivery import Delivery
from headrace.core.outbound.system_topics import SystemTopics
from headrace.core.ports.clock import Clock
from headrace.core.ports.link import Link
from headrace.core.records.event import RetainedQueued, SessionName
from headrace.core.records.message import Message
from headrace.core.records.record import FLAG_QOS
from headrace.core.state.queue import reference
from headrace.core.state.retained_tree import VISITS_MAX, RetainedWalk

if TYPE_CHECKING:
    from headrace.core.state.session import Session, Subscription

PAGE_MESSAGES: Final = 256
SUBSCRIPTION_BYTES: Final = 300  # of memory that a subscription takes, about, beside its filter
_LOOKED_AT_ONCE: Final = 64  # subscriptions that find nothing
PAGE_BYTES: Final = 256 << 10
# What a SUBSCRIBE counts against its client's share until the last of its pages has gone: one in four of the messages
# that a page may look at, so that the pages of one client do not fill a batch, for which all others wait.
_TOLL_MESSAGES_MAX: Final = PAGE_MESSAGES // 4


def effective_qos(message: Message, subscription: Subscription) -> int:
    return min(message.flags & FLAG_QOS, subscription.qos)


def wanted(session: Session, subscription: Subscription, message: Message, now_us: int) -> bool:
    """Return whether a retained message is for the session: No Local takes out the client's own [MQTT-3.8.3-3]; what
    has expired is not sent."""
    return not (subscription.no_local and message.origin == session.origin) and not message.expired(now_us)


def first_page(session: Session, subscriptions: list[Subscription], now_us: int) -> list[int]:
    """Return the first page of the retained entries that a `subscribed` record lists: offset, QoS, subscription
    identifier, flat. As many as are found in one piece of a walk; the others follow in pages, and what is about to be
    replaced with them."""
    listed: list[int] = []
    visits = 0
    retained = session.tenant.retained
    for subscription in subscriptions:
        walk = retained.walk(subscription.filter)
        for message in walk.take(PAGE_MESSAGES - len(listed) // 3):
            qos = effective_qos(message, subscription)
            if retained.is_arriving(message.topic):
                continue
            if qos and wanted(session, subscription, message, now_us):
                listed += [message.offset, qos, subscription.subscription_id]
        visits += walk.visits
        if not walk.done or visits >= VISITS_MAX or len(listed) >= 3 * PAGE_MESSAGES:
            break
    return listed


def sizes_of(session: Session, listed: list[int]) -> list[int]:
    """Return the bytes that the entries of a record count in a queue, against the limits of session and tenant."""
    retained = session.tenant.retained
    found = [retained.at(offset) for offset in listed[::3]]
    return [0 if message is None else message.size for message in found]


def payloads_of(session: Session, listed: list[int]) -> list[int]:
    """Return the bytes of the payload of each entry of a record, for whoever counts what was delivered."""
    retained = session.tenant.retained
    found = [retained.at(offset) for offset in listed[::3]]
    return [0 if message is None else len(message.payload) for message in found]


def toll_of(session: Session, subscriptions: list[Subscription]) -> i64:
    """Return the bytes that a SUBSCRIBE counts as while its retained messages are looked for."""
    retained: i64 = len(session.tenant.retained)
    messages: i64 = 0
    for subscription in subscriptions:
        if messages >= _TOLL_MESSAGES_MAX:
            break
        wide = "#" in subscription.filter or "+" in subscription.filter
        messages += retained if wide else min(retained, 1)
    return ENTRY_BYTES * min(messages, _TOLL_MESSAGES_MAX)


class Pages:
    """What some subscriptions of a session find among the retained messages that are older than offset `below`, in
    pages. Newer ones come to the subscription, which is there by then, on their own."""

    def __init__(self, session: Session, below: int) -> None:
        self._session = session
        self._below = below
        self._subscriptions: list[Subscription] = []
        self._at = 0
        self._walk: RetainedWalk | None = None
        self.done = True
        self.subscription: Subscription | None = None  # whose page the last one was

    def add(self, subscription: Subscription) -> None:
        self._subscriptions.append(subscription)
        self.done = False

    def next(self) -> list[Message]:
        """Return the next page, of one subscription: of the next that finds something, unless very many find
        nothing."""
        for _ in range(_LOOKED_AT_ONCE):
            page = self._next()
            if page or self.done or self._walk is not None:
                break
        return page

    def _next(self) -> list[Message]:
        subscription = self._subscriptions[self._at]
        self.subscription = subscription
        walk = self._walk
        if walk is None:
            walk = self._session.tenant.retained.walk(subscription.filter)
            self._walk = walk
        page = [message for message in walk.take(PAGE_MESSAGES) if message.offset < self._below]
        if walk.done:
            self._walk = None
            self._at += 1
            self.done = self._at == len(self._subscriptions)
        return page


class Inquiry:
    """What some subscriptions of a session are given of retained messages that are at home in other shards; this one
    asks nobody."""

    def add(self, subscription: Subscription) -> None:
        """Ask for a subscription more."""

    def stored(self, then: Deferred) -> None:
        """Put what a persistent session gets at QoS 1 and 2 into its queue, then run `then`, at once for any other
        session; sooner where a home is away or does not answer."""
        then.run()

    def live(self, link: Link) -> None:
        """Send the rest to the connection, if it is still there."""


NOTHING_ELSEWHERE: Final = Inquiry()


class OtherHomes:
    """Asks other shards for retained messages; this one, of a shard alone, asks nobody."""

    def inquire(self, session: Session, link: Link | None, below: int) -> Inquiry:
        """Begin to ask on behalf of subscriptions whose record has just got the offset `below`: what is newer comes to
        them on its own. `link` is the connection that has subscribed, if any."""
        return NOTHING_ELSEWHERE


class RetainedReplay:
    """What it takes to send retained messages to a new subscription, and the two ways to do it."""

    def __init__(self, commit: GroupCommit, delivery: Delivery, system: SystemTopics, clock: Clock) -> None:
        self.commit = commit
        self.delivery = delivery
        self.system = system
        self.clock = clock
        self.others = OtherHomes()

    def queued(
        self,
        session: Session,
        below: int,
        listed: set[int],
        then: Deferred,
        inquiry: Inquiry,
    ) -> QueuedRetained:
        """Return the work that sends retained messages through the queue of a persistent session; then `then` runs.
        `listed`: offsets that are in its record."""
        return QueuedRetained(self, session, below, listed, then, inquiry)

    def direct(
        self, session: Session, link: Link, below: int, inquiry: Inquiry, toll: i64 = 0
    ) -> DirectRetained:
        """Return the work that sends retained messages straight to a connection. `toll`: bytes that its SUBSCRIBE was
        charged, which are given back at the end."""
        return DirectRetained(self, session, link, below, toll, inquiry)


class QueuedRetained(Deferred):
    """Journals the pages behind the first one, then lets SUBACK go: an acknowledged subscription has them all.

    For persistent sessions, with or without a connection. Deferred: each page waits for the one before it.
    """

    def __init__(
        self,
        parts: RetainedReplay,
        session: Session,
        below: int,
        listed: set[int],
        then: Deferred,
        inquiry: Inquiry,
    ) -> None:
        super().__init__(then.payer, 64 * len(listed))
        self._inquiry = inquiry
        self._commit = parts.commit
        self._clock = parts.clock
        self._session = session
        self._listed = listed  # offsets that are in the `subscribed` record
        self._then = then
        self._pages = Pages(session, below)
        self._work: i64 = 1

    def add(self, subscription: Subscription) -> None:
        self._pages.add(subscription)
        self.weight += SUBSCRIPTION_BYTES + len(subscription.filter)

    def work(self) -> i64:
        return self._work

    def run(self) -> None:
        self._work = 1
        if self._session.ended or self._pages.done:
            self._inquiry.stored(self._then)
            return
        queued = self._page()
        if queued:
            session = self._session
            name, sizes = SessionName(session.incarnation), sizes_of(session, queued)
            payloads = payloads_of(session, queued)
            self._commit.append(RetainedQueued.at(self._clock.now_us, name, queued, sizes, payloads))
        self._commit.defer(self)

    def _page(self) -> list[int]:
        """Return the entries of a RETAINED_QUEUED record: offset, QoS, subscription identifier, flat."""
        messages = self._pages.next()
        self._work += len(messages)
        subscription = self._pages.subscription
        queued: list[int] = []
        if not messages or subscription is None or not holds(self._session, subscription):
            return queued
        retained = self._session.tenant.retained
        for message in messages:
            qos = effective_qos(message, subscription)
            if not qos or message.offset in self._listed or retained.is_arriving(message.topic):
                continue
            if wanted(self._session, subscription, message, self._clock.now_us):
                queued += [message.offset, qos, subscription.subscription_id]
        return queued


def holds(session: Session, subscription: Subscription) -> bool:
    """Return whether the session still has the subscription: False once it is unsubscribed [MQTT-3.10.4-2]."""
    return session.subscriptions is not None and subscription.filter in session.subscriptions


class DirectRetained(Deferred):
    """Sends retained messages straight to the connection, a page at a time as its socket drains.

    For subscriptions at QoS 0 and for transient sessions: lost with the connection, like their queue.
    """

    def __init__(
        self,
        parts: RetainedReplay,
        session: Session,
        link: Link,
        below: int,
        toll: i64,
        inquiry: Inquiry,
    ) -> None:
        super().__init__(link)
        self._inquiry = inquiry
        self._toll: i64 = toll
        self._work: i64 = 1
        self._delivery = parts.delivery
        self._commit = parts.commit
        self._clock = parts.clock
        self._topics = parts.system
        self._session = session
        self._link = link
        self._pages = Pages(session, below)
        self._page: list[Message] = []
        self._page_of: Subscription | None = None
        self._at = 0
        self._system: list[tuple[Message, Subscription]] = []

    def add(self, subscription: Subscription) -> None:
        self._pages.add(subscription)
        self.weight += SUBSCRIPTION_BYTES + len(subscription.filter)
        if subscription.filter.startswith("$SYS/"):
            for message in self._topics.matching(self._session.tenant.name, subscription.filter):
                self._system.append((message, subscription))

    def work(self) -> i64:
        return self._work

    def run(self) -> None:
        link = self._link
        self._work = 1
        if link.closed or self._session.link is not link:
            self._inquiry.live(link)
            return
        if link.paused:
            self._commit.when_writable(link, self)
            return
        for message, subscription in self._system:
            self._one(message, subscription)
        self._system = []
        if self._at == len(self._page):
            if self._pages.done:
                link.deferred -= self._toll
                self._toll = 0
                self._inquiry.live(link)
                return
            self._page, self._at = self._pages.next(), 0
            self._page_of = self._pages.subscription
            if self._page_of is None or not holds(self._session, self._page_of):
                self._page = []
        self._send(link)
        self._commit.defer(self)

    def _send(self, link: Link) -> None:
        """Send what fits of the page."""
        subscription = self._page_of
        while subscription is not None and self._at < len(self._page) and link.buffered() <= PAGE_BYTES:
            message = self._page[self._at]
            self._at += 1
            self._work += 1
            if message.offset >= 0 and self._session.tenant.retained.at(message.offset) is None:
                continue  # replaced
            direct = not self._session.persistent or not effective_qos(message, subscription)
            if direct and wanted(self._session, subscription, message, self._clock.now_us):
                self._one(message, subscription)

    def _one(self, message: Message, subscription: Subscription) -> None:
        session = self._session
        qos = effective_qos(message, subscription)
        if qos == 0:
            self._delivery.offer_qos0(session, message, True, subscription.ids)
        else:
            ref = reference(message.offset, subscription.ids_index, True, qos)
            self._delivery.offer_stored(session, message, ref)
