"""Rules as a tree, held against the reference matcher over a small world of topics."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.mqtt.topics import matches
from headrace.services.filters import Names, RuleTree

LEVELS = ["a", "b", "", "$s"]
TOPICS = [
    topic for n in (1, 2, 3, 4) for topic in map("/".join, itertools.product(LEVELS, repeat=n)) if topic
]
NOBODY = Names("", None)


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.sampled_from(["a", "b", "+", "", "$s"]), min_size=1, max_size=3))
    if draw(st.booleans()):
        levels.append("#")
    return "/".join(levels) or "#"


def tree_of(*rules: str) -> RuleTree:
    """Each rule has a bit of its own."""
    tree = RuleTree()
    for number, rule in enumerate(rules):
        tree.add(rule, 1 << number, marked=False)
    return tree


def bits(rules: list[str], wanted: list[bool]) -> int:
    return sum(1 << number for number, _ in enumerate(rules) if wanted[number])


some_rules = st.lists(filters(), max_size=5)


@given(some_rules, st.sampled_from(TOPICS))
def test_a_topic_has_the_rights_of_all_rules_that_match_it(rules: list[str], topic: str) -> None:
    assert tree_of(*rules).of_topic(topic, NOBODY) == bits(rules, [matches(rule, topic) for rule in rules])


@given(some_rules, filters())
def test_rules_overlap_if_a_topic_matches_both(rules: list[str], other: str) -> None:
    possible = ["", *TOPICS]  # the empty one is no topic, but what `+` and `/#` have in common
    wanted = [any(matches(rule, topic) and matches(other, topic) for topic in possible) for rule in rules]
    assert tree_of(*rules).overlapping(other, NOBODY) == bits(rules, wanted)


@given(some_rules, filters())
def test_rules_cover_if_they_match_every_topic_of_the_other(rules: list[str], narrow: str) -> None:
    found = tree_of(*rules).covering(narrow, NOBODY)
    for number, rule in enumerate(rules):
        missing = [topic for topic in TOPICS if matches(narrow, topic) and not matches(rule, topic)]
        if found & 1 << number:
            assert not missing
        elif "#" not in narrow and "+" not in narrow:
            assert missing


@pytest.mark.parametrize(
    ("wide", "narrow", "covers"),
    [
        ("a/#", "a", True),
        ("a/#", "a/+/c", True),
        ("+/+", "a/+", True),
        ("+/+", "a/#", False),
        ("+", "+/#", False),
        ("+/#", "#", False),
        ("#", "#", True),
        ("#", "$SYS/#", False),
        ("+/x", "$SYS/x", False),
    ],
)
def test_covering(wide: str, narrow: str, covers: bool) -> None:
    assert tree_of(wide).covering(narrow, NOBODY) == covers


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("#", "$SYS/x", False),
        ("a/+", "+/b", True),
        ("a/+", "a/b/c", False),
        ("a/#", "a", True),
        ("+/b", "#", True),
        ("$SYS/#", "#", False),
        ("$SYS/#", "+/b", False),
    ],
)
def test_overlapping(one: str, other: str, overlap: bool) -> None:
    assert tree_of(one).overlapping(other, NOBODY) == overlap
    assert tree_of(other).overlapping(one, NOBODY) == overlap


def test_marks_are_filled_in_all_at_once() -> None:
    tree = RuleTree()
    tree.add("a/%c-%u", 1, marked=True)
    names = Names("%u", "%c")
    assert tree.of_topic("a/%u-%c", names) == 1
    assert tree.of_topic("a/%c-%c", names) == 0
    assert not tree_of("a/%c").of_topic("a/x", Names("x", None))  # no marks in this one
    assert tree_of("a/%c").of_topic("a/%c", Names("x", None))


@pytest.mark.parametrize("name", ["", "+", "#", "a/b", "a+", "$share", "$SYS"])
def test_a_name_that_would_reach_further_fills_in_nothing(name: str) -> None:
    tree = RuleTree()
    for rule in ("%c/#", "%c/up/#", "%c"):
        tree.add(rule, 1, marked=True)
    names = Names(name, "ada")
    for wanted in ("#", "+/up/x", "$share/up/x", "a/b/up", "+", name or "x", f"{name}/up/x"):
        assert tree.overlapping(wanted, names) == 0
        assert tree.covering(wanted, names) == 0
        assert tree.of_topic(wanted, names) == 0


def test_what_a_long_topic_or_filter_costs_is_bounded_by_the_rules() -> None:
    tree = tree_of("a/b/#", "+/b/c")
    topic = "/".join(["a"] * 32_000)
    assert tree.of_topic(topic, NOBODY) == 0
    assert tree.overlapping("+/" * 32_000 + "#", NOBODY) == 1
    assert tree.covering("a/b/" + topic, NOBODY) == 1
