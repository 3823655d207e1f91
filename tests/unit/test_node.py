"""What keeps a node alive goes on, whatever is raised in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

import headrace.node
from headrace.core.ports.failures import Failures
from headrace.node import BEHIND_INTERVAL_S, TIMER_INTERVAL_S, Node
from headrace.services.watchdog import Watchdog


class Loop:
    """Notes what is to be called later."""

    def __init__(self) -> None:
        self.later: list[tuple[float, Callable[..., None]]] = []

    def call_later(self, delay_s: float, call: Callable[..., None], *_: object) -> None:
        self.later.append((delay_s, call))


def bare_node() -> tuple[Loop, Node]:
    """A node of which nothing is open."""
    node = object.__new__(Node)
    loop = Loop()
    node._loop = loop  # type: ignore[assignment]
    node.broker = SimpleNamespace(failures=Failures(), behind=True)  # type: ignore[assignment]
    node.config = SimpleNamespace(sys_interval_s=10)  # type: ignore[assignment]
    node.clock = SimpleNamespace(now_us=0, mono_ms=0)  # type: ignore[assignment]
    node.watchdog = Watchdog()
    node._full = ""
    node._ended = False
    node._stalls = SimpleNamespace(timers_may_run=lambda: True)  # type: ignore[assignment]
    node._audit = SimpleNamespace(flush=lambda: None)  # type: ignore[assignment]
    return loop, node


def raises() -> None:
    raise MemoryError


def test_the_timer_is_armed_again_whatever_fails() -> None:
    loop, node = bare_node()
    node._on_timer = lambda: None
    node._timer()
    node._on_timer = raises
    node._timer()
    assert [delay_s for delay_s, _ in loop.later] == [BEHIND_INTERVAL_S, TIMER_INTERVAL_S]
    assert node.broker.failures.counts["timer"] == 1


def test_system_topics_are_published_again_whatever_fails() -> None:
    loop, node = bare_node()

    def publish(_: float) -> None:
        raises()

    node._publish_system(SimpleNamespace(publish=publish))  # type: ignore[arg-type]
    assert len(loop.later) == 1
    assert node.broker.failures.counts["system"] == 1


def test_housekeeping_goes_on_whatever_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headrace.node, "HOUSEKEEPING_INTERVAL_S", 0)
    _, node = bare_node()
    seen: list[int] = []

    async def turn() -> None:
        seen.append(len(seen))
        if len(seen) < 5:
            raise (OSError, ValueError, MemoryError, KeyError)[len(seen) - 1]
        raise asyncio.CancelledError

    node._upkeep = SimpleNamespace(turn=turn)  # type: ignore[assignment]
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(node._housekeeping())
    assert len(seen) == 5
    assert node.broker.failures.counts["housekeeping"] == 3
