"""Who waits for something that cannot be read now, and when it is tried again.

Runs on the loop. A read that fails for the moment (no descriptor left, an error of the disk) is no reason to drop
anything: its queue stands still, all others go on. Whoever waits is tried again at the end of the pass in which what it
asked for has come, or a read of the journal has succeeded behind one that failed. Who was tried on such a hint, and in
vain, waits for something that is its own, a bad place of the disk for one: a hint says nothing more to it until the timer
has tried it again. The timer tries all who are left, first after a tenth of a second, then ever more rarely while nothing
succeeds. A round ends after a few failures, since each of them may take the disk its time.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from headrace.core.ports.link import WorkerPort
from headrace.core.ports.waiting import QueueOwner, Waiting, Waker

RETRY_MIN_MS: Final = 100
RETRY_MAX_MS: Final = 5000
FAILURES_AT_ONCE: Final = 8

_GONE: Final = 0  # it waited no more
_WENT_ON: Final = 1
_WAITS: Final = 2  # again


class Unread(Waiting):
    """Lists those who wait, longest first, each once: a client that comes back meanwhile keeps its place. `has_news`:
    `try_again` has somebody to try."""

    def __init__(self, worker: WorkerPort) -> None:
        self._worker = worker
        self.has_news = False
        self._waiting: dict[QueueOwner, Waker] = {}
        self._fresh: dict[QueueOwner, None] = {}  # of them: who is tried when reads succeed again
        self._hinted: dict[QueueOwner, None] = {}  # reads have succeeded since
        self._answered: dict[QueueOwner, None] = {}  # what they asked for has come
        self._delay_ms: i64 = RETRY_MIN_MS
        self._due_ms: i64 = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, owner: QueueOwner, waker: Waker) -> None:
        if not self._waiting:
            self._due_ms = self._worker.clock.mono_ms + self._delay_ms
        if owner not in self._waiting:
            self._waiting[owner] = waker
            self._fresh[owner] = None

    def wake(self, owner: QueueOwner) -> None:
        if owner in self._waiting:
            self._answered[owner] = None
            self._tell()

    def wake_all(self) -> None:
        if self._fresh:
            self._hinted |= self._fresh
            self._fresh = {}
        if self._hinted:
            self._tell()

    def _tell(self) -> None:
        self.has_news = True
        self._worker.request_tick()

    def try_again(self) -> bool:
        """Try those for whom there is news, so many at once; return whether there are more."""
        left: i64 = self._worker.settings.deliveries_at_once
        while left > 0 and self._answered:
            left -= 1
            owner = next(iter(self._answered))
            del self._answered[owner]
            self._try(owner)
        failures: i64 = 0
        while left > 0 and self._hinted and failures < FAILURES_AT_ONCE:
            left -= 1
            owner = next(iter(self._hinted))
            del self._hinted[owner]
            outcome = self._try(owner)
            if outcome == _WAITS:
                failures += 1
                self._fresh.pop(owner, None)
            elif outcome == _WENT_ON:
                self._delay_ms = RETRY_MIN_MS
        # Whoever is behind so many failures waits for the next hint.
        self.has_news = len(self._answered) > 0 or (len(self._hinted) > 0 and failures < FAILURES_AT_ONCE)
        return self.has_news

    def retry(self) -> None:
        """Try those who wait without news, as far as reads succeed. Called by the timer."""
        now_ms: i64 = self._worker.clock.mono_ms
        if not self._waiting or now_ms < self._due_ms:
            return
        failures: i64 = 0
        successes: i64 = 0
        for owner in list(self._waiting):
            outcome = self._try(owner)
            if outcome == _WAITS:
                failures += 1
            elif outcome == _WENT_ON:
                successes += 1
            if failures >= FAILURES_AT_ONCE or successes >= self._worker.settings.deliveries_at_once:
                break
        if successes:
            self._delay_ms = RETRY_MIN_MS
        elif failures:
            self._delay_ms = min(2 * self._delay_ms, RETRY_MAX_MS)
        self._due_ms = now_ms + (self._delay_ms if failures else 0)

    def _try(self, owner: QueueOwner) -> i64:
        """Try an owner again, and return what came of it. What that raises costs those behind it nothing."""
        waker = self._waiting.pop(owner, None)
        self._fresh.pop(owner, None)
        if waker is None:
            return _GONE
        try:
            if not waker.wake(owner):
                return _GONE
        except Exception as error:  # noqa: BLE001
            self._worker.contain("unread", None, error)
        return _WAITS if owner in self._waiting else _WENT_ON
