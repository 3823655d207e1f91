"""Which nodes of a cluster are up, as one of them hears the others: what it tells whenever that changes.

A node that is heard is up. One that was up and is not heard is unreachable, and down once the others have its shards and
nothing was heard of it for as long as Kafka takes to miss a member; one that has left the roster is down at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

UP: Final = "MemberUp"
UNREACHABLE: Final = "MemberUnreachable"
DOWN: Final = "MemberDown"
MISSED_S: Final = 10.0

Tell = Callable[[str, str], None]  # what has happened, and to which node


class Members:
    """The other nodes as one knows them. `tell` hears of every change."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._states: dict[str, str] = {}
        self._heard_s: dict[str, float] = {}

    def look(self, now_s: float, heard: Mapping[str, bool], owning: Iterable[str]) -> None:
        """Take the nodes of the roster, by name, with whether each is heard now, and the names of those that own shards
        as far as the roster says."""
        owners = set(owning)
        for name in {*self._states, *heard}:
            state = self._state_of(name, now_s, heard, owners)
            if state and state != self._states.get(name):
                self._states[name] = state
                self._tell(state, name)
            if name not in heard:
                self._states.pop(name, None)
                self._heard_s.pop(name, None)

    def _state_of(self, name: str, now_s: float, heard: Mapping[str, bool], owners: set[str]) -> str:
        """Return what a node is now, "" where nothing was ever heard of it."""
        known = self._states.get(name, "")
        if heard.get(name, False):
            self._heard_s[name] = now_s
            return UP
        if not known:
            return ""
        if name not in heard:
            return DOWN
        is_missed = now_s - self._heard_s.get(name, now_s) >= MISSED_S
        return DOWN if known == DOWN or (is_missed and name not in owners) else UNREACHABLE
