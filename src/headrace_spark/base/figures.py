"""What a job tells Prometheus of itself: rows, batches and their durations, how far behind it is, what went wrong.

Filled by the thread that runs the job, read by the one that answers a scrape: plain numbers, of which none depends on
another. Needs no Spark.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from headrace_spark.base.progress import Progress

# Seconds: from a handful of rows to a day's backlog at once.
BOUNDS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0, 600.0)
STARTING: Final = "Spark is starting"
UNREACHABLE: Final = "unreachable"
_LABELS: Final = ("pipeline",)


@dataclass(frozen=True)
class Lag:
    """Says what lies between a job and the present end: messages (records of a journal, rows of a table), their bytes,
    and the age of the oldest of them."""

    messages: int
    bytes: int
    seconds: float


class JobFigures(Collector):
    """Counts for the life of the process, however often the job begins anew in it.

    `measure` finds out how far behind the job is; it is asked on a scrape's thread and may raise OSError or a
    PipelineError: then nothing is said of the lag. Without it the job's own reports say it.
    """

    def __init__(self, job: str, measure: Callable[[Progress], Lag] | None = None) -> None:
        self.waits_for = STARTING
        """Why the job does not work just now, "" if it does."""
        self._job = job
        self._measure = measure
        self._measuring = Lock()
        self._lag: tuple[int, int | None, float | None] | None = None
        self._before = (0, 0)  # rows read and written before the job began anew
        self._last: Progress | None = None
        self._durations = [0] * (len(BOUNDS_S) + 1)
        self._durations_s = 0.0
        self._errors: Counter[str] = Counter({"query": 0, UNREACHABLE: 0})

    def report(self, progress: Progress) -> None:
        """Take what the job says of itself. Runs on its thread."""
        last = self._last
        if last is not None and progress.rows < last.rows:
            read, written = self._before
            self._before = (read + last.rows, written + last.rows_written)
        self._last = progress
        self.waits_for = ""
        for seconds in progress.durations_s:
            self._durations[bisect_left(BOUNDS_S, seconds)] += 1
            self._durations_s += seconds

    def count_error(self, reason: str) -> None:
        self._errors[reason] += 1

    def refresh(self) -> None:
        """Measure the lag. Runs on a thread, before each scrape; one that comes meanwhile has the lag of before."""
        last = self._last
        if last is None or not self._measuring.acquire(blocking=False):
            return
        try:
            self._lag = None
            if self._measure is None:
                self._lag = (last.lag, last.lag_bytes, last.lag_s)
            else:
                with suppress(Exception):  # a broker that is away, a journal that is being replaced
                    lag = self._measure(last)
                    self._lag = (lag.messages, lag.bytes, lag.seconds)
        finally:
            self._measuring.release()

    def collect(self) -> Iterator[Metric]:
        last = self._last or Progress(0, 0, 0, 0.0)
        read, written = self._before
        yield self._gauge("up", "Whether the job works: neither starts nor waits", 0 if self.waits_for else 1)
        yield self._counter("rows_read", "Rows that it has read", read + last.rows)
        yield self._counter("rows_written", "Rows that it has written or sent", written + last.rows_written)
        yield self._counter("batches", "Batches that it has finished", sum(self._durations))
        yield self._histogram()
        yield from self._position()
        errors = CounterMetricFamily(
            "headrace_pipeline_errors", "What went wrong and was tried again", labels=[*_LABELS, "reason"]
        )
        for reason, count in self._errors.items():
            errors.add_metric([self._job, reason], count)
        yield errors

    def _position(self) -> Iterator[Metric]:
        last = self._last
        messages, size, age_s = (None, None, None) if self._lag is None else self._lag
        for name, text, value in (
            ("committed_offset", "Everything below it is done", None if last is None else last.offset),
            ("lag_messages", "What is not done yet", messages),
            ("lag_bytes", "Its bytes", size),
            ("lag_seconds", "The age of the oldest of it", age_s),
        ):
            yield self._gauge(name, text, value)

    def _gauge(self, name: str, text: str, value: float | None) -> Metric:
        family = GaugeMetricFamily(f"headrace_pipeline_{name}", text, labels=_LABELS)
        if value is not None:
            family.add_metric([self._job], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"headrace_pipeline_{name}", text, labels=_LABELS)
        family.add_metric([self._job], value)
        return family

    def _histogram(self) -> Metric:
        buckets, total = [], 0
        for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], self._durations, strict=True):
            total += count
            buckets.append((bound, float(total)))
        family = HistogramMetricFamily(
            "headrace_pipeline_batch_duration_seconds", "What a batch took", labels=_LABELS
        )
        family.add_metric([self._job], buckets, self._durations_s)
        return family


class ErrorCounter(logging.Handler):
    """Counts what is logged as a warning or worse, by its field `reason`."""

    def __init__(self, figures: JobFigures) -> None:
        super().__init__(logging.WARNING)
        self._figures = figures

    def emit(self, record: logging.LogRecord) -> None:
        reason = getattr(record, "fields", {}).get("reason")
        if reason:
            self._figures.count_error(reason)
        if reason == UNREACHABLE:
            self._figures.waits_for = record.getMessage()
