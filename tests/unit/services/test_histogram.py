"""A histogram says what Prometheus' own says."""

from __future__ import annotations

import prometheus_client
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.registry import CollectorRegistry

from headrace.services.histogram import BOUNDS_S, Histogram

TIMES = st.one_of(st.sampled_from(BOUNDS_S), st.floats(0, 20))


@given(st.lists(TIMES))
def test_it_counts_as_the_client_library_does(times: list[float]) -> None:
    registry = CollectorRegistry()
    theirs = prometheus_client.Histogram("x_seconds", "x", registry=registry, buckets=BOUNDS_S)
    ours = Histogram("x_seconds", "x")
    for seconds in times:
        theirs.observe(seconds)
        ours.observe(seconds)
    [family] = registry.collect()
    expected = {
        (sample.name, *sample.labels.values()): sample.value
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    found = {(sample.name, *sample.labels.values()): sample.value for sample in ours.family().samples}
    assert found == expected
