"""CONNECT, the end of a connection, and the life of a session between them: takeover, expiry, when a will is due.

Runs on the loop. A session's own records (opened, resumed, closed, ended) take effect in memory when they are appended;
CONNACK waits for them where a persistent session is concerned (decision 10: what an answer waits for).
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from headrace.core.commit import Deferred, GroupCommit
from headrace.core.inbound.admission import Admission
from headrace.core.inbound.connack import Grants
from headrace.core.inbound.sign_ins import SignIns
from headrace.core.inbound.wills import Wills
from headrace.core.outbound.delivery import Delivery
from headrace.core.ports.access import PENDING, Access, LinkRights, SignIn, SignInListener
from headrace.core.ports.clock import STALL_MS
from headrace.core.ports.identity import Identity
from headrace.core.ports.link import Link, WorkerPort
from headrace.core.ports.timers import RETRY_MS, Timer, Timers
from headrace.core.ports.witness import Testimony
from headrace.core.records.elapsed import CLOCK_SET_US, elapsed_us
from headrace.core.records.event import (
    BrokerStarted,
    SessionClosed,
    SessionEnded,
    SessionOpened,
    SessionResumed,
)
from headrace.core.records.message_id import JournalName
from headrace.core.records.record import DROP_SESSION_ENDED
from headrace.core.state.groups import forget_redraws, groups_of
from headrace.core.state.session import NEVER_EXPIRES, OWN_PREFIXES, Session, session_of
from headrace.core.state.state import Fold
from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.properties import Properties

if TYPE_CHECKING:
    from headrace.core.state.groups import Group
    from headrace.core.state.tenant import Tenant
    from headrace.mqtt.packets import Connect, Disconnect

TAKEN_OVER: Final = "taken over"
ASSIGNED_PREFIX: Final = "headrace-"  # of the client ids that the broker assigns
TENANT_SESSIONS: Final = "the tenant has as many sessions as it may have"
LATE: Final = "the client has a connection that came later"


class Sessions(SignInListener):
    """Opens, resumes, closes and ends sessions."""

    def __init__(
        self,
        fold: Fold,
        commit: GroupCommit,
        delivery: Delivery,
        timers: Timers,
        testimony: Testimony,
        worker: WorkerPort,
        shard: int,
    ) -> None:
        """Begin without connections; `timers` are those of the shard, `testimony` is the worker's."""
        self._fold = fold
        self._commit = commit
        self._delivery = delivery
        self._timers = timers
        self._clock = worker.clock
        self._settings = worker.settings
        self._homes = worker.homes
        self._shard = shard
        self.access: Access | None = None
        self._sign_ins = SignIns()
        self.connected = 0
        self.expired = 0  # sessions whose time was over
        self._awaited: list[tuple[Session, bool]] = []  # since the start; whether it was open until then
        self.testimony = testimony
        self.admission = Admission(worker.settings)
        self._wills = Wills(fold, commit, self.admission, worker)
        self._grants = Grants(worker.settings)

    def name_journal(self, journal: JournalName) -> None:
        """Make message ids of this journal, for those who ask for them."""
        self._grants.journal = journal

    # CONNECT

    def connect(self, link: Link, packet: Connect) -> None:
        """Handle CONNECT (section 3.1.4): check, find or make the session, answer with CONNACK."""
        link.version = packet.version
        link.bridge = packet.bridge
        link.max_packet_size = packet.properties.maximum_packet_size or 0
        link.problem_information = packet.properties.request_problem_information != 0
        refusal = self._refusal(link, packet)
        if refusal:
            self._refuse(link, refusal)
            self.testimony.refused(link, packet.client_id, refusal, "")
        elif self.access is None:
            self._admit(link, packet)
        else:
            self._sign_in(self.access, link, packet)

    def _sign_in(self, access: Access, link: Link, packet: Connect) -> None:
        """Ask access control who a client is; while that takes time, the packets behind CONNECT wait."""
        link.rights = LinkRights(access, link)
        answer = access.authenticate(SignIn(self, link, packet))
        if answer == PENDING:
            link.hold()
            self._sign_ins.wait(link, packet.client_id)
        else:
            self.signed_in(link, packet, answer)

    def signed_in(self, link: Link, packet: Connect, answer: Identity | int) -> None:
        """Note that access control has answered [MQTT-3.1.4-2]."""
        before = self._sign_ins.before(link, packet.client_id)
        self._sign_ins.forget(link)
        if isinstance(answer, int):
            self._refuse(link, answer)
        elif answer.tenant != link.identity.tenant:  # its home is not here
            self._refuse(link, rc.NOT_AUTHORIZED)
        else:
            link.identity = answer
            self._admit(link, packet)
            if before and session_of(link) is not None:
                self._overtake(before, packet.client_id)

    def _overtake(self, links: list[Link], client_id: str) -> None:
        """Refuse those whose CONNECT was read before that of the connection which their client has now."""
        for link in links:
            self._sign_ins.forget(link)
            self._refuse(link, rc.SERVER_UNAVAILABLE)
            self.testimony.refused(link, client_id, rc.SERVER_UNAVAILABLE, LATE)

    def owner_of(self, tenant: str, client_id: str) -> str | None:
        of_tenant = self._fold.tenants.get(tenant)
        if of_tenant is None:
            return None
        owner = of_tenant.devices.owners.get(client_id)
        if owner is None:
            session = self.present(of_tenant, client_id)
            return None if session is None else session.owner
        return owner

    def present(self, tenant: Tenant, client_id: str) -> Session | None:
        """Return the session of a client id, unless its time is over: what is due is done first, whether or not the timer
        has come to it yet."""
        session = tenant.sessions.get(client_id)
        if session is None or not self._settle_absence(session):
            return session
        return tenant.sessions.get(client_id)

    def _settle_absence(self, session: Session) -> bool:
        """Do what the timer of a closed session is for if it is due. False: nothing is, or it is a will delay and whoever
        asks may have asked before it was over: what came while the loop stood still came in time (decision 43). A session
        whose time is over is resumed by nobody."""
        timer = session.timer
        clock = self._clock
        now_ms = clock.mono_ms
        if timer is None or timer.due_ms > now_ms:
            return False
        may_be_in_time = timer.due_ms > clock.waits_since_ms(now_ms)
        if may_be_in_time and isinstance(timer, _Absence) and now_ms < timer.expires_ms:
            return False
        timer.fire(now_ms)
        timer.cancel()  # if that raised, it is tried again when the timer comes to it
        return True

    def user_before(self, tenant: str, client_id: str) -> str | None:
        of_tenant = self._fold.tenants.get(tenant)
        session = None if of_tenant is None else of_tenant.sessions.get(client_id)
        return None if session is None or session.link is None else session.link.identity.user

    def _admit(self, link: Link, packet: Connect) -> None:
        """Find or make the session, answer with CONNACK."""
        tenant = self._fold.let_in(link)
        if tenant.limits.tenant_packet_bytes_max:
            link.limit_packets(tenant.limits.tenant_packet_bytes_max)
        answer = Properties()
        client_id = packet.client_id
        if not client_id:
            client_id = self._assigned(tenant.name)  # [MQTT-3.1.3-6]
            answer.assigned_client_identifier = client_id
        link.client_id = client_id
        if self._is_late(tenant, link):
            self._refuse(link, rc.SERVER_UNAVAILABLE)
            self.testimony.refused(link, client_id, rc.SERVER_UNAVAILABLE, LATE)
            return
        refused = self._wills.take(link, packet.will)
        if refused:
            self._refuse(link, refused)
            return
        expiry_s = self._grants.expiry_s(tenant.limits, packet, answer)
        if packet.version == 5 and not self._grants.promise(link, packet, answer):
            tenant.counters.connects_refused += 1
            tenant.counters.refuse("connect", rc.PACKET_TOO_LARGE)
            link.close()
            self.testimony.refused(link, client_id, rc.PACKET_TOO_LARGE, "CONNACK")
            return
        old = self._found(tenant, link)
        waits = expiry_s != 0 or (old is not None and old.persistent)
        present = False
        if old is not None and packet.clean_start:
            self.end(old, "clean start")  # [MQTT-3.1.2-4]
            old = None
        self._grants.set_window(link, packet)
        if old is None:
            opened = self._open_within(tenant, client_id, packet, expiry_s, link)
            if opened is None:
                return
            session = opened
        else:
            session = old
            present = True
            self.resume(session, packet, expiry_s, link)
        self.attach(link, session, packet, answer)
        self._answer(link, session, present, waits, answer)
        # What the client sends now comes behind what its connection before has left: its messages, its will.
        link.effective_at = self._commit.entered
        self.testimony.connected(link, packet, present)

    def _is_late(self, tenant: Tenant, link: Link) -> bool:
        """Return whether a CONNECT, which has waited for a worker that stood still, is not to end the connection that its
        client has: that one came later, or the client has given this one up meanwhile."""
        session = tenant.sessions.get(link.client_id)
        present = None if session is None else session.link
        if present is None or link.came_ms <= 0:
            return False
        if link.came_ms < present.came_ms:
            return True
        return self._clock.mono_ms - link.came_ms > STALL_MS and link.hung_up()

    def _assigned(self, tenant: str) -> str:
        """Return a new client id that is at home here."""
        while True:
            client_id = ASSIGNED_PREFIX + uuid.uuid4().hex
            if self._homes.of_client(tenant, client_id) == self._shard:
                return client_id

    def _found(self, tenant: Tenant, link: Link) -> Session | None:
        """Return the session that a client comes back to, without its connection from before."""
        old = self.present(tenant, link.client_id)
        if old is not None and old.link is not None:
            self._take_over(old, link)
            old = tenant.sessions.get(link.client_id)
        if old is not None and old.link is None and not old.persistent:
            self._forget(old)
            return None
        return old

    def _refusal(self, link: Link, packet: Connect) -> int:
        if packet.properties.authentication_method is not None:
            return rc.BAD_AUTHENTICATION_METHOD
        if not packet.client_id and (packet.version == 3 or (packet.version == 4 and not packet.clean_start)):
            return rc.CLIENT_IDENTIFIER_NOT_VALID  # [MQTT-3.1.3-8]; 3.1 knows no empty one
        if packet.client_id.startswith(OWN_PREFIXES):
            return (
                rc.CLIENT_IDENTIFIER_NOT_VALID
            )  # whoever took over such a session would get a bridge's messages, or a member's
        if packet.will is not None:
            refused = self.admission.refusal_of_will(link.identity.limits, packet.will)
            if refused:
                return refused
        if self.access is None and not self._settings.allow_anonymous:
            return rc.NOT_AUTHORIZED
        return 0

    def _refuse(self, link: Link, reason_code: int) -> None:
        counters = self._fold.counters_of(link)
        counters.connects_refused += 1
        counters.refuse("connect", reason_code)
        link.reject(reason_code)
        link.close()

    def _take_over(self, session: Session, by: Link) -> None:
        """End the old connection of a client id that connects again [MQTT-3.1.4-3]."""
        link = session.link
        if link is None:
            return
        link.disconnect(rc.SESSION_TAKEN_OVER)
        self._detach(link, session)
        self._close(session, TAKEN_OVER, rc.SESSION_TAKEN_OVER)
        link.close()
        self.testimony.taken_over(link, session.client_id, by)

    def _forget(self, session: Session) -> None:
        """Forget a transient session that a crash left for its will: the client is back, so neither is wanted (decision
        15: sessions after a crash)."""
        self._wills.cancel(session)
        self.end(session, "connection closed")

    def _open_within(
        self, tenant: Tenant, client_id: str, packet: Connect, expiry_s: int, link: Link
    ) -> Session | None:
        """Open a session, or refuse a client whose tenant has as many as it may have."""
        if not tenant.take_place():
            self._refuse(link, rc.QUOTA_EXCEEDED)
            self.testimony.refused(link, client_id, rc.QUOTA_EXCEEDED, TENANT_SESSIONS)
            return None
        try:
            return self._open(tenant, client_id, packet, expiry_s, link)
        finally:
            tenant.give_place()

    def _open(self, tenant: Tenant, client_id: str, packet: Connect, expiry_s: int, link: Link) -> Session:
        event = SessionOpened.at(
            self._clock.now_us,
            tenant.name,
            client_id,
            session_type=self._grants.session_type(link, packet),
            expiry_s=expiry_s,
            version=packet.version,
            will=packet.will,
            sent_limit=min(int(link.chunk), tenant.ids.direct),
            user=link.identity.user,
        )
        self._commit.append(event)
        return self._fold.opened(event)

    def resume(self, session: Session, packet: Connect, expiry_s: int, link: Link) -> None:
        session.settle()
        limit = self._delivery.reserving.limit_of_resumed(session, link.chunk)
        event = SessionResumed.at(
            self._clock.now_us,
            session.named(),
            expiry_s=expiry_s,
            version=packet.version,
            will=packet.will,
            sent_limit=int(limit),
            user=link.identity.user if session.owner is None else None,
        )
        self._commit.append(event)
        self._wills.let_go(session)
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None
        self._fold.resumed(session, event)

    def attach(self, link: Link, session: Session, packet: Connect, answer: Properties) -> None:
        session.attach(link)
        link.since_us = self._clock.now_us
        self.connected += 1
        session.tenant.counters.connects += 1
        keep_alive_s = answer.server_keep_alive or packet.keep_alive_s  # [MQTT-3.2.2-22]
        link.inbound = len(session.incoming or {})
        link.last_seen_ms = self._clock.mono_ms
        link.keep_alive_ms = keep_alive_s * 1500  # one and a half times [MQTT-3.1.2-22]
        self.watch(link)

    def watch(self, link: Link) -> None:
        """Look after the connection of a client that was let in as often as its keep alive says, if it has one."""
        if link.timer is not None:  # the deadline for CONNECT
            link.timer.cancel()
            link.timer = None
        if link.keep_alive_ms:
            timer = _KeepAlive(self, self._timers, link)
            link.timer = timer
            self._timers.schedule(self._clock.mono_ms + link.keep_alive_ms, timer)

    def _answer(self, link: Link, session: Session, present: bool, waits: bool, answer: Properties) -> None:
        ready = _Connected(self._delivery, session, link, present, answer)
        if waits:
            self._commit.defer(ready)
        else:
            ready.run()

    # The end of a connection

    def disconnect(self, link: Link, packet: Disconnect) -> None:
        session = session_of(link)
        if session is not None:
            self._detach(link, session)
            expiry = packet.properties.session_expiry_interval
            if expiry is not None and session.persistent:
                session.expiry_s = min(expiry, session.tenant.limits.session_expiry_max_s)
            if packet.reason_code == rc.NORMAL_DISCONNECTION:  # any other code publishes it (3.1.2.5)
                session.will = None  # [MQTT-3.14.4-3]
            self._close(session, "disconnected", packet.reason_code)
            self._tell_end(link, session, "disconnected", packet.reason_code)
        link.close()

    def connection_lost(self, link: Link) -> None:
        """Note that the connection is gone without DISCONNECT."""
        session = session_of(link)
        if session is not None:
            self._detach(link, session)
            self._close(session, "connection lost", -1)
            self._tell_end(link, session, link.why_cut() or "connection lost", -1)
        else:
            self._sign_ins.forget(link)
            if link.rights is not None:
                link.rights.ended()

    def protocol_error(self, link: Link, error: ProtocolError) -> None:
        """Answer with the reason code the version knows, close that connection only (P9)."""
        session = session_of(link)
        self._fold.counters_of(link).protocol_errors += 1
        link.refuse(error)
        if session is not None:
            self._detach(link, session)
            self._close(session, error.message, error.reason_code)
            self._tell_end(link, session, error.message, error.reason_code)
        else:
            self.testimony.refused(link, link.client_id, error.reason_code, error.message)
        link.close()

    def _tell_end(self, link: Link, session: Session, reason: str, code: int) -> None:
        self.testimony.disconnected(link, session.client_id, not session.ended, reason, code)

    def _detach(self, link: Link, session: Session) -> None:
        if session.link is link:
            session.detach()
            self.connected -= 1
            session.tenant.counters.disconnects += 1
        link.session = None
        link.ready = False
        if link.rights is not None:
            link.rights.ended()
        if link.timer is not None:
            link.timer.cancel()
            link.timer = None

    def _close(self, session: Session, reason: str, code: int) -> None:
        """Close a session that has no connection any more: note what was sent, let its will and its expiry run. What
        fails is tried again a little later, so that no session stays open that nobody has.

        `code` is the MQTT 5 reason code that either side gave, -1 if none did."""
        try:
            self._note_closed(session, reason, code)
        except Exception:
            self._timers.schedule(self._clock.mono_ms + RETRY_MS, _Unclosed(self, session, reason, code))
            raise

    def close_again(self, session: Session, reason: str, code: int) -> None:
        """Do again what failed when its connection ended, unless its client is back or its time runs already."""
        if session.link is None and session.timer is None and not session.ended:
            self._close(session, reason, code)

    def _note_closed(self, session: Session, reason: str, code: int) -> None:
        now_us = self._clock.now_us
        queue = session.queue
        will = session.will
        if will is not None and (will.delay_s == 0 or not session.persistent):
            self._wills.fire(session, self.access)
        if not session.persistent:
            self.end(session, reason, code)
            return
        forget_redraws(session)
        if queue is not None:
            queue.stop_resend()
        event = SessionClosed.at(
            now_us,
            session.named(),
            expiry_s=session.expiry_s,
            sent_limit=0 if queue is None else queue.last_sent(),
            will_set=session.will is not None,
            reason=reason,
            reason_code=code,
        )
        self._commit.append(event)
        self._fold.closed(session, event)
        self.hand_out(groups_of(session))
        self.await_return(session)  # also of one that is taken over: whoever does that may fail

    def await_return(self, session: Session) -> None:
        """Start the timer of a closed session: its will delay or its expiry, whichever is first."""
        gone_ms = elapsed_us(session.closed_at_us, self._clock.now_us) // 1000
        begin_ms = self._clock.mono_ms
        expires_ms = begin_ms + max(0, session.expiry_s * 1000 - gone_ms)
        due_ms = expires_ms
        will = session.will
        if will is not None:
            due_ms = min(due_ms, begin_ms + max(0, will.delay_s * 1000 - gone_ms))
        elif session.expiry_s == NEVER_EXPIRES:
            return
        self._await(session, due_ms, expires_ms)

    def _await(self, session: Session, due_ms: int, expires_ms: int) -> None:
        timer = _Absence(self, session, expires_ms)
        session.timer = timer
        self._timers.schedule(due_ms, timer)

    def absence_over(self, session: Session, expires_ms: int) -> None:
        """Handle a closed session's timer: its will is due, or the session is. It ends when both clocks say so: the
        time of day may have been set since it was closed, and then it says nothing."""
        session.timer = None
        if session.link is not None or session.ended:
            return
        self._wills.fire(session, self.access)
        if session.expiry_s == NEVER_EXPIRES:
            return
        closed_us, now_us = session.closed_at_us, self._clock.now_us
        was_unset = (
            closed_us < CLOCK_SET_US <= now_us
        )  # the time of day says nothing, the other clock has had its time
        if self._clock.mono_ms < expires_ms - 200:
            self._await(session, expires_ms, expires_ms)
        elif was_unset or now_us - closed_us >= session.expiry_s * 1_000_000 - 200_000:
            self.expired += 1
            self.end(session, "expired")
        else:
            self.await_return(session)

    def end(self, session: Session, reason: str, code: int = -1) -> None:
        """End a session; what its queue still held is counted as dropped (decision 11: counted drops)."""
        self._wills.fire(session, self.access)
        queue = session.queue
        dropped = 0 if queue is None or not session.persistent else queue.unfinished()
        if dropped:
            session.count_drop(DROP_SESSION_ENDED, dropped)
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None
        self._commit.append(SessionEnded.at(self._clock.now_us, session.named(), dropped, reason, code))
        if session.persistent:
            self.testimony.session_ended(session.client_id, dropped, reason)
        groups = groups_of(session)
        try:
            self._fold.leave(session)
        finally:
            self.hand_out(groups)

    def hand_out(self, groups: list[Group]) -> None:
        """Hand what a member gave back to these groups to the other members at the end of the tick."""
        for group in groups:
            if group.returned:
                self._delivery.hand_out_later(group)

    # Start and stop of the broker

    def start(self) -> None:
        """Begin after recovery: whoever was connected is not, and may come back for a while; what was due while the
        broker was down is due now (decision 15: sessions after a crash; ADR 0029)."""
        event = BrokerStarted.at(self._clock.now_us)
        self._commit.append(event)
        self._fold.started(event)
        # The clock may have been set back since: what is written from now on is newer in any case.
        self._wills.since_us = min(self._fold.recorded_us or event.timestamp_us, event.timestamp_us)
        if self._settings.drop_events:
            self._fold.collect_drops()
        for session in list(self._fold.by_incarnation.values()):
            session.applied = -1
            self._await_after_start(session, session.closed_at_us == event.timestamp_us)

    def _await_after_start(self, session: Session, was_open: bool) -> None:
        """Publish the will of a session if it is due and nobody can come back for it; else hold it and start the
        timer. `was_open`: the session had its connection until the broker ended."""
        if session.will is not None and self._cannot_return(session):
            self._wills.fire(session, self.access)
        will = session.will
        if will is not None and (will.delay_s == 0 or not session.persistent):
            self._wills.hold(session)
        self._await_with_grace(session, was_open)
        if session.timer is None:
            return
        if session.will is None or not self._settle_absence(session):
            self._awaited.append((session, was_open))

    def _cannot_return(self, session: Session) -> bool:
        """Return whether nobody has reason to connect with this client id again: the broker made it up, and nothing is
        kept under it. Where there are other shards these may have let in the same client meanwhile: then its will is
        held, as any other."""
        assigned = session.client_id.startswith(ASSIGNED_PREFIX)
        return assigned and not session.persistent and self._homes.shards == 1

    def _await_with_grace(self, session: Session, was_open: bool) -> None:
        """Start the timer of a session after a start. The grace is for whoever had no chance to be back in time: it comes
        before the expiry of sessions that were open, and before all wills, but adds nothing to a delay that was over."""
        begin_ms, grace_ms = self._clock.mono_ms, self._settings.restart_grace_ms
        gone_ms = 0 if was_open else elapsed_us(session.closed_at_us, self._clock.now_us) // 1000
        expires_ms = begin_ms + max(0, session.expiry_s * 1000 - gone_ms)
        if was_open or not session.persistent:
            expires_ms += grace_ms
        due_ms = expires_ms
        will = session.will
        if will is not None:
            delay_ms = grace_ms
            if will.delay_s and session.persistent:
                delay_ms = max(0, will.delay_s * 1000 + grace_ms - gone_ms)
            due_ms = min(due_ms, begin_ms + delay_ms)
        elif session.expiry_s == NEVER_EXPIRES:
            return
        self._await(session, due_ms, expires_ms)

    def serve(self) -> None:
        """Let the grace begin: from now on clients can come back."""
        awaited, self._awaited = self._awaited, []
        for session, was_open in awaited:
            timer = session.timer
            if timer is not None and not session.ended:
                timer.cancel()
                session.timer = None
                self._await_with_grace(session, was_open)

    def stop(self) -> None:
        """Stop on SIGTERM: say goodbye, note exactly what was sent; the sessions stay open in the journal (decision 15:
        sessions after a crash)."""
        for session in list(self._fold.by_incarnation.values()):
            link = session.link
            if link is None:
                continue
            link.disconnect(rc.SERVER_SHUTTING_DOWN)
            queue = session.queue
            if queue is not None and session.persistent:
                self._commit.progress.sent_limit(session.incarnation, queue.last_sent())
                queue.close(queue.last_sent())
                session.changed = True
            session.detach()
            link.close()

    def put_out(self, link: Link, code: int, why: str) -> None:
        """End a connection that may not stay: DISCONNECT with a reason code where the version has one, and its will."""
        session = session_of(link)
        link.disconnect(code)
        try:
            if session is not None:
                self._detach(link, session)
                self._close(session, why, code)
                self._tell_end(link, session, why, code)
        finally:
            link.close()  # nobody would read from it any more, or close it

    def keep_alive_over(self, link: Link) -> None:
        """End a connection of which nothing came for one and a half keep alives [MQTT-3.1.2-22]."""
        link.on_protocol_error(ProtocolError(rc.KEEP_ALIVE_TIMEOUT, "keep alive timeout"))


