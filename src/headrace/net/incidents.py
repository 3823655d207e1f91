"""What happens at the doors, told without flooding the log: bad input must not cost disk (P9)."""

from __future__ import annotations

import time
from collections.abc import Callable

INCIDENT_INTERVAL_S = 1.0


class Incidents:
    """What happens at the doors, in the log: once a second each at most, with the number of those not told."""

    def __init__(self, tell: Callable[..., object], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        self._told_at: dict[str, float] = {}
        self._untold: dict[str, int] = {}

    def report(self, what: str, detail: str) -> None:
        now = self._clock()
        if now - self._told_at.get(what, -INCIDENT_INTERVAL_S) < INCIDENT_INTERVAL_S:
            self._untold[what] = self._untold.get(what, 0) + 1
            return
        self._told_at[what] = now
        self._tell(what, detail=detail, more=self._untold.pop(what, 0))
