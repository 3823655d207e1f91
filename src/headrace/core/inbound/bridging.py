"""The sessions behind bridges: where messages for another broker wait, and which packet ids are under way.

Runs on the loop. Such a session is an APPLICATION of the bridge's tenant that never expires. It exists, with its
subscriptions, from the start of the broker on, so nothing is missed before the other broker is reached. Whatever is
acknowledged to or by the other broker is what a session's records say anyway: a bridge has no state of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.commit import Answer, Deferred, GroupCommit
from headrace.core.outbound.retained_replay import Inquiry, RetainedReplay, first_page, payloads_of, sizes_of
from headrace.core.records.event import (
    SessionClosed,
    SessionName,
    SessionOpened,
    Subscribed,
    SubscriptionRow,
    Unsubscribed,
)
from headrace.core.records.record import DROP_NOT_ACCEPTED
from headrace.core.state.session import APPLICATION, BRIDGE_PREFIX, NEVER_EXPIRES, Session, Subscription
from headrace.core.state.subscriptions import subscription_from
from headrace.mqtt.packets import Connect
from headrace.mqtt.properties import Properties
from headrace.mqtt.reason_codes import TOPIC_NAME_INVALID

if TYPE_CHECKING:
    from headrace.core.inbound.connect import Sessions
    from headrace.core.ports.link import Link, WorkerPort
    from headrace.core.state.state import Fold
    from headrace.core.state.tenant import Tenant


class Bridging:
    """Opens and attaches the sessions of bridges."""

    def __init__(
        self,
        fold: Fold,
        commit: GroupCommit,
        sessions: Sessions,
        retained: RetainedReplay,
        worker: WorkerPort,
    ) -> None:
        self._fold = fold
        self._commit = commit
        self._sessions = sessions
        self._retained = retained
        self._clock = worker.clock
        self._worker = worker

    def open(self, name: str, filters: dict[str, int]) -> Session:
        """Return the session of the bridge `name`, subscribed to exactly these filters (local ones, with their QoS).

        What it was subscribed to before is undone. All of it is durable once `commit` has caught up.
        """
        client_id = BRIDGE_PREFIX + name
        tenant = self._fold.make(self._worker.tenancy.of_bridge(name))
        session = self._sessions.absences.present(tenant, client_id)
        if session is None:
            session = self._opened(tenant, client_id)
        elif session.expiry_s != NEVER_EXPIRES:  # retired meanwhile
            self._expire_after(session, NEVER_EXPIRES)
        self._subscribe(session, filters)
        return session

    def retire(self, configured: set[str]) -> list[Session]:
        """Let the sessions of bridges that are not configured any more run out: nothing new goes in, and what waits is
        kept as long as a 3.1.1 session would be. Returns those that still hold something."""
        left = []
        for session in [one for tenant in self._fold.tenants.values() for one in tenant.sessions.values()]:
            name = session.client_id.removeprefix(BRIDGE_PREFIX)
            if name == session.client_id or name in configured:
                continue
            queue = session.queue
            if queue is None or not queue.unfinished():
                self._sessions.absences.end(session, "bridge removed")
                continue
            left.append(session)
            self._unsubscribe(session, list(session.subscriptions or {}))
            if session.expiry_s == NEVER_EXPIRES:
                self._expire_after(session, session.tenant.limits.v311_session_expiry_s)
        return left

    def attach(self, link: Link, session: Session, version: int, fresh: bool, then: Deferred) -> None:
        """Attach `link`, which the other broker has accepted; `then` runs once that is durable.

        `fresh`: it holds no session for us, so the packet ids of its QoS 2 messages start anew, and an old one must
        not make a new message look like a repetition.
        """
        sessions, commit = self._sessions, self._commit
        packet = Connect(version, session.client_id, False, 0)
        sessions.resume(session, packet, NEVER_EXPIRES, link)
        if fresh and session.incoming:
            for packet_id in session.incoming:
                commit.progress.released(session.incarnation, packet_id)
            session.incoming = None
            session.changed = True
        sessions.attach(link, session, packet, Properties())
        commit.defer(then)
        link.effective_at = commit.entered

    def send_retained(self, link: Link, session: Session) -> None:
        """Send the retained messages at QoS 0 again: they do not wait in the queue, and the other broker gets the
        current ones."""
        below = self._commit.high_watermark
        inquiry = self._retained.others.inquire(session, link, below)
        direct = self._retained.direct(session, link, below, inquiry)
        for subscription in (session.subscriptions or {}).values():
            direct.add(subscription)
            inquiry.add(subscription)
        direct.run()

    def resumed(self, link: Link, session: Session) -> None:
        """Let what the session holds flow: its link is attached."""
        self._retained.delivery.resumed(session, link)

    def settle(self, link: Link, qos: int, packet_id: int, reason_code: int = 0) -> None:
        """Acknowledge a PUBLISH that is not taken, or refuse it, behind what was appended before it."""
        self._commit.defer(Answer(link, qos, packet_id, reason_code))

    def refuse(self, session: Session, link: Link, qos: int, packet_id: int) -> None:
        """Count a PUBLISH as not accepted, and refuse it where the version can."""
        session.tenant.count_drop(DROP_NOT_ACCEPTED, 1)
        if qos:
            self.settle(link, qos, packet_id, TOPIC_NAME_INVALID)

    def _opened(self, tenant: Tenant, client_id: str) -> Session:
        event = SessionOpened.at(
            self._clock.now_us,
            tenant.name,
            client_id,
            session_type=APPLICATION,
            expiry_s=NEVER_EXPIRES,
            version=5,
            will=None,
            sent_limit=0,
            user=None,
        )
        self._commit.append(event)
        session = self._fold.opened(event)
        self._expire_after(session, NEVER_EXPIRES)
        return session

    def _expire_after(self, session: Session, expiry_s: int) -> None:
        """Note that the session is away, and let it run out after so many seconds."""
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None
        queue = session.queue
        limit = 0 if queue is None else queue.last_sent()
        event = SessionClosed.at(
            self._clock.now_us, SessionName(session.incarnation), expiry_s, limit, will_set=False
        )
        self._commit.append(event)
        self._fold.closed(session, event)
        self._sessions.absences.await_return(session)

    def _subscribe(self, session: Session, filters: dict[str, int]) -> None:
        wanted = {name: _row(name, qos) for name, qos in filters.items()}
        held = {name: found.row() for name, found in (session.subscriptions or {}).items()}
        self._unsubscribe(session, [name for name in held if name not in wanted])
        rows = [row for name, row in wanted.items() if held.get(name) != row]
        if not rows:
            return
        fresh = [subscription_from(session, row) for row in rows if row.filter not in held]
        listed = first_page(session, fresh, self._clock.now_us)
        sizes = sizes_of(session, listed)
        payloads = payloads_of(session, listed)
        name = SessionName(session.incarnation)
        event = Subscribed.at(self._clock.now_us, name, rows, listed, sizes, payloads)
        below = self._commit.next_offset
        self._commit.append(event)
        inquiry = self._retained.others.inquire(session, None, below)
        self._commit.defer(_Subscribed(self._retained, session, fresh, below, set(listed[::3]), inquiry))

    def _unsubscribe(self, session: Session, filters: list[str]) -> None:
        if filters:
            event = Unsubscribed.at(self._clock.now_us, SessionName(session.incarnation), filters)
            self._commit.append(event)


def _row(topic_filter: str, qos: int) -> SubscriptionRow:
    """Return the row of a subscription of a bridge: No Local, retain flags as published, no identifier."""
    return SubscriptionRow(topic_filter, qos, True, True, 0, 0)


class _Subscribed(Deferred):
    """Goes on once new subscriptions are durable and applied: queue the retained messages that their record does not
    list."""

    def __init__(
        self,
        retained: RetainedReplay,
        session: Session,
        fresh: list[Subscription],
        below: int,
        listed: set[int],
        inquiry: Inquiry,
    ) -> None:
        super().__init__()
        self._inquiry = inquiry
        self._retained = retained
        self._session = session
        self._fresh = fresh
        self._below = below
        self._listed = listed

    def run(self) -> None:
        queued = self._retained.queued(self._session, self._below, self._listed, _Queued(), self._inquiry)
        for subscription in self._fresh:
            queued.add(subscription)
            self._inquiry.add(subscription)
        queued.run()


class _Queued(Deferred):
    """Answers nobody: no publisher waits for a message of a bridge."""

    def run(self) -> None: ...
