"""A query is watched, stopped and started again; played by a query that does what the test says."""

from __future__ import annotations

from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from headrace_spark.base.errors import LakeUnreachable, QueryFailed
from headrace_spark.base.query import run_query


class PlayedQuery:
    """Each step is the progress that appears before a poll, or an exception; the query ends after the last."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self.recentProgress: list[Any] = []
        self.stopped = False

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802
        if not self.steps:
            return True
        step = self.steps.pop(0)
        if isinstance(step, BaseException):
            raise step
        self.recentProgress += step
        return False

    def stop(self) -> None:
        self.stopped = True


def progress(second: int, rows: int = 1) -> Any:
    return SimpleNamespace(timestamp=f"2025-10-10T00:00:{second:02}.000Z", numInputRows=rows)


def failure(text: str = "Job aborted") -> StreamingQueryException:
    return StreamingQueryException(text)


def run(*queries: PlayedQuery, restarts: int = 3, stop: Event | None = None) -> list[Any]:
    seen: list[Any] = []
    left = list(queries)
    run_query(lambda: left.pop(0), seen.extend, stop or Event(), restarts)  # type: ignore[arg-type, return-value]
    return seen


def test_every_batch_is_seen_once() -> None:
    first, second, third = progress(1), progress(2), progress(3)
    assert run(PlayedQuery([first, second], [], [third])) == [first, second, third]


def test_batches_are_seen_also_when_the_clock_was_put_back() -> None:
    first, second, third = progress(40), progress(10), progress(20)
    assert run(PlayedQuery([first], [second], [], [third])) == [first, second, third]


def test_a_stop_ends_the_query_and_keeps_what_was_done() -> None:
    stop = Event()
    stop.set()
    assert run(PlayedQuery([progress(1)]), stop=stop) == []
    played, asked = PlayedQuery([progress(1)], [progress(2)], [progress(3)]), Event()
    seen: list[Any] = []

    def observe(new: list[Any]) -> None:
        seen.extend(new)
        asked.set()

    run_query(lambda: played, observe, asked, 0)  # type: ignore[arg-type, return-value]
    assert played.stopped
    assert len(seen) == 1


def test_a_query_that_spark_cuts_off_at_a_stop_has_not_failed(capsys: pytest.CaptureFixture[str]) -> None:
    stop = Event()

    class Cut(PlayedQuery):
        def awaitTermination(self, timeout: float) -> bool:  # noqa: N802
            stop.set()  # the signal comes to Spark and to this process at once
            return super().awaitTermination(timeout)

    assert run(Cut(failure("Job 7 cancelled because SparkContext was shut down")), stop=stop) == []
    assert capsys.readouterr().err == ""
    stop.clear()
    with pytest.raises(QueryFailed, match="gone"):
        run(Cut(failure("x\nheadrace_spark.errors.DataLoss: gone\n")), stop=stop)


def test_a_failure_is_tried_again_from_the_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    one, two = progress(1), progress(2)
    assert run(PlayedQuery([one], failure()), PlayedQuery(failure()), PlayedQuery([two])) == [one, two]
    assert caplog.text.count("started again from its checkpoint: Job aborted") == 2


def test_failures_in_a_row_are_limited() -> None:
    queries = [PlayedQuery(failure(f"no {n}")) for n in range(3)]
    with pytest.raises(QueryFailed, match="no 2"):
        run(*queries, restarts=2)


def test_a_store_that_does_not_answer_for_a_while_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Neither while the query begins anew, nor while somebody looks how far it is."""
    away, seen = LakeUnreachable("s3a://b/l: 503"), []
    outcomes: list[Any] = [away, away, None, None]
    first, last = PlayedQuery([progress(1)]), PlayedQuery([progress(2)])
    beginnings: list[Any] = [first, away, PlayedQuery([progress(2)]), last]

    def begin() -> Any:
        found = beginnings.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def observe(new: list[Any]) -> None:
        if (found := outcomes.pop(0)) is not None:
            raise found
        seen.extend(new)

    run_query(begin, observe, Event(), 2)
    assert (len(seen), first.stopped, beginnings, outcomes) == (1, True, [], [])
    assert caplog.text.count("started again from its checkpoint: s3a://b/l: 503") == 3
    outcomes, beginnings = [away] * 9, [PlayedQuery([]) for _ in range(3)]
    with pytest.raises(LakeUnreachable, match="503"):
        run_query(begin, observe, Event(), 2)
    assert beginnings == []


def test_our_own_errors_are_not_tried_again() -> None:
    with pytest.raises(QueryFailed, match="gone") as caught:
        run(PlayedQuery(failure("x\nheadrace_spark.errors.DataLoss: gone\n")))
    assert caught.value.is_ours
