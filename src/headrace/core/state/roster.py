"""All sessions, each at a place of its own for as long as it lives, so that a walk can stop between any two of them.

There may be a million: a copy of the directory alone would hold the loop up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.core.state.session import Session


class Roster:
    """Gives each session a place for as long as it lives; places are used again when their session is gone."""

    def __init__(self) -> None:
        self._places: list[Session | None] = []
        self._free: list[int] = []

    def add(self, session: Session) -> None:
        if self._free:
            session.place = self._free.pop()
            self._places[session.place] = session
        else:
            session.place = len(self._places)
            self._places.append(session)

    def remove(self, session: Session) -> None:
        """Take out a session that was added."""
        self._places[session.place] = None
        self._free.append(session.place)

    def walk(self, first: int = 0) -> Iterator[Session | None]:
        """Yield every session, from the place `first` on, that is there when the walk begins and when it comes by; None
        for a place that is free."""
        at = first
        while at < len(self._places):
            yield self._places[at]
            at += 1
