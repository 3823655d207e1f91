"""The letters of client ids put all pairs of a run where its setting wants them."""

from __future__ import annotations

import pytest

from benchmarks.generator import Run
from benchmarks.shards import FIRST, ROWS, Setting, judged, letters
from headrace.core.homes import Homes


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("apart", [True, False])
def test_two_letters_decide_for_all_pairs(workers: int, apart: bool) -> None:
    homes = Homes(workers)
    for prefix in ("mb012345", "mbfedcba"):
        one, other = letters(Setting("", workers, apart), prefix)
        for number in range(FIRST, FIRST + 100):
            found = [homes.of_client("default", f"{prefix}-{letter}-{number}") for letter in (one, other)]
            assert (found[0] != found[1]) == apart


def test_the_best_runs_are_compared() -> None:
    row = ROWS[0]
    runs = [
        Run(row.name, setting.name, 1, value, 1.0, 1.0, 1.0, 0)
        for setting, values in zip(row.settings, ((90, 100), (80, 40)), strict=True)
        for value in values
    ]
    assert judged(row, runs)["ratios"] == {row.settings[1].name: 0.8}
