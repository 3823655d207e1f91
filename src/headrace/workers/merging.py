"""What the workers of a node tell in /metrics, as one node tells it.

Each worker's text is read as Prometheus reads it. Samples of the same name and labels are added up, which is right for
counters, for histograms and for what is counted at the moment; those with a label `shard` come from one worker alone.
What is of one process (its loop, its memory) gets the label `worker`, and what is the same everywhere is told once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

OF_A_PROCESS: Final = ("process_", "headrace_loop_", "headrace_ticks")
THE_SAME: Final = ("headrace_build",)

Labels = tuple[tuple[str, str], ...]


class Merged(Collector):
    """The metrics of all workers whose text is known. `texts`: by worker."""

    def __init__(self) -> None:
        self.texts: Mapping[int, str] = {}

    def collect(self) -> Iterator[Metric]:
        return iter(merge(self.texts))


def merge(texts: Mapping[int, str]) -> list[Metric]:
    """Return the metrics of a node from those of its workers. Raises ValueError for a text that is none."""
    families: dict[str, _Family] = {}
    for worker, text in sorted(texts.items()):
        for metric in text_string_to_metric_families(text):
            families.setdefault(metric.name, _Family(metric)).add(worker, metric)
    return [family.metric() for family in families.values()]


class _Family:
    """The samples of one name, by what tells them apart."""

    def __init__(self, first: Metric) -> None:
        self._first = first
        self._values: dict[tuple[str, Labels], float] = {}

    def add(self, worker: int, metric: Metric) -> None:
        is_of_a_process = metric.name.startswith(OF_A_PROCESS)
        for sample in metric.samples:
            labels = dict(sample.labels)
            if is_of_a_process:
                labels["worker"] = str(worker)
            key = sample.name, tuple(labels.items())
            if key in self._values and not metric.name.startswith(THE_SAME):
                self._values[key] += sample.value
            else:
                self._values[key] = sample.value

    def metric(self) -> Metric:
        found = Metric(self._first.name, self._first.documentation, self._first.type)
        for (name, labels), value in self._values.items():
            found.add_sample(name, dict(labels), value)
        return found
