"""The time limit of tests, and that a run in the background gets its signals."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
import uvloop

from broker_process import ROOT
from time_limit import LIMIT_S, LIMITS_S, expect_signals, limit_of, limited


def _loop(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Wait for ever on a loop."""

    async def body() -> None:
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(body())


def _stubborn_task() -> None:
    """Wait for ever on a loop, also when the loop ends."""

    async def body() -> None:
        for _ in range(2):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(body())


ENDLESS: dict[str, Callable[[], object]] = {
    "a sleep": lambda: time.sleep(60),
    "a lock": lambda: threading.Event().wait(60),
    "a loop": lambda: [None for _ in iter(int, 1)],
    "a loop of asyncio": lambda: _loop(asyncio.new_event_loop),
    "a loop of uvloop": lambda: _loop(uvloop.new_event_loop),
    "a process": lambda: subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"], check=False),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_whatever_takes_too_long_fails(kind: str) -> None:
    began = time.monotonic()
    with pytest.raises(pytest.fail.Exception, match="took longer than"), limited(0.05):
        ENDLESS[kind]()
    assert time.monotonic() - began < 30


def test_who_swallows_exceptions_is_interrupted_all_the_same() -> None:
    def stubborn() -> None:
        for _ in range(1000):
            with contextlib.suppress(Exception):
                time.sleep(60)

    with pytest.raises(pytest.fail.Exception), limited(0.05):
        stubborn()


def test_a_task_that_goes_on_when_it_is_cancelled_is_interrupted_all_the_same() -> None:
    with pytest.raises(pytest.fail.Exception, match="took longer than"), limited(0.05):
        _stubborn_task()


def test_what_raises_in_time_raises_that() -> None:
    with pytest.raises(ValueError, match="of its own"), limited(60):
        raise ValueError("of its own")


def test_what_ends_in_time_is_left_alone() -> None:
    with limited(60):
        pass
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_this_test_is_limited(request: pytest.FixtureRequest) -> None:
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= LIMIT_S
    assert limit_of(request.node) == LIMIT_S


@pytest.mark.time_limit(7)
def test_a_test_may_have_a_limit_of_its_own(request: pytest.FixtureRequest) -> None:
    assert limit_of(request.node) == 7


@pytest.mark.slow
def test_a_slow_test_has_more(request: pytest.FixtureRequest) -> None:
    assert limit_of(request.node) == LIMITS_S["slow"]


IGNORING = "trap '' INT HUP; exec \"$@\""
CHILD = """
import signal
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGHUP) == signal.SIG_DFL)
"""
RUN = f"""
import subprocess, sys
from time_limit import expect_signals
expect_signals()
subprocess.run([sys.executable, "-c", {CHILD!r}])
"""


def test_processes_of_a_run_in_the_background_of_a_script_do_not_ignore_signals() -> None:
    found = subprocess.run(
        ["bash", "-c", IGNORING, "-", sys.executable, "-c", RUN],
        cwd=ROOT / "tests",
        env={"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert found.stdout.split() == ["True", "True"], found.stderr


def test_signals_that_somebody_handles_stay_handled() -> None:
    def handler(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, handler)
    try:
        expect_signals()
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
