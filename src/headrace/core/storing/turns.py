"""Whose turn it is: queues that have something to ask for now, and those that were refused and wait for a later turn."""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final

from mypy_extensions import i64

from headrace.core.ports.clock import Clock
from headrace.core.storing.stored_queue import StoredQueue

RETRY_MS: Final = 100
RETRY_MAX_MS: Final = 30_000


class Turns:
    """The queues of a store that have a turn, in the order in which they got it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ready: deque[StoredQueue] = deque()
        self._later: list[tuple[int, int, StoredQueue]] = []
        self._number = 0

    def __len__(self) -> int:
        """Return how many have a turn now."""
        return len(self._ready)

    def give(self, queue: StoredQueue) -> None:
        """Give a queue its turn, after those that have it."""
        if not queue.is_ready and not queue.ended:
            queue.is_ready = True
            self._ready.append(queue)

    def take(self) -> StoredQueue:
        """Return whose turn it is."""
        queue = self._ready.popleft()
        queue.is_ready = False
        return queue

    def try_soon(self, queue: StoredQueue) -> None:
        """Go on with a queue at once after the first surprise, later after another one without success between."""
        if queue.failures:
            self.try_later(queue)
        else:
            queue.failures = 1
            self.give(queue)

    def try_later(self, queue: StoredQueue) -> None:
        """Try a queue again, later each time that it fails."""
        wait_ms: i64 = min(RETRY_MS << min(queue.failures, 20), RETRY_MAX_MS)
        queue.failures += 1
        self._number += 1
        heapq.heappush(self._later, (int(self._clock.mono_ms + wait_ms), self._number, queue))

    def wake(self, most: int) -> None:
        """Give a turn to those that have waited long enough, at most so many of them."""
        while most and self._later and self._later[0][0] <= self._clock.mono_ms:
            most -= 1
            self.give(heapq.heappop(self._later)[2])
