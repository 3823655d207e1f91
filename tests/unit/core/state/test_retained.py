"""Retained messages: the last in journal order, found like subscriptions match."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness import message
from headrace.core.records.message import Message
from headrace.core.state.retained import LEVEL_BYTES, LEVELS_FREE, RetainedStore
from headrace.mqtt.topics import matches, valid_filter

LEVELS = st.sampled_from(["a", "b", "", "$x"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = (
    st.lists(st.one_of(LEVELS, st.just("+"), st.just("#")), min_size=1, max_size=4)
    .map("/".join)
    .filter(valid_filter)
)


def retained(topic: str, offset: int, payload: bytes = b"x") -> Message:
    found = message(topic.encode(), payload)
    found.offset = offset
    return found


@given(st.lists(st.tuples(TOPICS, st.booleans())), FILTERS)
def test_it_finds_what_the_reference_matches(changes: list[tuple[str, bool]], topic_filter: str) -> None:
    store = RetainedStore()
    kept: dict[str, int] = {}
    for offset, (topic, delete) in enumerate(changes):
        store.apply(retained(topic, offset, b"" if delete else b"x"))
        kept.pop(topic, None)
        if not delete:
            kept[topic] = offset
    wanted = sorted(offset for topic, offset in kept.items() if matches(topic_filter, topic))
    assert sorted(found.offset for found in store.walk(topic_filter).take(1000)) == wanted
    assert len(store) == len(kept)
    assert store.bytes == sum(found.size for found in store.messages())
    assert store.lowest_offset() == min(kept.values(), default=-1)


def test_an_older_message_changes_nothing() -> None:
    store = RetainedStore()
    store.apply(retained("t", 9))
    store.apply(retained("t", 4))
    store.apply(retained("t", 5, b""))
    assert [found.offset for found in store.messages()] == [9]
    assert store.at(4) is None
    assert not store.remove(b"t", 4)
    assert store.remove(b"t", 9)
    assert len(store) == 0
    assert store.bytes == 0


CHANGES = st.lists(
    st.tuples(st.sampled_from(["arrive", "apply", "expire"]), TOPICS, st.booleans()), max_size=40
)


@given(CHANGES)
def test_what_is_on_its_way_is_counted_as_what_it_will_be(changes: list[tuple[str, str, bool]]) -> None:
    """Against a walk over everything: topics that will be new, and bytes, whatever is kept or expires meanwhile."""
    store = RetainedStore()
    waiting: list[Message] = []
    for offset, (what, topic, delete) in enumerate(changes):
        if what == "arrive":
            found = retained(topic, offset, b"" if delete else b"x" * (offset + 1))
            store.arrive(found)
            waiting.append(found)
        elif what == "apply" and waiting:
            store.apply(waiting.pop(0))
        elif what == "expire":
            kept = store.get(topic.encode())
            if kept is not None:
                store.remove(topic.encode(), kept.offset)
        kept_topics = {found.topic for found in store.messages()}
        coming = {found.topic for found in waiting if found.payload}
        assert store.topics_soon(b"new") == len(kept_topics | coming) + 1
        for known in kept_topics | coming:
            assert store.topics_soon(known) == len(kept_topics | coming)
        bytes_soon = store.bytes + sum(found.size for found in waiting if found.payload)
        assert store.memory_soon(b"new", 5) == bytes_soon + 5
        assert all(store.is_arriving(found.topic) for found in waiting)
        assert store.is_arriving(b"new") is False


def test_levels_are_counted_as_the_memory_they_take() -> None:
    store = RetainedStore()
    deep = "/".join(str(number) for number in range(200))
    one = retained(deep, 1)
    before = store.memory_soon(one.topic, one.size)
    store.apply(one)
    assert before == store.memory_soon(one.topic, one.size) == one.size + LEVEL_BYTES * (200 - LEVELS_FREE)
    beside = retained(deep[:-3] + "x", 2)
    store.apply(beside)
    assert store.memory_soon(b"t", 0) == one.size + beside.size + LEVEL_BYTES * (201 - 2 * LEVELS_FREE)
    for found in (one, beside):
        store.remove(found.topic, found.offset)
    assert store.memory_soon(b"t", 0) == 0
