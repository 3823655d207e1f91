"""What several workers tell becomes what one node tells."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from headrace.workers.merging import Merged

FIRST = """# HELP headrace_publishes_received_total PUBLISH packets
# TYPE headrace_publishes_received_total counter
headrace_publishes_received_total{tenant="default"} 3.0
# HELP headrace_connections Connected clients
# TYPE headrace_connections gauge
headrace_connections 2.0
# TYPE headrace_journal_high_watermark gauge
headrace_journal_high_watermark{shard="0"} 7.0
# TYPE headrace_latency_seconds histogram
headrace_latency_seconds_bucket{le="0.1"} 1.0
headrace_latency_seconds_bucket{le="+Inf"} 2.0
headrace_latency_seconds_count 2.0
headrace_latency_seconds_sum 0.5
# TYPE process_open_fds gauge
process_open_fds 20.0
# TYPE headrace_loop_longest_stall_seconds gauge
headrace_loop_longest_stall_seconds 0.25
# TYPE headrace_build_info gauge
headrace_build_info{version="1.2.3"} 1.0
"""
SECOND = (
    FIRST.replace('shard="0"} 7.0', 'shard="1"} 9.0').replace("tenant=", "tenant=").replace(" 20.0", " 30.0")
)


def lines(texts: dict[int, str], merged: Merged | None = None) -> list[str]:
    """What is told of the node when the workers tell this, after what they have told `merged` before."""
    merged = Merged() if merged is None else merged
    merged.tell(texts)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(merged)
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_counts_are_added_up_and_what_is_of_one_is_told_apart() -> None:
    assert lines({0: FIRST, 1: SECOND}) == [
        'headrace_publishes_received_total{tenant="default"} 6.0',
        "headrace_connections 4.0",
        'headrace_journal_high_watermark{shard="0"} 7.0',
        'headrace_journal_high_watermark{shard="1"} 9.0',
        'headrace_latency_seconds_bucket{le="0.1"} 2.0',
        'headrace_latency_seconds_bucket{le="+Inf"} 4.0',
        "headrace_latency_seconds_count 4.0",
        "headrace_latency_seconds_sum 1.0",
        'process_open_fds{worker="0"} 20.0',
        'process_open_fds{worker="1"} 30.0',
        'headrace_loop_longest_stall_seconds{worker="0"} 0.25',
        'headrace_loop_longest_stall_seconds{worker="1"} 0.25',
        'headrace_build_info{version="1.2.3"} 1.0',
    ]


def test_of_who_has_never_answered_nothing_is_told() -> None:
    assert 'headrace_publishes_received_total{tenant="default"} 3.0' in lines({1: SECOND})
    assert lines({}) == []


def process(started: float, published: int, connections: int = 1) -> str:
    """What a worker tells that was started then."""
    return f"""# TYPE headrace_publishes_received_total counter
headrace_publishes_received_total{{tenant="default"}} {published}
# TYPE headrace_connections gauge
headrace_connections {connections}
# TYPE headrace_latency_seconds histogram
headrace_latency_seconds_bucket{{le="+Inf"}} {published}
headrace_latency_seconds_count {published}
headrace_latency_seconds_sum {published}
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total {published}
# TYPE process_start_time_seconds gauge
process_start_time_seconds {started}
"""


def value(name: str, told: list[str]) -> float:
    return sum(float(line.rpartition(" ")[2]) for line in told if line.startswith(name))


def test_counters_never_fall_when_a_worker_is_away_and_comes_back() -> None:
    merged = Merged()
    seen = [
        lines(texts, merged)
        for texts in (
            {0: process(1.0, 1000), 1: process(2.0, 5000, 7)},
            {0: process(1.0, 1001)},  # it was killed
            {0: process(1.0, 1002), 1: process(3.0, 10)},
            {0: process(1.0, 1003)},
            {0: process(1.0, 1004), 1: process(4.0, 6000)},  # it has counted more than before in the meantime
            {0: process(1.0, 1004), 1: process(3.0, 10)},  # asked before that, answered late
        )
    ]
    totals = [value("headrace_publishes_received_total", told) for told in seen]
    assert totals == [6000, 6001, 6012, 6013, 12_014, 12_014]
    for name in ("bucket", "count", "sum"):
        assert [value(f"headrace_latency_seconds_{name}", told) for told in seen] == totals
    assert [value("headrace_connections", told) for told in seen] == [8, 1, 2, 1, 2, 2]
    alone = [value('process_cpu_seconds_total{worker="1"}', told) for told in seen]
    assert alone == [5000, 0, 10, 0, 6000, 6000]  # of a process, which Prometheus sees begin anew


def test_what_is_no_metrics_is_refused_and_changes_nothing() -> None:
    merged = Merged()
    before = lines({0: FIRST}, merged)
    with pytest.raises(ValueError, match=r"could not convert|Invalid"):
        merged.tell({0: "headrace_connections many\n"})
    assert lines({0: FIRST}, merged) == before
