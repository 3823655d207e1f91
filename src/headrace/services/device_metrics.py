"""Figures of devices and topic queues, read at scrape. The clusters furthest behind are told one by one."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headrace.core.broker import Broker
from headrace.core.state.topic_queues import Cluster

CLUSTERS_TOLD: Final = 100


class DeviceCollector(Collector):
    """Connections that speak frames, what topic queues hold, how far clusters are behind."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        queues = self._broker.fold.queues
        yield GaugeMetricFamily(
            "headrace_device_connections",
            "Connections that speak frames and were let in",
            value=len(self._broker.devices.clients),
        )
        owned = GaugeMetricFamily(
            "headrace_owned_devices", "Devices (SNs) that belong to a user", labels=["tenant"]
        )
        for tenant in self._broker.fold.tenants.values():
            owned.add_metric([tenant.name], len(tenant.devices.owners))
        yield owned
        yield GaugeMetricFamily("headrace_topic_queues", "Topics that have a queue", value=len(queues.by_id))
        yield GaugeMetricFamily(
            "headrace_topic_queue_messages",
            "Messages that topic queues keep, read or not",
            value=sum(queue.count for queue in queues.by_id.values()),
        )
        family = GaugeMetricFamily(
            "headrace_cluster_lag_messages",
            f"Messages that a consumer cluster has not finished, of the {CLUSTERS_TOLD} that are furthest behind",
            labels=["tenant", "topic", "cluster"],
        )
        for cluster in heapq.nlargest(CLUSTERS_TOLD, list(queues.clusters.values()), key=_lag):
            topic, name = cluster.queue.topic.decode("utf-8"), cluster.name.decode("utf-8")
            family.add_metric([cluster.queue.tenant, topic, name], _lag(cluster))
        yield family


def _lag(cluster: Cluster) -> int:
    return int(cluster.lag())
