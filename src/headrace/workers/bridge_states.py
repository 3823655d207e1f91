"""Which bridges of a node are up: each worker says it of its own, and the supervisor has all others tell their clients.

At once, and also where nothing else of `$SYS` is told. What a worker was not told, since it does not read now or has just
been started, it is told at the next look, which is a second later at most. Runs on the loop of the supervisor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from headrace.services.sys_topics import state_of_bridge

_PART_BYTES: Final = 8 << 10  # of names in one message


class Saying(Protocol):
    """A worker as `BridgeStates` sees it. `bridges`: by name, 1 for one that is up, 0 once its process has ended."""

    index: int
    bridges: Mapping[str, int]

    @property
    def serves(self) -> bool:
        """Return whether it accepts clients."""

    def tell(self, values: Mapping[str, str]) -> bool:
        """Have it tell its clients; False if it was not told."""


class BridgeStates:
    """The states of the bridges of these workers."""

    def __init__(self, members: Sequence[Saying]) -> None:
        self._members = members
        self._known: dict[str, str] = {}
        self._told: dict[int, dict[str, str]] = {}  # by worker, as long as its process serves

    def look(self) -> None:
        """Have each worker tell what has changed since it was told last."""
        for member in self._members:
            for name, up in member.bridges.items():
                self._known[state_of_bridge(name)] = str(up)
        for member in self._members:
            if not member.serves:
                self._told.pop(member.index, None)
                continue
            told = self._told.setdefault(member.index, {})
            for part in _parts(
                {name: value for name, value in self._known.items() if told.get(name) != value}
            ):
                if not member.tell(part):
                    break
                told.update(part)


def _parts(values: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield values in messages that are not too long."""
    part: dict[str, str] = {}
    size = 0
    for name, value in values.items():
        part[name] = value
        size += len(name)
        if size > _PART_BYTES:
            yield part
            part, size = {}, 0
    if part:
        yield part
