"""Which segments may go: decided purely, so a table of cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.journal.catalog import Segment
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.retention import (
    IS_FULL,
    LagWarnings,
    RetentionLimits,
    compactable,
    lagging,
    lost_by,
    plan,
)

SECOND = 1_000_000
NOW = 1_000 * SECOND


def segment(base: int, end: int, size: int, newest_s: int) -> Segment:
    made = Segment(Path("/journal"), base)
    made.end_offset, made.size, made.batches = end, size, 1
    made.min_timestamp_us = made.max_timestamp_us = newest_s * SECOND
    return made


# Four segments of 100 bytes and 10 records, 400, 300, 200 and 100 seconds old
SEGMENTS = [segment(10 * i, 10 * i + 10, 100, 600 + 100 * i) for i in range(4)]
WIDE = RetentionLimits(10_000, 10_000, 10_000, 10_000)


def age(segment: Segment) -> int:
    return (NOW - segment.max_timestamp_us) // SECOND


def limits(
    size: int = 10_000, age_s: int = 10_000, held: int = 10_000, held_s: int = 10_000
) -> RetentionLimits:
    return RetentionLimits(size, age_s, held, held_s)


def consumer(offset: int, name: str = "spark") -> ConsumerPosition:
    return ConsumerPosition(name, "", 1, offset, 0, 0)


@pytest.mark.parametrize(
    ("limit", "floor", "offsets", "dropped"),
    [
        (limits(), 40, [], 0),
        (limits(size=400), 40, [], 0),
        (limits(size=399), 40, [], 1),
        (limits(size=200), 40, [], 2),
        (limits(size=0), 40, [], 3),  # never the last
        (limits(age_s=350), 40, [], 1),
        (limits(age_s=300), 40, [], 1),
        (limits(age_s=299), 40, [], 2),
        (limits(size=0), 0, [], 0),  # the floor
        (limits(size=0), 19, [], 1),
        (limits(size=0), 20, [], 2),
        (limits(size=0), 40, [0], 0),  # a consumer
        (limits(size=0), 40, [9], 0),
        (limits(size=0), 40, [10], 1),
        (limits(size=0), 40, [40, 15], 1),
        (limits(size=0, held=350), 40, [0], 1),  # a consumer beyond its own limit
        (limits(size=0, held=250), 40, [0], 2),
        (limits(size=0, held_s=250), 40, [0], 2),
        (limits(size=0, held=0), 10, [0], 1),  # the floor all the same
        (limits(held=0), 40, [0], 0),  # nothing is over
    ],
)
def test_what_goes(limit: RetentionLimits, floor: int, offsets: list[int], dropped: int) -> None:
    consumers = [consumer(offset) for offset in offsets]
    assert [drop.segment for drop in plan(SEGMENTS, limit, floor, consumers, age)] == SEGMENTS[:dropped]


def test_a_drop_says_what_and_why() -> None:
    (drop,) = plan(SEGMENTS, limits(size=350), 40, [], age)
    assert str(drop) == (
        "dropped 00000000000000000000.log (offsets 0 up to 10, 100 bytes): "
        "the journal has 400 bytes, more than 350"
    )


def test_a_drop_says_who_loses_what() -> None:
    drops = plan(SEGMENTS, limits(size=0, held=250), 40, [consumer(4), consumer(40, "other")], age)
    assert "lost by 'spark' (6 records)" in str(drops[0])
    assert "lost by 'spark' (10 records)" in str(drops[1])
    assert "other" not in str(drops[0])


def test_consumers_near_their_limit() -> None:
    assert lagging(SEGMENTS, WIDE, [consumer(0)], age) == {}
    assert lagging(SEGMENTS, limits(held=400), [consumer(40)], age) == {}
    assert "100 % of its limit: 400 bytes" in lagging(SEGMENTS, limits(held=400), [consumer(0)], age)["spark"]
    assert "80 %" in lagging(SEGMENTS, limits(held_s=500), [consumer(0)], age)["spark"]


def test_a_warning_is_said_once_until_the_consumer_has_caught_up() -> None:
    lines: list[str] = []
    warnings = LagWarnings(lines.append)
    for current in ({"a": "slow"}, {"a": "slow"}, {}, {"a": "slow again"}):
        warnings.update(current)
    assert lines == ["slow", "slow again"]


@pytest.mark.parametrize(
    ("limit", "replayed_from", "offsets", "found"),
    [
        (limits(), 40, [], []),
        (limits(size=0), 40, [], [0, 1, 2]),
        (limits(size=0), 25, [], [0, 1]),
        (limits(size=0), 40, [15], [0]),
        (limits(size=0, held=250), 40, [0], [0, 1]),  # beyond its own limit a consumer holds nothing
        (limits(size=0, held=250), 40, [0, 15], [0, 1]),
        (limits(size=0, held_s=250), 40, [0], [0, 1]),
        (limits(size=0, held=250), 15, [0], [0]),
    ],
)
def test_what_may_be_compacted(
    limit: RetentionLimits, replayed_from: int, offsets: list[int], found: list[int]
) -> None:
    consumers = [consumer(offset) for offset in offsets]
    expected = [SEGMENTS[at] for at in found]
    assert compactable(SEGMENTS, limit, replayed_from, consumers, age) == expected


def test_who_loses_what_by_compaction() -> None:
    assert lost_by(SEGMENTS[1], [consumer(15), consumer(20, "other")]) == "'spark' (5 records)"
    assert lost_by(SEGMENTS[1], [consumer(20)]) == ""


@pytest.mark.parametrize(
    ("floor", "offsets", "dropped"), [(40, [], 3), (20, [], 2), (40, [15], 1), (9, [], 0)]
)
def test_on_a_full_disk_goes_what_nobody_needs(floor: int, offsets: list[int], dropped: int) -> None:
    drops = plan(SEGMENTS, WIDE, floor, [consumer(offset) for offset in offsets], age, is_full=True)
    assert [drop.segment for drop in drops] == SEGMENTS[:dropped]
    assert all(drop.reason == IS_FULL for drop in drops)
