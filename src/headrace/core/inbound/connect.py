"""CONNECT: who a client is, whether it may come, and the session that it finds or gets.

Runs on the loop. How a connection ends is in `partings`, what becomes of a session without one in `absences`. A session's
own records (opened, resumed, closed, ended) take effect in memory when they are appended; CONNACK waits for them where a
persistent session is concerned (decision 10: what an answer waits for).
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from headrace.core.commit import Deferred, GroupCommit
from headrace.core.inbound.absences import ASSIGNED_PREFIX, Absences
from headrace.core.inbound.admission import Admission
from headrace.core.inbound.connack import Grants
from headrace.core.inbound.partings import Partings
from headrace.core.inbound.sign_ins import SignIns
from headrace.core.inbound.wills import Wills
from headrace.core.outbound.delivery import Delivery
from headrace.core.ports.access import PENDING, Access, LinkRights, SignIn, SignInListener
from headrace.core.ports.clock import STALL_MS
from headrace.core.ports.identity import Identity
from headrace.core.ports.link import Link, WorkerPort
from headrace.core.ports.timers import Timer, Timers
from headrace.core.ports.witness import Testimony
from headrace.core.records.event import (
    SessionOpened,
    SessionResumed,
)
from headrace.core.records.message_id import JournalName
from headrace.core.state.session import OWN_PREFIXES, Session, session_of
from headrace.core.state.state import Fold
from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.properties import Properties

if TYPE_CHECKING:
    from headrace.core.state.tenant import Tenant
    from headrace.mqtt.packets import Connect

TAKEN_OVER: Final = "taken over"
TENANT_SESSIONS: Final = "the tenant has as many sessions as it may have"
LATE: Final = "the client has a connection that came later"


class Sessions(SignInListener):
    """Opens and resumes sessions."""

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
        self._sign_ins = SignIns()
        self.testimony = testimony
        self.admission = Admission(worker.settings)
        self._wills = Wills(fold, commit, self.admission, worker)
        self.absences = Absences(fold, commit, delivery, timers, self._wills, testimony, worker)
        self.partings = Partings(fold, commit, timers, self._wills, self.absences, self._sign_ins, testimony)
        self._grants = Grants(worker.settings)

    @property
    def access(self) -> Access | None:
        return self._wills.access

    @access.setter
    def access(self, access: Access | None) -> None:
        self._wills.access = access

    @property
    def connected(self) -> int:
        return self.partings.connected

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
            session = self.absences.present(of_tenant, client_id)
            return None if session is None else session.owner
        return owner

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
            self.absences.end(old, "clean start")  # [MQTT-3.1.2-4]
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
        old = self.absences.present(tenant, link.client_id)
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
        self.partings.detach(link, session)
        self.partings.close(session, TAKEN_OVER, rc.SESSION_TAKEN_OVER)
        link.close()
        self.testimony.taken_over(link, session.client_id, by)

    def _forget(self, session: Session) -> None:
        """Forget a transient session that a crash left for its will: the client is back, so neither is wanted (decision
        15: sessions after a crash)."""
        self._wills.cancel(session)
        self.absences.end(session, "connection closed")

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
        self.partings.connected += 1
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
            timer = _KeepAlive(self._timers, link)
            link.timer = timer
            self._timers.schedule(self._clock.mono_ms + link.keep_alive_ms, timer)

    def _answer(self, link: Link, session: Session, present: bool, waits: bool, answer: Properties) -> None:
        ready = _Connected(self._delivery, session, link, present, answer)
        if waits:
            self._commit.defer(ready)
        else:
            ready.run()


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

    def __init__(self, timers: Timers, link: Link) -> None:
        super().__init__()
        self._timers = timers
        self._link = link

    def fire(self, now_ms: int) -> None:
        link = self._link
        if link.deaf():
            link.last_seen_ms = now_ms
        due_ms = link.last_seen_ms + link.keep_alive_ms
        due_ms += int(link.unheard_ms(due_ms, now_ms))
        if due_ms <= now_ms:
            # [MQTT-3.1.2-22]: nothing came for one and a half keep alives
            link.on_protocol_error(ProtocolError(rc.KEEP_ALIVE_TIMEOUT, "keep alive timeout"))
        else:
            self._timers.schedule(due_ms, self)
