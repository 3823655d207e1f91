"""Figures of connections that go from worker to worker, read at scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.peers.handover import HandOver


class HandOverCollector(Collector):
    """Tells how many connections this worker has sent to others, who waits, and what was not taken. `handover` None:
    there is no other worker."""

    def __init__(self, handover: HandOver | None) -> None:
        self._handover = handover

    def collect(self) -> Iterator[Metric]:
        handover = self._handover
        passing = [] if handover is None else list(handover.passing.values())
        relaying = [] if handover is None else list(handover.relaying.values())
        both = [*passing, *relaying]
        sent = CounterMetricFamily(
            "headrace_worker_handed_over", "Connections sent to the worker of their home", labels=["way"]
        )
        for way, queues in (("passed", passing), ("relayed", relaying)):
            sent.add_metric([way], sum(one.sent for one in queues))
        yield sent
        yield GaugeMetricFamily(
            "headrace_worker_handover_waiting", "Connections that wait for their worker", sum(map(len, both))
        )
        yield CounterMetricFamily(
            "headrace_worker_handover_refused",
            "Clients refused because their worker did not take them",
            value=sum(one.refused for one in both),
        )
        lost = CounterMetricFamily(
            "headrace_worker_arrivals_refused",
            "What came from other workers and was not taken",
            labels=["reason"],
        )
        for reason, count in ({} if handover is None else handover.arrivals.refused).items():
            lost.add_metric([reason.replace(" ", "_")], count)
        lost.add_metric(["channel"], 0 if handover is None else handover.refused_here)
        yield lost
