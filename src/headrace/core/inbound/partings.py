"""The end of a connection: DISCONNECT, its loss, an error, a takeover; what its session notes, and what waits from then.

Runs on the loop.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headrace.core.commit import GroupCommit
from headrace.core.inbound.absences import Absences
from headrace.core.inbound.sign_ins import SignIns
from headrace.core.inbound.wills import Wills
from headrace.core.ports.link import Link
from headrace.core.ports.timers import RETRY_MS, Alarm, Timers
from headrace.core.ports.witness import Testimony
from headrace.core.records.event import SessionClosed
from headrace.core.state.groups import forget_redraws, groups_of
from headrace.core.state.session import Session, session_of
from headrace.core.state.state import Fold
from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc

if TYPE_CHECKING:
    from headrace.mqtt.packets import Disconnect


class Partings:
    """Closes the sessions of connections that end; `connected`: those that have one."""

    def __init__(
        self,
        fold: Fold,
        commit: GroupCommit,
        timers: Timers,
        wills: Wills,
        absences: Absences,
        sign_ins: SignIns,
        testimony: Testimony,
    ) -> None:
        self.connected = 0
        self._fold = fold
        self._commit = commit
        self._timers = timers
        self._wills = wills
        self._absences = absences
        self._sign_ins = sign_ins
        self.testimony = testimony
        self._clock = absences.clock

    def disconnect(self, link: Link, packet: Disconnect) -> None:
        session = session_of(link)
        if session is not None:
            self.detach(link, session)
            expiry = packet.properties.session_expiry_interval
            if expiry is not None and session.persistent:
                session.expiry_s = min(expiry, session.tenant.limits.session_expiry_max_s)
            if packet.reason_code == rc.NORMAL_DISCONNECTION:  # any other code publishes it (3.1.2.5)
                session.will = None  # [MQTT-3.14.4-3]
            self.close(session, "disconnected", packet.reason_code)
            self._tell_end(link, session, "disconnected", packet.reason_code)
        link.close()

    def connection_lost(self, link: Link) -> None:
        """Note that the connection is gone without DISCONNECT."""
        session = session_of(link)
        if session is not None:
            self.detach(link, session)
            self.close(session, "connection lost", -1)
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
            self.detach(link, session)
            self.close(session, error.message, error.reason_code)
            self._tell_end(link, session, error.message, error.reason_code)
        else:
            self.testimony.refused(link, link.client_id, error.reason_code, error.message)
        link.close()

    def _tell_end(self, link: Link, session: Session, reason: str, code: int) -> None:
        self.testimony.disconnected(link, session.client_id, not session.ended, reason, code)

    def detach(self, link: Link, session: Session) -> None:
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

    def close(self, session: Session, reason: str, code: int) -> None:
        """Close a session that has no connection any more: note what was sent, let its will and its expiry run. What
        fails is tried again a little later, so that no session stays open that nobody has.

        `code` is the MQTT 5 reason code that either side gave, -1 if none did."""
        try:
            self._note_closed(session, reason, code)
        except Exception:
            self._timers.schedule(
                self._clock.mono_ms + RETRY_MS, Alarm(partial(self.close_again, session, reason, code))
            )
            raise

    def close_again(self, session: Session, reason: str, code: int) -> None:
        """Do again what failed when its connection ended, unless its client is back or its time runs already."""
        if session.link is not None or session.timer is not None or session.ended:
            return
        if code == rc.SERVER_SHUTTING_DOWN:
            self._close_for_stop(session, reason, 0)
        else:
            self.close(session, reason, code)

    def _note_closed(self, session: Session, reason: str, code: int) -> None:
        will = session.will
        if will is not None and (will.delay_s == 0 or not session.persistent):
            self._wills.fire(session)
        if not session.persistent:
            self._absences.end(session, reason, code)
            return
        self._append_closed(session, reason, code)
        self._absences.await_return(session)  # also of one that is taken over: whoever does that may fail

    def _append_closed(self, session: Session, reason: str, code: int) -> None:
        queue = session.queue
        forget_redraws(session)
        if queue is not None:
            queue.stop_resend()
        event = SessionClosed.at(
            self._clock.now_us,
            session.named(),
            expiry_s=session.expiry_s,
            sent_limit=0 if queue is None else queue.last_sent(),
            will_set=session.will is not None,
            reason=reason,
            reason_code=code,
        )
        self._commit.append(event)
        self._fold.closed(session, event)
        self._absences.hand_out(groups_of(session))

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
        """End a connection that may not stay: DISCONNECT with a reason code where the version has one, and its will.
        Where its node stops, the client has the time to be back that it has after a start."""
        session = session_of(link)
        link.disconnect(code)
        try:
            if session is not None:
                self.detach(link, session)
                if code == rc.SERVER_SHUTTING_DOWN:
                    self._close_for_stop(session, why, int(link.since_us))
                else:
                    self.close(session, why, code)
                self._tell_end(link, session, why, code)
        finally:
            link.close()  # nobody would read from it any more, or close it

    def _close_for_stop(self, session: Session, why: str, since_us: int) -> None:
        """Close a session whose client has done nothing to end its connection, which it had `since_us`: it loses that,
        and nothing else."""
        if session.will is None and not session.persistent:
            self.close(session, why, rc.SERVER_SHUTTING_DOWN)
            return
        try:
            self._append_closed(session, why, rc.SERVER_SHUTTING_DOWN)
            self._absences.await_after_stop(session, since_us)
        except Exception:
            again = Alarm(partial(self.close_again, session, why, rc.SERVER_SHUTTING_DOWN))
            self._timers.schedule(self._clock.mono_ms + RETRY_MS, again)
            raise
