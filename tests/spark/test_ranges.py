"""Ranges cover what they must, without gap or overlap, within their limits."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.journal.reader import SegmentInfo
from headrace_spark.errors import ForeignOffset
from headrace_spark.ranges import JournalOffset, bytes_between, end_within, split

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


@pytest.mark.parametrize("given", [{}, {"uuid": "u", "epoch": 1}, {"uuid": "u", "epoch": "x", "offset": 1}])
def test_what_is_no_offset_of_ours_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ForeignOffset, match="no offset of a headrace journal"):
        JournalOffset.from_dict(given)
