"""What /metrics tells of stores of queues."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from headrace.core.storing.notes import StoreCounters
from headrace.services.store_metrics import StoreCollector, StoreFigures


def told(*figures: StoreFigures) -> list[str]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StoreCollector(lambda: figures))
    return generate_latest(registry).decode().splitlines()


def test_each_store_has_the_sum_of_its_shards() -> None:
    one, other = StoreCounters(), StoreCounters()
    one.put, other.put, other.let_go = 3, 4, 2
    lines = told(
        StoreFigures("redis://a:1", [one, other], True, 17, {"oom": 5}, {"no append-only file": 2}),
        StoreFigures("redis://b:2", [], False, 0, {}, {}),
    )
    assert 'headrace_store_put_total{store="redis://a:1"} 7.0' in lines
    assert 'headrace_store_let_go_total{store="redis://a:1"} 2.0' in lines
    assert 'headrace_store_put_total{store="redis://b:2"} 0.0' in lines
    assert 'headrace_store_usable{store="redis://a:1"} 1.0' in lines
    assert 'headrace_store_usable{store="redis://b:2"} 0.0' in lines
    assert 'headrace_store_commands_total{store="redis://a:1"} 17.0' in lines
    assert 'headrace_store_faults_total{fault="oom",store="redis://a:1"} 5.0' in lines
    assert 'headrace_store_unsettled_total{reason="no append-only file",store="redis://a:1"} 2.0' in lines


def test_nothing_is_told_where_there_is_none() -> None:
    assert told() == []
