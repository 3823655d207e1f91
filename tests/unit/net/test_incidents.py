"""One line a second for the same thing."""

from __future__ import annotations

from headrace.net.incidents import Incidents


def test_the_same_thing_is_told_once_a_second_and_the_rest_counted() -> None:
    told: list[tuple[str, str, int]] = []
    now = 100.0
    incidents = Incidents(lambda what, detail, more: told.append((what, detail, more)), lambda: now)
    incidents.report("refused", "a")
    incidents.report("refused", "b")
    incidents.report("refused", "c")
    incidents.report("paused", "d")
    now = 101.5
    incidents.report("refused", "e")
    assert told == [("refused", "a", 0), ("paused", "d", 0), ("refused", "e", 2)]
