"""Password hashes on threads: whose turn it is, and what becomes of those who do not wait. Runs on the loop.

A hash takes tens of milliseconds on purpose, so strangers must not fill the queue for those who belong here. Whoever
comes new is among the next few that have a turn (`fairness`), and where strangers have filled the queue the oldest goes.
Who has hung up is dropped before it costs a hash, and its connection ended: each newcomer has some of those who wait
looked at, so that they are gone as fast as they come. While many strangers with unknown names wait, most are answered
after the time that a hash took lately instead of after one of their own: in their turn, just as late, without the work.
Who tries one unknown name several times at once has each hashed, as with a known one.
"""

from __future__ import annotations

import random
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.core.ports.directory import Secrets
from headrace.services.fairness import FairQueue

THREADS = 2
WAITING_MAX = 10_000
WAITING_BYTES_MAX = 32 << 20
STRANGERS_HASHED = 4  # waiting ones with an unknown name that get a hash of their own
LOOKED_AT_MAX = 200  # entries in a pass of the loop
_GUESS_S = 0.03  # where no hash was made yet
LOOK_S = 0.5
_SWEPT = 16  # of a source that has no room
_LOOKED_AFTER = 2  # of those who wait, with each newcomer: so they cannot become more than about half as many


class Loop(Protocol):
    """Has as much of an event loop as is used."""

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> object: ...

    def call_soon(self, callback: Callable[..., object], *args: Any) -> object: ...

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> object: ...


@dataclass(slots=True, weakref_slot=True, eq=False)
class Attempt:
    """A user name and a password to be checked against `passwords`. `verified` is told the answer, None if there was no
    telling; `abandoned` says whether nobody waits for it any more, and `forget` ends its connection then."""

    passwords: Secrets
    user: str
    password: bytes
    source: str
    size: int
    verified: Callable[[bool | None], None]
    abandoned: Callable[[], bool]
    forget: Callable[[], object]
    known: bool = True
    waits: bool = True


