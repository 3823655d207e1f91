"""Scrapes: sums, rates and quantiles."""

from __future__ import annotations

import math

import pytest

from headrace.console.scrape import Between, Scrape

HISTOGRAM = """\
# TYPE x_seconds histogram
x_seconds_bucket{{le="0.1"}} {}
x_seconds_bucket{{le="0.2"}} {}
x_seconds_bucket{{le="+Inf"}} {}
x_seconds_count {}
x_seconds_sum 1
"""


def counters(a: float, b: float, started: float = 1) -> str:
    return f"""\
# TYPE n_total counter
n_total{{kind="a",tenant="t"}} {a}
n_total{{kind="b",tenant="t"}} {b}
# TYPE process_start_time_seconds gauge
process_start_time_seconds {started}
# TYPE build_info gauge
build_info{{version="1"}} 1
"""


def test_sums_by_label() -> None:
    scrape = Scrape(counters(2, 3), 0)
    assert scrape.total("n_total") == 5
    assert scrape.total("n_total", kind="b", tenant="t") == 3
    assert scrape.total("n_total", kind="c") == scrape.total("absent") == 0
    assert scrape.by("n_total", "kind") == {"a": 2, "b": 3}
    assert scrape.by("n_total", "tenant") == {"t": 5}
    assert scrape.labels("build_info") == {"version": "1"}
    assert scrape.labels("absent") == {}


def test_rates() -> None:
    between = Between(Scrape(counters(2, 3), 10), Scrape(counters(2, 13), 14))
    assert between.rate("n_total") == 2.5
    assert between.rate("n_total", kind="a") == 0
    assert between.rate("absent") == 0


def test_a_broker_that_has_started_anew_counts_from_0() -> None:
    between = Between(Scrape(counters(90, 10, started=1), 0), Scrape(counters(100, 20, started=2), 2))
    assert between.rate("n_total") == 60


def scrape(*cumulative: int) -> Scrape:
    return Scrape(HISTOGRAM.format(*cumulative, cumulative[-1]), 0)


@pytest.mark.parametrize(("share", "expected"), [(0.25, 0.05), (0.5, 0.1), (0.75, 0.15), (1.0, 0.2)])
def test_quantiles_lie_between_their_bounds(share: float, expected: float) -> None:
    between = Between(scrape(100, 100, 100), scrape(110, 120, 120))
    found = between.quantile("x_seconds", share)
    assert found is not None
    assert math.isclose(found, expected)


def test_above_the_last_bound_it_is_that() -> None:
    assert Between(scrape(0, 0, 0), scrape(1, 1, 10)).quantile("x_seconds", 0.9) == 0.2


def test_without_observations_there_is_none() -> None:
    assert Between(scrape(5, 6, 7), scrape(5, 6, 7)).quantile("x_seconds", 0.5) is None
    assert Between(scrape(5, 6, 7), scrape(5, 6, 7)).quantile("absent", 0.5) is None
