"""The time between attempts."""

from __future__ import annotations

import random

from headrace.backoff import Backoff


def test_it_doubles_with_jitter_up_to_the_longest() -> None:
    backoff = Backoff(1.0, 10.0, random.Random(1))
    drawn = [backoff.next_s() for _ in range(6)]
    for found, step in zip(drawn, (1, 2, 4, 8, 10, 10), strict=True):
        assert step / 2 <= found <= step
    assert len(set(drawn)) == 6


def test_only_a_connection_that_lasted_starts_it_anew() -> None:
    backoff = Backoff(1.0, 8.0)
    for _ in range(4):
        backoff.next_s()
    backoff.lasted(0.1)  # accepted and thrown out again at once
    assert backoff.next_s() >= 4
    backoff.lasted(8)
    assert backoff.next_s() <= 1
