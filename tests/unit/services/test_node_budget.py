"""One budget of all workers of a node."""

from __future__ import annotations

from pathlib import Path

from headrace.core.inbound.pace import SharedBudget
from headrace.services.node_budget import NodeBudget
from headrace.services.node_counts import NodeCounts
from headrace.services.node_times import NodeTimes


def test_what_one_worker_draws_is_missing_in_the_other(tmp_path: Path) -> None:
    budgets = [
        SharedBudget(
            100,
            0,
            NodeBudget(
                NodeCounts(tmp_path / "c", index, 2), NodeTimes(tmp_path / "t", index, 2), ("messages", "a")
            ),
        )
        for index in range(2)
    ]
    for budget in budgets:
        budget.join()
        assert budget.left(0) == 100
    budgets[0].draw(70)
    assert [budget.left(0) for budget in budgets] == [30, 30]
    assert [budget.left(500) for budget in budgets] == [80, 80]
    assert budgets[0].portion() == 100 // (2 * 2)
    budgets[1].leave()
    assert budgets[0].portion() == 50
