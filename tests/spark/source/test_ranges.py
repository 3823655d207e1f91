"""Ranges cover what they must, without gap or overlap, within their limits."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.journal.reader import SegmentInfo
from headrace.journal.selective import TimeRange
from headrace_spark.base.errors import ForeignOffset
from headrace_spark.source.ranges import (
    JournalOffset,
    StreamOffset,
    bytes_between,
    end_within,
    overlapping,
    shares,
    split,
    split_at,
)

SEGMENTS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 10_000)), min_size=1, max_size=6)


def segments_of(drawn: list[tuple[int, int]]) -> list[SegmentInfo]:
    made, base = [], 100
    for records, size in drawn:
        made.append(SegmentInfo(base, base + records, size if records else 0, 0, 0))
        base += records
    return made


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 500))
def test_split_covers_the_range(start: int, length: int, parts: int, least: int) -> None:
    ranges = split(start, start + length, parts, least)
    assert len(ranges) <= parts
    assert sum(end - begin for begin, end in ranges) == length
    assert all(left[1] == right[0] for left, right in pairwise(ranges))
    if len(ranges) > 1:
        assert all(end - begin >= least for begin, end in ranges)


def test_split_of_nothing() -> None:
    assert split(5, 5, 4) == []
    assert split(9, 5, 4) == []


@given(SEGMENTS, st.integers(1, 20_000), st.data())
def test_end_within_keeps_the_limit_and_always_moves(
    drawn: list[tuple[int, int]], limit: int, data: st.DataObject
) -> None:
    segments = segments_of(drawn)
    last = segments[-1].end_offset
    start = data.draw(st.integers(100, max(100, last - 1)))
    end = end_within(segments, start, last, limit)
    assert min(start + 1, last) <= end <= last
    if end > start + 1:
        assert bytes_between(segments, start, end) <= limit + len(segments)
    if end < last:
        assert bytes_between(segments, start, last) > limit - len(segments)


def test_bytes_between_counts_segments_in_part() -> None:
    segments = [SegmentInfo(0, 10, 1000, 0, 0), SegmentInfo(10, 20, 500, 0, 0)]
    assert bytes_between(segments, 0, 20) == 1500
    assert bytes_between(segments, 5, 12) == 600
    assert bytes_between(segments, 20, 30) == 0


def test_offsets_survive_the_checkpoint() -> None:
    offset = JournalOffset("u", 3, 77)
    assert JournalOffset.from_json(json.dumps(offset.as_dict(lag=5, bytes=9))) == offset
    timed = replace(offset, time_us=7)
    assert JournalOffset.from_json(json.dumps(timed.as_dict(lag=5))).time_us == 7
    assert json.dumps(JournalOffset.from_dict(timed.as_dict()).as_dict()) == json.dumps(timed.as_dict())
    assert "time_us" not in offset.as_dict()


@pytest.mark.parametrize("given", [{}, {"uuid": "u", "epoch": 1}, {"uuid": "u", "epoch": "x", "offset": 1}])
def test_what_is_no_offset_of_ours_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ForeignOffset, match="no offset of a headrace journal"):
        JournalOffset.from_dict(given)


def test_segments_of_a_time_and_their_neighbours_joined() -> None:
    segments = [SegmentInfo(10 * i, 10 * i + 10, 100, 100 * i, 100 * i + 99) for i in range(5)]
    assert overlapping(segments, 0, 50, TimeRange(0, 1 << 60)) == [(0, 50)]
    assert overlapping(segments, 5, 45, TimeRange(150, 301)) == [(10, 40)]
    assert overlapping(segments, 0, 50, TimeRange(500, 900)) == []
    segments[2].min_ts = segments[2].max_ts = 900
    assert overlapping(segments, 0, 50, TimeRange(0, 300)) == [(0, 20)]
    assert overlapping(segments, 0, 50, TimeRange(100, 500)) == [(10, 20), (30, 50)]


@given(st.sets(st.integers(1, 99)), st.integers(1, 9))
def test_ranges_that_meet_where_segments_begin(bases: set[int], parts: int) -> None:
    ranges = split_at([0, *sorted(bases)], 0, 100, parts)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 100
    assert len(ranges) <= parts
    assert all(left[1] == right[0] and right[0] in bases for left, right in pairwise(ranges))
    assert all(first < last for first, last in ranges)


@given(st.lists(st.integers(0, 10_000), max_size=6), st.integers(1, 10_000))
def test_shares_are_in_proportion_and_nobody_starves(wanted: list[int], limit: int) -> None:
    found = shares(wanted, limit)
    assert all(min(want, 1) <= share <= want for want, share in zip(wanted, found, strict=True))
    assert sum(found) <= limit + len(wanted)


def test_one_journal_stands_as_it_is_and_several_in_a_list() -> None:
    one, two = JournalOffset("a", 1, 5), JournalOffset("b", 2, 7)
    assert StreamOffset({"a": one}).as_dict(lag=3) == {"uuid": "a", "epoch": 1, "offset": 5, "lag": 3}
    several = StreamOffset({"a": one, "b": two}, {"b": 4})
    assert StreamOffset.from_dict(json.loads(json.dumps(several.as_dict(bytes=9)))) == several
    assert StreamOffset.from_dict(one.as_dict(bytes=9)) == StreamOffset({"a": one})
