"""Whose packets are handled in a pass of the loop, and how many: who sends without a pause takes turns with the others.

Runs on the loop. A connection gets `WorkerPort.share` units of work done when it is read: a unit is a small packet, and
what costs more counts as more (`Link.spend`). What is left of its bytes then waits for a turn at the end of a tick. The
more of them wait, the smaller the share, so that all who send without a pause get about WORK_AT_ONCE done together in
one pass: who sends little is read between any two passes, and never waits behind them.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mypy_extensions import i64

from headrace.core.ports.link import WORK_AT_ONCE, Link, WorkerPort

SHARE_LEAST: Final = 16
_BEHIND: Final = 4  # of a pass, so much is left for turns while records wait to take effect
_FORGET: Final = 8  # one in so many of a crowd that has gone is forgotten in a pass


class Turns:
    """Keeps those who wait for their turn, in order. What a connection may have done at once is said to the worker."""

    def __init__(self, worker: WorkerPort) -> None:
        self._worker = worker
        self.waiting: deque[Link] = deque()
        self._crowd: i64 = 0  # how many wait, or did lately: who has been read to its end is back soon

    def take(self, link: Link) -> None:
        """Take a link that has read more than its share: it goes on when it is its turn."""
        self.waiting.append(link)
        if len(self.waiting) > self._crowd:
            self._note_crowd(len(self.waiting))

    def give_turns(self, behind: bool = False) -> bool:
        """Give at the end of a tick as many turns as fit into a pass; return True if some are left for the next one.
        Whoever is held keeps its place without a turn, and for those alone there need be no next one. While we are
        `behind`, with what was read taking effect over several passes, fewer: more would only make it longer."""
        waiting = self.waiting
        gone: i64 = self._crowd - len(waiting)
        if gone > 0:
            self._note_crowd(self._crowd - (gone + _FORGET - 1) // _FORGET)
        work: i64 = WORK_AT_ONCE
        if behind:
            self._worker.share = max(SHARE_LEAST, self._worker.share // _BEHIND)
            work //= _BEHIND
        left: i64 = len(waiting)
        while left > 0 and work > 0:
            left -= 1
            link = waiting.popleft()
            if link.holds and not link.closed:
                waiting.append(link)  # nothing of it is parsed before it is let go
                continue
            work -= self._worker.share
            try:
                link.read_on()
            except Exception as error:  # noqa: BLE001  it must not cost the others their turns
                self._worker.contain("read", link, error)
        if behind:
            self._note_crowd(self._crowd)  # which may have grown meanwhile
        return left > 0

    def _note_crowd(self, crowd: i64) -> None:
        self._crowd = crowd
        self._worker.share = max(SHARE_LEAST, WORK_AT_ONCE // max(1, crowd))
