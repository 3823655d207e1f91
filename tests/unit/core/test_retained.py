"""Retained messages: the last in journal order, found like subscriptions match."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness import message
from headrace.core.message import Message
from headrace.core.retained import RetainedStore
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
