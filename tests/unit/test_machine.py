"""Workers on one loop in the process of the tests: a test that fails with them ends, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from machine import Machine, run
from time_limit import limited


def _test(tmp_path: Path, ends: Callable[[], object]) -> None:
    """A test that opens workers and never closes them."""

    async def body() -> None:
        await Machine(tmp_path, ["tcp://127.0.0.1:0"]).open()
        ends()
        await asyncio.Event().wait()

    run(body)


def _raises() -> None:
    raise ValueError("of its own")


def test_a_test_that_fails_while_workers_are_open_ends(tmp_path: Path) -> None:
    with limited(30), pytest.raises(ValueError, match="of its own"):
        _test(tmp_path, _raises)


def test_a_test_that_hangs_while_workers_are_open_ends(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="took longer than"), limited(1):
        _test(tmp_path, lambda: None)


def test_a_test_that_leaves_workers_open_fails(tmp_path: Path) -> None:
    async def body() -> None:
        await Machine(tmp_path, ["tcp://127.0.0.1:0"]).open()

    with pytest.raises(AssertionError, match="workers of"):
        run(body)
