"""CONNECT, the end of a connection, and the life of a session between them: takeover, expiry, wills.

Runs on the loop. A session's own records (opened, resumed, closed, ended) take effect in memory when they are appended;
CONNACK waits for them where a persistent session is concerned (decisions 10).
"""

from __future__ import annotations

import fnmatch
import uuid
from typing import TYPE_CHECKING, Final

from headrace.core.access import PENDING, Access, SignIn
from headrace.core.admission import Admission
from headrace.core.commit import Deferred, GroupCommit
from headrace.core.delivery import Delivery, reserve_chunk
from headrace.core.fold import DEFAULT_TENANT, Fold, will_fields
from headrace.core.interfaces import Clock, Link
from headrace.core.message import Message, message_flags
from headrace.core.record import (
    BROKER_STARTED,
    DROP_RETAINED_LIMIT,
    DROP_SESSION_ENDED,
    FLAG_WILL,
    SESSION_CLOSED,
    SESSION_ENDED,
    SESSION_OPENED,
    SESSION_RESUMED,
    WILL_CANCELLED,
    WILL_FIRED,
    Event,
)
from headrace.core.session import APPLICATION, BRIDGE_PREFIX, DEVICE, NEVER_EXPIRES, Session
from headrace.core.timers import Timer, Timers
from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.codec import encode_connack, encode_disconnect
from headrace.mqtt.properties import Properties

if TYPE_CHECKING:
    from headrace.core.settings import BrokerSettings
    from headrace.core.shared import Group
    from headrace.core.tenant import Tenant
    from headrace.mqtt.packets import Connect, Disconnect

TAKEN_OVER: Final = "taken over"

# MQTT 3.1.1 return codes of refusals (3.2.2.3)
_REFUSALS_311 = {
    rc.CLIENT_IDENTIFIER_NOT_VALID: rc.CONNACK_IDENTIFIER_REJECTED,
    rc.BAD_USER_NAME_OR_PASSWORD: rc.CONNACK_BAD_USER_NAME_OR_PASSWORD,
    rc.NOT_AUTHORIZED: rc.CONNACK_NOT_AUTHORIZED,
    rc.SERVER_UNAVAILABLE: rc.CONNACK_SERVER_UNAVAILABLE,
    rc.SERVER_BUSY: rc.CONNACK_SERVER_UNAVAILABLE,
}


