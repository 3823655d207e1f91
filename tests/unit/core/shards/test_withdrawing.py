"""What nobody wants any more is withdrawn later, and at once where it would take too much memory."""

from __future__ import annotations

from headrace.core.shards import withdrawing
from headrace.core.shards.withdrawing import Withdrawing


def test_filters_are_due_in_order_and_may_be_kept() -> None:
    filters = Withdrawing()
    for number in range(4):
        assert filters.put(("t", f"a/{number}"), 10 + number) == []
    assert filters.due(9) == []
    assert filters.take(("t", "a/1"))
    assert not filters.take(("t", "a/1"))
    assert not filters.take(("u", "a/2"))
    assert filters.due(12) == [("t", "a/0"), ("t", "a/2")]
    assert filters.filters() == [("t", "a/3")]


def test_a_client_that_subscribes_and_leaves_over_and_over_takes_bounded_memory() -> None:
    filters = Withdrawing()
    early = []
    for number in range(1000):
        early += filters.put(("t", f"{number}/" + "x" * 60_000), 1)
    left = filters.filters()
    assert early + left == [("t", f"{number}/" + "x" * 60_000) for number in range(1000)]
    assert 0 < sum(len(name) for _, name in left) <= withdrawing.BYTES_MAX
    for key in left:
        assert filters.take(key)
    assert filters._bytes == 0


def test_many_that_are_due_are_withdrawn_in_parts() -> None:
    filters = Withdrawing()
    for number in range(withdrawing.AT_ONCE + 1):
        filters.put(("t", str(number)), 0)
    assert [len(filters.due(1)) for _ in range(3)] == [withdrawing.AT_ONCE, 1, 0]
