"""The time and the turn: what the event loop tells the core, and what the core asks of it."""

from __future__ import annotations

from mypy_extensions import mypyc_attr


class Clock:
    """The time as of this tick, set from outside: Unix microseconds and monotonic milliseconds (decision 17).

    `stale` from the end of a tick until the first connection reads in the next one, which sets `now_us`. The loop last
    stood still for `stalled_ms`, until `awake_ms`: who was not heard meanwhile was not silent.
    """

    def __init__(self) -> None:
        self.now_us: int = 0
        self.mono_ms: int = 0
        self.awake_ms: int = 0
        self.stalled_ms: int = 0
        self.stale = True


@mypyc_attr(allow_interpreted_subclasses=True)
class Scheduler:
    """Asks the event loop to call `Worker.end_tick` once, after what is readable now has been read."""

    def request_tick(self) -> None:
        raise NotImplementedError
