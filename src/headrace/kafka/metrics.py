"""What /metrics tells of sinks and sources: what went to Kafka and came from it, how far behind each is, and whether it
goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.kafka.figures import SinkFigures, SourceFigures

_COUNTERS: Final = {
    "records": "Records written to Kafka, since the process of the sinks began",
    "transactions": "Transactions in Kafka that wrote them",
    "left_out": "Records without their payload, which was too large",
    "lost": "Offsets of the journal that went before they were sent",
}


class SinkCollector(Collector):
    """The figures of all sinks of a worker; nothing where there is none."""

    def __init__(self, figures: Callable[[], Sequence[SinkFigures]]) -> None:
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


class SourceCollector(Collector):
    """The figures of all sources of a worker; nothing where there is none."""

    def __init__(self, figures: Callable[[], Sequence[SourceFigures]]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        found = self._figures()
        if not found:
            return
        up = GaugeMetricFamily("headrace_source_up", "1 while a source reads from Kafka", labels=["source"])
        lag = GaugeMetricFamily(
            "headrace_source_lag_records", "Records of Kafka that a source has not read", labels=["source"]
        )
        records = CounterMetricFamily(
            "headrace_source_records", "Records of Kafka that were published", labels=["source"]
        )
        refused = CounterMetricFamily(
            "headrace_source_refused", "Records of Kafka that the broker would not have", labels=["source"]
        )
        for one in found:
            up.add_metric([one.source], int(one.is_up))
            lag.add_metric([one.source], one.lag_records)
            records.add_metric([one.source], one.records)
            refused.add_metric([one.source], one.refused)
        yield from (up, lag, records, refused)
