"""What /metrics tells of sinks."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from headrace.kafka.figures import SinkFigures, SourceFigures
from headrace.kafka.metrics import SinkCollector, SourceCollector


def told(*figures: SinkFigures) -> list[str]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SinkCollector(lambda: figures))
    return generate_latest(registry).decode().splitlines()


def test_each_sink_is_told_by_shard() -> None:
    lines = told(SinkFigures("s", 0, 10, 2, 1, 0, 7, True), SinkFigures("s", 1, lost=3, trouble="away"))
    for line in (
        'headrace_sink_up{shard="0",sink="s"} 1.0',
        'headrace_sink_up{shard="1",sink="s"} 0.0',
        'headrace_sink_lag_records{shard="0",sink="s"} 7.0',
        'headrace_sink_records_total{shard="0",sink="s"} 10.0',
        'headrace_sink_transactions_total{shard="0",sink="s"} 2.0',
        'headrace_sink_left_out_total{shard="0",sink="s"} 1.0',
        'headrace_sink_lost_total{shard="1",sink="s"} 3.0',
    ):
        assert line in lines


def test_nothing_is_told_where_there_is_none() -> None:
    assert told() == []
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SourceCollector(list))
    assert generate_latest(registry) == b""


def test_each_source_is_told() -> None:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SourceCollector(lambda: [SourceFigures("s", 5, 1, 7, True)]))
    lines = generate_latest(registry).decode().splitlines()
    for name, value in (("up", 1), ("lag_records", 7), ("records_total", 5), ("refused_total", 1)):
        assert f'headrace_source_{name}{{source="s"}} {value}.0' in lines
