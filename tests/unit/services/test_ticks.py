"""A tick that is asked for runs after what the loop has to do now, and its time is looked at."""

from __future__ import annotations

import asyncio
import time

from headrace.core.ports.clock import READ_MS, STALL_MS, Clock
from headrace.services.ticks import LoopScheduler, Stalls
from headrace.services.watchdog import LIMIT_S, Watchdog


def test_a_tick_comes_after_what_is_ready_and_once_per_request() -> None:
    async def ticks() -> list[str]:
        loop = asyncio.get_running_loop()
        seen: list[str] = []
        scheduler = LoopScheduler(loop, Watchdog())
        scheduler.end_tick = lambda: seen.append("tick")
        loop.call_soon(seen.append, "read")
        scheduler.request_tick()
        assert seen == []
        for _ in range(3):
            await asyncio.sleep(0)
        scheduler.request_tick()
        await asyncio.sleep(0)
        return seen

    assert asyncio.run(ticks()) == ["read", "tick", "tick"]


def test_without_a_broker_a_tick_does_nothing() -> None:
    async def tick() -> None:
        LoopScheduler(asyncio.get_running_loop(), Watchdog()).request_tick()
        await asyncio.sleep(0)

    asyncio.run(tick())


def test_a_long_pass_and_a_long_tick_are_told_apart() -> None:
    watchdog = Watchdog()

    async def long_tick() -> None:
        scheduler = LoopScheduler(asyncio.get_running_loop(), watchdog)
        scheduler.end_tick = lambda: time.sleep(2 * LIMIT_S)
        scheduler.request_tick()
        time.sleep(2 * LIMIT_S)
        await asyncio.sleep(0)

    asyncio.run(long_tick())
    assert watchdog.stalls["reads"] == 1
    assert watchdog.stalls["tick"] == 1


def test_after_a_stall_timers_wait_until_the_sockets_were_read() -> None:
    clock = Clock()
    clock.mono_ms = 50_000
    stalls = Stalls(clock)
    ran = []
    for step in [100] * 5 + [4000] + [100] * 20:
        clock.mono_ms += step
        ran.append(stalls.timers_may_run())
    waits = READ_MS // 100
    assert ran == [True] * 5 + [False] * waits + [True] * (21 - waits)
    assert (clock.awake_ms, clock.stalled_ms) == (54_500, 4000)


def test_a_short_stall_delays_timers_no_longer_than_it_lasted() -> None:
    clock = Clock()
    stalls = Stalls(clock)
    clock.mono_ms += STALL_MS + 100
    assert not stalls.timers_may_run()
    clock.mono_ms += STALL_MS
    assert not stalls.timers_may_run()
    clock.mono_ms += 100
    assert stalls.timers_may_run()


def test_a_loop_that_stalls_in_every_pass_runs_its_timers_all_the_same() -> None:
    clock = Clock()
    stalls = Stalls(clock)
    ran = 0
    for _ in range(30):
        clock.mono_ms += 2 * STALL_MS
        ran += stalls.timers_may_run()
    assert ran >= 10
