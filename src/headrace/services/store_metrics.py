"""What /metrics tells of the stores of queues: what was put, let go of and read back, and what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headrace.core.storing.notes import StoreCounters

_TEXTS = {
    "put": "Entries of queues that were sent to a store",
    "put_bytes": "Their bytes",
    "let_go": "Entries that the journal need not keep any more",
    "read": "Entries that were read back from a store",
    "forgotten": "Entries that only a store had, and has no more",
    "compared": "Queues that were looked at, since it was not certain what a store has of them",
    "made_anew": "Queues that were begun again in a store",
    "refused": "Puts that a store did not take, or nobody was there to take",
    "unsure": "Puts without an answer",
    "orphans": "Queues of no session that were deleted in a store",
}


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """The figures of one store: what it did for each shard, also for those that were given up, whether it can be used
    now, how many commands it was sent, its errors by what they say, and the looks at it after which the journal kept what
    was put, by why."""

    name: str
    counters: Sequence[StoreCounters]
    usable: bool
    commands: int
    faults: Mapping[str, int]
    unsettled: Mapping[str, int]


class StoreCollector(Collector):
    """The figures of all stores of a worker, by their names; nothing where there is none."""

    def __init__(self, figures: Callable[[], Sequence[StoreFigures]]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        found = self._figures()
        if not found:
            return
        for name, text in _TEXTS.items():
            family = CounterMetricFamily(f"headrace_store_{name}", text, labels=["store"])
            for one in found:
                family.add_metric([one.name], sum(getattr(counters, name) for counters in one.counters))
            yield family
        usable = GaugeMetricFamily(
            "headrace_store_usable", "1 while a store takes something", labels=["store"]
        )
        commands = CounterMetricFamily("headrace_store_commands", "Commands to a store", labels=["store"])
        faults = CounterMetricFamily(
            "headrace_store_faults", "Errors that a store has answered with", labels=["store", "fault"]
        )
        unsettled = CounterMetricFamily(
            "headrace_store_unsettled",
            "Looks at a store after which the journal kept what was put",
            labels=["store", "reason"],
        )
        for one in found:
            usable.add_metric([one.name], int(one.usable))
            commands.add_metric([one.name], one.commands)
            for fault, count in one.faults.items():
                faults.add_metric([one.name, fault], count)
            for why, count in one.unsettled.items():
                unsettled.add_metric([one.name, why], count)
        yield from (usable, commands, faults, unsettled)
