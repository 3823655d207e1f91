"""A small share of the histories that `make torture` runs: some seeds are new in every week, the others never change."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from faults.model.history import run

STEPS = 300
# Each of these once broke a promise; what it was is in docs/adr or in the changelog of the fix.
FOUND = (113, 688, 1299, 4835, 5077, 6958)
FOUND_NARROW = (50, 106, 257, 448, 489, 1452)
HISTORIES = 300


@pytest.mark.parametrize("seed", FOUND)
def test_what_once_failed(seed: int) -> None:
    run(seed, STEPS)


@pytest.mark.slow
def test_histories_of_this_week() -> None:
    year, week, _ = datetime.now(UTC).isocalendar()
    first = (year * 100 + week) * 1000
    crashes = 0
    for seed in range(first, first + HISTORIES):
        crashes += run(seed, STEPS).world.crashes
    assert crashes > HISTORIES


@pytest.mark.slow
def test_narrow_histories_of_this_week() -> None:
    """Few packet ids, which wrap all the time, and clients that hold messages back."""
    year, week, _ = datetime.now(UTC).isocalendar()
    first = (year * 100 + week) * 1000
    for seed in range(first, first + HISTORIES):
        run(seed, STEPS, narrow=True)


@pytest.mark.parametrize("seed", FOUND_NARROW)
def test_what_once_failed_with_few_packet_ids(seed: int) -> None:
    run(seed, STEPS, narrow=True)


@pytest.mark.slow
def test_histories_that_hardly_crash() -> None:
    """Longer lives reach states that a crash every few steps never reaches."""
    for seed in range(1, 11):
        run(seed, 3000)


@pytest.mark.slow
def test_histories_in_which_the_clock_is_set() -> None:
    """By seconds, hours and years, in both directions: no promise hangs on what the clock says."""
    jumped = 0
    for seed in range(1, 51):
        jumped += run(seed, STEPS, jumps=True).world.jumped
    for seed in range(1, 11):
        jumped += run(seed, 3000, jumps=True).world.jumped
    assert jumped > 50
