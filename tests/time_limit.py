"""A time limit for every test, and the signals a test expects: a run in the background of a script must end by itself.

Each part of a test (setup, call, teardown) has `LIMIT_S`, more if it is marked `slow`, `deep` or `spark`, or as much as
`time_limit(seconds)` says. When it is over the test fails where it stands: SIGALRM interrupts what it waits for, again
every few seconds should somebody swallow it. What not even that interrupts ends the run (`faulthandler_exit_on_timeout`).

A shell that starts a command in the background of a script lets it ignore SIGINT, and nohup SIGHUP; both pass on to every
process that a test starts. So they are set to what a terminal would give.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
import uvloop

LIMIT_S = 240.0
LIMITS_S = {"slow": 1200.0, "deep": 1200.0, "spark": 1200.0}
AGAIN_S = 5.0


def limit_of(item: pytest.Item) -> float:
    """Seconds that each part of this test may take."""
    own = item.get_closest_marker("time_limit")
    if own is not None:
        return float(own.args[0])
    return max(LIMIT_S, *(limit for name, limit in LIMITS_S.items() if item.get_closest_marker(name)), 0.0)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Fail what runs within after so many seconds. Main thread only."""
    said = f"took longer than {seconds:g} s"
    is_over = False

    def over(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_over
        is_over = True
        stop_uvloop()
        pytest.fail(said)

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        yield
    except Exception as error:
        if is_over:
            pytest.fail(f"{said}: {error}")
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def stop_uvloop() -> None:
    """Have a running loop of uvloop end: it keeps to itself what the handler of a signal raises."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    if isinstance(loop, uvloop.Loop):
        loop.stop()


def expect_signals() -> None:
    """From now on, also in processes that are started, the signals of a stop do what they do at a terminal."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
