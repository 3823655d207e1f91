"""Blocking calls on bounded threads."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from directory_clock import Clock
from headrace.directory.calls import Calls
from headrace.directory.errors import DirectoryUnavailable, TooManyWaiting


def test_no_more_wait_than_may_and_the_others_are_answered() -> None:
    gate = threading.Event()
    calls = Calls(1, 2, 60)
    futures = [calls.submit(partial(gate.wait, 30)) for _ in range(3)]
    with pytest.raises(TooManyWaiting):
        calls.submit(int)
    gate.set()
    assert [future.result(30) for future in futures] == [True, True, True]
    assert calls.submit(int).result(30) == 0
    calls.close()


def test_who_waited_too_long_is_told_so_and_costs_nothing() -> None:
    clock, gate, made = Clock(), threading.Event(), []
    calls = Calls(1, 5, 2, clock=clock.monotonic)
    first = calls.submit(lambda: gate.wait(30))
    late = calls.submit(lambda: made.append(1))
    clock.seconds += 3
    gate.set()
    assert first.result(30)
    with pytest.raises(DirectoryUnavailable, match="no thread was free for 2 s"):
        late.result(30)
    assert (made, calls.dropped) == ([], 1)
    calls.close()


def test_an_error_is_the_asker_s_alone() -> None:
    calls = Calls(1, 5, 60)
    failed = calls.submit(lambda: 1 // 0)
    assert calls.submit(lambda: 7).result(30) == 7
    with pytest.raises(ZeroDivisionError):
        failed.result(30)
    calls.close()


def test_what_waits_at_the_end_is_forgotten() -> None:
    gate = threading.Event()
    calls = Calls(1, 5, 60)
    first = calls.submit(lambda: gate.wait(30))
    waiting = calls.submit(int)
    calls.close()
    gate.set()
    assert first.result(30)
    assert waiting.cancelled()
    assert calls.there == 0
