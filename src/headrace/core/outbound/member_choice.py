"""Which member of a shared subscription gets the next entry (decision 13).

Runs on the loop. A member that was found without room is not asked again before it has some, and a strategy compares
`COMPARED_MAX` members at most: so a message and an acknowledgement cost the same however many members a group has, and
groups a member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from headrace.core.outbound.delivery import Delivery
from headrace.core.records.message import Message
from headrace.core.state.free_ids import has_free_id
from headrace.core.state.groups import Group
from headrace.core.state.session import Session

if TYPE_CHECKING:
    from headrace.core.ports.settings import BrokerSettings

LEAST_IN_FLIGHT: Final = "least-in-flight"  # of the next members in turn; anything else: the next one
COMPARED_MAX: Final = 16


class MemberChoice:
    """Finds a member that has room and the rights, by the configured strategy."""

    def __init__(self, delivery: Delivery, settings: BrokerSettings) -> None:
        self._delivery = delivery
        self._settings = settings

    def choose(
        self, group: Group, message: Message | None, passed: dict[Session, None], stored: bool
    ) -> Session | None:
        """Return the member that the configured strategy gives a message to, None if none can take it now. `stored`: it
        is in the group's queue, and needs room in a window; `message` is needed for one that is not."""
        chosen = self._in_turn(group, message, passed, stored)
        if chosen is None or self._settings.shared_strategy != LEAST_IN_FLIGHT:
            return chosen
        return self._least_loaded(group, message, passed, stored, chosen)

    def _least_loaded(
        self, group: Group, message: Message | None, passed: dict[Session, None], stored: bool, first: Session
    ) -> Session:
        """Return of `first` and of those whose turn it is behind it the member with the fewest messages in flight. Among
        equals it is the first in turn, and the turn goes on behind it."""
        turns = group.free if stored else group.open
        chosen = first
        least = first.window_used()
        left: i64 = min(len(turns), COMPARED_MAX) - 1
        while left > 0 and least > 0:
            left -= 1
            session = self._in_turn(group, message, passed, stored)
            if session is None or session is first:
                break
            used = session.window_used()
            if used < least:
                chosen, least = session, used
        turns.move_to_end(chosen)
        return chosen

    def _in_turn(
        self, group: Group, message: Message | None, passed: dict[Session, None], stored: bool
    ) -> Session | None:
        """Return the next member that can take a message. `message` is needed for one that is not `stored` alone."""
        turns = group.free if stored else group.open
        left: i64 = len(turns)
        while left > 0:
            left -= 1
            session = next(iter(turns))
            if not (self.ready(session) if stored else self.writable(session)):
                group.found_none(session, stored)
                continue
            turns.move_to_end(session)
            if session not in passed and self._allowed(group, session, None if stored else message):
                return session
        return None

    def _allowed(self, group: Group, session: Session, message: Message | None) -> bool:
        """Return whether the session's rights are enough for an entry of the group, and for this message. Who cannot be
        judged is not, and loses its connection."""
        try:
            return admitted(group, session) and (message is None or may_read(session, message))
        except Exception as error:  # noqa: BLE001  the others have their turn
            self.failed(session, error)
            return False

    def failed(self, session: Session, error: Exception) -> None:
        link = session.link
        if link is not None:
            link.worker.contain("group", link, error)

    def writable(self, session: Session) -> bool:
        link = session.link
        return link is not None and link.ready and not link.paused and not session.ended

    def has_room(self, session: Session) -> bool:
        link = session.link
        if link is None or not self.writable(session):
            return False
        if link.buffered() > self._settings.write_buffer_high:
            self._delivery.feed_later(session, link)
            return False
        if link.drawing > self._settings.write_buffer_high:
            return False  # it goes on when the first of these leave
        return session.window_used() < link.window

    def ready(self, session: Session) -> bool:
        """Return whether a member may be given an entry now. Besides room it needs a packet id that is free."""
        return self.has_room(session) and has_free_id(session)


def admitted(group: Group, session: Session) -> bool:
    """Return whether the member's rights are still what the shared subscription asks for."""
    link = session.link
    if link is None or link.rights is None:
        return True
    return link.rights.may_draw(group.carrier.client_id)


def may_read(session: Session, message: Message) -> bool:
    link = session.link
    if link is None or link.rights is None:
        return True
    return link.rights.may_receive(message.topic)
