"""The load that is counted, and the comparison; the counting itself is a step of the gate."""

from __future__ import annotations

import pytest

from benchmarks.instructions import LOADS, PAIRS, compare, load_of


@pytest.mark.parametrize("name", LOADS)
def test_every_message_of_the_load_comes_out(name: str) -> None:
    load = load_of(name)
    load.run(3 * PAIRS)
    load.run(2 * PAIRS)
    assert load.received == 5 * PAIRS


def test_only_what_is_a_tenth_dearer_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare({"qos1": 1100, "qos2": 1101}, {"qos1": 1000, "qos2": 1000}) == ["qos2"]
    assert "recorded 1,000 (+10.0%)" in capsys.readouterr().out


def test_nothing_recorded_is_nothing_beyond() -> None:
    assert compare({"qos1": 1100}, None) == []
