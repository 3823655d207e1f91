"""That a cluster has no room for a job is said when it stays so, and now and then; the watch ends with Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from headrace_spark.base.executors import LOOK_EVERY_S, waits_in_vain, watch

pytestmark = pytest.mark.spark


def told_at(looks: Iterable[bool]) -> list[int]:
    """The looks, counted from 1, at which it is told; after the last one Spark has ended."""
    left, done, told = iter(looks), list[float](), list[int]()

    def look() -> bool:
        try:
            return next(left)
        except StopIteration:
            raise Py4JError from None

    def wait(seconds: float) -> bool:
        done.append(seconds)
        return False

    tell: Callable[[], None] = lambda: told.append(len(done))  # noqa: E731
    watch(look, tell, wait)
    assert set(done) == {LOOK_EVERY_S}
    return told


def test_an_executor_that_comes_late_is_no_news() -> None:
    assert told_at([True, False, True, False]) == []


def test_what_stays_away_is_told_now_and_then() -> None:
    assert told_at([True] * 11) == [2, 6, 10]
    assert told_at([True, True, False, True, True]) == [2, 5]


def test_a_session_without_tasks_waits_for_nothing(spark: SparkSession) -> None:
    assert not waits_in_vain(spark)
