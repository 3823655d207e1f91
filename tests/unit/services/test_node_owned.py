"""Subscriptions of a user on all workers."""

from __future__ import annotations

from pathlib import Path

from headrace.core.ports.owned import Owned
from headrace.services.node_counts import NodeCounts
from headrace.services.node_owned import NodeOwned
from headrace.services.node_table import FULL


def test_workers_tell_each_other_what_a_user_has(tmp_path: Path) -> None:
    first, second = Owned(), Owned()
    first.add("t", "ada", 3)  # before it knows of others: it recovers
    for worker, one in enumerate((first, second)):
        one.join(NodeOwned(NodeCounts(tmp_path / "subscriptions", worker, 2)))
    second.add("t", "ada", 2)
    assert [one.count("t", "ada") for one in (first, second)] == [5, 5]
    first.add("t", "ada", -3)
    assert [one.count("t", "ada") for one in (first, second)] == [2, 2]
    assert second.count("t2", "ada") == 0


def test_what_a_killed_worker_had_counts_until_it_has_recovered(tmp_path: Path) -> None:
    def owned(worker: int) -> tuple[Owned, NodeOwned]:
        counts = NodeCounts(tmp_path / "subscriptions", worker, 2, recovers=True)
        return Owned(), NodeOwned(counts)

    first, elsewhere = owned(0)
    first.join(elsewhere)
    before, elsewhere = owned(1)
    before.join(elsewhere)
    before.add("t", "ada", 3)
    before.add("t", "bob", 2)
    again, elsewhere = owned(1)  # the next process, which recovers
    assert [first.count("t", user) for user in ("ada", "bob")] == [3, 2]
    again.add("t", "bob", 1)  # what it had not written down is gone
    again.join(elsewhere)
    assert [first.count("t", user) for user in ("ada", "bob")] == [0, 1]


def test_of_more_users_than_there_is_room_for_some_are_counted_by_the_worker_alone(tmp_path: Path) -> None:
    first, second = Owned(), Owned()
    users = [f"user-{number}" for number in range(FULL + 2)]
    for user in users:
        first.add("t", user, 1)
    for worker, one in enumerate((first, second)):
        one.join(NodeOwned(NodeCounts(tmp_path / "subscriptions", worker, 2, recovers=True)))
    assert sum(second.count("t", user) for user in users) == FULL
    assert all(first.count("t", user) == 1 for user in users)
