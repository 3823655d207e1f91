"""Filters of Spark as a selection: never narrower than the filters, as narrow as can be told."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from headrace.journal.selective import TimeRange
from headrace_spark.source.selection import EVER, Selection, microseconds

MOMENT = datetime(2025, 10, 10, tzinfo=UTC)
AT_US = 1_760_054_400_000_000
DAY_US = 86_400_000_000


def pushed(*filters: Filter) -> Selection:
    return Selection().pushed(filters)


def test_topics_and_tenants() -> None:
    found = pushed(EqualTo(("tenant",), "plant"), StringStartsWith(("topic",), "line/"))
    assert found.is_by_topic
    assert found.wants("plant", "line/1")
    assert not found.wants("plant", "lines")
    assert not found.wants("office", "line/1")
    narrow = found.pushed([In(("topic",), ("line/1", "line/2", None)), EqualTo(("topic",), "line/2")])
    assert [narrow.wants("plant", topic) for topic in ("line/1", "line/2")] == [False, True]


def test_a_topic_filter_is_that_of_mqtt() -> None:
    found = Selection(topic_filter="+/status/#")
    assert found.wants("", "a/status")
    assert not found.wants("", "$SYS/status")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (GreaterThan(("journal_offset",), 5), (6, 1 << 63)),
        (GreaterThanOrEqual(("journal_offset",), 5), (5, 1 << 63)),
        (LessThan(("journal_offset",), 5), (0, 5)),
        (LessThanOrEqual(("journal_offset",), 5), (0, 6)),
        (EqualTo(("journal_offset",), 5), (5, 6)),
        (In(("journal_offset",), (9, 5)), (5, 10)),
        (EqualTo(("incarnation",), 5), (0, 1 << 63)),
    ],
)
def test_offsets(given: Filter, expected: tuple[int, int]) -> None:
    assert (pushed(given).start, pushed(given).end) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (GreaterThanOrEqual(("publish_timestamp",), MOMENT), (AT_US, EVER.until_us)),
        (GreaterThan(("event_timestamp",), MOMENT), (AT_US + 1, EVER.until_us)),
        (LessThan(("progress_timestamp",), MOMENT), (0, AT_US)),
        (LessThanOrEqual(("publish_timestamp",), MOMENT), (0, AT_US + 1)),
        (EqualTo(("date",), date(2025, 10, 10)), (AT_US, AT_US + DAY_US)),
        (GreaterThan(("date",), date(2025, 10, 10)), (AT_US + DAY_US, EVER.until_us)),
        (LessThanOrEqual(("date",), date(2025, 10, 10)), (0, AT_US + DAY_US)),
        (LessThan(("payload",), b"x"), (0, EVER.until_us)),
    ],
)
def test_times(given: Filter, expected: tuple[int, int]) -> None:
    assert pushed(given).times == TimeRange(*expected)


def test_what_is_not_understood_narrows_nothing() -> None:
    others = [Not(EqualTo(("topic",), "a")), IsNotNull(("topic",)), EqualTo(("topic", "x"), "a")]
    assert pushed(*others, EqualTo(("topic",), None)) == Selection()


def test_bounds_hold_together() -> None:
    found = pushed(GreaterThan(("journal_offset",), 5), GreaterThan(("journal_offset",), 3))
    assert found.start == 6
    times = TimeRange(5, 9)
    assert found.between(times).between(TimeRange(7, 20)).times == TimeRange(7, 9)


def test_a_time_without_a_zone_is_utc() -> None:
    assert microseconds(MOMENT.replace(tzinfo=None)) == microseconds(MOMENT) == AT_US
