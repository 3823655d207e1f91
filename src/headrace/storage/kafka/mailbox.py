"""What Kafka's threads have to tell, passed on to the one thread that owns the shard, in the order in which it came.

At a start that thread waits for it (`wait`); once the shard serves, the loop does (`attach`).
"""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

Records = list[tuple[int, bytes | None]]  # Kafka offset, value


class Hearer(Protocol):
    """Whoever is told what Kafka answers. The numbers and tokens are those of `Read` and `Append` (`actions`)."""

    def on_report(self, token: int, offset: int | None, error: str) -> None:
        """Hear that a record was appended at `offset`, None where Kafka does not say; or why it was not."""

    def on_records(self, reading: int, records: Records) -> None:
        """Hear records, in their order. `PartitionClient.taken` is to be called once they are taken."""

    def on_end(self, reading: int, end: int) -> None:
        """Hear that everything below `end` was told, which was the end of the partition when the reading began."""

    def on_missing(self, reading: int, start: int) -> None:
        """Hear that the partition begins at `start`, behind where it was to be read from."""

    def on_trouble(self, what: str) -> None:
        """Hear a line for the log: something failed that is tried again, or may as well not be."""


class Clients(Protocol):
    """What is used of `partition_client.PartitionClient`."""

    def append(self, token: int, value: bytes) -> None: ...

    def purge(self) -> None: ...

    def read(self, reading: int, offset: int) -> None: ...

    def taken(self) -> None: ...

    def delete(self, offset: int) -> None: ...

    def close(self) -> None: ...


class Mailbox:
    """A `Hearer` that keeps what it hears until `told`, another one, takes it. It may hear on any thread; all else runs
    on that of the shard."""

    def __init__(self, told: Hearer) -> None:
        self._told = told
        self._letters: deque[Callable[[], None]] = deque()
        self._arrived = threading.Event()
        self._loop: AbstractEventLoop | None = None

    def on_report(self, token: int, offset: int | None, error: str) -> None:
        self.put(partial(self._told.on_report, token, offset, error))

    def on_records(self, reading: int, records: Records) -> None:
        self.put(partial(self._told.on_records, reading, records))

    def on_end(self, reading: int, end: int) -> None:
        self.put(partial(self._told.on_end, reading, end))

    def on_missing(self, reading: int, start: int) -> None:
        self.put(partial(self._told.on_missing, reading, start))

    def on_trouble(self, what: str) -> None:
        self.put(partial(self._told.on_trouble, what))

    def put(self, letter: Callable[[], None]) -> None:
        """Have a function called on the thread of the shard, behind what has come before. May be called on any thread."""
        self._letters.append(letter)
        loop = self._loop
        if loop is None:
            self._arrived.set()
            return
        try:
            loop.call_soon_threadsafe(self.deliver)
        except RuntimeError:  # the loop has ended, and the shard with it
            self._letters.clear()

    def wait(self, seconds: float) -> None:
        """Wait until something has come, so long at most, and deliver it."""
        if self._arrived.wait(seconds):
            self._arrived.clear()
        self.deliver()

    def attach(self, loop: AbstractEventLoop) -> None:
        """Have the loop deliver from now on, also what has come."""
        self._loop = loop
        loop.call_soon(self.deliver)

    def deliver(self) -> None:
        """Tell what has come. What raises is told of by whoever calls, and does not come again."""
        while self._letters:
            self._letters.popleft()()
