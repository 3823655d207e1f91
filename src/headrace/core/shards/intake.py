"""How fast a shard takes what the others send it: no faster than those of its sessions get it that keep up.

Copies are cheaper to take than to deliver, and their publishers, who are served by other workers, wait for none of it. So
a shard that is busy would pile up what it takes, until the queues of clients are at their limits that take all they are
given. Instead it leaves what comes in the *inbox* of its stream, whose source then has no credit, and lets its publishers
wait (`crowd`).

Nobody waits for one slow client, nor for those who get less than half of what is taken. A session is waited for while it
goes on to take much: who does not is found out within CHECK_MS, and is not waited for again for some time. And however it
ends, nothing is left lying for HOLD_MS_MAX at a time.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from headrace.core.outbound.delivery import Lateness
from headrace.core.ports.clock import Clock
from headrace.core.ports.limits import Limits
from headrace.core.ports.link import Crowds
from headrace.core.records.record import DROP_BYTES_LIMIT, DROP_LIMIT, DROP_TENANT_BYTES_LIMIT
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.state.queue import OutboundQueue
from headrace.core.state.session import APPLICATION, Session

WATCHED_MAX: Final = 64  # sessions that are waited for at a time
LATE: Final = (
    4  # a DEVICE whose queue holds this part of its limit is late, and with half of that in time again
)
CHECK_MS: Final = (
    200  # so often, and not before as many passes of the loop as CHECK_PASSES, is looked who takes much
)
CHECK_PASSES: Final = 3
TAKEN_PER_S: Final = 5000  # by those who are waited for together: less is not worth it
DRAINED_MS: Final = 2000  # each of them would be in time again in so long: else it is slow
HOLD_MS_MAX: Final = 500
REST_MS: Final = 100  # nothing is held after that
POOR_REST: Final = 10  # times as long as what was held for nothing, HOLD_MS_MAX at most
SLOW_MS: Final = (
    3000  # a session that was slow is not waited for; twice as long each time, if it soon is again
)
SLOW_MS_MAX: Final = 60_000
SLOW_MAX: Final = 1000  # sessions that are remembered for that


class _Watched:
    """A session that is waited for."""

    def __init__(self, session: Session, serial: i64) -> None:
        self.session = session
        self.link = session.link
        self.serial: i64 = serial  # the head of its queue when it was looked at last
        self.trimmed: i64 = _trimmed(session)  # and what had been dropped there above the limits

    def advance(self, serial: i64) -> i64:
        """Return how many messages it has taken since it was looked at last; the head of its queue is at `serial` now.
        What was dropped above the limits it has not taken."""
        trimmed = _trimmed(self.session)
        taken = serial - self.serial - (trimmed - self.trimmed)
        self.serial = serial
        self.trimmed = trimmed
        return max(0, taken)


class _Slow:
    """A session that is not waited for until `until_ms`, for `ms` in all. If it is not slow again for as long after
    that, all is forgotten. Times are of the monotonic clock, in milliseconds."""

    def __init__(self, now_ms: i64) -> None:
        self.ms: i64 = SLOW_MS
        self.until_ms: i64 = now_ms + SLOW_MS

    def again(self, now_ms: i64) -> None:
        """Do not wait for it for twice as long as before, SLOW_MS_MAX at most; for SLOW_MS if all is forgotten."""
        self.ms = SLOW_MS if self.is_past(now_ms) else min(2 * self.ms, SLOW_MS_MAX)
        self.until_ms = now_ms + self.ms

    def is_past(self, now_ms: i64) -> bool:
        """Return whether all is forgotten."""
        return now_ms >= self.until_ms + self.ms


def _trimmed(session: Session) -> i64:
    dropped = session.dropped
    if dropped is None:
        return 0
    count: i64 = dropped.get(DROP_LIMIT, 0)
    return count + dropped.get(DROP_BYTES_LIMIT, 0) + dropped.get(DROP_TENANT_BYTES_LIMIT, 0)


class Intake(Lateness):
    """Says when more may be taken from the streams of a shard, and knows for whom it is left lying."""

    def __init__(self, clock: Clock, streams: StreamSettings, crowds: Crowds) -> None:
        """Begin with nothing that waits. `crowds`: of those who wait here."""
        self.pending: i64 = 0  # copies that were taken and have not taken effect
        self.holds = False
        self._late_at: i64 = streams.late_at  # 0: a part of what its tenant lets a session have
        self._pending_max: i64 = streams.pending_max
        self._share_of: i64 = streams.share_of
        self._taken: i64 = 0  # copies that have taken effect lately
        self._for_late: i64 = 0  # of these: for sessions that were late
        self.is_copy = False  # what takes effect now, and it does not count for late sessions yet
        self.held_ms = 0  # in all
        self._clock = clock
        self._crowds = crowds
        self._watched: dict[int, _Watched] = {}  # by incarnation
        self._slow: dict[int, _Slow] = {}
        self._since_ms = 0
        self._checked_ms = 0
        self._passes: i64 = 0
        self._rest_until_ms = 0

    @property
    def open(self) -> bool:
        """Return whether the next copy may be taken."""
        return not self.holds and self.pending < self._pending_max

    def took(self) -> None:
        """Note that what was taken takes effect, and goes to its sessions next."""
        self.pending -= 1
        self.is_copy = True
        self._taken += 1
        if self._taken >= 4 * self._share_of:
            self._taken //= 2
            self._for_late //= 2

    def grown(self, session: Session, queue: OutboundQueue) -> None:
        backlog = queue.backlog
        limits = session.tenant.limits
        late_bytes: i64 = limits.backlog_bytes_max // LATE  # 0: only messages are limited
        late = backlog.count > self._late_of(limits) or (late_bytes > 0 and backlog.bytes > late_bytes)
        if not late or session.session_type == APPLICATION:
            return
        if session.link is not None and session.link.crowd is not None:
            self._crowds.leave(session.link)
        if self.is_copy:
            self.is_copy = False
            self._for_late += 1
        if session.incarnation not in self._watched:
            self._watch(session, queue)

    def keeps_up(self, session: Session) -> bool:
        """Return whether a session is not late, so that it may wait for others: while nothing is read from its client,
        its acknowledgements are not either."""
        queue = session.queue
        return (
            queue is None
            or session.session_type == APPLICATION
            or self._in_time(session.tenant.limits, queue)
        )

    def _watch(self, session: Session, queue: OutboundQueue) -> None:
        """Wait for a session from now on, unless there is nothing to be gained, or most of what is taken is for others:
        they would wait for this one."""
        if self._taken < self._share_of or 2 * self._for_late < self._taken:
            return
        now_ms, number = self._clock.mono_ms, session.incarnation
        slow = self._slow.get(number)
        if now_ms < self._rest_until_ms or (slow is not None and now_ms < slow.until_ms):
            return
        if len(self._watched) >= WATCHED_MAX:
            return
        self._watched[number] = _Watched(session, queue.head_serial())
        if not self.holds:
            self.holds = True
            self._since_ms = self._checked_ms = now_ms
            self._passes = 0

    def look(self) -> None:
        """Look, in each pass of the loop, whether those that are waited for are in time again."""
        if not self.holds:
            return
        self._passes += 1
        now_ms = self._clock.mono_ms
        held_ms = now_ms - self._since_ms
        poor_rest_ms = POOR_REST * min(held_ms, HOLD_MS_MAX)  # nobody may have looked for a long time
        if not self._look_at_all(now_ms):
            self._end(now_ms, poor_rest_ms)
        elif not self._watched:
            self._end(now_ms, 0)
        elif held_ms >= HOLD_MS_MAX or (
            now_ms - self._checked_ms >= CHECK_MS and self._passes >= CHECK_PASSES
        ):
            self._check(now_ms)
            if not self._watched:
                self._end(now_ms, poor_rest_ms)
            elif held_ms >= HOLD_MS_MAX:
                self._end(now_ms, REST_MS)

    def _look_at_all(self, now_ms: int) -> bool:
        """Wait no longer for those who are in time again, or who have gone, as those who take nothing may do all the
        time. Return False when nobody is left, and somebody was waited for in vain."""
        in_vain = False
        for number, watched in list(self._watched.items()):
            session = watched.session
            queue, link = session.queue, session.link
            if session.ended or queue is None or link is None or link is not watched.link or link.closed:
                in_vain = True
                if not session.ended:
                    self._note_slow(number, now_ms)
            elif not self._in_time(session.tenant.limits, queue):
                continue
            del self._watched[number]
        return not in_vain or len(self._watched) > 0

    def _late_of(self, limits: Limits) -> i64:
        """Return how many messages may wait in a queue that is not late."""
        return self._late_at or max(1, limits.backlog_messages_max // LATE)

    def _in_time(self, limits: Limits, queue: OutboundQueue) -> bool:
        backlog = queue.backlog
        late_bytes: i64 = limits.backlog_bytes_max // LATE
        fits = late_bytes == 0 or 2 * backlog.bytes <= late_bytes
        return fits and 2 * backlog.count <= self._late_of(limits)

    def _check(self, now_ms: int) -> None:
        """Wait no longer for those who take too little."""
        elapsed_ms: i64 = now_ms - self._checked_ms
        taken: i64 = 0
        slow: list[int] = []
        for number, watched in self._watched.items():
            queue = watched.session.queue
            if queue is None:
                continue
            advance = watched.advance(queue.head_serial())
            taken += advance
            late_at = self._late_of(watched.session.tenant.limits)
            if max(1, queue.backlog.count - late_at // 2) * elapsed_ms > advance * DRAINED_MS:
                slow.append(number)
        if taken * 1000 < TAKEN_PER_S * elapsed_ms:
            slow = list(self._watched)
        for number in slow:
            del self._watched[number]
            self._note_slow(number, now_ms)
        self._checked_ms = now_ms
        self._passes = 0

    def _note_slow(self, number: int, now_ms: int) -> None:
        """Do not wait for a session for some time: for longer if it was slow not long before that."""
        slow = self._slow.get(number)
        if slow is not None:
            slow.again(now_ms)
            return
        if len(self._slow) >= SLOW_MAX:
            self._slow = {one: found for one, found in self._slow.items() if not found.is_past(now_ms)}
        if len(self._slow) < SLOW_MAX:
            self._slow[number] = _Slow(now_ms)

    def _end(self, now_ms: int, rest_ms: int) -> None:
        """Take again, and hold nothing for some time."""
        self.holds = False
        self._watched.clear()
        self.held_ms += now_ms - self._since_ms
        self._rest_until_ms = now_ms + rest_ms
