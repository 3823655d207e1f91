"""The histogram of latencies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.clients.tally import Histogram


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_off_by_at_most_one_sixteenth(samples: list[int], share: float) -> None:
    histogram = Histogram()
    for sample in samples:
        histogram.add(sample)
    ordered = sorted(samples)
    exact = ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
    assert exact * 15 / 16 - 1 <= histogram.percentile(share) <= exact


def test_buckets_hold_every_sample_once_and_the_longest_is_exact() -> None:
    histogram = Histogram()
    for sample in (3, 3, 1000, 1_234_567):
        histogram.add(sample)
    buckets = histogram.buckets()
    assert buckets[0] == (3, 2)
    assert sum(count for _, count in buckets) == histogram.total == 4
    assert histogram.longest == 1_234_567
