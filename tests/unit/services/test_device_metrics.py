"""What /metrics tells of devices and clusters."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from headrace.core.ports.clock import Clock
from headrace.core.ports.settings import BrokerSettings
from headrace.core.worker import Worker
from headrace.services.device_metrics import CLUSTERS_TOLD, LABEL_BYTES_MAX, DeviceCollector
from headrace.storage.memory import ManualScheduler, MemoryJournal


def test_the_clusters_that_are_furthest_behind_are_told_one_by_one() -> None:
    broker = Worker(ManualScheduler(), Clock(), BrokerSettings()).own(0, MemoryJournal())
    queues = broker.fold.queues
    queues.opened("default", b"locks", 7)
    for offset in range(150):
        queues.by_id[7].push(offset, 10)
    for first in range(1, 151):
        queues.made(queues.by_id[7], b"c%d" % first, 100 + first, first)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(DeviceCollector([broker]))
    lines = generate_latest(registry).decode().splitlines()
    assert "headrace_device_connections 0.0" in lines
    assert "headrace_topic_queues 1.0" in lines
    assert "headrace_topic_queue_messages 150.0" in lines
    lags = [line for line in lines if line.startswith("headrace_cluster_lag_messages{")]
    assert len(lags) == CLUSTERS_TOLD
    assert 'headrace_cluster_lag_messages{cluster="c1",tenant="default",topic="locks"} 150.0' in lags
    assert not [line for line in lags if 'cluster="c101"' in line]


def test_names_that_devices_choose_are_cut_and_still_told_apart() -> None:
    broker = Worker(ManualScheduler(), Clock(), BrokerSettings()).own(0, MemoryJournal())
    queues = broker.fold.queues
    for number, topic in enumerate((b"t" * 60_000, b"t" * 60_001, "ö".encode() * 30_000), 1):
        queues.opened("default", topic, number)
        queues.made(queues.by_id[number], b"c" * LABEL_BYTES_MAX, 100 + number, 1)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(DeviceCollector([broker]))
    lags = [line for line in generate_latest(registry).decode().splitlines() if "lag_messages{" in line]
    assert len(set(lags)) == 3
    assert all(len(line.encode()) < 600 for line in lags)
    assert all(f'cluster="{"c" * LABEL_BYTES_MAX}"' in line for line in lags)
