"""Routes are never too narrow: who announced a filter is found by every topic that matches it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.shards.hashed import SLOTS_MAX
from headrace.core.shards.routes import SWEPT_AT_ONCE, Routes
from headrace.mqtt.topics import matches

FILTERS = ["a", "a/b", "a/+", "#", "+/b", "$x/#", "a/b/#", "/", "ü"]
TOPICS = ["a", "a/b", "a/b/c", "$x/y", "/", "ü", "c"]
TENANTS = ["default", "other"]

steps = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 3), st.sampled_from(TENANTS), st.sampled_from(FILTERS)),
    st.tuples(st.just("add"), st.integers(0, 3), st.sampled_from(TENANTS), st.sampled_from(FILTERS)),
    st.tuples(st.just("remove"), st.integers(0, 3), st.sampled_from(TENANTS), st.sampled_from(FILTERS)),
    st.tuples(st.just("reopen"), st.integers(0, 3), st.just(""), st.just("")),
    st.tuples(st.just("sweep"), st.just(0), st.just(""), st.just("")),
)


@given(st.lists(steps, max_size=60))
def test_the_slots_of_a_topic_are_those_that_announced_a_filter_of_it(
    history: list[tuple[str, int, str, str]],
) -> None:
    routes = Routes()
    slots = [routes.open() for _ in range(4)]
    held: dict[int, set[tuple[str, str]]] = {slot: set() for slot in slots}
    for kind, which, tenant, topic_filter in history:
        slot, wanted = slots[which], (tenant, topic_filter)
        if kind == "add" and wanted not in held[slot]:
            routes.add(slot, *wanted)
            held[slot].add(wanted)
        elif kind == "remove" and wanted in held[slot]:
            routes.remove(slot, *wanted)
            held[slot].remove(wanted)
        elif kind == "reopen":
            routes.close(slot)
            del held[slot]
            slots[which] = routes.open()
            held[slots[which]] = set()
        elif kind == "sweep":
            for _ in range(100):
                routes.sweep()
    for tenant in TENANTS:
        for topic in TOPICS:
            found = routes.match(tenant, topic.encode())
            expected = {
                slot
                for slot, wanted in held.items()
                if any(owner == tenant and matches(f, topic) for owner, f in wanted)
            }
            assert len(found) == len(set(found))
            assert set(found) == expected


def test_a_closed_slot_takes_nothing_more_and_is_used_again_once_it_is_swept() -> None:
    routes = Routes()
    slot = routes.open()
    for number in range(SWEPT_AT_ONCE + 1):
        routes.add(slot, "default", f"a/{number}/#")
    routes.add(slot, "default", "b")
    routes.close(slot)
    routes.close(slot)
    routes.add(slot, "default", "c")
    assert routes.match("default", b"a/7/x") == routes.match("default", b"b") == []
    assert routes.open() != slot
    while routes.sweep():
        pass
    assert routes.hashed.entries == 0
    assert routes.open() == slot
    assert routes.match("default", b"a/7/x") == routes.match("default", b"b") == []


def test_there_are_slots_for_so_many_connections_and_no_more() -> None:
    routes = Routes()
    for _ in range(SLOTS_MAX):
        routes.open()
    with pytest.raises(OverflowError):
        routes.open()
