"""How old segments are when clocks jump: by the time of day nothing is, by the monotonic clock everything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.journal.ages import Ages
from headrace.journal.catalog import Segment
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.disk import DISK
from headrace.journal.log import SegmentedLog
from unit.journal.log_at import SMALL, silent

DAY_S = 24 * 3600
GAP_S = 2 * DAY_S
NOW_S = 1_790_000_000


class Clock:
    """Monotonic seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def segments(newest_s: list[int]) -> list[Segment]:
    """One record each, with these times."""
    found = []
    for base, time_s in enumerate(newest_s):
        segment = Segment(Path("/journal"), base)
        segment.end_offset, segment.size = base + 1, 100
        if time_s:
            segment.note(time_s * 1_000_000, time_s * 1_000_000)
        found.append(segment)
    return found


@pytest.mark.parametrize(
    ("newest_s", "ages"),
    [
        ([0, 100, 200], [200, 100, 0]),
        ([0, 100, 100 + DAY_S], [DAY_S + 100, DAY_S, 0]),
        ([0, 100, 200 + 60 * DAY_S], [GAP_S + 100, GAP_S, 0]),  # it jumped forward, or was off for long
        ([0, 60 * DAY_S, 100], [GAP_S, 0, 0]),  # forward, and back
        ([50 * 365 * DAY_S, 0, 100], [100, 100, 0]),  # back by many years
    ],
)
def test_what_was_there_at_the_start(newest_s: list[int], ages: list[int]) -> None:
    clock = Clock()
    found = segments([NOW_S + time_s for time_s in newest_s])
    age = Ages(found, GAP_S, clock)
    assert [age(segment) for segment in found] == ages
    clock.now += 70
    age.see(found)
    assert [age(segment) for segment in found] == [old + 70 for old in ages[:-1]] + [0]


def test_while_it_runs_only_the_monotonic_clock_counts() -> None:
    clock = Clock()
    found = segments([NOW_S])
    age = Ages(found, GAP_S, clock)
    for jump in (60 * DAY_S, -50 * DAY_S, 365 * DAY_S):
        found += segments([*range(len(found)), NOW_S + jump])[-1:]
        age.see(found)
        clock.now += 10
    assert [age(segment) for segment in found] == [30, 20, 10, 0]
    age.see(found[2:])
    assert [age(segment) for segment in found[2:]] == [10, 0]


def test_an_empty_segment_is_as_old_as_the_start() -> None:
    clock = Clock()
    found = segments([0, NOW_S, NOW_S + 5])
    age = Ages(found, GAP_S, clock)
    clock.now += 3
    assert [age(segment) for segment in found] == [3, 8, 0]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_jump_by_sixty_days_takes_nothing_from_a_consumer(tmp_path: Path, restarts: bool) -> None:
    clock = Clock()
    settings = replace(SMALL, retention_s=7 * DAY_S, consumer_retention_s=30 * DAY_S)
    log = SegmentedLog.open(tmp_path, settings, silent, DISK, clock)
    ConsumerPosition.register(tmp_path, "archive", log.uuid, log.epoch, 0)
    for number in range(20):
        jump_s = 60 * DAY_S if number >= 10 else 0
        log.append(b"x" * 1000, 1, (NOW_S + jump_s) * 1_000_000, (NOW_S + jump_s) * 1_000_000)
    if restarts:
        log.close()
        log = SegmentedLog.open(tmp_path, settings, silent, DISK, clock)
    else:
        log._drain()
    log.set_floor(20)
    assert log.apply_retention() == []
    clock.now += 6 * DAY_S
    assert log.apply_retention() == []
    ConsumerPosition.commit(tmp_path, "archive", log.uuid, log.epoch, 20)
    clock.now += 4 * DAY_S
    assert log.apply_retention(), "what is read goes in its time"
    log.close()
