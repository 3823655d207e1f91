"""Wills: what a client leaves to be published when it is gone (section 3.1.2.5). When that is, `connect` knows.

Access control is asked twice: at CONNECT, and again when the will is due, since rules may have been read again meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.records.event import WillCancelled, WillFired
from headrace.core.records.message import Message, message_flags
from headrace.core.records.record import DROP_NOT_ACCEPTED, DROP_RETAINED_LIMIT, FLAG_WILL

if TYPE_CHECKING:
    from headrace.core.commit import GroupCommit
    from headrace.core.inbound.admission import Admission
    from headrace.core.ports.access import Access
    from headrace.core.ports.clock import Clock
    from headrace.core.ports.link import Link
    from headrace.core.state.session import Session
    from headrace.mqtt.packets import Will


class Wills:
    """Takes wills, publishes them, or lets them be forgotten."""

    def __init__(self, commit: GroupCommit, admission: Admission, clock: Clock) -> None:
        self._commit = commit
        self._admission = admission
        self._clock = clock

    def take(self, link: Link, will: Will | None) -> bool:
        """Return whether the client may leave this will; it is noted whose it is."""
        rights = link.rights
        if will is None:
            return True
        will.user = link.identity.user
        topic = will.topic.encode("utf-8")
        if rights is None or rights.ask_publish(topic):
            return True
        rights.note_denied("will", topic)
        return False

    def fire(self, session: Session, access: Access | None) -> None:
        """Publish a session's will, if it has one. The will and the note that it fired share a batch, so it is published
        once; one that is not allowed any more is dropped and counted."""
        will = session.will
        if will is None:
            return
        topic = will.topic.encode("utf-8")
        if access is not None and not access.may_leave_will(will.user, session.client_id, topic):
            session.tenant.count_drop(DROP_NOT_ACCEPTED, 1)
            self.cancel(session)
            return
        session.will = None
        session.changed = True
        message = self._message(session, will, topic)
        self._commit.append(message)
        if message.retain:
            session.tenant.retained.arrive(message)
        self._commit.append(WillFired.at(self._clock.now_us, session.named()))

    def cancel(self, session: Session) -> None:
        """Forget the will: it is not published."""
        if session.will is not None:
            session.will = None
            session.changed = True
            self._commit.append(WillCancelled.at(self._clock.now_us, session.named()))

    def _message(self, session: Session, will: Will, topic: bytes) -> Message:
        size = len(topic) + len(will.properties) + len(will.payload)
        retain = will.retain
        if retain and not self._admission.keeps(session.tenant, topic, size, len(will.payload)):
            retain = False
            session.tenant.count_drop(DROP_RETAINED_LIMIT, 1)
        return session.message(
            self._clock.now_us,
            message_flags(will.qos, retain, False, 5) | FLAG_WILL,
            0,
            topic,
            will.properties,
            will.message_expiry_s,
            will.payload,
        )