class Sessions:
    """Opens, resumes, closes and ends sessions."""

    def __init__(
        self,
        fold: Fold,
        commit: GroupCommit,
        delivery: Delivery,
        timers: Timers,
        clock: Clock,
        settings: BrokerSettings,
    ) -> None:
        self._fold = fold
        self._commit = commit
        self._delivery = delivery
        self._timers = timers
        self._clock = clock
        self._settings = settings
        self.access: Access | None = None
        self.connected = 0
        self.admission = Admission(settings)

    # CONNECT

    def connect(self, link: Link, packet: Connect) -> None:
        """Section 3.1.4: check, find or make the session, answer with CONNACK."""
        link.version = packet.version
        link.bridge = packet.bridge
        link.max_packet_size = packet.properties.maximum_packet_size or 0
        link.problem_information = packet.properties.request_problem_information != 0
        tenant = self._fold.tenant(DEFAULT_TENANT)
        refusal = self._refusal(packet)
        if refusal:
            self._refuse(link, tenant, refusal)
        elif self.access is None:
            self._admit(link, packet)
        else:
            self._sign_in(self.access, link, packet)

    def _sign_in(self, access: Access, link: Link, packet: Connect) -> None:
        """Ask who it is; while that takes time, the packets behind CONNECT wait."""
        link.access = access
        code = access.authenticate(SignIn(self, link, packet))
        if code == PENDING:
            link.hold()
        else:
            self.signed_in(link, packet, code)

    def signed_in(self, link: Link, packet: Connect, reason_code: int) -> None:
        """Access control has answered [MQTT-3.1.4-2]."""
        if reason_code:
            self._refuse(link, self._fold.tenant(DEFAULT_TENANT), reason_code)
        else:
            self._admit(link, packet)

    def _admit(self, link: Link, packet: Connect) -> None:
        """Find or make the session, answer with CONNACK."""
        tenant = self._fold.tenant(DEFAULT_TENANT)
        answer = Properties()
        client_id = packet.client_id
        if not client_id:
            client_id = "headrace-" + uuid.uuid4().hex  # [MQTT-3.1.3-6]
            answer.assigned_client_identifier = client_id
        link.client_id = client_id
        will, access = packet.will, link.access
        if (
            will is not None
            and access is not None
            and not access.may_publish(link, will.topic.encode("utf-8"))
        ):
            self._refuse(link, tenant, rc.NOT_AUTHORIZED)
            return
        expiry_s = self._expiry(packet, answer)
        if packet.version == 5 and not self._promise(link, packet, answer):
            tenant.counters.connects_refused += 1
            link.close()
            return
        old = tenant.sessions.get(client_id)
        if old is not None and old.link is not None:
            self._take_over(old, packet.clean_start)
            old = tenant.sessions.get(client_id)
        if old is not None and old.link is None and not old.persistent:
            self._forget(old)
            old = None
        waits = expiry_s != 0 or (old is not None and old.persistent)
        present = False
        if old is not None and packet.clean_start:
            self.end(old, "clean start")  # [MQTT-3.1.2-4]
            old = None
        self._set_window(link, packet)
        if old is None:
            session = self._open(tenant, client_id, packet, expiry_s, link)
        else:
            session = old
            present = True
            self.resume(session, packet, expiry_s, link)
        self.attach(link, session, packet, answer)
        self._answer(link, session, present, waits, answer)

    def _refusal(self, packet: Connect) -> int:
        if packet.properties.authentication_method is not None:
            return rc.BAD_AUTHENTICATION_METHOD
        if not packet.client_id and (packet.version == 3 or (packet.version == 4 and not packet.clean_start)):
            return rc.CLIENT_IDENTIFIER_NOT_VALID  # [MQTT-3.1.3-8]; 3.1 knows no empty one
        if packet.client_id.startswith(BRIDGE_PREFIX):
            return (
                rc.CLIENT_IDENTIFIER_NOT_VALID
            )  # whoever took over such a session would get a bridge's messages
        if packet.will is not None:
            refused = self.admission.refusal_of_will(packet.will)
            if refused:
                return refused
        if self.access is None and not self._settings.allow_anonymous:
            return rc.NOT_AUTHORIZED
        return 0

    def _refuse(self, link: Link, tenant: Tenant, reason_code: int) -> None:
        tenant.counters.connects_refused += 1
        code = reason_code if link.version == 5 else _REFUSALS_311.get(reason_code, rc.CONNACK_NOT_AUTHORIZED)
        answer = encode_connack(link.version, False, code)  # [MQTT-3.2.2-6]
        if not link.max_packet_size or len(answer) <= link.max_packet_size:
            link.send(answer)
        link.close()

    def _expiry(self, packet: Connect, answer: Properties) -> int:
        settings = self._settings
        if packet.version < 5:
            return (
                0
                if packet.clean_start
                else min(settings.v311_session_expiry_s, settings.session_expiry_max_s)
            )
        asked = packet.properties.session_expiry_interval or 0
        granted = min(asked, settings.session_expiry_max_s)
        if granted != asked:
            answer.session_expiry_interval = granted  # 3.2.2.3.2
        return granted

    def _promise(self, link: Link, packet: Connect, answer: Properties) -> bool:
        """What CONNACK tells a version 5 client. False: it would exceed the client's Maximum Packet Size, and then
        nothing may be sent at all [MQTT-3.1.2-24]."""
        settings = self._settings
        answer.receive_maximum = settings.receive_maximum
        answer.maximum_packet_size = link.packet_bytes_max
        answer.topic_alias_maximum = settings.topic_alias_maximum
        longest = settings.keep_alive_max_s
        if longest and (packet.keep_alive_s == 0 or packet.keep_alive_s > longest):
            answer.server_keep_alive = longest  # [MQTT-3.1.2-21]
        if packet.properties.request_response_information and settings.response_information:
            answer.response_information = settings.response_information  # [MQTT-3.1.2-28]
        if not link.max_packet_size:
            return True
        if len(encode_connack(5, False, rc.SUCCESS, answer)) > link.max_packet_size:
            answer.response_information = None  # [MQTT-3.2.2-19]
        return len(encode_connack(5, False, rc.SUCCESS, answer)) <= link.max_packet_size

    def _take_over(self, session: Session, clean_start: bool) -> None:
        """The same client id connects again: the old connection goes [MQTT-3.1.4-3]."""
        link = session.link
        if link is None:
            return
        if link.version == 5 and link.ready:  # before CONNACK nothing else is sent [MQTT-3.2.0-1]
            link.send(encode_disconnect(5, rc.SESSION_TAKEN_OVER))
        self._detach(link, session)
        self._close(session, TAKEN_OVER, rc.SESSION_TAKEN_OVER)
        link.close()

    def _forget(self, session: Session) -> None:
        """A transient session that a crash left for its will: the client is back, so neither is wanted (decisions 15)."""
        if session.will is not None:
            session.will = None
            self._commit.append(Event(WILL_CANCELLED, self._clock.now_us, session.named()))
        self.end(session, "connection closed")

    def _set_window(self, link: Link, packet: Connect) -> None:
        window = self._settings.inflight_max
        if packet.properties.receive_maximum is not None:
            window = min(window, packet.properties.receive_maximum)
        link.window = window
        link.chunk = reserve_chunk(window)
        link.alias_maximum = min(
            packet.properties.topic_alias_maximum or 0, self._settings.topic_alias_outbound
        )

    def _open(self, tenant: Tenant, client_id: str, packet: Connect, expiry_s: int, link: Link) -> Session:
        fields: dict[str, object] = {
            "t": tenant.name,
            "c": client_id,
            "ty": self._session_type(packet),
            "ex": expiry_s,
            "v": packet.version,
            "w": will_fields(packet.will),
            "lim": int(link.chunk),
        }
        event = Event(SESSION_OPENED, self._clock.now_us, fields)
        self._commit.append(event)
        return self._fold.opened(event)

    def _session_type(self, packet: Connect) -> int:
        """Configuration rules, then the CONNECT user property, then DEVICE (decisions 16)."""
        settings = self._settings
        if packet.username is not None and packet.username in settings.application_user_names:
            return APPLICATION
        for pattern in settings.application_client_ids:
            if fnmatch.fnmatchcase(packet.client_id, pattern):
                return APPLICATION
        if settings.session_type_property:
            for name, value in packet.properties.user_properties:
                if name == "session-type":
                    return APPLICATION if value.lower() == "application" else DEVICE
        return DEVICE

    def resume(self, session: Session, packet: Connect, expiry_s: int, link: Link) -> None:
        timer = session.timer
        if timer is not None:
            timer.cancel()
            session.timer = None
        queue = session.queue
        last_sent = 0 if queue is None else queue.last_sent()
        fields = session.named()
        fields["ex"] = expiry_s
        fields["v"] = packet.version
        fields["w"] = will_fields(packet.will)
        fields["lim"] = last_sent + int(link.chunk)
        event = Event(SESSION_RESUMED, self._clock.now_us, fields)
        self._commit.append(event)
        self._fold.resumed(session, event)

    def attach(self, link: Link, session: Session, packet: Connect, answer: Properties) -> None:
        session.link = link
        link.session = session
        self.connected += 1
        session.tenant.counters.connects += 1
        keep_alive_s = answer.server_keep_alive or packet.keep_alive_s  # [MQTT-3.2.2-22]
        link.inbound = len(session.incoming or {})
        link.last_seen_ms = self._clock.mono_ms
        link.keep_alive_ms = keep_alive_s * 1500  # one and a half times [MQTT-3.1.2-22]
        if link.timer is not None:  # the deadline for CONNECT
            link.timer.cancel()
            link.timer = None
        if link.keep_alive_ms:
            timer = _KeepAlive(self, self._timers, link)
            link.timer = timer
            self._timers.schedule(self._clock.mono_ms + link.keep_alive_ms, timer)

    def _answer(self, link: Link, session: Session, present: bool, waits: bool, answer: Properties) -> None:
        # The byte is reserved in version 3.1.
        connack = encode_connack(link.version, present and link.version > 3, rc.SUCCESS, answer)
        ready = _Connected(self._delivery, session, link, connack)
        if waits:
            self._commit.defer(ready)
        else:
            ready.run()

    # The end of a connection

    def disconnect(self, link: Link, packet: Disconnect) -> None:
        session = link.session
        if session is not None:
            self._detach(link, session)
            expiry = packet.properties.session_expiry_interval
            if expiry is not None and session.persistent:
                session.expiry_s = min(expiry, self._settings.session_expiry_max_s)
            if packet.reason_code == rc.NORMAL_DISCONNECTION:  # any other code publishes it (3.1.2.5)
                session.will = None  # [MQTT-3.14.4-3]
            self._close(session, "disconnected", packet.reason_code)
        link.close()

    def connection_lost(self, link: Link) -> None:
        """The connection is gone without DISCONNECT."""
        session = link.session
        if session is not None:
            self._detach(link, session)
            self._close(session, "connection lost", -1)

    def protocol_error(self, link: Link, error: ProtocolError) -> None:
        """Answer with the reason code the version knows, close that connection only (P9)."""
        session = link.session
        self._fold.tenant(DEFAULT_TENANT).counters.protocol_errors += 1
        link.refuse(error)
        if session is not None:
            self._detach(link, session)
            self._close(session, error.message, error.reason_code)
        link.close()

    def _detach(self, link: Link, session: Session) -> None:
        if session.link is link:
            session.link = None
            self.connected -= 1
            session.tenant.counters.disconnects += 1
        link.session = None
        link.ready = False
        if link.timer is not None:
            link.timer.cancel()
            link.timer = None

    def _close(self, session: Session, reason: str, code: int) -> None:
        """The session has no connection any more: note what was sent, let its will and its expiry run.

        `code` is the MQTT 5 reason code that either side gave, -1 if none did."""
        now_us = self._clock.now_us
        queue = session.queue
        will = session.will
        if will is not None and (will.delay_s == 0 or not session.persistent):
            self._fire_will(session)
        if not session.persistent:
            self.end(session, reason, code)
            return
        if queue is not None:
            queue.resend = []
        fields = session.named()
        fields["ex"] = session.expiry_s
        fields["lim"] = 0 if queue is None else queue.last_sent()
        fields["will"] = int(session.will is not None)
        _add_reason(fields, reason, code)
        event = Event(SESSION_CLOSED, now_us, fields)
        self._commit.append(event)
        self._fold.closed(session, event)
        self._serve(session.groups or [])
        if reason != TAKEN_OVER:
            self.await_return(session, 0)

    def await_return(self, session: Session, grace_ms: int) -> None:
        """Start the timer of a closed session: its will delay or its expiry, whichever is first."""
        waits_s = session.expiry_s
        will = session.will
        if will is not None:
            waits_s = min(waits_s, will.delay_s)
        elif session.expiry_s == NEVER_EXPIRES:
            return
        gone_ms = max(0, (self._clock.now_us - session.closed_at_us) // 1000)
        timer = _Absence(self, session)
        session.timer = timer
        self._timers.schedule(self._clock.mono_ms + grace_ms + max(0, waits_s * 1000 - gone_ms), timer)

    def absence_over(self, session: Session) -> None:
        """A closed session's timer: its will is due, or the session is."""
        session.timer = None
        if session.link is not None or session.ended:
            return
        if session.will is not None:
            self._fire_will(session)
        gone_us = self._clock.now_us - session.closed_at_us
        if session.expiry_s != NEVER_EXPIRES and gone_us >= session.expiry_s * 1_000_000 - 200_000:
            self.end(session, "expired")
        else:
            self.await_return(session, 0)

    def end(self, session: Session, reason: str, code: int = -1) -> None:
        """The session is over; what its queue still held is counted as dropped (decisions 11)."""
        if session.will is not None:
            self._fire_will(session)
        queue = session.queue
        fields = session.named()
        if queue is not None and session.persistent and queue.unfinished():
            session.count_drop(DROP_SESSION_ENDED, queue.unfinished())
            fields["dropped"] = queue.unfinished()
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None
        _add_reason(fields, reason, code)
        self._commit.append(Event(SESSION_ENDED, self._clock.now_us, fields))
        groups = list(session.groups or [])
        self._fold.ended(session)
        self._serve(groups)

    def _serve(self, groups: list[Group]) -> None:
        """What a member gave back goes to the others."""
        for group in groups:
            if group.returned:
                for member in list(group.members):
                    self._delivery.pump(member)

    def _fire_will(self, session: Session) -> None:
        """The will and the note that it fired share a batch, so it is published once."""
        will = session.will
        if will is None:
            return
        session.will = None
        session.changed = True
        topic = will.topic.encode("utf-8")
        size = len(topic) + len(will.properties) + len(will.payload)
        retain = will.retain
        if retain and not self.admission.keeps(session.tenant, topic, size, len(will.payload)):
            retain = False
            session.tenant.count_drop(DROP_RETAINED_LIMIT, 1)
        message = Message(
            self._clock.now_us,
            message_flags(will.qos, retain, False, 5) | FLAG_WILL,
            0,
            session.incarnation,
            session.tenant.name,
            session.origin,
            len(session.tenant.name_utf8),
            topic,
            will.properties,
            will.message_expiry_s,
            will.payload,
        )
        self._commit.append(message)
        self._commit.append(Event(WILL_FIRED, self._clock.now_us, session.named()))

    # Start and stop of the broker

    def start(self) -> None:
        """After recovery: whoever was connected is not; wills and expiries run from now plus the grace (decisions 15)."""
        event = Event(BROKER_STARTED, self._clock.now_us, {})
        self._commit.append(event)
        self._fold.started(event)
        if self._settings.drop_events:
            self._fold.collect_drops()
        for session in list(self._fold.by_incarnation.values()):
            session.applied = -1
            self.await_return(session, self._settings.restart_grace_ms)

    def stop(self) -> None:
        """SIGTERM: say goodbye, note exactly what was sent; the sessions stay open in the journal (decisions 15)."""
        for session in list(self._fold.by_incarnation.values()):
            link = session.link
            if link is None:
                continue
            if link.version == 5 and link.ready:  # before CONNACK nothing else is sent [MQTT-3.2.0-1]
                link.send(encode_disconnect(5, rc.SERVER_SHUTTING_DOWN))
            queue = session.queue
            if queue is not None and session.persistent:
                self._commit.sent_limit(session.incarnation, queue.last_sent())
            link.session = None
            session.link = None
            link.close()

    def keep_alive_over(self, link: Link) -> None:
        """Nothing came for one and a half keep alives [MQTT-3.1.2-22]."""
        link.on_protocol_error(ProtocolError(rc.KEEP_ALIVE_TIMEOUT, "keep alive timeout"))


def _add_reason(fields: dict[str, object], reason: str, code: int) -> None:
    fields["reason"] = reason
    if code >= 0:
        fields["code"] = code


class _Connected(Deferred):
    """The session is durable: CONNACK, then NOT-ACKED, then the backlog."""

    def __init__(self, delivery: Delivery, session: Session, link: Link, connack: bytes) -> None:
        super().__init__()
        self._delivery = delivery
        self._session = session
        self._link = link
        self._connack = connack

    def run(self) -> None:
        if self._session.link is self._link and not self._link.closed:
            self._link.send(self._connack)
            self._link.ready = True
            self._delivery.resumed(self._session, self._link)


class _KeepAlive(Timer):
    """Looks at a connection once per keep alive; armed again for as long as packets came."""

    def __init__(self, sessions: Sessions, timers: Timers, link: Link) -> None:
        super().__init__()
        self._sessions = sessions
        self._timers = timers
        self._link = link

    def fire(self, now_ms: int) -> None:
        if self._link.held_back:  # its silence is ours
            self._link.last_seen_ms = now_ms
        due_ms = self._link.last_seen_ms + self._link.keep_alive_ms
        if due_ms <= now_ms:
            self._sessions.keep_alive_over(self._link)
        else:
            self._timers.schedule(due_ms, self)


class _Absence(Timer):
    """The will delay or the expiry of a closed session."""

    def __init__(self, sessions: Sessions, session: Session) -> None:
        super().__init__()
        self._sessions = sessions
        self._session = session

    def fire(self, now_ms: int) -> None:
        self._sessions.absence_over(self._session)
