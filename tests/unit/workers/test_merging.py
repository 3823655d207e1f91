"""What several workers tell becomes what one node tells."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from headrace.workers.merging import Merged, merge

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


def lines(texts: dict[int, str]) -> list[str]:
    merged = Merged()
    merged.texts = texts
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


def test_who_does_not_answer_is_left_out() -> None:
    assert 'headrace_publishes_received_total{tenant="default"} 3.0' in lines({1: SECOND})
    assert lines({}) == []


def test_what_is_no_metrics_is_refused() -> None:
    with pytest.raises(ValueError, match=r"could not convert|Invalid"):
        merge({0: "headrace_connections many\n"})
