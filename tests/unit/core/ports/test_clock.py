"""Since when something may have waited to be read, and for how long a client could not be heard."""

from __future__ import annotations

import pytest

from headrace.core.ports.clock import MISSED_MS, READ_MS, SIGN_MS, STALL_MS, Clock, Hearing


def _clock(looked_ms: int, awake_ms: int = 0, stalled_ms: int = 0) -> Clock:
    clock = Clock()
    clock.looked_ms, clock.awake_ms, clock.stalled_ms = looked_ms, awake_ms, stalled_ms
    return clock


@pytest.mark.parametrize(
    ("clock", "since_ms"),
    [
        (_clock(19_900), 20_000),
        (_clock(20_000 - STALL_MS), 20_000),
        (_clock(12_000), 12_000),
        (_clock(19_990, 19_990, 6_000), 13_990),
        (_clock(19_990, 20_000 - READ_MS, 6_000), 20_000),
    ],
    ids=["awake", "a long pass", "still asleep", "just awake", "awake for long"],
)
def test_what_is_read_may_have_waited_since_the_loop_stood_still(clock: Clock, since_ms: int) -> None:
    assert clock.waits_since_ms(20_000) == since_ms


def test_a_worker_that_gives_signs_of_life_excuses_nobody() -> None:
    hearing = Hearing()
    for now_ms in range(10_000, 14_000, SIGN_MS):
        hearing.heard(now_ms)
    assert hearing.unheard_ms(10_000, 12_900, 13_000) == 0


def test_while_a_worker_gives_no_sign_of_life_nobody_is_due() -> None:
    hearing = Hearing()
    hearing.heard(10_000)
    for now_ms in range(13_000, 60_000, 500):
        assert 13_000 + hearing.unheard_ms(10_000, 13_000, now_ms) > now_ms


def test_the_silence_of_a_worker_is_added_to_that_of_those_who_were_not_heard_since() -> None:
    hearing = Hearing()
    hearing.heard(10_000)
    hearing.heard(16_000)
    assert hearing.unheard_ms(10_000, 13_000, 16_000) > 6_000  # nothing came since it would have been due
    for now_ms in range(17_000, 20_000, SIGN_MS):
        hearing.heard(now_ms)
    assert hearing.unheard_ms(10_000, 13_000, 19_000) == 6_000
    assert hearing.unheard_ms(16_500, 18_000, 19_000) == 0  # that one was heard


def test_a_sign_of_life_that_is_a_little_late_is_no_silence() -> None:
    hearing = Hearing()
    hearing.heard(10_000)
    hearing.heard(10_000 + MISSED_MS)
    assert hearing.stalled_ms == 0
