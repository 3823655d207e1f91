"""The pace of the fleet."""

from __future__ import annotations

import pytest

from demo.fleet import SURGE_FROM, SURGE_UNTIL, planned_share


def test_the_pace_never_falls_back_and_ends_with_everything() -> None:
    shares = [planned_share(step / 1000) for step in range(1001)]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] >= 1


def test_the_surge_is_where_it_says_and_four_times_as_fast() -> None:
    assert planned_share(SURGE_FROM) == pytest.approx(SURGE_FROM)
    during = planned_share(SURGE_FROM + 0.01) - planned_share(SURGE_FROM)
    assert during == pytest.approx(0.04)
    end = SURGE_FROM + (SURGE_UNTIL - SURGE_FROM) / 4
    assert planned_share(end) == pytest.approx(SURGE_UNTIL)
    assert planned_share(end + 0.01) == pytest.approx(SURGE_UNTIL + 0.01)
