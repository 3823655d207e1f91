"""What a tenant's clients use together: never more connections than it may have, over all workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.ports.limits import Limits
from headrace.services.node_counts import NodeCounts
from headrace.services.node_times import NodeTimes
from headrace.services.tenant_uses import TenantUse, TenantUses


def limits(connections: int | None = None, connects: int | None = None) -> Limits:
    found = Limits()
    if connections is not None:
        found.tenant_connections_max = connections
    if connects is not None:
        found.tenant_connects_per_s = connects
    return found


@pytest.fixture
def workers(tmp_path: Path) -> list[TenantUses]:
    """What two workers of a node count."""
    made = []
    for index in range(2):
        uses = TenantUses()
        uses.counts = NodeCounts(tmp_path / "counts", index, 2)
        uses.times = NodeTimes(tmp_path / "times", index, 2)
        made.append(uses)
    return made


def come(uses: TenantUses, most: Limits, count: int, tenant: str = "acme") -> list[TenantUse]:
    admitted = [uses.admit(tenant, most, takes_over=False) for _ in range(count)]
    return [use for use in admitted if use is not None]


def test_without_a_limit_any_number_comes() -> None:
    assert len(come(TenantUses(), limits(), 50)) == 50


def test_who_is_one_too_many_is_not_counted_and_whoever_leaves_makes_room() -> None:
    uses = TenantUses()
    there = come(uses, limits(3), 5)
    assert len(there) == 3
    assert uses.admit("acme", limits(3), takes_over=True) is not None  # of one that goes now
    uses.left(there[0])
    assert come(uses, limits(3), 2) == []
    uses.left(there[0])
    assert len(come(uses, limits(3), 2)) == 1
    assert len(come(uses, limits(3), 5, "blue")) == 3
    assert come(uses, limits(0), 2, "green") == []


def test_over_two_workers_there_are_never_more(workers: list[TenantUses]) -> None:
    there = [use for _ in range(4) for uses in workers for use in come(uses, limits(5), 1)]
    assert len(there) == 5
    workers[0].left(there[0])
    assert len(come(workers[1], limits(5), 2)) == 1


def test_connects_a_second_are_of_the_tenant_and_the_node(workers: list[TenantUses]) -> None:
    late = [uses.comes_too_often("acme", limits(connects=3)) for _ in range(4) for uses in workers]
    assert late == [False] * 3 + [True] * 5
    assert not workers[0].comes_too_often("blue", limits(connects=3))
    assert workers[0].comes_too_often("green", limits(connects=0))
    assert not workers[0].comes_too_often("acme", limits())


def test_a_budget_is_one_until_its_limit_changes(workers: list[TenantUses]) -> None:
    for uses in (TenantUses(), workers[0]):
        (use,) = come(uses, limits(), 1)
        budget = uses.budget(use, 100, 0)
        assert uses.budget(use, 100, 500) is budget
        assert uses.budget(use, 50, 500).per_s == 50
    (here,), (there,) = (come(uses, limits(), 1) for uses in workers)
    first, second = workers[0].budget(here, 100, 0), workers[1].budget(there, 100, 0)
    first.left(0)
    first.draw(60)
    assert second.left(0) == 40
