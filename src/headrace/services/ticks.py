"""Ticks on an event loop: the end of a pass, when everything readable was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.core.ports.clock import READ_MS, STALL_MS, Clock, Scheduler
from headrace.services.watchdog import Watchdog

if TYPE_CHECKING:
    import asyncio


class LoopScheduler(Scheduler):
    """Runs `Worker.end_tick` once the loop has read what is readable."""

    def __init__(self, loop: asyncio.AbstractEventLoop, watchdog: Watchdog) -> None:
        self._call_soon = loop.call_soon
        self._watchdog = watchdog
        self._requested_s = 0.0
        self.end_tick: Callable[[], None] = _nothing
        self._run = self._tick  # bound once, not for every tick

    def request_tick(self) -> None:
        self._requested_s = self._watchdog.clock()
        self._call_soon(self._run)

    def _tick(self) -> None:
        watchdog = self._watchdog
        began = watchdog.clock()
        watchdog.note("reads", began - self._requested_s)
        self.end_tick()
        watchdog.note("tick", watchdog.clock() - began)


class Stalls:
    """Notices that the loop stood still (SIGSTOP, a machine that was taken away, one long pass), and lets the sockets be
    read before anything is decided by time: a client that came back or spoke meanwhile is heard first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._called_ms: int = clock.mono_ms
        clock.looked_ms = clock.mono_ms
        self._until_ms: int = 0  # timers wait; 0: they do not

    def timers_may_run(self) -> bool:
        """Return whether the timers may run; called each time that the clock was set for the timers. A loop that stalls
        again and again runs them, too."""
        clock = self._clock
        now_ms = clock.mono_ms
        gap_ms = now_ms - self._called_ms
        self._called_ms = clock.looked_ms = now_ms
        if gap_ms > STALL_MS:
            clock.awake_ms = now_ms
            clock.stalled_ms = gap_ms
        if self._until_ms:
            if now_ms < self._until_ms:
                return False
            self._until_ms = 0
        elif gap_ms > STALL_MS:
            self._until_ms = now_ms + min(gap_ms, READ_MS)
            return False
        return True


def _nothing() -> None:
    """Do nothing, before a broker is attached."""
