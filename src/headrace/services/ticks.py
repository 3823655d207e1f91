"""Ticks on an event loop: the end of a pass, when everything readable was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.core.interfaces import Scheduler
from headrace.services.watchdog import Watchdog

if TYPE_CHECKING:
    import asyncio


class LoopScheduler(Scheduler):
    """Runs `Broker.end_tick` once the loop has read what is readable."""

    def __init__(self, loop: asyncio.AbstractEventLoop, watchdog: Watchdog) -> None:
        super().__init__()
        self._call_soon = loop.call_soon
        self._watchdog = watchdog
        self._requested_s = 0.0
        self._run = self._tick  # bound once, not for every tick
        self.end_tick: Callable[[], None] = _nothing

    def request_tick(self) -> None:
        self._requested_s = self._watchdog.clock()
        self._call_soon(self._run)

    def _tick(self) -> None:
        watchdog = self._watchdog
        began = watchdog.clock()
        watchdog.note("reads", began - self._requested_s)
        self.end_tick()
        watchdog.note("tick", watchdog.clock() - began)


def _nothing() -> None:
    """Before a broker is attached."""
