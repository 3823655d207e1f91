"""`$SYS` of a node: its supervisor adds up the numbers of the workers, makes the values of them, and has all workers tell
the same. Runs on the loop.

    system = NodeSystem(members, version, time.monotonic())
    system.publish(time.monotonic())        every `sys_interval_s` seconds
    system.tell(member)                     to one that serves again

What a worker has counted stays when its process ends. What it holds (sessions, messages) is as it was last until the next
process has recovered; its connections are gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from headrace.services.sys_topics import CONNECTED, COUNTERS, EXPIRED, HEAP, SOCKETS, SystemValues

_GROWING = (*COUNTERS, EXPIRED, SOCKETS)


class Tally:
    """The numbers of one worker, over all of its processes."""

    def __init__(self) -> None:
        self._ended: Counter[str] = Counter()  # what processes that have ended had counted
        self._last: dict[str, int] = {}

    def heard(self, numbers: Mapping[str, int]) -> None:
        """Note what the process says of itself now; nothing while it has not recovered."""
        if numbers:
            self._last = dict(numbers)

    def ended(self) -> None:
        """Note that the process has ended."""
        for name in _GROWING:
            self._ended[name] += self._last.pop(name, 0)
        for name in (CONNECTED, *HEAP):
            self._last.pop(name, None)

    def numbers(self) -> Counter[str]:
        found = Counter(self._last)
        found.update(self._ended)  # the sum of two counters has no zeros
        return found


class Telling(Protocol):
    """A worker as `NodeSystem` sees it."""

    tally: Tally

    def tell(self, values: Mapping[str, str]) -> object:
        """Have it tell its clients."""


class NodeSystem:
    """The values of a node of these workers."""

    def __init__(self, members: Sequence[Telling], version: str, now_s: float) -> None:
        self._members = members
        self._values = SystemValues(version, now_s)
        self._last: dict[str, str] = {}

    def publish(self, now_s: float) -> None:
        """Have all workers tell what there is now."""
        found: Counter[str] = Counter()
        for member in self._members:
            found.update(member.tally.numbers())
        if not found:
            return  # nobody has said anything yet
        self._last = self._values.of(found, now_s)
        for member in self._members:
            member.tell(self._last)

    def tell(self, member: Telling) -> None:
        """Have one worker tell what the others have told."""
        member.tell(self._last)
