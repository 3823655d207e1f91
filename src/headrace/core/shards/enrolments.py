"""Answers to SUBSCRIBE that wait until the homes of groups have a new member in their journals.

Runs on the loop. A home that does not answer in time is out of reach: then that filter is refused, and a new member is
none. Others are refused at once, until it answers again.
"""

from __future__ import annotations

from mypy_extensions import i64

from headrace.core.commit import GroupCommit
from headrace.core.ports.link import Link, WorkerPort
from headrace.core.shards.holding import Held
from headrace.core.state.away import Away, borrowing_of
from headrace.core.state.session import Session


class Enrolment(Held):
    """An answer that waits until the homes of these groups have a new member in their journals."""

    def __init__(self, payer: Link | None, held: i64, session: Session) -> None:
        super().__init__(payer, held)
        self.session = session
        self.keys: list[str] = []
        self.until_ms = 0

    def refuse(self, keys: list[str]) -> list[str]:
        """Note that the homes of these are out of reach; `finish` comes next. Return those that the session leaves for
        it, by a record on its way."""
        raise NotImplementedError


class Enrolments:
    """The answers of one shard that wait for homes elsewhere, and which members these know."""

    def __init__(self, away: Away, commit: GroupCommit, worker: WorkerPort, answer_within_ms: int) -> None:
        self.refused = 0  # filters whose homes were out of reach
        self.enrolled: set[tuple[int, str]] = set()  # incarnation and filter
        self.leaving: set[tuple[int, str]] = set()  # refused: no member any more by a record on its way
        self.silent: set[int] = set()  # homes that are out of reach
        self._held: dict[int, list[Enrolment]] = {}  # by incarnation: an answer is about its session alone
        self._away = away
        self._commit = commit
        self._worker = worker
        self._answer_within_ms = answer_within_ms
        # As of the last timer, which waits for what came while the loop stood still: nothing else decides by time.
        self._now_ms = 0

    def elsewhere(self, session: Session, topic_filter: str) -> bool:
        """Return whether a shared subscription is at home elsewhere, and does not know this member yet."""
        if self._away.home_of(session.tenant.name, topic_filter) < 0:
            return False
        return (session.incarnation, topic_filter) not in self.enrolled

    def hold(self, enrolment: Enrolment) -> bool:
        """Keep an answer back until the homes know; False if they do."""
        if not self._missing(enrolment):
            return False
        enrolment.until_ms = self._worker.clock.mono_ms + self._answer_within_ms
        self._held.setdefault(enrolment.session.incarnation, []).append(enrolment)
        payer = enrolment.payer
        if payer is not None:
            self._commit.deferred_bytes += enrolment.weight
            self._commit.charge(payer, enrolment.weight)
        return True

    def _missing(self, enrolment: Enrolment) -> list[str]:
        """Return the filters of which homes have not said that they know."""
        session = enrolment.session
        if session.ended:
            return []
        return [key for key in enrolment.keys if (session.incarnation, key) not in self.enrolled]

    def _homes_of(self, session: Session, keys: list[str]) -> set[int]:
        """Return the homes of some filters."""
        return {self._away.home_of(session.tenant.name, key) for key in keys}

    def _is_due(self, enrolment: Enrolment) -> bool:
        """Return whether an answer waits no longer: homes know or are out of reach, or time is over, or the session left
        those groups."""
        borrowing = borrowing_of(enrolment.session)
        filters = {} if borrowing is None else borrowing.filters
        missing = [key for key in self._missing(enrolment) if key in filters]
        waits = any(filters[key] not in self.silent for key in missing)
        return enrolment.until_ms <= self._now_ms or not waits

    def release(self, incarnation: int) -> None:
        """Give the answers of one session that wait for nothing any more."""
        due: list[Enrolment] = []
        left: list[Enrolment] = []
        for held in self._held.pop(incarnation, []):
            (due if self._is_due(held) else left).append(held)
        if left:
            self._held[incarnation] = left
        for held in due:
            self._commit.ran(held)
            try:
                missing = self._missing(held)
                if missing:
                    self.refused += len(missing)
                    if held.until_ms <= self._now_ms:
                        self.silent |= self._homes_of(held.session, missing)
                    gone = held.refuse(missing)
                    self.leaving.update([(held.session.incarnation, key) for key in gone])
                held.finish()
            except Exception as error:  # noqa: BLE001  the others are answered
                self._worker.contain("deferred", held.payer, error)

    def on_timer(self) -> None:
        """Answer those whose time is over, or whose homes are out of reach."""
        self._now_ms = self._worker.clock.mono_ms
        for incarnation in list(self._held):
            self.release(incarnation)
