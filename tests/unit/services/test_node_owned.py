"""Subscriptions of a user on all workers."""

from __future__ import annotations

from pathlib import Path

from headrace.core.ports.owned import Owned
from headrace.services.node_counts import NodeCounts
from headrace.services.node_owned import NodeOwned


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
