"""The clock is set while the broker runs, or the broker stands still for a while: promises hold.

`python -m faults.broker.clock_and_stops` tries more steps and stops.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from faults.broker.clock_and_stops import attack

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler"),
]


@pytest.mark.parametrize(
    "step",
    ["-1y", pytest.param("-5s", marks=pytest.mark.deep), "+3h", pytest.param("+40d", marks=pytest.mark.deep)],
)
def test_the_clock_is_set(step: str, tmp_path: Path) -> None:
    assert attack(tmp_path, step) == []


def test_the_process_stands_still(tmp_path: Path) -> None:
    assert attack(tmp_path, "stop-4s") == []
