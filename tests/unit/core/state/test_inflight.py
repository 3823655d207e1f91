"""The window against the dictionary and the set it stands for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.state.inflight import NOT_IN_FLIGHT, Window

REFERENCES = st.integers(1, (1 << 63) - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 3), REFERENCES),  # the distance to the serial before
        st.tuples(st.sampled_from(["remove", "receive"]), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("remove oldest"), st.just(0), st.just(0)),
    ),
    max_size=300,
)


def same(window: Window, entries: dict[int, int], received: set[int], last: int) -> None:
    assert window.items() == list(entries.items())
    assert window.serials() == list(entries)
    assert window.refs() == list(entries.values())
    assert window.received_serials() == sorted(received)
    assert (window.count, window.received) == (len(entries), len(received))
    assert window.first() == next(iter(entries), 0)
    for serial in range(-1, last + 2):
        assert window.get(serial) == entries.get(serial, NOT_IN_FLIGHT)
        assert window.is_received(serial) == (serial in received)


@given(STEPS)
def test_it_does_what_a_dictionary_does(steps: list[tuple[str, int, int]]) -> None:
    window = Window()
    entries: dict[int, int] = {}
    received: set[int] = set()
    last = 0
    for step, number, ref in steps:
        if step == "put":
            last += number
            window.put(last, ref)
            entries[last] = ref
            continue
        serial = next(iter(entries), 0) if step == "remove oldest" else last - number
        if step == "receive":
            window.receive(serial)
            received |= {serial} & entries.keys()
        else:
            assert window.remove(serial) == (entries.pop(serial, None) is not None)
            received.discard(serial)
    same(window, entries, received, last)


@pytest.mark.parametrize("in_flight", [1, 8, 9, 1000])
def test_in_order_for_long(in_flight: int) -> None:
    window = Window()
    for serial in range(1, 20_000):
        window.put(serial, 2 * serial)
        if serial > in_flight:
            assert window.get(serial - in_flight) == 2 * (serial - in_flight)
            assert window.remove(serial - in_flight)
    assert window.serials() == list(range(20_000 - in_flight, 20_000))


def test_an_oldest_entry_that_stays_holds_no_room_for_those_that_went() -> None:
    window = Window()
    window.put(1, 1)
    for serial in range(2, 50_000):
        window.put(serial, serial)
        window.remove(serial)
    assert window.slots == 8
    assert window.items() == [(1, 1)]


def test_an_empty_window_lets_go_of_a_large_ring() -> None:
    window = Window()
    for serial in range(1, 1001):
        window.put(serial, serial)
    assert window.slots == 1024
    for serial in range(1, 1001):
        window.remove(serial)
    assert window.slots == 0
    window.put(1001, 7)
    assert window.items() == [(1001, 7)]
