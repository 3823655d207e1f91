"""Who changes directories in tests, and what time it is there."""

from __future__ import annotations

from headrace.directory.entries import Actor

ME = Actor("olga", "192.0.2.7")


class Clock:
    """A clock that stands until it is set forward."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def now_us(self) -> int:
        return int(self.seconds * 1_000_000)

    def monotonic(self) -> float:
        return self.seconds
