"""The time and the turn: what the event loop tells the core, and what the core asks of it."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

STALL_MS: Final = 500  # without a call of the timers, which come several times as often: the loop stood still
READ_MS: Final = 1000  # to accept, to shake hands, to read what came while nobody looked
SIGN_MS: Final = 1000  # between two signs of life of another worker
MISSED_MS: Final = 1500  # without one: it stood still


class Clock:
    """The time as of this tick, set from outside: Unix microseconds and monotonic milliseconds (decision 17).

    `stale` from the end of a tick until the first connection reads in the next one, which sets `now_us`. The loop last
    stood still for `stalled_ms`, until `awake_ms`: who was not heard meanwhile was not silent. The timers were last
    called at `looked_ms`.
    """

    def __init__(self) -> None:
        self.now_us: int = 0
        self.mono_ms: int = 0
        self.awake_ms: int = 0
        self.stalled_ms: int = 0
        self.looked_ms: int = 0
        self.stale = True

    def waits_since_ms(self, now_ms: i64) -> i64:
        """Return since when something that is read at `now_ms` may have waited in its socket: where the loop stood still
        until now, since that began."""
        if now_ms - self.looked_ms > STALL_MS:
            return self.looked_ms
        if self.stalled_ms and now_ms - self.awake_ms < READ_MS:
            return self.awake_ms - self.stalled_ms
        return now_ms


class Hearing:
    """When another worker, which has the sockets of clients who are at home here, gave a sign of life: in milliseconds of
    the monotonic clock. It says something every SIGN_MS at least, unless it stands still."""

    def __init__(self) -> None:
        self.heard_ms: i64 = 0
        self.awake_ms: i64 = 0  # when it went on after it had stood still
        self.stalled_ms: i64 = 0  # for how long it had

    def heard(self, now_ms: i64) -> None:
        """Note that it is alive."""
        gap_ms: i64 = now_ms - self.heard_ms
        if gap_ms > MISSED_MS and self.heard_ms > 0:
            self.awake_ms = now_ms
            self.stalled_ms = gap_ms
        self.heard_ms = now_ms

    def unheard_ms(self, seen_ms: i64, due_ms: i64, now_ms: i64) -> i64:
        """Return for how long nothing could come of a client who was seen last at `seen_ms`, and of whom something was
        due at `due_ms`. Until its worker has given a sign of life since then, that is longer with each look."""
        excused_ms: i64 = self.stalled_ms if seen_ms < self.awake_ms else 0
        if self.heard_ms < due_ms + excused_ms:
            return excused_ms + now_ms - self.heard_ms + SIGN_MS
        return excused_ms


@mypyc_attr(allow_interpreted_subclasses=True)
class Scheduler:
    """Asks the event loop to call `Worker.end_tick` once, after what is readable now has been read."""

    def request_tick(self) -> None:
        raise NotImplementedError
