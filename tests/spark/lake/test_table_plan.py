"""A batch is planned once, in the log of the table that it will be written to; the next process has it from there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace_spark.base.errors import LakeConflict, TableMoved
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.lake.table_plan import TablePlan
from headrace_spark.lake.table_position import TablePosition
from headrace_spark.lake.tables import QUARANTINE, REPEATS
from headrace_spark.lake.url_lake import UrlLake

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[UrlLake]:
    lake = UrlLake(spark, LakeUrl(f"file:{tmp_path}"))
    for definition in (QUARANTINE, REPEATS):
        lake.table_of(definition).create()
    with lake.holding("test"):
        yield lake


def plan_of(lake: UrlLake) -> TablePlan:
    return TablePlan(lake, "test", lake.root / "repeats", lake.root / "quarantine")


def planned(plan: TablePlan, batch: int, index: int) -> TablePosition:
    """What Spark does when it plans a batch: of the first version, up to a file."""
    source: Any = plan._source_id
    position = TablePosition(source, 0, index, True)
    plan.checkpoint.move(plan.query_id, {batch: position.as_dict()}, "{}")
    return position


def test_the_next_process_has_the_batch_with_its_bounds(lake: UrlLake) -> None:
    plan = plan_of(lake)
    plan.restore(is_finished=False)
    assert (plan.newest(), plan.checkpoint.last_planned, plan.checkpoint.query_id) == (
        None,
        None,
        plan.query_id,
    )
    first = planned(plan, 0, 3)
    plan.add(0)
    second = planned(plan, 1, 9)
    plan.add(1, {"own": 77})
    version = lake.tables.open(lake.root / "repeats")
    plan.add(1)  # done again
    after = lake.tables.open(lake.root / "repeats")
    assert version is not None
    assert after is not None
    assert version.version() == after.version()

    other = plan_of(lake)
    found = other.newest()
    assert found is not None
    assert (found.batch, found.begin, found.end, other.noted("own")) == (1, first, second, 77)
    checkpoint = other.restore(is_finished=False)
    assert (checkpoint.unfinished, checkpoint.end(0), checkpoint.end(1)) == (
        True,
        first.as_dict(),
        second.as_dict(),
    )
    assert not other.restore(is_finished=True).unfinished


def test_one_of_two_plans_from_one_place(lake: UrlLake) -> None:
    one, two = plan_of(lake), plan_of(lake)
    for plan, index in ((one, 3), (two, 5)):
        plan.restore(is_finished=False)
        planned(plan, 0, index)
    two.add(0)
    with pytest.raises(TableMoved, match="another process writes it"):
        one.add(0)


def test_a_source_that_was_made_anew_is_named(lake: UrlLake) -> None:
    plan = plan_of(lake)
    plan.restore(is_finished=False)
    planned(plan, 0, 3)
    plan.add(0)
    other = TablePlan(lake, "test", lake.root / "repeats", lake.root / "repeats")
    with pytest.raises(LakeConflict, match="another table lies there now"):
        other.newest()
