"""One shared timer wheel for all connections and sessions.

Timers are kept in buckets of 128 ms by due time; the outside calls `Timers.run` several times a second. Times are
milliseconds of the monotonic clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

_BUCKET_MS: Final = 128
_COARSE: Final = 64
_FAR_MS: Final = 2 * _COARSE * _BUCKET_MS
RETRY_MS: Final = 10_000


_EMPTY_MAX: Final = (
    64  # buckets without a timer, before they are looked for: they are never more than the others
)


class _Bucket:
    """The timers that are due in the same 128 ms, or looked at again then."""

    def __init__(self, wheel: Timers) -> None:
        self.wheel = wheel
        self.timers: dict[Timer, None] = {}


class Timer:
    """Does something at a time. Subclasses say what in `fire`; `cancel` is cheap and may be called twice.

    A cancelled timer leaves its bucket at once: what it refers to, a connection for one, is not held until it is due.
    """

    def __init__(self) -> None:
        self.cancelled = False
        self.bucket: _Bucket | None = None
        self.due_ms: int = 0

    def cancel(self) -> None:
        self.cancelled = True
        bucket = self.bucket
        if bucket is not None:
            self.bucket = None
            bucket.timers.pop(self, None)
            if not bucket.timers:
                bucket.wheel.empty += 1

    def fire(self, now_ms: int) -> None:
        raise NotImplementedError


class Alarm(Timer):
    """Calls somebody when it is due."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self._call = call

    def fire(self, now_ms: int) -> None:
        self._call()


class Timers:
    """The timer wheel: buckets of timers and a heap of the buckets in use."""

    def __init__(self) -> None:
        self._buckets: dict[int, _Bucket] = {}
        self._order: list[int] = []
        self._now_ms: int = 0
        self._firing: Timer | None = None
        self.empty = 0  # buckets whose timers were cancelled, some of which may have been filled again

    def __len__(self) -> int:
        """Return the number of buckets in use."""
        return len(self._buckets)

    def schedule(self, due_ms: int, timer: Timer) -> None:
        """Fire `timer` at `due_ms`, at most one bucket late."""
        timer.due_ms = due_ms
        key = -(-due_ms // _BUCKET_MS)
        if due_ms - self._now_ms > _FAR_MS:
            key -= (
                key % _COARSE
            )  # looked at again shortly before it is due: few buckets, however far they reach
        bucket = self._buckets.get(key)
        if bucket is None:
            if self.empty > _EMPTY_MAX and 2 * self.empty > len(self._buckets):
                self._sweep()
            bucket = _Bucket(self)
            self._buckets[key] = bucket
            heapq.heappush(self._order, key)
        bucket.timers[timer] = None
        timer.bucket = bucket

    def _sweep(self) -> None:
        """Take out the buckets without a timer: whoever comes and goes leaves none behind."""
        self.empty = 0
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if bucket.timers}
        self._order = sorted(self._buckets)

    def run(self, now_ms: int, most: int) -> bool:
        """Fire what is due, looking at `most` timers; True if there may be more of them."""
        self._now_ms = now_ms
        while self._order and self._order[0] * _BUCKET_MS <= now_ms:
            bucket = self._buckets[self._order[0]]
            if not bucket.timers:
                del self._buckets[heapq.heappop(self._order)]
                continue
            if most == 0:
                return True
            most -= 1
            self._fire(bucket.timers.popitem()[0], now_ms)
        return False

    def retry(self, now_ms: int) -> None:
        """Do what the last timer is for a little later: `run` raised, and it is still to be done."""
        timer = self._firing
        if timer is not None and timer.bucket is None and not timer.cancelled:
            self.schedule(now_ms + RETRY_MS, timer)

    def _fire(self, timer: Timer, now_ms: int) -> None:
        timer.bucket = None
        self._firing = timer
        if timer.due_ms > now_ms:
            self.schedule(timer.due_ms, timer)
        elif not timer.cancelled:
            timer.fire(now_ms)
