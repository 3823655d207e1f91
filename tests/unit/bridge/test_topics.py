"""Rules of a bridge: prefixes, directions, and which rule decides."""

from __future__ import annotations

import pytest

from headrace.bridge.topics import Rule, TopicMap, subscriptions


def test_a_prefix_on_each_side_is_exchanged() -> None:
    topics = TopicMap([Rule("t/#", "both", 1, "here/", "there/")])
    assert topics.outward(b"here/t/a") == b"there/t/a"
    assert topics.inward(b"there/t/a") == b"here/t/a"
    assert topics.outward(b"t/a") == b"" == topics.inward(b"here/t/a")


def test_a_direction_holds_in_that_direction_only() -> None:
    topics = TopicMap([Rule("up", "out", 1), Rule("down", "in", 1)])
    assert (topics.outward(b"up"), topics.inward(b"up")) == (b"up", b"")
    assert (topics.outward(b"down"), topics.inward(b"down")) == (b"", b"down")


def test_an_empty_pattern_maps_one_topic_to_another() -> None:
    rule = Rule("", "out", 1, "a/b", "c")
    assert rule.error() is None
    assert TopicMap([rule]).outward(b"a/b") == b"c"


def test_the_first_rule_that_matches_decides() -> None:
    topics = TopicMap([Rule("a/x", "out", 1, "", "first/"), Rule("a/#", "out", 1, "", "second/")])
    assert (topics.outward(b"a/x"), topics.outward(b"a/y")) == (b"first/a/x", b"second/a/y")


def test_names_that_the_mapping_makes_too_long_or_empty_do_not_cross() -> None:
    topics = TopicMap([Rule("#", "out", 1, "", "p" * 65_000 + "/"), Rule("#", "in", 1, "", "a/")])
    assert topics.outward(b"x" * 1_000) == b""
    assert len(topics.outward(b"x" * 500)) == 65_501
    assert TopicMap([Rule("#", "out", 1, "a", "")]).outward(b"a") == b""


def test_prefixes_count_in_bytes() -> None:
    assert TopicMap([Rule("#", "out", 1, "größe/", "m/")]).outward("größe/ä".encode()) == "m/ä".encode()


def test_more_topics_than_are_remembered_are_mapped_too() -> None:
    topics = TopicMap([Rule("#", "out", 0, "", "p/")])
    for _ in range(2):
        for number in range(20_000):
            assert topics.outward(b"%d" % number) == b"p/%d" % number


def test_subscriptions_of_both_sides() -> None:
    rules = [Rule("a", "out", 1, "l/"), Rule("a", "both", 2, "l/", "r/"), Rule("b", "in", 0, "l/", "r/")]
    assert subscriptions(rules, outward=True) == {"l/a": 2}
    assert subscriptions(rules, outward=False) == {"r/a": 2, "r/b": 0}


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        (Rule("", "out", 1), "pattern"),
        (Rule("a#", "out", 1), "pattern"),
        (Rule("a", "out", 1, local_prefix="+/"), "local_prefix"),
        (Rule("a", "out", 1, remote_prefix="x/#"), "remote_prefix"),
        (Rule("$share/g/a", "in", 1), "pattern"),
        (Rule("a", "in", 1, remote_prefix="$share/g/"), "remote_prefix"),
        (Rule("x" * 65_536, "out", 1), "pattern"),
    ],
)
def test_a_bad_rule_names_its_key(rule: Rule, key: str) -> None:
    wrong = rule.error()
    assert wrong is not None
    assert wrong[0] == key
