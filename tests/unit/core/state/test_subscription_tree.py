"""The subscription tree against the reference matcher, and its routes after every change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.state.session import Session, Subscription, Target, merge
from headrace.core.state.subscription_tree import SubscriptionTree
from headrace.core.state.tenant import Tenant
from headrace.mqtt.topics import matches, valid_filter
from headrace.storage.memory import MemoryJournal

LEVELS = st.sampled_from(["a", "b", "", "$x"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = (
    st.lists(st.one_of(LEVELS, st.just("+"), st.just("#")), min_size=1, max_size=4)
    .map("/".join)
    .filter(valid_filter)
)


def subscription(session: Session, topic_filter: str, qos: int = 1, identifier: bytes = b"") -> Subscription:
    return Subscription(session, topic_filter, qos, False, False, 0, 0, identifier)


def session(name: str = "s", incarnation: int = 1) -> Session:
    return Session(Tenant("default", MemoryJournal()), name, incarnation, 0, 1)


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 2), FILTERS)), st.lists(TOPICS, min_size=1, max_size=5)
)
def test_it_matches_like_the_reference(changes: list[tuple[bool, int, str]], topics: list[str]) -> None:
    tree: SubscriptionTree[Target] = SubscriptionTree(merge)
    sessions = [session(str(number), number) for number in range(3)]
    held: set[tuple[int, str]] = set()
    for add, number, topic_filter in changes:
        if add:
            new = tree.add(topic_filter, subscription(sessions[number], topic_filter))
            assert new == ((number, topic_filter) not in held)
            held.add((number, topic_filter))
        else:
            assert tree.remove(topic_filter, sessions[number]) == ((number, topic_filter) in held)
            held.discard((number, topic_filter))
        assert tree.count == len(held)
        for topic in topics:
            found = {target.session.incarnation for target in tree.match(topic.encode())}
            assert found == {number for number, topic_filter in held if matches(topic_filter, topic)}


def test_overlapping_subscriptions_make_one_target() -> None:
    tree: SubscriptionTree[Target] = SubscriptionTree(merge)
    one = session()
    tree.add("a/b", subscription(one, "a/b", 0, b"\x0b\x01"))
    tree.add("a/+", subscription(one, "a/+", 2, b"\x0b\x02"))
    (target,) = tree.match(b"a/b")
    assert (target.qos, target.ids) == (2, b"\x0b\x01\x0b\x02")
    tree.remove("a/+", one)
    (target,) = tree.match(b"a/b")
    assert (target.qos, target.ids) == (0, b"\x0b\x01")


def test_nothing_is_left_of_removed_wildcards() -> None:
    tree: SubscriptionTree[Target] = SubscriptionTree(merge)
    one = session()
    for topic_filter in ("a/+/c/#", "+/+", "#"):
        tree.add(topic_filter, subscription(one, topic_filter))
    for topic_filter in ("a/+/c/#", "+/+", "#"):
        assert tree.remove(topic_filter, one)
    assert not tree.remove("#", one)
    assert tree.match(b"a/b/c/d") == []


@pytest.mark.slow
def test_routes_are_remembered_by_how_many_targets_they_have() -> None:
    """A thousand sessions with one wildcard, and very many topics."""
    tree: SubscriptionTree[Target] = SubscriptionTree(merge)
    for number in range(1000):
        tree.add("devices/#", subscription(session(str(number), number), "devices/#"))
    most = 0
    for number in range(3000):
        assert len(tree.match(b"devices/%d" % number)) == 1000
        most = max(most, sum(map(len, tree._routes.values())))
    assert most == tree_limit(1000)
    tree.add("devices/1", subscription(session("x", 5000), "devices/1"))
    assert len(tree.match(b"devices/1")) == 1001
    assert tree._routed == sum(map(len, tree._routes.values()))
    tree.remove("devices/#", next(iter(tree.match(b"devices/2"))).session)
    assert tree._routed == 0


def tree_limit(targets: int) -> int:
    return (1 << 20) // targets * targets


def test_routes_with_targets_of_their_own_count_more() -> None:
    tree: SubscriptionTree[Target] = SubscriptionTree(merge)
    for number in range(100):
        one = session(str(number), number)
        for topic_filter in ("d/#", "d/+"):
            tree.add(topic_filter, subscription(one, topic_filter))
    for number in range(1000):
        assert len(tree.match(b"d/%d" % number)) == 100
    assert len(tree._routes) <= (1 << 20) // (100 * 33)


def test_a_match_says_what_it_cost_once() -> None:
    tree: SubscriptionTree[Target] = SubscriptionTree(merge)
    one = session()
    for number in range(1 << 8):
        levels = "/".join("+" if number >> level & 1 else "a" for level in range(8))
        tree.add(levels, subscription(one, levels))
    assert len(tree.match(b"/".join([b"a"] * 8))) == 1
    work = tree.take_work()
    assert (255 + 256) // 16 < work <= 255 + 256
    assert len(tree.match(b"/".join([b"a"] * 8))) == 1  # remembered
    assert tree.take_work() == 0
