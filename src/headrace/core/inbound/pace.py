"""How many messages a second a connection may publish: beyond that nothing is read from it until the second is over.

Nothing is lost and nobody is refused; what was read already counts against the next seconds.
"""

from __future__ import annotations

from typing import Final

from headrace.core.ports.access import Answers
from headrace.core.ports.link import Link
from headrace.core.ports.timers import Timer

_SECOND_MS: Final = 1000


class Pace(Timer):
    """Of one connection, made when it publishes first."""

    def __init__(self, link: Link, per_s: int) -> None:
        super().__init__()
        self._link = link
        self._per_s = per_s
        self._since_ms = link.broker.clock.mono_ms - _SECOND_MS
        self._waits = False

    def overdrawn(self, answers: Answers) -> None:
        """One more message came than was allowed for: allow for more, or stop reading."""
        now_ms = self._link.broker.clock.mono_ms
        if not self._waits and now_ms - self._since_ms >= _SECOND_MS:
            self._renew(answers, now_ms)
        if answers.left < 0:
            self._link.pause_reading()
            if not self._waits:
                self._waits = True
                self._link.broker.timers.schedule(self._since_ms + _SECOND_MS, self)

    def _renew(self, answers: Answers, now_ms: int) -> None:
        more = (now_ms - self._since_ms) * self._per_s // _SECOND_MS
        self._since_ms = now_ms
        answers.left = min(answers.left + more, self._per_s)

    def fire(self, now_ms: int) -> None:
        """A second is over: read on, unless what was read already takes longer."""
        link = self._link
        answers = link.answers
        if link.closed or answers is None:
            return
        link.last_seen_ms = now_ms  # its silence is ours
        self._renew(answers, now_ms)
        if answers.left < 0 or link.held_back:
            link.broker.timers.schedule(now_ms + _SECOND_MS, self)
        else:
            self._waits = False
            link.resume_reading()
