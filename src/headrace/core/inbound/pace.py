"""How many messages a second may be published, by a connection and by all connections of a user, and how many bytes all
clients of a tenant may send: beyond that nothing is read from a connection until its debt is paid.

Nothing is lost and nobody is refused; what was read already counts against the time that comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from headrace.core.ports.link import Link, Measure
from headrace.core.ports.rights import Rights
from headrace.core.ports.timers import Timer

if TYPE_CHECKING:
    from collections.abc import Callable

_SECOND_MS: Final = 1000
_SECOND_US: Final = 1_000_000
_WAIT_MS: Final = 50  # at least: timers are no finer


class Budget:
    """Allows so many messages a second, of which as many as one second's may be saved up. `shares`: how many draw on
    it."""

    def __init__(self, per_s: int, now_ms: int) -> None:
        self.per_s: i64 = per_s
        self.shares: i64 = 0
        self._left: i64 = per_s
        self._since_ms: i64 = now_ms

    def left(self, now_ms: i64) -> i64:
        """Return what may be drawn now."""
        more: i64 = (now_ms - self._since_ms) * self.per_s // _SECOND_MS
        if self._left + more >= self.per_s:
            self._left = self.per_s
            self._since_ms = now_ms
        elif more > 0:
            self._left += more
            self._since_ms += more * _SECOND_MS // self.per_s
        return self._left

    def draw(self, count: i64) -> None:
        self._left -= count

    def join(self) -> None:
        """Note that one more draws on it."""
        self.shares += 1

    def leave(self) -> None:
        """Note that one fewer draws on it."""
        self.shares -= 1

    def portion(self) -> i64:
        """Return what one user of the budget takes at a time, so that what it does not use is missed by nobody."""
        return max(1, self.per_s // (2 * max(1, self.shares)))

    def wait_ms(self, count: i64) -> i64:
        """Return how long until so many may be drawn, if nobody else draws; a second at most."""
        if not self.per_s:
            return _SECOND_MS
        return min(_SECOND_MS, max(_WAIT_MS, (count - self._left) * _SECOND_MS // self.per_s + 1))


@mypyc_attr(allow_interpreted_subclasses=True)
class Together:
    """What all workers of a node know of one budget."""

    def full_at_us(self) -> int:
        """Return when as much as may be saved up is there again, as the latest of all draws has left it: microseconds
        of the monotonic clock."""
        raise NotImplementedError

    def hold(self, full_at_us: int) -> None:
        """Say when it is full again after a draw of ours."""
        raise NotImplementedError

    def shares_of_others(self) -> int:
        """Return how many draw on it in other workers."""
        raise NotImplementedError

    def tell_shares(self, shares: int) -> None:
        """Say how many draw on it here."""
        raise NotImplementedError


class SharedBudget(Budget):
    """A budget that all workers of a node draw on: a draw moves on the moment at which it is full again, which all of
    them read."""

    def __init__(self, per_s: int, now_ms: int, together: Together) -> None:
        super().__init__(per_s, now_ms)
        self._together = together
        self._full_us: i64 = 0
        self._now_us: i64 = now_ms * _SECOND_MS

    def left(self, now_ms: i64) -> i64:
        self._now_us = now_ms * _SECOND_MS
        full: i64 = self._together.full_at_us()
        self._full_us = max(self._now_us, full)
        owed: i64 = (self._full_us - self._now_us) * self.per_s
        self._left = self.per_s - (owed + _SECOND_US - 1) // _SECOND_US
        return self._left

    def draw(self, count: i64) -> None:
        self._left -= count
        if not self.per_s:
            return
        self._full_us += count * _SECOND_US // self.per_s
        self._together.hold(int(self._full_us))

    def join(self) -> None:
        self.shares += 1
        self._together.tell_shares(int(self.shares))

    def leave(self) -> None:
        self.shares -= 1
        self._together.tell_shares(int(self.shares))

    def portion(self) -> i64:
        others: i64 = self._together.shares_of_others()
        return max(1, self.per_s // (2 * max(1, self.shares + others)))


class Pace(Timer):
    """Paces one connection, made when it publishes first. Draws on all of its budgets at once."""

    def __init__(self, link: Link, budgets: list[Budget]) -> None:
        super().__init__()
        self._link = link
        self._budgets = budgets
        self.waits = False

    def overdrawn(self, rights: Rights, waiting: bool = True) -> bool:
        """Allow for one more message than was allowed for, or, where it may wait, stop reading. Returns whether it is
        more than is allowed now."""
        now_ms = self._link.worker.clock.mono_ms
        if not self.waits:
            self._renew(rights, now_ms)
        if rights.left >= 0:
            return False
        if waiting:
            self._link.pause_reading()
            if not self.waits:
                self.waits = True
                self._wait(rights, now_ms)
        return True

    def _portion(self) -> i64:
        portion: i64 = self._budgets[0].portion()
        for budget in self._budgets:
            portion = min(portion, budget.portion())
        return portion

    def _renew(self, rights: Rights, now_ms: i64) -> None:
        granted: i64 = self._portion() - rights.left
        for budget in self._budgets:
            granted = min(granted, budget.left(now_ms))
        if granted > 0:
            for budget in self._budgets:
                budget.draw(granted)
            rights.left += granted

    def _wait(self, rights: Rights, now_ms: i64) -> None:
        wait_ms: i64 = _WAIT_MS
        for budget in self._budgets:
            wait_ms = max(wait_ms, budget.wait_ms(self._portion() - rights.left))
        self._link.worker.timers.schedule(int(now_ms + wait_ms), self)

    def fire(self, now_ms: int) -> None:
        """Read on once the debt is paid and a portion is there: not a message at a time."""
        link = self._link
        rights = link.rights
        if link.closed or rights is None:
            return
        link.last_seen_ms = now_ms  # its silence is ours
        self._renew(rights, now_ms)
        if rights.left < self._portion() or link.holds:
            self._wait(rights, now_ms)
        else:
            self.waits = False
            link.resume_reading()


class Meter(Measure):
    """Meters the bytes that come in on one connection, and has nothing more read while those of the budget are spent.
    `told` is called when that is so for the first time."""

    def __init__(self, link: Link, budget: Budget, told: Callable[[], None]) -> None:
        super().__init__()
        self._link = link
        self._told: Callable[[], None] | None = told
        self._waits = False
        self.budget = budget

    def read(self, size: i64) -> None:
        """Draw what was read; it is handled, and what comes behind it waits."""
        link, budget = self._link, self.budget
        now_ms: i64 = link.worker.clock.mono_ms
        left: i64 = budget.left(now_ms)
        budget.draw(size)
        if left - size >= 0 and budget.per_s:
            return
        link.pause_reading()
        if self._waits:
            return
        self._waits = True
        link.worker.timers.schedule(int(now_ms + budget.wait_ms(1)), self)
        told, self._told = self._told, None
        if told is not None:
            told()

    def stop(self) -> None:
        """Meter nothing any more: what waits is read."""
        if self._waits:
            self._waits = False
            self.cancel()
            if not self._link.closed and not self._link.holds:
                self._link.resume_reading()

    def fire(self, now_ms: int) -> None:
        """Read on once the debt is paid."""
        link = self._link
        if link.closed:
            return
        link.last_seen_ms = now_ms  # its silence is ours
        if self.budget.left(now_ms) <= 0 or link.holds:
            link.worker.timers.schedule(int(now_ms + self.budget.wait_ms(1)), self)
        else:
            self._waits = False
            link.resume_reading()
