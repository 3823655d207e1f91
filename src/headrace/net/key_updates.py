"""What reading from a TLS connection costs, and who is cut for it: whoever keeps us busy and says nothing.

A client may send TLS 1.3's KeyUpdate messages without end, before CONNECT too: 27 bytes each, for which OpenSSL derives
keys and answers in a tenth of a millisecond or more, and it goes on as long as there is one. So a pass of the loop reads
a few KiB, and the processor's time that brought no byte of data is counted. Runs on the loop, not compiled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

READ_BYTES_MAX: Final = 8 << 10  # of TLS records in a pass: some 300 messages
SPENT_MAX_S: Final = (
    0.02  # on what carries nothing, the record that is not whole among it, which costs microseconds
)
FORGIVEN_S: Final = 1.0  # after so long without such a read


class WatchedLoop:
    """The loop as the transport of one TLS connection sees it. `heard` counts what came out of that connection, in any
    unit; None while it shakes hands, which has a deadline of its own. `cut` ends it. The clocks are in seconds."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        heard: Callable[[], int | None],
        cut: Callable[[], object],
        spent: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop = loop
        self._heard = heard
        self._cut = cut
        self._now_spent = spent
        self._clock = clock
        self._spent = 0.0
        self._at = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:
        self._loop.add_reader(fd, self._read, callback, *args)

    def _read(self, callback: Callable[..., object], *args: Any) -> None:
        before, began = self._heard(), self._now_spent()
        callback(*args)
        if before is None or self._heard() != before:
            self._spent = 0.0
        else:
            self._note(self._now_spent() - began)

    def _note(self, spent: float) -> None:
        """Note that so much was spent on nothing."""
        now = self._clock()
        if now - self._at > FORGIVEN_S:
            self._spent = 0.0
        self._at = now
        self._spent += spent
        if self._spent > SPENT_MAX_S:
            self._cut()
