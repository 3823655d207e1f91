"""The workers of a consumer: what they do at a time, and how many they are. Runs on the loop.

Messages are taken from the broker for those who have nothing to do, and as many more as the workers get done within
`AHEAD_S`: where handlers are slow nothing waits here that another consumer could have, where they are fast one PULL
brings many. A pool that may grow doubles when a PULL was answered in full and everybody is busy, or the broker says that
messages wait; a worker that had nothing to do for `idle_s` goes, down to the least number.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from headrace.clients.frame.message import Message

AHEAD_S: Final = 0.05
PULLED_MAX: Final = 256  # what the broker answers at most
_SMOOTHING: Final = 0.1  # weight of the newest time in the mean


class Pool:
    """The workers of a consumer. `work` handles one message and raises nothing. `size` is how many workers there
    are."""

    def __init__(
        self, work: Callable[[Message], Awaitable[None]], least: int, most: int, idle_s: float = 2.0
    ) -> None:
        self._work = work
        self._least = least
        self._most = most
        self._idle_s = idle_s
        self._waiting: deque[Message] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = False
        self.size = 0
        self._busy = 0
        self._mean_s = AHEAD_S  # of one message, until it is known
        self._changed = asyncio.Event()

    def start(self) -> None:
        self._open = True
        self._grow_to(self._least)

    def room(self) -> int:
        """Return how many messages may be taken now."""
        ahead = int(self.size * AHEAD_S / self._mean_s) if self._mean_s < AHEAD_S else 0
        free = self.size - self._busy + ahead - len(self._waiting)
        return max(0, min(PULLED_MAX, free))

    async def wait_for_room(self) -> int:
        """Wait until messages may be taken. Returns how many."""
        while not self.room():
            self._changed.clear()
            await self._changed.wait()
        return self.room()

    def put(self, messages: list[Message], in_full: bool) -> None:
        """Take what a PULL has brought. `in_full`: there may be more."""
        if not self._open:
            return
        self._waiting.extend(messages)
        for _ in range(min(len(messages), len(self._idle))):
            self._wake()
        if in_full:
            self.behind()

    def behind(self) -> None:
        """Let more of the pool work, if it may grow: messages wait for us at the broker."""
        if self._open and self._busy + len(self._waiting) >= self.size:
            self._grow_to(min(self._most, 2 * self.size))

    def clear(self) -> None:
        """Forget what nobody has begun with: it comes again."""
        self._waiting.clear()

    async def finish(self) -> None:
        """Wait for those who work, and end."""
        self.clear()
        self._open = False
        while self._idle:
            self._idle.popleft().cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _grow_to(self, size: int) -> None:
        loop = asyncio.get_running_loop()
        while self.size < size:
            self.size += 1
            task = loop.create_task(self._worker())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._changed.set()

    def _wake(self) -> None:
        while self._idle:
            waiting = self._idle.popleft()
            if not waiting.done():  # else its time is over, and it looks by itself
                waiting.set_result(None)
                return

    async def _worker(self) -> None:
        while self._waiting or await self._is_wanted():
            if self._waiting:
                await self._handle(self._waiting.popleft())
        self.size -= 1

    async def _handle(self, message: Message) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._busy += 1
        try:
            await self._work(message)
        finally:
            self._busy -= 1
            self._mean_s += _SMOOTHING * (max(loop.time() - began, 1e-5) - self._mean_s)
            self._changed.set()

    async def _is_wanted(self) -> bool:
        """Wait for messages. False: none came, and the others are enough."""
        if not self._open:
            return False
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(waiting)
        self._changed.set()
        try:
            async with asyncio.timeout(self._idle_s if self.size > self._least else None):
                await waiting
        except TimeoutError:
            with contextlib.suppress(ValueError):
                self._idle.remove(waiting)
            return bool(self._waiting) or self.size <= self._least
        except asyncio.CancelledError:
            return False
        return True
