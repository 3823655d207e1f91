"""The fair queue: turns, bounds, and what stays consistent whatever is put in and taken out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.services.fairness import FairQueue


def test_turns_go_round_by_source_and_within_it_by_user() -> None:
    queue: FairQueue[str] = FairQueue(1000, 1000)
    for number in range(3):
        queue.put("flood", "admin", f"admin {number}", 1)
    queue.put("flood", "ada", "ada", 1)
    queue.put("calm", "bob", "bob", 1)
    order = [queue.take() for _ in range(5)]
    assert order == ["admin 0", "bob", "ada", "admin 1", "admin 2"]
    with pytest.raises(KeyError):
        queue.take()


@pytest.mark.parametrize(
    "name", ["ada", "{0}", "{1}"], ids=["one name", "each a name of its own", "a hundred names"]
)
def test_whoever_comes_new_is_among_the_next_few(name: str) -> None:
    """Ten thousand strangers from as many addresses were here before: in turns, not in milliseconds."""
    queue: FairQueue[str] = FairQueue(20_000, 1_000_000)
    for number in range(10_000):
        queue.put(f"192.0.{number >> 8}.{number & 255}", name.format(number, number % 100), "stranger", 1)
    for turn in range(8):
        queue.put(f"home {turn}", "ada" if turn % 2 else "bob", "ours", 1)
        assert "ours" in [queue.take() for _ in range(4)]


def test_who_is_about_another_user_is_among_the_next_few_while_strangers_keep_coming() -> None:
    """A hundred more of them for each turn: the newest is never ours, and the oldest neither."""
    queue: FairQueue[str] = FairQueue(100_000, 1_000_000)
    sources = iter(range(1 << 30))

    def knock() -> None:
        for _ in range(100):
            queue.put(f"{next(sources)}", "admin", "stranger", 1)

    for _ in range(20):
        knock()
    queue.put("home", "bob", "ours", 1)
    taken = []
    for _ in range(4):
        knock()
        taken.append(queue.take())
    assert "ours" in taken


def test_a_user_at_home_has_a_turn_while_guesses_at_its_name_keep_coming() -> None:
    queue: FairQueue[str] = FairQueue(100_000, 1_000_000)
    sources = iter(range(1 << 30))
    for _ in range(20):
        for number in range(2):
            queue.put("home", "ada", f"ada {number}", 1, at_home=True)
            queue.put("home", "bob", f"bob {number}", 1, at_home=True)
        taken = []
        for _ in range(4 * 5):
            for _ in range(100):
                queue.put(f"{next(sources)}", "ada", "stranger", 1)
            taken.append(queue.take())
        ours = [one for one in taken if one != "stranger"]
        assert sorted(ours) == ["ada 0", "ada 1", "bob 0", "bob 1"]


def test_who_waited_longest_without_a_turn_makes_room() -> None:
    queue: FairQueue[int] = FairQueue(3, 1000)
    for number in range(3):
        queue.put(f"{number}", "ada", number, 1)
    assert not queue.has_room("home", 1)
    assert queue.displaced() == 0
    assert queue.has_room("home", 1)
    assert [queue.displaced() for _ in range(3)] == [1, 2, None]
    assert (queue.entries, queue._users, queue._sources, queue._served) == (0, {}, {}, {})


def test_a_new_source_finds_room_however_much_another_sends() -> None:
    queue: FairQueue[int] = FairQueue(100, 1_000_000)
    taken = 0
    while queue.has_room("flood", 1):
        queue.put("flood", f"user {taken}", taken, 1)
        taken += 1
    assert taken == 50
    assert [queue.has_room(f"other {number}", 1) for number in range(3)] == [True] * 3
    heavy: FairQueue[int] = FairQueue(100, 1000)
    assert not heavy.has_room("flood", 1001)
    heavy.put("flood", "a", 1, 500)
    assert not heavy.has_room("flood", 1)
    assert heavy.has_room("calm", 500)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.booleans())))
def test_everything_comes_out_once_and_each_user_s_in_order(steps: list[tuple[str, str, bool]]) -> None:
    queue: FairQueue[tuple[str, str, int]] = FairQueue(1000, 1000)
    put, taken = [], []
    for number, (source, user, takes) in enumerate(steps):
        queue.put(source, user, (source, user, number), 1, at_home=number % 3 == 0)
        put.append((source, user, number))
        if takes:
            oldest = queue.oldest_of(source)
            queue.drop_oldest_of(source)
            assert oldest is not None
            taken.append(oldest)
    while queue.entries:
        taken.append(queue.take())
    assert (queue.entries, queue.bytes, len(queue._users), len(queue._fresh), len(queue._home)) == (0,) * 5
    assert sorted(taken) == sorted(put)
    for key in {(source, user) for source, user, _ in put}:
        assert [one for one in taken if one[:2] == key] == [one for one in put if one[:2] == key]
