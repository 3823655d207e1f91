"""What groups at home in other shards lend to the sessions of this one: sent, acknowledged, given back.

Runs on the loop. Entries come with their payload. At QoS 1 one is sent at once and journaled nowhere here; at QoS 2 the
record that binds it to a packet id comes first, and its home hears that it is completed when that is durable. What finds
no room in the client's window waits, and goes back after a second; its home is granted a place for it when there is room.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from headrace.core.commit import Deferred, GroupCommit
from headrace.core.outbound.delivery import Delivery, is_too_large
from headrace.core.outbound.group_delivery import Lending
from headrace.core.ports.link import Link, WorkerPort
from headrace.core.records.record import DROP_EXPIRED, DROP_PERMISSION, DROP_REFUSED, DROP_TOO_LARGE
from headrace.core.records.stream_record import (
    LENT,
    LENT_COMPLETED,
    LENT_RECEIVED,
    LENT_SETTLED,
    stream_record_of,
)
from headrace.core.shards import group_frames as frames
from headrace.core.shards.group_frames import DONE, NOT_ALLOWED, UNSENT
from headrace.core.shards.peer import Frame, Hearing, Wire
from headrace.core.state.away import Away, Borrowing, Loan, borrowing_of
from headrace.core.state.free_ids import free_draw_id, has_free_id
from headrace.core.state.session import Session
from headrace.core.state.state import Fold
from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc

SLOW_AFTER_MS: Final = 1000  # what has found no room for so long goes back
_DUP: Final = 8


class GroupLoans(Lending):
    """The loans of one shard's sessions. `wires` are those on which a home may be spoken to."""

    def __init__(
        self, away: Away, fold: Fold, commit: GroupCommit, delivery: Delivery, worker: WorkerPort
    ) -> None:
        self.wires: dict[int, Wire] = {}
        self._away = away
        self._fold = fold
        self._commit = commit
        self._delivery = delivery
        self._worker = worker
        self._high: i64 = worker.settings.write_buffer_high
        self._waiting: dict[Session, int] = {}  # for room, since when

    # What comes

    def hears(self, of_home: Hearing[Wire]) -> None:
        """Say what is done with what homes say of entries."""
        of_home.on(frames.Drawn, self._drawn)
        of_home.on(frames.Settled, self._settled)

    def _drawn(self, wire: Wire, frame: frames.Drawn) -> None:
        """Take what a home has drawn for a session here."""
        home = wire.far
        session = self._fold.by_incarnation.get(frame.incarnation)
        if session is None:
            return  # it has ended, which its home hears, or has heard
        borrowing = self._away.borrowing(session)
        lender = borrowing.lenders.get(home)
        current = lender is not None and lender.connection == frame.connection
        qos = frame.first >> 1 & 3
        if qos == 0:
            if current:
                self._delivery.offer_qos0(session, frame.message, bool(frame.first & 1), frame.ids)
            return
        known = self._away.loans.get((home, frame.group, frame.serial)) if qos == 2 else None
        loan = Loan(home, frame.group, frame.serial, frame.incarnation, qos) if known is None else known
        loan.draw = frame.draw
        loan.connection = frame.connection
        loan.placed = current
        if loan.completed:
            self._commit.defer(_Completed(self, session, loan))
        elif current:
            if not loan.counted:  # else it is on its way to the client, or there
                self._arrived(session, borrowing, loan, frame)
        elif known is None and qos == 2:
            self._tell(session, loan, UNSENT)

    def _arrived(self, session: Session, borrowing: Borrowing, loan: Loan, frame: frames.Drawn) -> None:
        """Have an entry wait for its turn, which may have come."""
        loan.first = frame.first & 1 | loan.qos << 1
        if loan.packet_id or (loan.qos == 1 and frame.first & _DUP):
            loan.first |= _DUP  # at QoS 2 only this shard knows whether the client may have had it
        loan.ids = frame.ids
        loan.message = frame.message
        borrowing.arrived.append(loan)
        link = session.link
        if link is not None:
            self.pump(session, link)
        if borrowing.arrived and session not in self._waiting:
            self._waiting[session] = self._worker.clock.mono_ms

    def _settled(self, wire: Wire, frame: frames.Settled) -> None:
        """Forget a loan that its home knows to be completed."""
        loan = self._away.loans.get((wire.far, frame.group, frame.serial))
        if loan is not None and loan.completed:
            self._away.settle(loan)
            self._note(LENT_SETTLED, loan, 0)

    def tell_completed(self, home: int) -> None:
        """Tell a home on a new wire of what it may not have heard: it answers each of them."""
        for loan in self._away.loans.values():
            session = self._fold.by_incarnation.get(loan.incarnation)
            if loan.home == home and loan.completed and session is not None:
                self._commit.defer(_Completed(self, session, loan))

    def cut(self, home: int) -> None:
        """Note that the wire to a home has ended: what it has lent at QoS 1 is given out again."""
        self.wires.pop(home, None)
        for session in self._away.sessions.values():
            borrowing = borrowing_of(session)
            if borrowing is not None:
                borrowing.lenders.pop(home, None)
                for loan in [loan for loan in borrowing.arrived if loan.home == home]:
                    borrowing.arrived.remove(loan)

    # What is sent

    def pump(self, session: Session, link: Link) -> None:
        """Send what waits, as far as there is room, and grant places again that were given back."""
        borrowing = borrowing_of(session)
        if borrowing is None or not borrowing.lenders:
            return
        while borrowing.arrived and self._has_room(session, link):
            try:
                self._lend(session, link, borrowing, borrowing.arrived.popleft())
            except Exception as error:  # noqa: BLE001  it costs this member its connection: its home lends it again
                self._worker.contain("group", link, error)
                return
        if not borrowing.arrived:
            self._waiting.pop(session, None)
        if self._has_room(session, link):
            for home, lender in borrowing.lenders.items():
                if lender.withheld:
                    lender.granted += lender.withheld
                    lender.withheld = 0
                    self._say(home, frames.Granted(session.incarnation, lender.connection, lender.granted))

    def _has_room(self, session: Session, link: Link) -> bool:
        if not link.ready or link.paused or link.closed or session.window_used() >= link.window:
            return False
        if link.buffered() > self._high:
            self._delivery.feed_later(session, link)
            return False
        return has_free_id(session)

    def _lend(self, session: Session, link: Link, borrowing: Borrowing, loan: Loan) -> None:
        message = loan.message
        if message is None or loan.completed:  # PUBREC, or a refusal, has come for what it was sent before
            return
        if link.rights is not None and not link.rights.may_receive(message.topic):
            self._refuse(session, borrowing, loan)
            return
        if not loan.first & _DUP and message.expired(self._worker.clock.now_us):
            self._drop(
                session, borrowing, loan, DROP_EXPIRED
            )  # what the client may have is not taken from it
            return
        if is_too_large(link, message, loan.qos, loan.ids):
            self._drop(session, borrowing, loan, DROP_TOO_LARGE)
            return
        self._count(borrowing, loan)
        is_new = loan.packet_id == 0
        if is_new:
            loan.packet_id = free_draw_id(session)
            borrowing.loans[loan.packet_id] = loan
        if loan.qos == 1:
            self.send(session, link, loan)
            return
        if is_new:
            self._away.lend(borrowing, loan)
            self._note(LENT, loan, loan.incarnation)
        self._commit.defer(_Bound(self, session, link, loan))

    def _refuse(self, session: Session, borrowing: Borrowing, loan: Loan) -> None:
        """Give back what the client may not read; what it may have had goes to nobody else."""
        if loan.packet_id == 0:
            self._tell(session, loan, NOT_ALLOWED)
        else:
            self._drop(session, borrowing, loan, DROP_PERMISSION)

    def _drop(self, session: Session, borrowing: Borrowing, loan: Loan, reason: int) -> None:
        """Finish what the client does not get, and nobody else."""
        if reason == DROP_EXPIRED:  # of a session that counts what the journal says of its queue
            session.tenant.count_drop(reason, 1)
        else:
            session.count_drop(reason, 1)
        if loan.qos == 2:
            self._complete(session, borrowing, loan)
        else:
            self._tell(session, loan, DONE)

    def send(self, session: Session, link: Link, loan: Loan) -> None:
        """Write the PUBLISH of a loan."""
        message, loan.message = loan.message, None
        if message is None:
            return
        try:
            self._delivery.write(link, message, loan.qos, loan.packet_id, 0x30 | loan.first, loan.ids)
        except Exception as error:  # noqa: BLE001  it may be half written: this member's connection goes, no other
            self._worker.contain("group", link, error)
            return
        counters = session.tenant.counters
        counters.publishes_sent += 1
        counters.bytes_sent += len(message.payload)

    def resumed(self, session: Session, link: Link) -> None:
        """Send PUBREL again to a client that is back; its homes send the other entries at QoS 2 again."""
        borrowing = borrowing_of(session)
        if borrowing is None:
            return
        for loan in borrowing.loans.values():
            if loan.received:
                self.release(link, borrowing, loan)

    def _count(self, borrowing: Borrowing, loan: Loan) -> None:
        """Have a loan take a place of the client's window."""
        if not loan.counted:
            loan.counted = True
            borrowing.used += 1

    def release(self, link: Link, borrowing: Borrowing, loan: Loan) -> None:
        """Send PUBREL of a loan, once on a connection: its packet id may be another one's when a second PUBCOMP comes."""
        loan.message = None
        if not (loan.released or loan.completed):
            self._count(borrowing, loan)
            loan.released = True
            link.pubrel(loan.packet_id)

    # What the client answers

    def puback(self, session: Session, packet_id: int, reason_code: int) -> bool:
        borrowing, loan = _found(session, packet_id)
        if borrowing is None or loan is None:
            return False
        if loan.qos != 1:
            raise ProtocolError(rc.PROTOCOL_ERROR, "PUBACK for a QoS 2 message")
        self._finish(session, borrowing, loan, reason_code)
        return True

    def pubrec(self, session: Session, link: Link, packet_id: int, reason_code: int) -> bool:
        borrowing, loan = _found(session, packet_id)
        if borrowing is None or loan is None:
            return False
        if loan.qos != 2:
            raise ProtocolError(rc.PROTOCOL_ERROR, "PUBREC for a QoS 1 message")
        if reason_code >= 0x80:
            self._finish(session, borrowing, loan, reason_code)
            return True
        self._note(LENT_RECEIVED, loan, 0)
        self._commit.defer(_Released(self, session, link, borrowing, loan))
        return True

    def pubcomp(self, session: Session, packet_id: int) -> bool:
        borrowing, loan = _found(session, packet_id)
        if borrowing is None or loan is None:
            return False
        if not loan.received:
            raise ProtocolError(rc.PROTOCOL_ERROR, "PUBCOMP before PUBREL")
        self._finish(session, borrowing, loan, 0)
        return True

    def _finish(self, session: Session, borrowing: Borrowing, loan: Loan, reason_code: int) -> None:
        if reason_code >= 0x80:
            session.count_drop(DROP_REFUSED, 1)
        if loan.qos == 2:
            self._complete(session, borrowing, loan)
        else:
            self._release(borrowing, loan)
            self._tell(session, loan, DONE)
        self._delivery.pump(session)

    def _complete(self, session: Session, borrowing: Borrowing, loan: Loan) -> None:
        """Note that a loan at QoS 2 is over; its home hears it when that is durable."""
        self._release(borrowing, loan)
        loan.completed = True
        self._note(LENT_COMPLETED, loan, 0)
        self._commit.defer(_Completed(self, session, loan))

    def _release(self, borrowing: Borrowing, loan: Loan) -> None:
        if borrowing.loans.pop(loan.packet_id, None) is not None and loan.counted:
            loan.counted = False
            borrowing.used -= 1

    # What homes are told

    def completed(self, session: Session, loan: Loan) -> None:
        """Tell the home of a loan that it is completed, durably."""
        self._tell(session, loan, DONE)

    def _tell(self, session: Session, loan: Loan, outcome: int) -> None:
        """Say what became of a draw. If it came on the connection there is, that gets a place more, however often this
        is said."""
        borrowing = borrowing_of(session)
        lender = None if borrowing is None else borrowing.lenders.get(loan.home)
        granted = 0
        if lender is not None and lender.connection == loan.connection:
            if loan.placed and outcome == DONE:
                lender.granted += 1
            elif loan.placed:
                lender.withheld += 1
            loan.placed = False
            granted = lender.granted
        numbers = (loan.incarnation, loan.connection, granted, loan.group, loan.serial)
        self._say(loan.home, frames.Finished(*numbers, loan.draw, outcome, loan.qos))

    def _say(self, home: int, frame: Frame) -> None:
        wire = self.wires.get(home)
        if wire is not None:
            wire.say(frame)

    def _note(self, subkind: int, loan: Loan, incarnation: int) -> None:
        numbers = [loan.home, loan.group, loan.serial, 0]
        if subkind == LENT:
            numbers = [*numbers[:3], loan.packet_id | loan.qos << 16, incarnation, 0]
        self._commit.append(stream_record_of(subkind, self._worker.clock.now_us, numbers))

    # Time

    def on_timer(self) -> None:
        """Give back what has waited for room for long."""
        now_ms = self._worker.clock.mono_ms
        for session in [who for who, since in self._waiting.items() if now_ms - since >= SLOW_AFTER_MS]:
            del self._waiting[session]
            borrowing = borrowing_of(session)
            if borrowing is None:
                continue
            for loan in [loan for loan in borrowing.arrived if loan.packet_id == 0]:
                borrowing.arrived.remove(loan)
                self._tell(session, loan, UNSENT)

    def detached(self, session: Session, borrowing: Borrowing) -> None:
        """Give back what was never sent to a client that is gone, and tell its homes of that."""
        self._waiting.pop(session, None)
        for loan in borrowing.arrived:
            if loan.packet_id == 0:
                self._tell(session, loan, UNSENT)
        for home, lender in borrowing.lenders.items():
            self._say(home, frames.Absent(session.incarnation, lender.connection))


