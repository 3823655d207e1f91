"""A histogram as Prometheus has it: how many observations were not above each bound, and their sum.

Plain integers in a list, since it is filled on the loop or on the journal's thread: by one of them at a time, without a
lock, and turned into samples only when somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left

from prometheus_client.core import HistogramMetricFamily

# Seconds: from a sync of a fast disk to a client that hardly reads.
BOUNDS_S = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)


class Histogram:
    """Counts durations in seconds. `name` ends in `_seconds`."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._sum_s += seconds

    def family(self) -> HistogramMetricFamily:
        """Return the histogram as samples."""
        buckets, total = [], 0
        for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum_s)
