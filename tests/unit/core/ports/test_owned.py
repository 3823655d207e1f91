"""Subscriptions of users, counted over the shards of a worker."""

from __future__ import annotations

from headrace.core.ports.owned import Owned, OwnedElsewhere


class Elsewhere(OwnedElsewhere):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, str, int]] = []

    def count(self, tenant: str, user: str) -> int:
        return 100

    def tell(self, tenant: str, user: str, count: int) -> None:
        self.told.append((tenant, user, count))

    def tell_all(self, counts: dict[tuple[str, str], int]) -> None:
        self.told = [(*key, count) for key, count in counts.items()]


def test_a_worker_alone_counts_what_its_shards_have() -> None:
    owned = Owned()
    for more in (2, 3, -1):
        owned.add("t", "ada", more)
    owned.add("t", "bob", 1)
    assert [owned.count("t", user) for user in ("ada", "bob", "eve")] == [4, 1, 0]


def test_others_are_told_of_what_there_was_and_of_each_change() -> None:
    owned, others = Owned(), Elsewhere()
    owned.add("t", "ada", 2)
    owned.join(others)
    owned.add("t", "ada", -2)
    assert others.told == [("t", "ada", 2), ("t", "ada", 0)]
    assert owned.count("t", "ada") == 100
