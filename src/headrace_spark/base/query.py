"""A streaming query run to its end: watched, stopped on request, started again after a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Event
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from headrace_spark.base.errors import LakeUnreachable, PipelineError, QueryFailed
from headrace_spark.base.logs import LOG
from headrace_spark.base.session import hush

POLL_S: Final = 0.5

Observer = Callable[[list[StreamingQueryProgress]], None]


def run_query(begin: Callable[[], StreamingQuery], observe: Observer, stop: Event, restarts_max: int) -> None:
    """Start the query and stay until it ends by itself or `stop` is set.

    A failure that is not ours (a killed Python process, a full /tmp, a store that does not answer for a while, whoever
    asks it) is tried again from the checkpoint, at most `restarts_max` times in a row without a finished batch in
    between. Raises QueryFailed, LakeUnreachable.
    """
    failures = 0
    failure: PipelineError
    while not stop.is_set():
        watch = Watch(observe)
        try:
            watch.until_end(begin, stop)
            return
        except LakeUnreachable as error:
            watch.stop()
            failure, is_ours = error, False
        except PipelineError:
            watch.stop()  # who looks on has found that it must not go on
            raise
        except StreamingQueryException as error:
            failure = QueryFailed.from_spark(error)
            is_ours = failure.is_ours
        if stop.is_set() and not is_ours:
            return  # Spark was told to stop as well, and its tasks were cut off
        failures = 1 if watch.batches else failures + 1
        if is_ours or failures > restarts_max:
            raise failure
        LOG.warning(
            "the query failed and is started again from its checkpoint: %s",
            failure,
            extra={"fields": {"reason": "query"}},
        )


class Watch:
    """One run of a query. Polls, because a signal is only handled while Python code runs."""

    def __init__(self, observe: Observer) -> None:
        self.batches = 0
        self._query: StreamingQuery | None = None
        self._observe = observe
        self._seen = ""
        """The time of the newest batch that was handed on, which tells it from others: a clock may be put back."""

    def until_end(self, begin: Callable[[], StreamingQuery], stop: Event) -> None:
        self._query = query = begin()
        while not query.awaitTermination(POLL_S):  # type: ignore[arg-type]
            self._drain(query)
            if stop.is_set():
                hush()
                query.stop()
                break
        self._drain(query)

    def stop(self) -> None:
        """Stop the query, which may have ended, or never begun."""
        if self._query is not None:
            self._query.stop()

    def _drain(self, query: StreamingQuery) -> None:
        """Hand on the batches finished since the last time. Spark reports one only after its commit log has it."""
        recent = query.recentProgress
        seen = [at for at, progress in enumerate(recent) if progress.timestamp == self._seen]
        new = recent[seen[-1] + 1 :] if seen else recent
        if new:
            self._seen = new[-1].timestamp
        self.batches += sum(progress.numInputRows > 0 for progress in new)
        self._observe(new)


def durations_s(finished: Iterable[StreamingQueryProgress]) -> tuple[float, ...]:
    """Return what each of these batches took that had rows, in seconds."""
    return tuple(batch.batchDuration / 1000 for batch in finished if batch.numInputRows > 0)
