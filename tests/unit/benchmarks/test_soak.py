"""What counts as growth."""

from __future__ import annotations

import pytest

from benchmarks.soak import growth_mib


def test_warm_up_is_no_growth() -> None:
    assert growth_mib([1.0, 20.0, 50.0, 50.0, 51.0, 50.0, 50.0, 52.0]) == 2.0


def test_a_leak_is() -> None:
    assert growth_mib([float(minute) for minute in range(60)]) == 30.0


def test_too_few_samples_say_nothing() -> None:
    with pytest.raises(ValueError, match="too few"):
        growth_mib([1.0, 2.0])
