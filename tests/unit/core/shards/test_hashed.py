"""The table of hashed filters is a multiset of (hash, slot), whatever comes and goes, in few bytes an entry."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.shards.hashed import SEGMENTS, HashedFilters

NEAR = [segment + (home << 8) for segment in (0, 255) for home in (0, 1, 7, 8, 9, -1, -2)]
keys = st.one_of(st.sampled_from(NEAR), st.integers(-(1 << 63), (1 << 63) - 1))
steps = st.one_of(
    st.tuples(st.just("add"), keys, st.integers(0, 2)),
    st.tuples(st.just("add"), keys, st.integers(0, 2)),
    st.tuples(st.just("remove"), keys, st.integers(0, 2)),
    st.tuples(st.just("sweep"), st.just(0), st.integers(0, 2)),
)


def slots_of(table: HashedFilters, key: int) -> list[int]:
    return sorted(table.slots(key) or [])


@given(st.lists(steps, max_size=120))
def test_it_holds_what_was_added_and_not_removed(history: list[tuple[str, int, int]]) -> None:
    table, held = HashedFilters(), Counter[tuple[int, int]]()
    for kind, key, slot in history:
        if kind == "add":
            table.add(key, slot)
            held[key, slot] += 1
        elif kind == "remove":
            table.remove(key, slot)
            held[key, slot] -= held[key, slot] > 0
        else:
            for segment in range(SEGMENTS):
                table.sweep(slot, segment)
            for pair in [pair for pair in held if pair[1] == slot]:
                del held[pair]
    for key in {key for _, key, _ in history}:
        assert slots_of(table, key) == [slot for slot in range(3) if held[key, slot]]
    assert table.entries == len(+held)


def test_a_filter_takes_at_most_24_bytes_however_many_there_are() -> None:
    """From a few thousand filters on: an empty table has its segments."""
    rng, table = Random(1), HashedFilters()
    for count in range(1, 200_001):
        table.add(rng.getrandbits(64) - (1 << 63), count % 3)
        if count > 20_000 and count % 1000 == 0:
            assert table.bytes <= 24 * table.entries, count


def test_a_count_at_its_end_stays_too_wide() -> None:
    table = HashedFilters()
    for _ in range(40_000):
        table.add(5, 1)
    for _ in range(40_000):
        table.remove(5, 1)
    assert slots_of(table, 5) == [1]
    table.sweep(1, 5)
    assert slots_of(table, 5) == []


def test_the_highest_slot_is_one_like_the_others() -> None:
    table = HashedFilters()
    table.add(-1, 65_535)
    table.add(-1, 0)
    assert slots_of(table, -1) == [0, 65_535]
    table.remove(-1, 65_535)
    assert slots_of(table, -1) == [0]
