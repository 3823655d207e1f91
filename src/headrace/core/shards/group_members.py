"""Members of shared subscriptions that are at home in other shards, as the shard of the members sees them.

Runs on the loop. What a session is subscribed to here, durably, is told to the homes of its groups, and told again on
each new wire; SUBACK waits until a home has it in its journal. A home that does not answer within three seconds is out of
reach: then that filter is refused, and a new member is none. Others are refused at once, until it answers again. What the
groups lend to the sessions is in `group_loans`.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final

from headrace.core.commit import GroupCommit
from headrace.core.outbound.delivery import Delivery
from headrace.core.outbound.group_delivery import Lending
from headrace.core.ports.link import Link, WorkerPort
from headrace.core.records.event import SubscriptionRow
from headrace.core.shards import group_frames as frames
from headrace.core.shards.enrolments import Enrolments
from headrace.core.shards.group_loans import GroupLoans
from headrace.core.shards.group_wires import GroupWires
from headrace.core.shards.peer import Hearing, Wire
from headrace.core.state.away import Away, AwayListener, Borrowing, Lender, borrowing_of
from headrace.core.state.session import Session
from headrace.core.state.state import Fold

PART_BYTES: Final = 256 << 10  # of filters in one frame, about
GRANTED_AT_ONCE: Final = 32  # entries that a home may lend to one connection, unless its window is smaller


class GroupMembers(Lending):
    """The members of one shard whose groups are at home elsewhere."""

    def __init__(
        self,
        shard: int,
        fold: Fold,
        commit: GroupCommit,
        delivery: Delivery,
        worker: WorkerPort,
        speaker: GroupWires,
        answer_within_ms: int,
    ) -> None:
        self.away = Away(worker.homes, shard)
        fold.away = self.away
        self.loans = GroupLoans(self.away, fold, commit, delivery, worker)
        self.enrolments = Enrolments(self.away, commit, worker, answer_within_ms)
        self._fold = fold
        self._commit = commit
        self._worker = worker
        self._speaker = speaker
        self._wires = self.loans.wires
        self._number = 0
        self._connection = 0
        # By home and incarnation: the filters of which a home has not said yet that it knows, with the number under which
        # it was told of each last.
        self._pending: dict[tuple[int, int], dict[str, int]] = {}
        self._unanswered: dict[int, tuple[int, int, list[str]]] = {}  # by number: home, incarnation, filters
        self._enlisting: dict[int, deque[Session]] = {}  # by home: who is still to be told of on its wire
        # Who has come or gone since the homes were told, by home and incarnation: all of one pass is said at once.
        self._changed: dict[tuple[int, int], _Change] = {}
        self._told: dict[
            int, set[int]
        ] = {}  # by incarnation: the homes that know of it, on the wire there is

    def begin(self) -> None:
        """Begin with the members that the journal has left: homes are told of them on each wire."""
        self.away.listener = _Listener(self)

    # Wires

    def welcomed(self, home: int, wire: Wire) -> None:
        """Tell a home on a new wire of all members here, and which of them are connected: as it takes that."""
        self._wires[home] = wire
        self._enlisting[home] = deque(self._concerned(home))
        self._enlist(home, wire)

    def _enlist(self, home: int, wire: Wire) -> None:
        """Go on with telling a home of all members, unless so much waits on the wire that the rest can wait too."""
        sessions = self._enlisting[home]
        while sessions:
            if wire.full:
                return
            session = sessions.popleft()
            if not session.ended and not self._was_told(session, home):
                self._enrol(session, home)
        del self._enlisting[home]
        wire.say(frames.Enlisted())
        for session in self._concerned(home):
            link, borrowing = session.link, borrowing_of(session)
            if link is not None and link.ready and borrowing is not None and home not in borrowing.lenders:
                self._present(session, link, home)
        self.loans.tell_completed(home)

    def _was_told(self, session: Session, home: int) -> bool:
        """Return whether a home was told of all that a session is subscribed to there, on the wire there is."""
        return home in self._told.get(session.incarnation, ())

    def needs(self, home: int) -> bool:
        """Return whether there is somebody whom a home has to know."""
        return len(self._concerned(home)) > 0

    def _concerned(self, home: int) -> list[Session]:
        """Return the sessions that have to do with groups at one home."""
        lent = {loan.incarnation for loan in self.away.loans.values() if loan.home == home}
        return [
            session
            for session in self.away.sessions.values()
            if session.incarnation in lent or self._is_member(session, home)
        ]

    def _is_member(self, session: Session, home: int) -> bool:
        borrowing = borrowing_of(session)
        return borrowing is not None and home in borrowing.filters.values()

    def cut(self, home: int) -> None:
        """Note that there is no wire to a home any more."""
        self.enrolments.silent.discard(home)  # on the next wire it may answer
        self.loans.cut(home)
        for homes in self._told.values():
            homes.discard(home)
        self._enlisting.pop(home, None)
        self._pending = {key: entry for key, entry in self._pending.items() if key[0] != home}
        self._unanswered = {number: key for number, key in self._unanswered.items() if key[0] != home}

    def hears(self, of_home: Hearing[Wire]) -> None:
        """Say what is done with what a home says on the wire to it."""
        self.loans.hears(of_home)
        of_home.on(frames.Asked, self._asked)
        of_home.on(frames.Enrolled, self._note_enrolled)

    def _asked(self, wire: Wire, frame: frames.Asked) -> None:
        self._commit.then(None, partial(self.answer, wire.far, frame.incarnation))

    def _note_enrolled(self, wire: Wire, frame: frames.Enrolled) -> None:
        """Note that a home has what it was told under a number, unless it was told something newer since."""
        self.enrolments.silent.discard(wire.far)
        number = frame.number
        home, incarnation, filters = self._unanswered.pop(number, (0, 0, []))
        pending = self._pending.get((home, incarnation), {})
        for topic_filter in filters:
            if pending.get(topic_filter) == number:
                self._forget_pending(home, incarnation, topic_filter)
                if (incarnation, topic_filter) not in self.enrolments.leaving:
                    self.enrolments.enrolled.add((incarnation, topic_filter))
        if filters:
            self.enrolments.release(incarnation)

    def _forget_pending(self, home: int, incarnation: int, topic_filter: str) -> None:
        """Take no answer that is on its way for one about the newest state of a filter."""
        pending = self._pending.get((home, incarnation))
        if pending is not None and pending.pop(topic_filter, None) is not None and not pending:
            del self._pending[home, incarnation]

    # Who is a member

    def _enrol(self, session: Session, home: int) -> None:
        """Tell a home all that a session is subscribed to there."""
        wire, borrowing = self._wires.get(home), borrowing_of(session)
        if wire is None or borrowing is None:
            self._speaker.meet(home)
            return
        keys = [key for key, where in borrowing.filters.items() if where == home]
        self._told.setdefault(session.incarnation, set()).add(home)
        parts = _parts(keys)
        for part in parts[:-1]:
            self._say(wire, session, home, frames.CONTINUES, part, [])
        self._say(wire, session, home, frames.LIVES, parts[-1], [])

    def _tell_change(self, session: Session, home: int, changed: list[str]) -> None:
        """Tell a home which of these filters a session is subscribed to there now, and which no more."""
        wire, borrowing = self._wires.get(home), borrowing_of(session)
        if wire is None or borrowing is None or not self._was_told(session, home):
            self._enrol(session, home)
            return
        for part in _parts(changed):
            keys = [key for key in part if borrowing.filters.get(key) == home]
            left = [key for key in part if borrowing.filters.get(key) != home]
            self._say(wire, session, home, frames.CHANGED, keys, left)

    def _say(
        self, wire: Wire, session: Session, home: int, life: int, keys: list[str], left: list[str]
    ) -> None:
        """Say an Enrol, which is to be answered."""
        self._number += 1
        number, incarnation = self._number, session.incarnation
        self._unanswered[number] = (home, incarnation, keys)
        if keys:
            self._pending.setdefault((home, incarnation), {}).update(dict.fromkeys(keys, number))
        rows = [self._row(session, key) for key in keys]
        wire.say(frames.Enrol(number, incarnation, life, session.tenant.name, rows, left))

    def answer(self, home: int, incarnation: int) -> None:
        """Say what has become of a session that a home knows and was not told of: all records before are durable."""
        session, wire = self._fold.by_incarnation.get(incarnation), self._wires.get(home)
        if wire is None:
            return
        if session is not None and self._concerns(session, home):
            self._enrol(session, home)
            return
        life = frames.ENDED if session is None else frames.HAS_NOTHING
        self._told.get(incarnation, set()).discard(home)
        self._number += 1
        wire.say(frames.Enrol(self._number, incarnation, life, "", []))

    def _concerns(self, session: Session, home: int) -> bool:
        """Return whether a session has become a member at a home, or has been connected, since that was told of all."""
        borrowing = borrowing_of(session)
        return borrowing is not None and (home in borrowing.lenders or self._is_member(session, home))

    def _row(self, session: Session, key: str) -> SubscriptionRow:
        found = None if session.subscriptions is None else session.subscriptions.get(key)
        if found is None:  # the session has ended, and its record is on its way
            return SubscriptionRow(key, 0, False, False, 2, 0)
        return found.row()

    def joined(self, session: Session, key: str, home: int) -> None:
        """Note that a home is to be told of a member whose subscription is durable."""
        self._change(session, key, home)

    def left(self, session: Session, key: str, home: int) -> None:
        """Note that a home is to be told that a session is no member any more, durably."""
        self.enrolments.leaving.discard((session.incarnation, key))
        self.enrolments.enrolled.discard((session.incarnation, key))
        self._change(session, key, home)

    def _change(self, session: Session, key: str, home: int) -> None:
        """Have a home be told at the end of this pass that a session has come or gone: once for all its filters."""
        change = self._changed.get((home, session.incarnation))
        if change is None:
            change = self._changed[home, session.incarnation] = _Change(session)
            self._worker.request_tick()
        change.filters[key] = None
        self._forget_pending(home, session.incarnation, key)

    def tell_homes(self) -> None:
        """Tell the homes who has come and gone in this pass of the loop, and go on with what had to wait for a wire."""
        for home in list(self._enlisting):
            self._enlist(home, self._wires[home])
        while self._changed:
            (home, incarnation), change = self._changed.popitem()
            session = change.session
            if not session.ended:
                self._tell_change(session, home, list(change.filters))
                self._present_first(session, home)
            self.enrolments.release(incarnation)

    def _present_first(self, session: Session, home: int) -> None:
        """Tell a home, if it was not told, that the client of a new member is connected."""
        borrowing, link = borrowing_of(session), session.link
        if borrowing is not None and link is not None and link.ready and home not in borrowing.lenders:
            self._present(session, link, home)

    def ended(self, session: Session) -> None:
        """Tell the homes that were told of a session that it is gone."""
        for home in sorted(self._told.pop(session.incarnation, ())):
            wire = self._wires.get(home)
            if wire is not None:
                self._number += 1
                wire.say(
                    frames.Enrol(self._number, session.incarnation, frames.ENDED, session.tenant.name, [])
                )
            self._pending.pop((home, session.incarnation), None)
        borrowing = borrowing_of(session)
        for key in [] if borrowing is None else borrowing.filters:
            self.enrolments.enrolled.discard((session.incarnation, key))
            self.enrolments.leaving.discard((session.incarnation, key))
        self.enrolments.release(session.incarnation)

    # Connections

    def _present(self, session: Session, link: Link, home: int) -> None:
        """Tell a home that the client of a member is connected, and how much it may be lent."""
        wire, borrowing = self._wires.get(home), borrowing_of(session)
        if wire is None or borrowing is None:
            return
        self._connection += 1
        granted = int(max(1, min(link.window, GRANTED_AT_ONCE)))
        borrowing.lenders[home] = Lender(self._connection, granted)
        size = int(link.max_packet_size)
        wire.say(frames.Present(session.incarnation, self._connection, granted, int(link.version), size))

    def resumed(self, session: Session, link: Link) -> None:
        """Go on with a client that is connected: its homes send what it has at QoS 2 again, and lend anew."""
        borrowing = borrowing_of(session)
        if borrowing is None:
            return
        self.loans.resumed(session, link)
        homes = set(borrowing.filters.values())
        homes.update(self._told.get(session.incarnation, ()))
        for home in sorted(homes):
            change = self._changed.pop((home, session.incarnation), None)
            if change is not None:  # before it is told of the connection
                self._tell_change(session, home, list(change.filters))
            elif home in self._wires and not self._was_told(session, home):
                self._enrol(session, home)
            self._present(session, link, home)

    def pump(self, session: Session, link: Link) -> None:
        self.loans.pump(session, link)

    # Time

    def on_timer(self) -> None:
        """Do what time has decided: what found no room goes back, and answers go out whose homes are out of reach."""
        self.loans.on_timer()
        self.enrolments.on_timer()


class _Change:
    """Filters that a session has subscribed to, or left, and of which a home is to be told."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.filters: dict[str, None] = {}


def _parts(keys: list[str]) -> list[list[str]]:
    """Return filters in lists of about PART_BYTES, one at least, for a frame each."""
    parts: list[list[str]] = [[]]
    size = 0
    for key in keys:
        if size >= PART_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(key)
        size += len(key)
    return parts


class _Listener(AwayListener):
    """Hands on what the journal says of members."""

    def __init__(self, members: GroupMembers) -> None:
        self._members = members

    def joined(self, session: Session, key: str, home: int) -> None:
        self._members.joined(session, key, home)

    def left(self, session: Session, key: str, home: int) -> None:
        self._members.left(session, key, home)

    def ended(self, session: Session) -> None:
        self._members.ended(session)

    def detached(self, session: Session, borrowing: Borrowing) -> None:
        self._members.loans.detached(session, borrowing)
