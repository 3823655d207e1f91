"""The timer wheel: nothing early, nothing lost, nothing after cancel."""

from __future__ import annotations

import sys
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import Harness
from headrace.core.ports.timers import Alarm, Timer, Timers
from headrace.core.worker import TIMERS_AT_ONCE
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


def test_an_alarm_calls_once_when_it_is_due_unless_it_was_cancelled() -> None:
    timers, said = Timers(), list[str]()
    timers.run(98_000_000, 10)
    cancelled = Alarm(partial(said.append, "cancelled"))
    timers.schedule(98_000_500, cancelled)
    timers.schedule(98_000_500, Alarm(partial(said.append, "due")))
    cancelled.cancel()
    timers.run(98_000_400, 10)
    assert said == []
    for now_ms in (98_000_700, 98_001_400):
        timers.run(now_ms, 10)
        assert said == ["due"]


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


def test_no_more_at_once_than_a_pass_should_do() -> None:
    """Sessions that expire together, first far away in the wheel, then due."""
    harness = Harness()
    count = 2 * TIMERS_AT_ONCE + 100
    for number in range(count):
        harness.client(f"c{number}", version=5, expiry_s=100).lose()
    harness.now_us += 101_000_000
    harness.clock.now_us, harness.clock.mono_ms = harness.now_us, harness.now_us // 1000
    sessions = harness.broker.fold.tenant("default").sessions
    left = [count]
    while sessions:
        harness.worker.on_timer()
        assert harness.worker.behind or not sessions
        harness.sync()
        left.append(len(sessions))
    assert all(before - after <= TIMERS_AT_ONCE for before, after in pairwise(left))


def test_a_timer_that_is_due_at_once_again_does_not_take_another_bucket_along() -> None:
    timers = Timers()
    timers.run(1_000_000, 10)
    for due_ms in (1_000_100, 1_000_400, 1_100_000):
        timers.schedule(due_ms, Timer())
    with pytest.raises(NotImplementedError):
        timers.run(1_000_200, 10)
    timers.schedule(999_000, found := Timer())
    found.cancel()
    assert not timers.run(1_000_200, 10)
    with pytest.raises(NotImplementedError):
        timers.run(1_000_600, 10)
    assert timers.run(1_200_000, 0)


def test_who_comes_and_goes_leaves_no_bucket_behind() -> None:
    """A client that connects again and again, each time with another keep alive or expiry, up to a century."""
    timers = Timers()
    staying = Timer()
    timers.schedule(10**12, staying)
    for number in range(20_000):
        timer = Timer()
        timers.schedule(1_000_000 + number * 200_000, timer)
        timer.cancel()
    assert len(timers) <= 200
    for due_ms in (5_000, 50_000, 500_000):
        timers.schedule(due_ms, Timer())
    fired: list[int] = []
    for now_ms in range(0, 600_000, 64):
        try:
            timers.run(now_ms, 1000)
        except NotImplementedError:  # what a timer does when it fires is its subclass's
            fired.append(now_ms)
    assert [at - at % 1000 for at in fired] == [5_000, 50_000, 500_000]
    assert staying.bucket is not None
