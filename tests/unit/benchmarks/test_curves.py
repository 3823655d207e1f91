"""No price has a cliff, in units of work: lines of Python that run, the same on every machine and in every run.

`python -m benchmarks.curves` measures the same curves in CPU time up to a million.
"""

from __future__ import annotations

import pytest

from benchmarks.curve_loads import CURVES
from benchmarks.curves import Point, cpu_ns, lines, measure, steps_up

MOST = {
    "members": 1000,
    "receivers": 10_000,
    "deferred": 10_000,
    "behind-retained": 10_000,
    "torn-tail": 10_000,
}
USUAL = 1000


def test_a_step_up_is_named() -> None:
    points = [Point(10, 10, 2e6, 0), Point(100, 100, 3e6, 0), Point(1000, 1000, 9.5e6, 0)]
    assert steps_up(points) == ["100 to 1,000: 3.2 times dearer"]
    assert steps_up(points[:2]) == []


def test_what_is_too_short_to_measure_says_nothing() -> None:
    assert steps_up([Point(10, 10, 1, 0), Point(100, 100, 100, 0)]) == []
    assert steps_up([Point(10, 10, 1, 0), Point(100, 100, 100, 0)], is_time=False) != []


@pytest.mark.interpreted
@pytest.mark.parametrize("name", CURVES)
def test_no_curve_has_a_cliff(name: str) -> None:
    found = measure(CURVES[name], MOST.get(name, USUAL), lines, repeats=1)
    assert not found.cliffs, f"{found.unit}: {[(point.size, point.per_unit) for point in found.points]}"


@pytest.mark.parametrize("name", CURVES)
def test_a_curve_is_measured_in_time_too(name: str) -> None:
    found = measure(CURVES[name], 100, cpu_ns, repeats=1)
    assert [point.size for point in found.points] == [10, 100]