class _Connected(Deferred):
    """Goes on once the session is durable: CONNACK, then NOT-ACKED, then the backlog."""

    def __init__(
        self, delivery: Delivery, session: Session, link: Link, present: bool, answer: Properties
    ) -> None:
        super().__init__(link)
        self._delivery = delivery
        self._session = session
        self._link = link
        self._present = present
        self._answer = answer
        self._sent = 0

    def run(self) -> None:
        if self._session.link is self._link and not self._link.closed:
            self._link.accept(self._present, self._answer)
            self._link.ready = True
            counters = self._session.tenant.counters
            before = counters.publishes_sent
            self._delivery.resumed(self._session, self._link)
            self._sent = counters.publishes_sent - before

    def work(self) -> i64:
        return 2 + self._sent


class _KeepAlive(Timer):
    """Looks at a connection once per keep alive; armed again for as long as packets came."""

    def __init__(self, sessions: Sessions, timers: Timers, link: Link) -> None:
        super().__init__()
        self._sessions = sessions
        self._timers = timers
        self._link = link

    def fire(self, now_ms: int) -> None:
        link = self._link
        if link.deaf():
            link.last_seen_ms = now_ms
        due_ms = link.last_seen_ms + link.keep_alive_ms
        due_ms += int(link.unheard_ms(due_ms, now_ms))
        if due_ms <= now_ms:
            self._sessions.keep_alive_over(link)
        else:
            self._timers.schedule(due_ms, self)


class _Unclosed(Timer):
    """Closes once more what failed when the connection of a session ended."""

    def __init__(self, sessions: Sessions, session: Session, reason: str, code: int) -> None:
        super().__init__()
        self._sessions = sessions
        self._session = session
        self._reason = reason
        self._code = code

    def fire(self, now_ms: int) -> None:
        self._sessions.close_again(self._session, self._reason, self._code)


class _Absence(Timer):
    """Runs when the will delay or the expiry of a closed session is over."""

    def __init__(self, sessions: Sessions, session: Session, expires_ms: int) -> None:
        super().__init__()
        self._sessions = sessions
        self._session = session
        self.expires_ms = expires_ms

    def fire(self, now_ms: int) -> None:
        self._sessions.absence_over(self._session, self.expires_ms)
