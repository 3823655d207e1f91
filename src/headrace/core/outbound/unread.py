"""Sessions and groups whose next entry cannot be read now: who waits, and when they are tried again.

Runs on the loop. A read that fails for the moment (no descriptor left, an error of the disk) is no reason to drop
anything: its queue stands still, all others go on. The timer tries again, first after a tenth of a second, then ever
more rarely while nothing succeeds; a try ends after a few failures, since each of them may take the disk its time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

if TYPE_CHECKING:
    from headrace.core.state.session import Session

RETRY_MIN_MS: Final = 100
RETRY_MAX_MS: Final = 5000
FAILURES_AT_ONCE: Final = 8


class Unread:
    """Lists those who wait, longest first, each once: a client that comes back meanwhile keeps its place. A group is
    here as its `carrier`."""

    def __init__(self) -> None:
        self._waiting: dict[Session, None] = {}
        self._delay_ms: i64 = RETRY_MIN_MS
        self._due_ms: i64 = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, session: Session, now_ms: i64) -> None:
        if not self._waiting:
            self._due_ms = now_ms + self._delay_ms
        self._waiting[session] = None

    def take_due(self, now_ms: i64) -> list[Session]:
        """Return the sessions and groups to be tried now; whoever calls says by `tried` what came of it."""
        if not self._waiting or now_ms < self._due_ms:
            return []
        waiting = list(self._waiting)
        self._waiting = {}
        return waiting

    def tried(self, left: list[Session], failures: i64, successes: i64, now_ms: i64) -> None:
        """Note what was tried: `left` were not tried and come before those who had to be added again."""
        self._waiting = dict.fromkeys(left) | self._waiting
        if successes:
            self._delay_ms = RETRY_MIN_MS
        elif failures:
            self._delay_ms = min(2 * self._delay_ms, RETRY_MAX_MS)
        self._due_ms = now_ms + (self._delay_ms if failures else 0)