def _found(session: Session, packet_id: int) -> tuple[Borrowing | None, Loan | None]:
    borrowing = borrowing_of(session)
    return borrowing, None if borrowing is None else borrowing.loans.get(packet_id)


class _Bound(Deferred):
    """Sends an entry at QoS 2 once its packet id is durable."""

    def __init__(self, loans: GroupLoans, session: Session, link: Link, loan: Loan) -> None:
        super().__init__(link, 0 if loan.message is None else loan.message.size)
        self._loans = loans
        self._session = session
        self._link = link
        self._loan = loan

    def run(self) -> None:
        if not self._loan.completed:  # of a connection that ended, or of one with PUBREC, the message is gone
            self._loans.send(self._session, self._link, self._loan)


class _Released(Deferred):
    """Sends PUBREL once PUBREC of a loan is durable."""

    def __init__(
        self, loans: GroupLoans, session: Session, link: Link, borrowing: Borrowing, loan: Loan
    ) -> None:
        super().__init__(link)
        self._loans = loans
        self._session = session
        self._link = link
        self._borrowing = borrowing
        self._loan = loan

    def run(self) -> None:
        self._loan.received = True
        if self._session.link is self._link:
            self._loans.release(self._link, self._borrowing, self._loan)


class _Completed(Deferred):
    """Tells a home of a loan that is completed, once that is durable."""

    def __init__(self, loans: GroupLoans, session: Session, loan: Loan) -> None:
        super().__init__()
        self._loans = loans
        self._session = session
        self._loan = loan

    def run(self) -> None:
        self._loans.completed(self._session, self._loan)
