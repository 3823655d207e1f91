"""What the core contained, in the log with its traceback: some lines a minute, however often it happens."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable

INTERVAL_S = 10.0


class FailureLog:
    """Tells each place's first failure in INTERVAL_S, with the number of those not told."""

    def __init__(self, tell: Callable[..., object], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        self._told_at: dict[str, float] = {}
        self._untold: dict[str, int] = {}

    def report(self, place: str, client_id: str, error: BaseException) -> None:
        now = self._clock()
        if now - self._told_at.get(place, -INTERVAL_S) < INTERVAL_S:
            self._untold[place] = self._untold.get(place, 0) + 1
            return
        self._told_at[place] = now
        said: dict[str, object] = {"place": place, "client_id": client_id, "more": self._untold.pop(place, 0)}
        if isinstance(error, MemoryError):  # where it was missing says nothing
            self._tell("not enough memory; it was contained", **said)
            return
        said |= {"error": repr(error), "trace": "".join(traceback.format_exception(error))}
        self._tell("something failed that should not; it was contained", **said)
