"""The windows of what was put: a store may forget what it has answered for, so the journal keeps it for a while longer.

An entry is *ripe* when whoever has taken it is seen to be the same still, by a look behind it on the same connection that
was begun when its window was over. A primary has one look under way, whatever the number of queues; a queue has two steps
at most, what ages and what was put meanwhile. Runs on the loop, owns no clock.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mypy_extensions import i64

from headrace.core.ports.queue_store import Primary
from headrace.core.storing.stored_queue import StoredQueue

CLOCK_MS: Final = 250  # how much older than the moment itself the time of a tick may be
NOT_AGAIN_MS: Final = 250  # until the next look at a primary that is not settled

# What has become of a window.
RIPE: Final = 0
DOUBTFUL: Final = 1  # another has taken it, or its connection is over
TO_COMPARE: Final = 2  # the store does not say who takes what: its stream is looked at


class Outcome:
    """What became of the window of a queue."""

    def __init__(self, queue: StoredQueue, up_to: i64, what: int) -> None:
        self.queue = queue
        self.up_to = up_to
        self.what = what


class _Step:
    """What of a queue ages together."""

    def __init__(self, queue: StoredQueue, due_ms: i64) -> None:
        self.queue = queue
        self.stamp = queue.stamp
        self.due_ms: i64 = due_ms


class Lane:
    """The windows of what one primary has taken, by the time at which they are over."""

    def __init__(self, primary: Primary) -> None:
        self.primary = primary
        self.steps: deque[_Step] = deque()
        self.looking_since_ms: i64 = -1  # -1: no look is under way
        self.seen_ms: i64 = -1  # a look that was begun then has found the same primary
        self.not_before_ms: i64 = 0
        self.is_over = False


class Windows:
    """All windows towards one store, of `window_ms` each; -1: they never end."""

    def __init__(self, window_ms: i64, tells_primary: bool) -> None:
        self.window_ms: i64 = window_ms
        self._tells_primary = tells_primary
        self._lanes: dict[Primary, Lane] = {}

    def begin(self, queue: StoredQueue, primary: Primary, up_to: i64, now_ms: i64) -> None:
        """Note that `primary` has taken all up to a serial number, now."""
        if self.window_ms < 0:
            return
        due_ms = now_ms + self.window_ms + CLOCK_MS
        if queue.aging:
            queue.fresh, queue.fresh_due_ms = up_to, due_ms
            return
        lane = self._lanes.get(primary)
        if lane is None:
            lane = self._lanes[primary] = Lane(primary)
        queue.aging = up_to
        lane.steps.append(_Step(queue, due_ms))

    def void(self, queue: StoredQueue) -> None:
        """Forget the window of a queue: what it has in the store counts as put at no time."""
        queue.stamp += 1
        queue.aging = queue.fresh = 0
        queue.ripe = queue.asked
        queue.compared_for = 0

    def lost(self, primary: Primary) -> None:
        """Note that the connection is over: no look behind what it has put is possible."""
        lane = self._lanes.get(primary)
        if lane is not None:
            lane.is_over = True

    def due(self, now_ms: i64) -> list[Lane]:
        """Return the lanes whose primary is to be looked at now, and note that this is done."""
        if not self._tells_primary:
            return []
        found: list[Lane] = []
        for lane in self._lanes.values():
            if lane.is_over or not lane.steps or lane.looking_since_ms >= 0:
                continue
            if lane.seen_ms < lane.steps[0].due_ms <= now_ms and lane.not_before_ms <= now_ms:
                lane.looking_since_ms = now_ms
                found.append(lane)
        return found

    def saw_same(self, lane: Lane) -> None:
        """Note that the look under way has found the same primary."""
        lane.seen_ms, lane.looking_since_ms = lane.looking_since_ms, -1

    def saw_another(self, lane: Lane) -> None:
        """Note that the look under way has found another one."""
        lane.is_over = True

    def saw_nothing(self, lane: Lane, now_ms: i64) -> None:
        """Note that the look under way was not answered, or not clearly: another one follows soon."""
        lane.looking_since_ms = -1
        lane.not_before_ms = now_ms + NOT_AGAIN_MS

    def take(self, now_ms: i64, most: int) -> list[Outcome]:
        """Return what has become of windows, at most so many of them."""
        outcomes: list[Outcome] = []
        for lane in list(self._lanes.values()):
            self._take_of(lane, now_ms, most, outcomes)
            if lane.is_over and not lane.steps:
                del self._lanes[lane.primary]
        return outcomes

    def _take_of(self, lane: Lane, now_ms: i64, most: int, outcomes: list[Outcome]) -> None:
        """Add what has become of the windows of one lane. Stops when there are `most`."""
        until_ms = lane.seen_ms if self._tells_primary else now_ms
        steps = lane.steps
        while steps and len(outcomes) < most and (lane.is_over or steps[0].due_ms <= until_ms):
            step = steps.popleft()
            queue = step.queue
            if step.stamp != queue.stamp:
                continue
            if lane.is_over:
                outcomes.append(Outcome(queue, 0, DOUBTFUL))
                continue
            outcomes.append(Outcome(queue, queue.aging, RIPE if self._tells_primary else TO_COMPARE))
            queue.aging, queue.fresh = queue.fresh, 0
            if queue.aging:
                steps.append(_Step(queue, queue.fresh_due_ms))

    def __len__(self) -> int:
        """Return how many steps age, those that were made void among them."""
        return sum(len(lane.steps) for lane in self._lanes.values())
