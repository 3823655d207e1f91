"""How long to wait before the next attempt: twice as long each time, with jitter against fleets that come at once."""

from __future__ import annotations

import random


class Backoff:
    """Seconds between `shortest_s` and `longest_s`; each is drawn from the upper half of its step."""

    def __init__(self, shortest_s: float, longest_s: float, draw: random.Random | None = None) -> None:
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self._draw = draw or random.Random()
        self._step_s = shortest_s

    def next_s(self) -> float:
        step_s = self._step_s
        self._step_s = min(2 * step_s, self._longest_s)
        return step_s * self._draw.uniform(0.5, 1.0)

    def lasted(self, seconds: float) -> None:
        """Note that a connection lasted for so long: the next attempt follows soon, unless it was refused at once."""
        if seconds >= self._step_s:
            self._step_s = self._shortest_s
