"""Blocking calls on a bounded number of threads, with a bounded number that wait, each for a bounded time.

A loop hands its questions over and goes on; whoever waited too long is told so instead of being answered too late.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from headrace.directory.errors import DirectoryUnavailable, TooManyWaiting

Answer = TypeVar("Answer")


class Calls:
    """So many threads. A call that waited for `patience_s` before its turn is not made any more."""

    def __init__(
        self,
        threads: int,
        waiting_max: int,
        patience_s: float,
        name: str = "directory",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = threads + waiting_max
        self._patience_s = patience_s
        self._clock = clock
        self._threads = ThreadPoolExecutor(threads, name)
        self._there = 0
        self._lock = threading.Lock()
        self.dropped = 0  # calls that had waited too long at their turn

    @property
    def there(self) -> int:
        """Return how many calls are made or wait."""
        return self._there

    def submit(self, call: Callable[[], Answer]) -> Future[Answer]:
        """Have a call made on a thread. Raises TooManyWaiting; the future raises DirectoryUnavailable where it waited too
        long, and what the call raises."""
        with self._lock:
            if self._there >= self._most:
                raise TooManyWaiting(f"{self._there} calls wait for the directory")
            self._there += 1
        came = self._clock()

        def make() -> Answer:
            if self._clock() - came > self._patience_s:
                self.dropped += 1
                raise DirectoryUnavailable(f"no thread was free for {self._patience_s:g} s")
            return call()

        try:
            found = self._threads.submit(make)
        except BaseException:
            self._left(None)
            raise
        found.add_done_callback(self._left)
        return found

    def close(self) -> None:
        """Begin no more calls, and forget those that wait. What is being made ends by itself, within its time limits."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _left(self, _: object) -> None:
        with self._lock:
            self._there -= 1
