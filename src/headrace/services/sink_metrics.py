"""What /metrics tells of sinks: what was written to Kafka, how far behind each is, and whether it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_COUNTERS: Final = {
    "records": "Records written to Kafka, since the process of the sinks began",
    "transactions": "Transactions in Kafka that wrote them",
    "left_out": "Records without their payload, which was too large",
    "lost": "Offsets of the journal that went before they were sent",
}


@dataclass(frozen=True, slots=True)
class SinkFigure:
    """What a sink has done at one shard, as its process tells it. `trouble`: why it does not write, `odd`: why it did
    not go on where it was; "" where all is well."""

    sink: str
    shard: int
    records: int = 0
    transactions: int = 0
    left_out: int = 0
    lost: int = 0
    lag_records: int = 0
    is_up: bool = False
    trouble: str = ""
    odd: str = ""


class SinkCollector(Collector):
    """The figures of all sinks of a worker; nothing where there is none."""

    def __init__(self, figures: Callable[[], Sequence[SinkFigure]]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        found = self._figures()
        if not found:
            return
        labels = ["sink", "shard"]
        up = GaugeMetricFamily("headrace_sink_up", "1 while a sink writes to Kafka", labels=labels)
        lag = GaugeMetricFamily(
            "headrace_sink_lag_records", "Records of the journal that a sink has not read", labels=labels
        )
        for one in found:
            up.add_metric([one.sink, str(one.shard)], int(one.is_up))
            lag.add_metric([one.sink, str(one.shard)], one.lag_records)
        yield from (up, lag)
        for name, text in _COUNTERS.items():
            family = CounterMetricFamily(f"headrace_sink_{name}", text, labels=labels)
            for one in found:
                family.add_metric([one.sink, str(one.shard)], getattr(one, name))
            yield family
