"""Wills: what a client leaves to be published when it is gone (section 3.1.2.5). When that is, `connect` knows.

Access control is asked twice: at CONNECT, and again when the will is due, since rules may have been read again meanwhile.

After a start a will that is due waits for its client a little longer, and is *held* meanwhile if it is retained: the
client may be back under another id. Whoever writes to its topic before it is published has said something newer, which
it does not replace (ADR 0029).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.inbound.admission import capped
from headrace.core.records.event import WillCancelled, WillFired
from headrace.core.records.message import Copy, Message, message_flags
from headrace.core.records.record import DROP_NOT_ACCEPTED, DROP_RETAINED_LIMIT, FLAG_WILL
from headrace.core.state.retained import RetainedListener
from headrace.mqtt import reason_codes as rc

if TYPE_CHECKING:
    from headrace.core.commit import GroupCommit
    from headrace.core.inbound.admission import Admission
    from headrace.core.ports.access import Access
    from headrace.core.ports.link import Link, WorkerPort
    from headrace.core.state.session import Session
    from headrace.core.state.state import Fold
    from headrace.mqtt.packets import Will


class Wills(RetainedListener):
    """Takes wills, publishes them, or lets them be forgotten. `since_us`: who wrote to a topic in another shard before
    then did so while the clients whose wills are held were connected."""

    def __init__(self, fold: Fold, commit: GroupCommit, admission: Admission, worker: WorkerPort) -> None:
        self.since_us = 0
        self.access: Access | None = None
        # By tenant and topic: the session, or all of them where they are several.
        self._held: dict[tuple[str, bytes], Session | dict[Session, None]] = {}
        self._came_us: dict[Session, int] = {}  # of them, those whose clients came since the start: when
        self._stale: set[Session] = set()  # of them, those somebody has written something newer than
        self._fold = fold
        self._commit = commit
        self._admission = admission
        self._worker = worker
        self._clock = worker.clock

    def take(self, link: Link, will: Will | None) -> int:
        """Return the reason code with which the client is refused for this will, 0 when it may leave it; it is noted
        whose it is."""
        rights = link.rights
        if will is None:
            return 0
        unsupported = self._admission.unsupported(link.identity.limits, will.qos, will.retain)
        if unsupported:  # [MQTT-3.2.2-12] [MQTT-3.2.2-13]
            return unsupported
        will.user = link.identity.user
        topic = will.topic.encode("utf-8")
        if rights is None or (rights.ask_publish(topic) and (not will.retain or rights.ask_retain(topic))):
            return 0
        rights.note_denied("will", topic)
        return rc.NOT_AUTHORIZED

    def fire(self, session: Session) -> None:
        """Publish a session's will, if it has one. The will and the note that it fired share a batch, so it is published
        once; one that is not allowed any more is dropped and counted."""
        will = session.will
        if will is None:
            return
        topic = will.topic.encode("utf-8")
        access = self.access
        if access is not None and not _is_allowed(access, session, will, topic):
            session.tenant.count_drop(DROP_NOT_ACCEPTED, 1)
            self.cancel(session)
            return
        if session in self._stale:
            self.cancel(session)
            return
        message = self._message(session, will, topic)
        fired = WillFired.at(self._clock.now_us, session.named())
        retained = message.retain
        self._commit.append(message)  # what raises up to here leaves the will to whoever tries again
        self._commit.append(fired)
        self.let_go(session)
        session.will = None
        session.changed = True
        if retained:
            session.tenant.retained.arrive(message)

    def cancel(self, session: Session) -> None:
        """Forget the will: it is not published."""
        if session.will is not None:
            self._commit.append(WillCancelled.at(self._clock.now_us, session.named()))
            self.let_go(session)
            session.will = None
            session.changed = True

    # Wills that are held after a start

    def hold(self, session: Session, since_us: int = 0) -> None:
        """Hold a retained will until it is published or forgotten. What is written to its topic in other shards comes
        here meanwhile; what was written before `since_us`, when its client came, says nothing (0: that was before the
        start)."""
        will = session.will
        if will is None or not will.retain:
            return
        if since_us:
            self._came_us[session] = since_us
        tenant = session.tenant
        key = (tenant.name, will.topic.encode("utf-8"))
        held = self._held.get(key)
        if held is None:
            self._held[key] = session
            self._fold.wanted.add(tenant.name, will.topic)
        elif isinstance(held, dict):
            held[session] = None
        elif held is not session:
            self._held[key] = {held: None, session: None}
        tenant.retained.listener = self

    def let_go(self, session: Session) -> None:
        """Hold the will of a session no more, if it was held."""
        will = session.will
        if not self._held or will is None:
            return
        key = (session.tenant.name, will.topic.encode("utf-8"))
        held = self._held.get(key)
        if isinstance(held, dict):
            if session not in held:
                return
            del held[session]
        elif held is not session:
            return
        self._stale.discard(session)
        self._came_us.pop(session, None)
        if isinstance(held, dict) and held:
            return
        del self._held[key]
        self._fold.wanted.remove(session.tenant.name, will.topic)
        if not self._held:
            for tenant in self._fold.tenants.values():
                tenant.retained.listener = None

    def written(self, message: Message) -> None:
        """Forget the wills that are held for the topic of a message: somebody else has said something newer there. That
        another will is published says nothing, nor does what was written in another shard before the broker ended. What
        is raised is not its publisher's, whose message is in the journal: the will is forgotten when it is due, then."""
        held = self._held.get((message.tenant, message.topic))
        if held is None or message.flags & FLAG_WILL:
            return
        is_copy = isinstance(message, Copy)
        for session in list(held) if isinstance(held, dict) else [held]:
            if session.origin == message.origin:
                continue
            if is_copy and message.timestamp_us < self._came_us.get(session, self.since_us):
                continue
            self._stale.add(session)
            try:
                self.cancel(session)
            except Exception as error:  # noqa: BLE001
                self._worker.contain("retained", None, error)

    def _message(self, session: Session, will: Will, topic: bytes) -> Message:
        size = len(topic) + len(will.properties) + len(will.payload)
        retain = will.retain
        if retain and not self._admission.keeps(session.tenant, topic, size, len(will.payload)):
            retain = False
            session.tenant.count_drop(DROP_RETAINED_LIMIT, 1)
        return session.message(
            self._clock.now_us,
            message_flags(will.qos, retain, False, will.version) | FLAG_WILL,
            0,
            topic,
            will.properties,
            capped(will.message_expiry_s, session.tenant.limits.message_expiry_max_s),
            will.payload,
        )


def _is_allowed(access: Access, session: Session, will: Will, topic: bytes) -> bool:
    """Return whether access control lets a will that is due be published as it was left, retained if it is to be."""
    tenant, user, client_id = session.tenant.name, will.user, session.client_id
    if not access.may_leave_will(tenant, user, client_id, topic):
        return False
    return not will.retain or access.may_retain_will(tenant, user, client_id, topic)
