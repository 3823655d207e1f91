"""What keeps a node alive goes on, whatever is raised in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headrace.core.ports.failures import Failures
from headrace.services.repeating import Repeating, repeat


class Loop:
    """Notes what is to be called later."""

    def __init__(self) -> None:
        self.later: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.later.append((delay_s, call))


@pytest.mark.parametrize("error", [MemoryError, OSError, KeyError])
def test_the_next_turn_comes_whatever_fails(error: type[Exception]) -> None:
    loop, failures, waits = Loop(), Failures(), iter([0.001, None, 0.1])

    def turn() -> float:
        wait_s = next(waits)
        if wait_s is None:
            raise error
        return wait_s

    timer = Repeating(loop, failures, "timer", turn, otherwise_s=5.0)  # type: ignore[arg-type]
    timer.start()
    for _ in range(2):
        loop.later[-1][1]()
    assert [delay_s for delay_s, _ in loop.later] == [0.001, 5.0, 0.1]
    assert failures.counts["timer"] == 1


def test_no_turn_comes_behind_the_stop() -> None:
    loop, turns = Loop(), []

    def turn() -> float:
        turns.append(1)
        return 1.0

    timer = Repeating(loop, Failures(), "timer", turn, 1.0)  # type: ignore[arg-type]
    timer.start()
    timer.stop()
    loop.later[-1][1]()
    assert len(turns) == len(loop.later) == 1


def test_housekeeping_goes_on_whatever_fails() -> None:
    failures = Failures()
    told: list[OSError] = []
    turns: list[int] = []

    async def turn() -> None:
        turns.append(1)
        if len(turns) < 5:
            raise (OSError, ValueError, MemoryError, KeyError)[len(turns) - 1]
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(repeat(failures, turn, 0.0, told.append))
    assert len(turns) == 5
    assert len(told) == 1
    assert failures.counts["housekeeping"] == 3
