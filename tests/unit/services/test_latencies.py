"""Latencies by the time of day, whoever sets it."""

from __future__ import annotations

import pytest

from headrace.services.histogram import Histogram
from headrace.services.latencies import HistogramCollector, LatencyHistograms

SECOND_US = 1_000_000


class Clocks:
    def __init__(self) -> None:
        self.wall_us = 1_790_000_000 * SECOND_US
        self.steady_us = 5 * SECOND_US

    def advance(self, microseconds: int) -> None:
        self.wall_us += microseconds
        self.steady_us += microseconds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def latencies(clocks: Clocks) -> LatencyHistograms:
    return LatencyHistograms(lambda: clocks.wall_us, lambda: clocks.steady_us)


def observed(histogram: Histogram) -> tuple[int, int]:
    """How many, and microseconds in all."""
    samples = {sample.name.rpartition("_")[2]: sample.value for sample in histogram.family().samples}
    return int(samples["count"]), round(samples["sum"] * SECOND_US)


def test_from_arrival_to_now(clocks: Clocks, latencies: LatencyHistograms) -> None:
    arrived_us = clocks.wall_us
    clocks.advance(2000)
    latencies.acknowledged(arrived_us)
    clocks.advance(1000)
    latencies.delivered(arrived_us)
    assert observed(latencies.puback) == (1, 2000)
    assert observed(latencies.delivery) == (1, 3000)


@pytest.mark.parametrize("set_by_us", [3600 * SECOND_US, -3600 * SECOND_US])
def test_what_came_before_the_clock_was_set_is_left_out(
    clocks: Clocks, latencies: LatencyHistograms, set_by_us: int
) -> None:
    first_us = clocks.wall_us
    clocks.advance(1000)
    second_us = clocks.wall_us
    clocks.wall_us += set_by_us
    latencies.acknowledged(first_us)
    clocks.advance(1000)
    latencies.acknowledged(second_us)
    assert observed(latencies.puback) == (0, 0)
    third_us = clocks.wall_us
    clocks.advance(1000)
    latencies.acknowledged(third_us)
    assert observed(latencies.puback) == (1, 1000)


def test_a_clock_that_is_slewed_hides_nothing(clocks: Clocks, latencies: LatencyHistograms) -> None:
    for _ in range(100):
        arrived_us = clocks.wall_us
        clocks.advance(1000)
        clocks.wall_us += 500  # 50 ms in all
        latencies.delivered(arrived_us)
    assert observed(latencies.delivery)[0] == 100


def test_the_collector_gives_all_of_them(latencies: LatencyHistograms) -> None:
    collector = HistogramCollector(latencies.puback, latencies.delivery)
    assert [family.name for family in collector.collect()] == [
        "headrace_puback_latency_seconds",
        "headrace_delivery_latency_seconds",
    ]
