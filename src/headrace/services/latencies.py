"""How long messages take through the broker: histograms of an acknowledgement and a delivery a flush. Runs on the loop.

The journal's records carry the time of day, so arrivals are told by it. When somebody sets the clock, what arrived before
that is left out: the difference between the clocks of the wall and of the machine says so at the next observation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from headrace.core.ports.latencies import Latencies
from headrace.services.histogram import Histogram

JUMP_US = 10_000  # between two observations a clock that is only slewed moves less


class LatencyHistograms(Latencies):
    """The histograms of acknowledgements and deliveries. `wall_us` and `steady_us`: microseconds of the two clocks."""

    def __init__(
        self,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        steady_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000,
    ) -> None:
        self._wall_us = wall_us
        self._steady_us = steady_us
        self._difference_us = wall_us() - steady_us()
        self._valid_from_us = 0
        self.puback = Histogram(
            "headrace_puback_latency_seconds",
            "From a PUBLISH with QoS > 0 to its PUBACK or PUBREC; the oldest of each flush",
        )
        self.delivery = Histogram(
            "headrace_delivery_latency_seconds",
            "From a PUBLISH with QoS > 0 to its PUBLISH to a client that was there; the oldest of each flush",
        )

    def acknowledged(self, arrived_us: int) -> None:
        self._observe(self.puback, arrived_us)

    def delivered(self, arrived_us: int) -> None:
        self._observe(self.delivery, arrived_us)

    def _observe(self, histogram: Histogram, arrived_us: int) -> None:
        now_us = self._wall_us()
        difference_us = now_us - self._steady_us()
        if abs(difference_us - self._difference_us) > JUMP_US:
            self._valid_from_us = now_us
        self._difference_us = difference_us
        if self._valid_from_us <= arrived_us <= now_us:
            histogram.observe((now_us - arrived_us) / 1e6)


class HistogramCollector(Collector):
    """Collects the histograms of latencies for a scrape."""

    def __init__(self, *histograms: Histogram) -> None:
        self._histograms = histograms

    def collect(self) -> Iterator[Metric]:
        for histogram in self._histograms:
            yield histogram.family()
