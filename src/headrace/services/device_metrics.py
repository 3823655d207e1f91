"""Figures of devices and topic queues, read at scrape. The clusters furthest behind are told one by one."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final
from zlib import crc32

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headrace.core.broker import Broker
from headrace.core.state.topic_queues import Cluster

CLUSTERS_TOLD: Final = 100
LABEL_BYTES_MAX: Final = 200


class DeviceCollector(Collector):
    """Connections that speak frames, what topic queues hold, how far clusters are behind."""

    def __init__(self, brokers: Sequence[Broker]) -> None:
        """Begin to look at the brokers of all shards of a worker."""
        self._brokers = brokers

    def collect(self) -> Iterator[Metric]:
        queues = [queue for broker in self._brokers for queue in broker.fold.queues.by_id.values()]
        clusters = [cluster for broker in self._brokers for cluster in broker.fold.queues.clusters.values()]
        yield GaugeMetricFamily(
            "headrace_device_connections",
            "Connections that speak frames and were let in",
            value=sum(len(broker.devices.clients) for broker in self._brokers),
        )
        owned = GaugeMetricFamily(
            "headrace_owned_devices", "Devices (SNs) that belong to a user", labels=["tenant"]
        )
        for name, count in self._owned().items():
            owned.add_metric([name], count)
        yield owned
        yield GaugeMetricFamily("headrace_topic_queues", "Topics that have a queue", value=len(queues))
        yield GaugeMetricFamily(
            "headrace_topic_queue_messages",
            "Messages that topic queues keep, read or not",
            value=sum(queue.count for queue in queues),
        )
        family = GaugeMetricFamily(
            "headrace_cluster_lag_messages",
            f"Messages that a consumer cluster has not finished, of the {CLUSTERS_TOLD} that are furthest behind",
            labels=["tenant", "topic", "cluster"],
        )
        for cluster in heapq.nlargest(CLUSTERS_TOLD, clusters, key=_lag):
            names = [_label(cluster.queue.topic), _label(cluster.name)]
            family.add_metric([cluster.queue.tenant, *names], _lag(cluster))
        yield family

    def _owned(self) -> Counter[str]:
        """Return how many devices belong to users of each tenant."""
        found: Counter[str] = Counter()
        for broker in self._brokers:
            for tenant in broker.fold.tenants.values():
                found[tenant.name] += len(tenant.devices.owners)
        return found


def _label(name: bytes) -> str:
    """Return a name that a device has chosen as the value of a label. A long one is cut, and told from others that begin
    alike by its checksum: whoever stores metrics keeps each value for ever."""
    if len(name) <= LABEL_BYTES_MAX:
        return name.decode("utf-8")
    return f"{name[:LABEL_BYTES_MAX].decode('utf-8', 'ignore')}... ({crc32(name):08x})"


def _lag(cluster: Cluster) -> int:
    return int(cluster.lag())
