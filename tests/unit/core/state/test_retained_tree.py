"""The walk over retained messages: every match once, in bounded pieces, while topics come and go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness import message
from headrace.core.records.message import Message
from headrace.core.state.retained_tree import VISITS_MAX, RetainedTree, RetainedWalk
from headrace.mqtt.topics import matches

NAMES = st.sampled_from(["a", "b", "c", "$d", ""])
TOPICS = st.lists(NAMES, min_size=1, max_size=3).map("/".join).filter(bool)
FILTERS = st.sampled_from(["#", "+", "+/+", "a/#", "a/+/c", "+/b", "$d/#", "+/#", "a/b/c", "a"])
PIECES = st.lists(st.tuples(TOPICS, st.booleans(), st.integers(1, 3)))


def put(tree: RetainedTree, topic: str) -> Message:
    found = message(topic.encode())
    tree.put(found.topic, found)
    return found


def rest(walk: RetainedWalk) -> list[str]:
    found: list[str] = []
    while not walk.done:
        found += [m.topic.decode() for m in walk.take(7)]
    return found


@given(st.sets(TOPICS), FILTERS, PIECES)
def test_what_stays_is_found_once_whatever_comes_and_goes(
    topics: set[str], topic_filter: str, changes: list[tuple[str, bool, int]]
) -> None:
    tree = RetainedTree()
    for topic in topics:
        put(tree, topic)
    walk, found = tree.walk(topic_filter), []
    touched = set()
    for topic, keep, count in changes:
        found += [m.topic.decode() for m in walk.take(count)]
        touched.add(topic)
        if keep:
            put(tree, topic)
        else:
            tree.remove(topic.encode())
    found += rest(walk)
    untouched = {topic for topic in topics - touched if matches(topic_filter, topic)}
    assert untouched <= set(found) <= {topic for topic in topics | touched if matches(topic_filter, topic)}
    assert len([topic for topic in found if topic in untouched]) == len(untouched)


def test_a_wide_level_is_walked_in_pieces_between_changes() -> None:
    tree = RetainedTree()
    names = [f"fleet/{number}/state" for number in range(1000)]
    for name in names:
        put(tree, name)
    walk = tree.walk("fleet/+/state")
    found = [m.topic.decode() for m in walk.take(300)]
    assert len(found) == 300
    gone = [name for name in names if name not in found][::2] + found[:50]
    for name in gone:
        tree.remove(name.encode())
    for number in range(2000, 2600):
        put(tree, f"fleet/{number}/state")
    found += rest(walk)
    assert len(found) == len(set(found))
    assert set(names) - set(gone) <= set(found)
    assert not set(found[300:]) & set(gone)


def test_a_piece_is_bounded_by_what_it_looks_at_too() -> None:
    tree = RetainedTree()
    for number in range(3 * VISITS_MAX):
        put(tree, f"fleet/{number}/state")
    walk = tree.walk("fleet/+/missing")
    pieces = 0
    while not walk.done:
        before = walk.visits
        assert walk.take(256) == []
        assert walk.visits - before <= VISITS_MAX
        pieces += 1
    assert pieces >= 3


def test_an_emptied_tree_holds_nothing_and_can_be_filled_again() -> None:
    tree = RetainedTree()
    names = [f"fleet/{number}" for number in range(300)]
    for _ in range(2):
        for name in names:
            put(tree, name)
        assert sorted(rest(tree.walk("#"))) == sorted(names)
        for name in names:
            tree.remove(name.encode())
        assert rest(tree.walk("#")) == []


@given(st.sets(TOPICS))
def test_all_of_them_are_those_below_dollar_too(topics: set[str]) -> None:
    tree = RetainedTree()
    for topic in topics:
        put(tree, topic)
    assert sorted(rest(tree.walk_all())) == sorted(topics)
