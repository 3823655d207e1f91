"""Sessions whose client is away: when their will is due, when their time is over, and how they end.

Runs on the loop. Also after a start of the broker, when all of them are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.core.commit import GroupCommit
from headrace.core.inbound.wills import Wills
from headrace.core.outbound.delivery import Delivery
from headrace.core.ports.link import WorkerPort
from headrace.core.ports.timers import Timer, Timers
from headrace.core.ports.witness import Testimony
from headrace.core.records.elapsed import CLOCK_SET_US, elapsed_us
from headrace.core.records.event import BrokerStarted, SessionEnded
from headrace.core.records.record import DROP_SESSION_ENDED
from headrace.core.state.groups import groups_of
from headrace.core.state.session import NEVER_EXPIRES, Session
from headrace.core.state.state import Fold

if TYPE_CHECKING:
    from headrace.core.state.groups import Group
    from headrace.core.state.tenant import Tenant

ASSIGNED_PREFIX: Final = "headrace-"  # of the client ids that the broker assigns


class Absences:
    """Waits for clients that are away, and ends sessions."""

    def __init__(
        self,
        fold: Fold,
        commit: GroupCommit,
        delivery: Delivery,
        timers: Timers,
        wills: Wills,
        testimony: Testimony,
        worker: WorkerPort,
    ) -> None:
        self.expired = 0  # sessions whose time was over
        self._awaited: list[tuple[Session, bool]] = []  # since the start; whether it was open until then
        self._fold = fold
        self._commit = commit
        self._delivery = delivery
        self._timers = timers
        self._wills = wills
        self.clock = worker.clock
        self._settings = worker.settings
        self._homes = worker.homes
        self.testimony = testimony

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
        clock = self.clock
        now_ms = clock.mono_ms
        if timer is None or timer.due_ms > now_ms:
            return False
        may_be_in_time = timer.due_ms > clock.waits_since_ms(now_ms)
        if may_be_in_time and isinstance(timer, _Absence) and now_ms < timer.expires_ms:
            return False
        timer.fire(now_ms)
        timer.cancel()  # if that raised, it is tried again when the timer comes to it
        return True

    def await_return(self, session: Session) -> None:
        """Start the timer of a closed session: its will delay or its expiry, whichever is first."""
        gone_ms = elapsed_us(session.closed_at_us, self.clock.now_us) // 1000
        begin_ms = self.clock.mono_ms
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
        self._wills.fire(session)
        if session.expiry_s == NEVER_EXPIRES:
            return
        closed_us, now_us = session.closed_at_us, self.clock.now_us
        was_unset = (
            closed_us < CLOCK_SET_US <= now_us
        )  # the time of day says nothing, the other clock has had its time
        if self.clock.mono_ms < expires_ms - 200:
            self._await(session, expires_ms, expires_ms)
        elif was_unset or now_us - closed_us >= session.expiry_s * 1_000_000 - 200_000:
            self.expired += 1
            self.end(session, "expired")
        else:
            self.await_return(session)

    def end(self, session: Session, reason: str, code: int = -1) -> None:
        """End a session; what its queue still held is counted as dropped (decision 11: counted drops)."""
        self._wills.fire(session)
        queue = session.queue
        dropped = 0 if queue is None or not session.persistent else queue.unfinished()
        if dropped:
            session.count_drop(DROP_SESSION_ENDED, dropped)
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None
        self._commit.append(SessionEnded.at(self.clock.now_us, session.named(), dropped, reason, code))
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

    # The start of the broker

    def start(self) -> None:
        """Begin after recovery: whoever was connected is not, and may come back for a while; what was due while the
        broker was down is due now (decision 15: sessions after a crash; ADR 0029)."""
        event = BrokerStarted.at(self.clock.now_us)
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
        """Hold the will of a session, or publish it, and start the timer. `was_open`: the session had its connection
        until the broker ended."""
        self._hold_will(session)
        self._await_with_grace(session, was_open)
        if session.timer is None:
            return
        if session.will is None or not self._settle_absence(session):
            self._awaited.append((session, was_open))

    def await_after_stop(self, session: Session, since_us: int) -> None:
        """Start the timer of a session whose connection, which it had `since_us`, has ended since the node stops that has
        its socket: as after a start, its client has the grace to be back by another way (decision 15: sessions after a
        crash)."""
        self._hold_will(session, since_us)
        self._await_with_grace(session, True)

    def _hold_will(self, session: Session, since_us: int = 0) -> None:
        """Publish the will of a session if nobody can come back for it; else hold it if it is due."""
        if session.will is not None and self._cannot_return(session):
            self._wills.fire(session)
        will = session.will
        if will is not None and (will.delay_s == 0 or not session.persistent):
            self._wills.hold(session, since_us)

    def _cannot_return(self, session: Session) -> bool:
        """Return whether nobody has reason to connect with this client id again: the broker made it up, and nothing is
        kept under it. Where there are other shards these may have let in the same client meanwhile: then its will is
        held, as any other."""
        assigned = session.client_id.startswith(ASSIGNED_PREFIX)
        return assigned and not session.persistent and self._homes.shards == 1

    def _await_with_grace(self, session: Session, was_open: bool) -> None:
        """Start the timer of a session after a start. The grace is for whoever had no chance to be back in time: it comes
        before the expiry of sessions that were open, and before all wills, but adds nothing to a delay that was over."""
        begin_ms, grace_ms = self.clock.mono_ms, self._settings.restart_grace_ms
        gone_ms = 0 if was_open else elapsed_us(session.closed_at_us, self.clock.now_us) // 1000
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


class _Absence(Timer):
    """Runs when the will delay or the expiry of a closed session is over."""

    def __init__(self, absences: Absences, session: Session, expires_ms: int) -> None:
        super().__init__()
        self._absences = absences
        self._session = session
        self.expires_ms = expires_ms

    def fire(self, now_ms: int) -> None:
        self._absences.absence_over(self._session, self.expires_ms)
