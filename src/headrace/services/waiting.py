"""Those whose CONNECT waits until the directory has answered: how many there may be, and when one is given up. Runs on
the loop.

Bounded in entries and bytes. A source may have as much as is left for all others together, so whoever comes new finds
room however much one source has sent; where many sources have filled it, who has waited longest makes room. Who has hung
up is found as others come.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from headrace.core.ports.directory import Inquiry
from headrace.services.verifying import Loop

WAITING_MAX = 10_000
WAITING_BYTES_MAX = 32 << 20
LOOK_S = 0.5
_LOOKED_AFTER = 2  # of those who wait, with each newcomer


class Asked(Inquiry):
    """A question to the directory, from where it came, and whether its answer is still of use."""

    def __init__(self, tenant: str, user: str | None, size: int, source: str) -> None:
        super().__init__(tenant, user, size)
        self.source = source
        self.is_open = True

    def give_up(self) -> None:
        """Tell the client that there is no telling now."""
        raise NotImplementedError

    def forget(self) -> None:
        """End the connection of a client that has gone."""
        raise NotImplementedError


class Waiting:
    """Holds the questions that are not answered yet, each for `patience_s` at most."""

    def __init__(self, loop: Loop, patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._loop = loop
        self._patience_s = patience_s
        self._clock = clock
        self._came: OrderedDict[Asked, float] = OrderedDict()
        self._round: OrderedDict[Asked, None] = OrderedDict()  # who is looked after next
        self._entries: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._total = 0
        self._looking = False
        self._closed = False
        self.dropped = 0  # that were given up, or whose client had gone

    def __len__(self) -> int:
        return len(self._came)

    def has_room(self, source: str, size: int) -> bool:
        """Return whether one more may wait; for a source that has nothing here, who has waited longest makes room."""
        for _ in range(min(_LOOKED_AFTER, len(self._round))):
            self._look_after(next(iter(self._round)))
        if not self._fits(source, size) and not self._entries[source] and self._came:
            self._give_up(next(iter(self._came)))
        return self._fits(source, size)

    def enter(self, asked: Asked) -> None:
        """Let a question wait; there is room."""
        self._came[asked] = self._clock()
        self._round[asked] = None
        self._entries[asked.source] += 1
        self._bytes[asked.source] += asked.size
        self._total += asked.size
        if not self._looking:
            self._looking = True
            self._loop.call_later(LOOK_S, self._give_up_old)

    def leave(self, asked: Asked) -> None:
        """Note that a question waits no more, if it did."""
        if self._came.pop(asked, None) is None:
            return
        del self._round[asked]
        self._total -= asked.size
        for counted, less in ((self._entries, 1), (self._bytes, asked.size)):
            counted[asked.source] -= less
        if not self._entries[asked.source]:
            del self._entries[asked.source], self._bytes[asked.source]

    def close(self) -> None:
        self._closed = True

    def _fits(self, source: str, size: int) -> bool:
        entries, held = self._entries[source], self._bytes[source]
        return entries < WAITING_MAX - len(self._came) and held + size <= WAITING_BYTES_MAX - self._total

    def _look_after(self, asked: Asked) -> None:
        self._round.move_to_end(asked)
        if asked.abandoned():
            self._end(asked)
            asked.forget()

    def _give_up(self, asked: Asked) -> None:
        self._end(asked)
        asked.give_up()

    def _end(self, asked: Asked) -> None:
        asked.is_open = False
        self.leave(asked)
        self.dropped += 1

    def _give_up_old(self) -> None:
        until = self._clock() - self._patience_s
        while self._came and not self._closed:
            asked, came = next(iter(self._came.items()))
            if came > until:
                break
            self._give_up(asked)
        self._looking = len(self._came) > 0 and not self._closed
        if self._looking:
            self._loop.call_later(LOOK_S, self._give_up_old)
