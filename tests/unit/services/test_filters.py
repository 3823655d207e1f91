"""Covering and overlapping filters, held against the reference matcher over a small world of topics."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from headrace.mqtt.topics import matches
from headrace.services.filters import covers, overlaps

LEVELS = ["a", "b", "", "$s"]
TOPICS = [
    topic for n in (1, 2, 3, 4) for topic in map("/".join, itertools.product(LEVELS, repeat=n)) if topic
]


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.sampled_from(["a", "b", "+", "", "$s"]), min_size=1, max_size=3))
    if draw(st.booleans()):
        levels.append("#")
    return "/".join(levels) or "#"


@given(filters(), filters())
def test_overlaps_if_a_topic_matches_both(one: str, other: str) -> None:
    possible = ["", *TOPICS]  # the empty one is no topic, but what `+` and `/#` have in common
    found = any(matches(one, topic) and matches(other, topic) for topic in possible)
    assert overlaps(one, other) == overlaps(other, one)
    assert overlaps(one, other) == found


@given(filters(), filters())
def test_covers_if_every_topic_of_one_matches_the_other(wide: str, narrow: str) -> None:
    missing = [topic for topic in TOPICS if matches(narrow, topic) and not matches(wide, topic)]
    if covers(wide, narrow):
        assert not missing
    elif "#" not in narrow and "+" not in narrow:
        assert missing


def test_examples() -> None:
    assert covers("a/#", "a")
    assert covers("a/#", "a/+/c")
    assert covers("+/+", "a/+")
    assert not covers("+/+", "a/#")
    assert not covers("#", "$SYS/#")
    assert not overlaps("#", "$SYS/x")
    assert overlaps("a/+", "+/b")
    assert not overlaps("a/+", "a/b/c")
    assert overlaps("a/#", "a")
