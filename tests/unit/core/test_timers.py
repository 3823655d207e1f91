"""The timer wheel: nothing early, nothing lost, nothing after cancel."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from harness import Harness
from headrace.core.timers import Timer, Timers
from headrace.mqtt.packets import Will


@given(st.lists(st.integers(0, 40), min_size=1, max_size=20, unique=True), st.integers(1, 9))
def test_wills_fire_when_they_are_due(delays: list[int], step_s: int) -> None:
    harness = Harness()
    watcher = harness.client("w")
    watcher.subscribe("will/+", 0)
    for delay in delays:
        harness.client(
            f"c{delay}", version=5, will=Will(f"will/{delay}", b"%d" % delay, delay_s=delay)
        ).lose()
    now = 0
    fired = {int(payload) for _, payload, _, _ in watcher.publishes()}
    assert fired == {delay for delay in delays if delay == 0}
    while now <= 41:
        now += step_s
        harness.advance(step_s)
        fired |= {int(payload) for _, payload, _, _ in watcher.publishes()}
        assert fired <= {delay for delay in delays if delay <= now}
        assert fired >= {delay for delay in delays if delay < now - 0.2}
    assert fired == set(delays)


def test_a_cancelled_timer_is_let_go_at_once() -> None:
    timers = Timers()
    timer, other = Timer(), Timer()
    timers.run(98_000_000, 10)
    for one in (timer, other):
        timers.schedule(98_302_500, one)  # the longest keep alive, one and a half times
    before = sys.getrefcount(timer)
    timer.cancel()
    timer.cancel()
    assert sys.getrefcount(timer) < before
    other.cancel()
    assert not timers.run(98_302_600, 10)


def test_far_timers_are_on_time() -> None:
    harness = Harness()
    watcher = harness.client("w")
    watcher.subscribe("will", 0)
    harness.client("c", version=5, will=Will("will", b"x", delay_s=100)).lose()
    for _ in range(99):
        harness.advance(1)
    assert watcher.publishes() == []
    harness.advance(1.2)
    assert len(watcher.publishes()) == 1


class Counted(Timer):
    def __init__(self, fired: list[int], number: int) -> None:
        super().__init__()
        self._fired = fired
        self._number = number

    def fire(self, now_ms: int) -> None:
        self._fired.append(self._number)


def test_no_more_at_once_than_asked_for() -> None:
    """Counted are also those that are only put into a nearer bucket, and those that were cancelled."""
    timers = Timers()
    fired: list[int] = []
    timers.run(1_000_000, 10)
    far = [Counted(fired, number) for number in range(100)]
    for timer in far:
        timers.schedule(1_100_000, timer)
    looked = 0
    for now_ms in range(1_000_000, 1_100_128, 128):
        while timers.run(now_ms, 7):
            assert len(fired) <= looked
            looked += 7
    while timers.run(1_100_128, 7):
        pass
    assert sorted(fired) == list(range(100))
    assert timers.run(1_200_000, 7) is False