class Verifying:
    """The queue in front of the threads. Who has waited for `patience_s` is told that there is no telling."""

    def __init__(
        self, loop: Loop, patience_s: float = 8.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._loop = loop
        self._patience_s = patience_s
        self._clock = clock
        self._ages: deque[tuple[float, weakref.ref[Attempt]]] = deque()
        self._round: deque[weakref.ref[Attempt]] = deque()  # who is looked after next
        self._looking = False
        self._threads = ThreadPoolExecutor(THREADS, "passwords")
        self._queue: FairQueue[Attempt] = FairQueue(WAITING_MAX, WAITING_BYTES_MAX)
        self._running = 0
        self._names: Counter[str] = Counter()  # unknown ones that wait or are being hashed, and how often
        self._strangers = 0  # that wait
        self._homes: dict[str, str] = {}  # of users who were let in: from where, the last time
        self._lately: deque[float] = deque(maxlen=32)  # seconds that hashes took
        self._closed = False
        self.dropped = 0  # attempts that were abandoned, or had waited too long, before their turn

    @property
    def waiting(self) -> int:
        return self._queue.entries

    def submit(self, attempt: Attempt) -> bool:
        """Have an attempt checked when its turn comes. False: there is no room for more from its source."""
        self._look_after_some()
        if not self._queue.has_room(attempt.source, attempt.size):
            self._sweep(attempt.source)
            if not self._queue.has_room(attempt.source, attempt.size) and not self._make_room(attempt):
                return False
        if not attempt.passwords.knows(attempt.user):
            attempt.known = False
            self._names[attempt.user] += 1
            self._strangers += 1
        at_home = self._homes.get(attempt.user) == attempt.source
        self._queue.put(attempt.source, attempt.user, attempt, attempt.size, at_home=at_home)
        itself = weakref.ref(attempt)
        self._ages.append((self._clock(), itself))
        self._round.append(itself)
        if not self._looking:
            self._looking = True
            self._loop.call_later(LOOK_S, self._give_up_old)
        self._advance()
        return True

    def was_let_in(self, user: str, source: str) -> None:
        """Note that a user is at home at a source: guesses at its name from elsewhere are not before it, however many
        come."""
        self._homes[user] = source

    def close(self) -> None:
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _look_after_some(self) -> None:
        """Look after some who wait: who has hung up must not keep a connection, and its place, until its turn."""
        for _ in range(min(_LOOKED_AFTER, len(self._round))):
            reference = self._round.popleft()
            attempt = reference()
            if attempt is None or not attempt.waits:
                continue
            if attempt.abandoned():
                self._abandon(attempt)
            else:
                self._round.append(reference)

    def _give_up_old(self) -> None:
        """Give up the oldest attempts: an answer that comes too late is none, and the connection would have been cut
        without one."""
        until = self._clock() - self._patience_s
        while self._ages:
            came, reference = self._ages[0]
            attempt = reference()
            if attempt is not None and attempt.waits:
                if came > until:
                    break
                self._give_up(attempt)
            self._ages.popleft()
        self._looking = bool(self._ages) and not self._closed
        if self._looking:
            self._loop.call_later(LOOK_S, self._give_up_old)

    def _sweep(self, source: str) -> None:
        """Make room: take out the attempts of the source whose clients have gone, as far as they are next."""
        for _ in range(_SWEPT):
            attempt = self._queue.oldest_of(source)
            if attempt is None or (attempt.waits and not attempt.abandoned()):
                return
            self._queue.drop_oldest_of(source)
            if attempt.waits:
                self._abandon(attempt)

    def _make_room(self, attempt: Attempt) -> bool:
        """Make room where many sources have filled the queue, and return whether there is any now: for a source of
        which nothing waits, who has waited longest goes."""
        if self._queue.oldest_of(attempt.source) is not None:
            return False
        for _ in range(_SWEPT):
            oldest = self._queue.displaced()
            if oldest is None:
                return False
            if oldest.waits:
                self._give_up(oldest)
            if self._queue.has_room(attempt.source, attempt.size):
                return True
        return False

    # How an attempt ends. One that waits no more may still be in the queue, where its turn passes over it.

    def _give_up(self, attempt: Attempt) -> None:
        self._wait_no_more(attempt)
        self._left(attempt)
        self.dropped += 1
        attempt.verified(None)

    def _abandon(self, attempt: Attempt) -> None:
        self._wait_no_more(attempt)
        self._left(attempt)
        self.dropped += 1
        attempt.forget()

    def _wait_no_more(self, attempt: Attempt) -> None:
        attempt.waits = False
        self._strangers -= not attempt.known

    def _left(self, attempt: Attempt) -> None:
        if attempt.known:
            return
        self._names[attempt.user] -= 1
        if not self._names[attempt.user]:
            del self._names[attempt.user]

    def _advance(self) -> None:
        """Give free threads something to do."""
        looked_at = 0
        while self._running < THREADS and self._queue.entries and not self._closed:
            if looked_at == LOOKED_AT_MAX:
                self._loop.call_soon(self._advance)
                return
            looked_at += 1
            attempt = self._queue.take()
            if not attempt.waits:
                continue
            if attempt.abandoned():
                self._abandon(attempt)
                continue
            hashed = self._is_worth_a_hash(attempt)
            self._wait_no_more(attempt)
            if hashed:
                self._running += 1
                self._threads.submit(_timed, attempt).add_done_callback(
                    lambda done, attempt=attempt: self._tell(attempt, done)  # type: ignore[misc]
                )
            else:
                self._loop.call_later(random.choice(self._lately or (_GUESS_S,)), self._refuse, attempt)

    def _is_worth_a_hash(self, attempt: Attempt) -> bool:
        """Return whether an attempt is worth a hash, which is decided in its turn, so that however many strangers have
        come all but a few are passed over at once."""
        return attempt.known or self._strangers <= STRANGERS_HASHED or self._names[attempt.user] > 1

    def _refuse(self, attempt: Attempt) -> None:
        """Refuse an attempt, when the time of a hash is over."""
        self._left(attempt)
        attempt.verified(False)

    def _tell(self, attempt: Attempt, done: Future[tuple[bool, float]]) -> None:
        """Tell the result on the loop. Runs on a thread."""
        try:
            self._loop.call_soon_threadsafe(self._finish, attempt, done)
        except RuntimeError:
            return  # the loop has closed meanwhile, and nobody waits any more

    def _finish(self, attempt: Attempt, done: Future[tuple[bool, float]]) -> None:
        self._running -= 1
        self._left(attempt)
        right: bool | None = None
        if not done.cancelled() and done.exception() is None:
            right, seconds = done.result()
            self._lately.append(seconds)
        try:
            attempt.verified(right)
        finally:
            self._advance()


def _timed(attempt: Attempt) -> tuple[bool, float]:
    """Verify an attempt and take the time. Runs on a thread."""
    began = time.monotonic()
    right = attempt.passwords.verify(attempt.user, attempt.password)
    return right, time.monotonic() - began
