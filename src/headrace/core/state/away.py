"""Shared subscriptions that are at home in other shards, as the shard of their members holds them: part of the fold.

A session says by its own subscriptions which groups it is a member of; the queues of those at home elsewhere are there.
What such a group has lent to a session is a *loan*. At QoS 1 it is a packet id in memory and no more: whatever happens to
it, its home gives the entry out again. At QoS 2 the records `lent`, `received`, `completed` and `settled`
(`stream_record`) say under which packet id it is the session's and how far it has come; each replays on its own however
often, since a loan goes through them in this order once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mypy_extensions import i64, mypyc_attr

from headrace.core.homes import Homes
from headrace.core.records.stream_record import (
    LENT,
    LENT_COMPLETED,
    LENT_SETTLED,
    StreamRecord,
)
from headrace.core.state.groups import Borrower, membership_in, membership_of
from headrace.mqtt.topics import split_share

if TYPE_CHECKING:
    from headrace.core.records.message import Message
    from headrace.core.state.session import Session

Key = tuple[int, int, int]  # of a loan at QoS 2: home, group, serial


class Loan:
    """An entry of a group at home in another shard that a session here has, or is to have when there is room.

    `draw` is the packet id that its home drew it under, `connection` the one of the session that it came on. `message` is
    there until it is sent. `placed`: it takes a place of what its home may lend on that connection.
    """

    def __init__(self, home: int, group: int, serial: int, incarnation: int, qos: int) -> None:
        self.home = home
        self.group = group
        self.serial = serial
        self.incarnation = incarnation
        self.qos = qos
        self.packet_id = 0
        self.draw = 0
        self.connection = 0
        self.placed = False
        self.first = 0  # the first byte of its PUBLISH
        self.ids = b""
        self.message: Message | None = None
        self.counted = False  # it takes a place of the window of the connection there is
        self.received = False
        self.released = False  # PUBREL was sent on the connection there is
        self.completed = False

    @property
    def key(self) -> Key:
        return (self.home, self.group, self.serial)

    def row(self) -> list[int]:
        """Return what a snapshot keeps of a loan at QoS 2."""
        done = 2 if self.completed else int(self.received)
        return [self.home, self.group, self.serial, self.incarnation, self.packet_id, done]


class Lender:
    """What a session tells one home of groups on one of its connections: how many entries it may be lent in all."""

    def __init__(self, connection: int, granted: int) -> None:
        self.connection = connection
        self.granted = granted
        self.withheld = 0  # places of what was given back for want of room: granted when there is some


@mypyc_attr(allow_interpreted_subclasses=True)
class AwayListener:
    """Hears, of records that are durable, which sessions are members of groups that are at home elsewhere: this one tells
    nobody."""

    def joined(self, session: Session, key: str, home: int) -> None:
        """Note that a session is a member, or has subscribed anew."""

    def left(self, session: Session, key: str, home: int) -> None:
        """Note that a session is a member no more."""

    def ended(self, session: Session) -> None:
        """Note that a session is gone."""

    def detached(self, session: Session, borrowing: Borrowing) -> None:
        """Note that the client of a session is connected no more."""


class Borrowing(Borrower):
    """What one session has of groups at home elsewhere: its filters with their homes, its loans by packet id, those at
    QoS 2 that are not settled, what has come and waits for room, and whom it has told that it is there."""

    def __init__(self, session: Session, away: Away) -> None:
        self.session = session
        self.filters: dict[str, int] = {}
        self.loans: dict[int, Loan] = {}
        self.unsettled: dict[Key, Loan] = {}
        self.arrived: deque[Loan] = deque()
        self.lenders: dict[int, Lender] = {}
        self.used: i64 = 0  # loans that take a place of the window
        self._away = away

    def in_flight(self) -> i64:
        return self.used

    def ids_taken(self) -> int:
        return len(self.loans)

    def has_id(self, packet_id: int) -> bool:
        return packet_id in self.loans

    def detach(self) -> None:
        """Forget what was for the connection: QoS 1 goes back to its homes, QoS 2 stays."""
        self._away.listener.detached(self.session, self)
        for loan in list(self.loans.values()):
            loan.counted = loan.released = False
            loan.message = None
            if loan.qos == 1:
                del self.loans[loan.packet_id]
        self.arrived.clear()
        self.lenders = {}
        self.used = 0


class AllAtHome:
    """The shared subscriptions of a shard alone: all of them are at home there, so that it has no sessions that are
    members elsewhere, and no loans."""

    def __init__(self) -> None:
        self.sessions: dict[int, Session] = {}  # by incarnation
        self.loans: dict[Key, Loan] = {}  # at QoS 2, until they are settled

    def join(self, session: Session, topic_filter: str) -> bool:
        """Note a member of a group at home elsewhere; False: the group is at home here."""
        return False

    def leave(self, session: Session, topic_filter: str) -> bool:
        """Take out a member of a group at home elsewhere; False: it is none."""
        return False

    def set_aside(self, session: Session) -> bool:
        """Take what is elsewhere out of the subscriptions of a session whose end is on its way to the journal: `ended`
        comes when it is there. False: there is nothing."""
        return False

    def ended(self, session: Session) -> None:
        """Forget a session whose end is durable, with its loans: its homes are told once for all of them."""

    def replay(self, record: StreamRecord) -> None:
        """Apply a record about loans; of any other kind it changes nothing."""

    def started(self, sessions: Mapping[int, Session]) -> None:
        """Give the loans to their sessions, when all that was journaled is replayed."""

    def rows(self) -> list[list[int]]:
        """Return a row for each loan at QoS 2, for a snapshot."""
        return [loan.row() for loan in self.loans.values()]

    def restore(self, rows: list[list[int]]) -> None:
        """Put back what `rows` gave."""


class Away(AllAtHome):
    """The sessions of one shard that are members of groups at home in others, and their loans at QoS 2."""

    def __init__(self, homes: Homes, shard: int) -> None:
        super().__init__()
        self.listener = AwayListener()
        self._homes = homes
        self._shard = shard

    def home_of(self, tenant: str, topic_filter: str) -> int:
        """Return the home of a shared subscription if it is another shard, else -1."""
        name, inner = split_share(topic_filter)
        home = self._homes.of_group(tenant, name, inner)
        return -1 if home == self._shard else home

    def borrowing(self, session: Session) -> Borrowing:
        """Return what a session has of groups elsewhere, made on first use."""
        membership = membership_in(session)
        found = membership.borrower
        if not isinstance(found, Borrowing):
            found = Borrowing(session, self)
            membership.borrower = found
            self.sessions[session.incarnation] = session
        return found

    # The fold

    def join(self, session: Session, topic_filter: str) -> bool:
        home = self.home_of(session.tenant.name, topic_filter)
        if home < 0:
            return False
        self.borrowing(session).filters[topic_filter] = home
        self.listener.joined(session, topic_filter, home)
        return True

    def leave(self, session: Session, topic_filter: str) -> bool:
        borrowing = borrowing_of(session)
        if borrowing is None or topic_filter not in borrowing.filters:
            return False
        home = borrowing.filters.pop(topic_filter)
        self.listener.left(session, topic_filter, home)
        return True

    def set_aside(self, session: Session) -> bool:
        borrowing = borrowing_of(session)
        if borrowing is None:
            return False
        if session.subscriptions is not None:
            for topic_filter in borrowing.filters:
                session.subscriptions.pop(topic_filter, None)
        return True

    def ended(self, session: Session) -> None:
        if self.sessions.pop(session.incarnation, None) is None:
            return
        borrowing = borrowing_of(session)
        for key in {} if borrowing is None else borrowing.unsettled:
            self.loans.pop(key, None)
        self.listener.ended(session)

    def lend(self, borrowing: Borrowing, loan: Loan) -> None:
        """Note a loan at QoS 2 of a session, until it is settled."""
        self.loans[loan.key] = borrowing.unsettled[loan.key] = loan

    def settle(self, loan: Loan) -> None:
        """Forget a loan of which its home knows that it is completed."""
        self.loans.pop(loan.key, None)
        session = self.sessions.get(loan.incarnation)
        borrowing = None if session is None else borrowing_of(session)
        if borrowing is not None:
            borrowing.unsettled.pop(loan.key, None)

    def replay(self, record: StreamRecord) -> None:
        numbers = record.numbers()
        width = 6 if record.subkind == LENT else 4
        if LENT <= record.subkind <= LENT_SETTLED and len(numbers) % width == 0:
            for at in range(0, len(numbers), width):
                self._replay_one(record.subkind, numbers[at : at + width])

    def _replay_one(self, subkind: int, row: list[int]) -> None:
        key = (row[0], row[1], row[2])
        if subkind == LENT and key not in self.loans:
            self._restore([*row[:3], row[4], row[3] & 0xFFFF, 0])
        elif subkind == LENT_SETTLED:
            self.loans.pop(key, None)
        elif subkind != LENT and key in self.loans:
            self.loans[key].received = True
            if subkind == LENT_COMPLETED:
                self.loans[key].completed = True

    def _restore(self, row: list[int]) -> None:
        loan = Loan(row[0], row[1], row[2], row[3], 2)
        loan.packet_id = row[4]
        loan.received = row[5] > 0
        loan.completed = row[5] > 1
        self.loans[loan.key] = loan

    def started(self, sessions: Mapping[int, Session]) -> None:
        for loan in list(self.loans.values()):
            session = sessions.get(loan.incarnation)
            if session is None:
                del self.loans[loan.key]
                continue
            borrowing = self.borrowing(session)
            borrowing.unsettled[loan.key] = loan
            if not loan.completed:
                borrowing.loans[loan.packet_id] = loan

    def restore(self, rows: list[list[int]]) -> None:
        for row in rows:
            self._restore(row)


def borrowing_of(session: Session) -> Borrowing | None:
    """Return what a session has of groups elsewhere; None: it has never been in one."""
    membership = membership_of(session)
    found = None if membership is None else membership.borrower
    return found if isinstance(found, Borrowing) else None
