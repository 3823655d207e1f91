"""A tick that is asked for runs after what the loop has to do now, and its time is looked at."""

from __future__ import annotations

import asyncio
import time

from headrace.services.ticks import LoopScheduler
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
