"""What the workers of a node tell in /metrics, as one node tells it.

Each worker's text is read as Prometheus reads it. Samples of the same name and labels are added up, which is right for
counters, for histograms and for what is counted at the moment; those with a label `shard` come from one worker alone.
What is of one process (its loop, its memory) gets the label `worker`, and what is the same everywhere is told once.

What a worker has counted stays in the sums when it does not answer, or has been started again: to Prometheus a sum that
falls has begun anew at 0, and all that it says then has come since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Final, NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

OF_A_PROCESS: Final = ("process_", "headrace_loop_", "headrace_ticks")
THE_SAME: Final = ("headrace_build",)
STARTED: Final = "process_start_time_seconds"  # tells one process from the next
_GROWING: Final = ("counter", "histogram")


class Key(NamedTuple):
    """What tells a sample from all others."""

    family: str
    name: str
    labels: tuple[tuple[str, str], ...]


class _Text:
    """What one process tells: what it has counted, all else, and when it was started."""

    def __init__(self, worker: int, text: str) -> None:
        """Read the text. Raises ValueError for one that is none."""
        self.counted: dict[Key, float] = {}
        self.now: dict[Key, float] = {}
        self.families: dict[str, Metric] = {}  # without samples
        self.started = 0.0
        for metric in text_string_to_metric_families(text):
            self.families[metric.name] = Metric(metric.name, metric.documentation, metric.type)
            self._take(metric, worker)

    def _take(self, metric: Metric, worker: int) -> None:
        is_of_a_process = metric.name.startswith(OF_A_PROCESS)
        values = self.counted if metric.type in _GROWING and not is_of_a_process else self.now
        own = {"worker": str(worker)} if is_of_a_process else {}
        for sample in metric.samples:
            values[Key(metric.name, sample.name, tuple((sample.labels | own).items()))] = sample.value
            if metric.name == STARTED:
                self.started = sample.value


class _Told:
    """What one worker has told: its counters over all of its processes, the rest as it is now."""

    def __init__(self) -> None:
        self._ended: dict[Key, float] = {}  # what processes that have ended had counted
        self._counted: dict[Key, float] = {}
        self._now: dict[Key, float] = {}
        self._started = 0.0
        self._over: set[float] = set()  # when those were started that have ended

    def silent(self) -> None:
        """Note that it does not answer: what it had then it may not have now."""
        self._now = {}

    def tells(self, text: _Text) -> None:
        """Note what it tells; of a process before the last one it comes too late."""
        if text.started in self._over:
            return
        if text.started != self._started:
            self._over.add(self._started)
            self._ended, self._started = self._all_counted(), text.started
        self._counted, self._now = text.counted, text.now

    def samples(self) -> dict[Key, float]:
        return self._all_counted() | self._now

    def _all_counted(self) -> dict[Key, float]:
        found = dict(self._ended)
        for key, value in self._counted.items():
            found[key] = found.get(key, 0.0) + value
        return found


class Merged(Collector):
    """The metrics of all workers, as they told them last. Runs on any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._told: dict[int, _Told] = {}
        self._families: dict[str, Metric] = {}  # without samples

    def tell(self, texts: Mapping[int, str]) -> None:
        """Take the texts of those workers that answer. Raises ValueError for one that is none."""
        found = {worker: _Text(worker, text) for worker, text in sorted(texts.items())}
        with self._lock:
            for worker in self._told.keys() - found.keys():
                self._told[worker].silent()
            for worker, text in found.items():
                self._families = text.families | self._families
                self._told.setdefault(worker, _Told()).tells(text)

    def collect(self) -> Iterator[Metric]:
        values: dict[Key, float] = {}
        with self._lock:
            for _, told in sorted(self._told.items()):
                for key, value in told.samples().items():
                    is_the_same = key.family.startswith(THE_SAME)
                    values[key] = value if is_the_same else values.get(key, 0.0) + value
            found = {name: Metric(name, one.documentation, one.type) for name, one in self._families.items()}
        for key, value in values.items():
            found[key.family].add_sample(key.name, dict(key.labels), value)
        return iter([metric for metric in found.values() if metric.samples])
