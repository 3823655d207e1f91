"""/metrics: the broker's plain integers, turned into Prometheus samples only when somebody asks (design: hot path)."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from headrace.core.broker import Broker
from headrace.core.records.record import DROP_REASONS
from headrace.core.state.counters import Counters
from headrace.core.state.tenant import Tenant
from headrace.core.worker import Worker
from headrace.mqtt import reason_codes
from headrace.services.doors import Doors
from headrace.services.watchdog import KINDS, Watchdog

# Name of the counter -> name of its metric, without `headrace_` and `_total`, and what it counts.
TENANT_COUNTERS = {
    "publishes_received": ("publishes_received", "PUBLISH packets received from clients"),
    "publishes_repeated": (
        "publishes_repeated",
        "PUBLISH packets of idempotent producers that were stored before",
    ),
    "publishes_sent": ("publishes_sent", "PUBLISH packets sent to clients"),
    "connects": ("connects", "Accepted CONNECT packets"),
    "connects_refused": ("connects_refused", "Refused CONNECT packets"),
    "disconnects": ("disconnects", "Connections that ended"),
    "protocol_errors": ("protocol_errors", "Connections closed for a protocol error"),
    "bytes_received": ("publish_received_bytes", "Payload bytes received in PUBLISH packets"),
    "bytes_sent": ("publish_sent_bytes", "Payload bytes sent in PUBLISH packets"),
}


Tenants = dict[str, list[Tenant]]  # by name: what each shard has of them


class BrokerCollector(Collector):
    """Reads the counters of a worker, of its brokers with their journals, and of its watchdog at scrape time."""

    def __init__(self, worker: Worker, watchdog: Watchdog) -> None:
        self._worker = worker
        self._watchdog = watchdog

    def collect(self) -> Iterator[Metric]:
        yield from self._tenants()
        yield from self._connections()
        yield from self._journal()
        yield from self._loop()

    def _tenants(self) -> Iterator[Metric]:
        tenants: Tenants = {}
        for broker in self._worker.brokers:
            for tenant in broker.fold.tenants.values():
                tenants.setdefault(tenant.name, []).append(tenant)
        counters = {name: [tenant.counters for tenant in parts] for name, parts in tenants.items()}
        unknown = counters.setdefault(self._worker.anyone.tenant, [])
        unknown.append(self._worker.arrivals.counters)
        unknown.extend(broker.fold.strangers for broker in self._worker.brokers)
        for name, before in self._worker.counters_before.items():
            counters.setdefault(name, []).append(before)
        for counter, (name, text) in TENANT_COUNTERS.items():
            family = CounterMetricFamily(f"headrace_{name}", text, labels=["tenant"])
            for tenant_name, parts in counters.items():
                family.add_metric([tenant_name], sum(getattr(part, counter) for part in parts))
            yield family
        yield _dropped(counters)
        yield _refused(counters)
        yield _per_tenant("sessions", "Sessions, connected or away", tenants, lambda t: len(t.sessions))
        yield _per_tenant("subscriptions", "Subscriptions", tenants, lambda t: int(t.tree.count))
        yield _per_tenant("retained_messages", "Retained messages", tenants, lambda t: len(t.retained))
        yield _per_tenant(
            "backlog_messages", "Messages that wait in queues", tenants, lambda t: int(t.space.count)
        )
        yield _per_tenant("backlog_bytes", "Bytes that wait in queues", tenants, lambda t: int(t.space.bytes))

    def _connections(self) -> Iterator[Metric]:
        worker = self._worker
        connected = sum(broker.sessions.connected for broker in worker.brokers)
        yield GaugeMetricFamily("headrace_connections", "Connected clients", value=connected)
        yield self._paused()
        for way, count in (("received", worker.bytes_received), ("sent", worker.bytes_sent)):
            text = f"Bytes {way}, of whole packets"
            yield CounterMetricFamily(f"headrace_network_{way}_bytes", text, value=count)

    def _journal(self) -> Iterator[Metric]:
        columns: tuple[
            tuple[type[CounterMetricFamily | GaugeMetricFamily], str, str, Callable[[Broker], int]], ...
        ] = (
            (GaugeMetricFamily, "high_watermark", "Offset below which all is durable", _high_watermark),
            (GaugeMetricFamily, "pending_bytes", "Bytes that wait for a batch", _pending_bytes),
            (
                GaugeMetricFamily,
                "full",
                "1 while the disk is full and publishers wait or are refused",
                _is_full,
            ),
            (
                CounterMetricFamily,
                "batches",
                "Batches handed to the journal",
                lambda broker: broker.commit.batches,
            ),
            (
                CounterMetricFamily,
                "bytes",
                "Record bytes handed to the journal",
                lambda broker: broker.commit.bytes,
            ),
        )
        worker = self._worker
        labels = ["shard"] if worker.homes.shards > 1 else []
        for kind, name, text, value in columns:
            family = kind(f"headrace_journal_{name}", text, labels=labels)
            for broker in worker.brokers:
                family.add_metric([str(broker.shard)] if labels else [], value(broker))
            yield family
        yield CounterMetricFamily(
            "headrace_ticks", "Passes of the event loop with work", value=self._worker.ticks
        )

    def _paused(self) -> Metric:
        family = GaugeMetricFamily(
            "headrace_paused_connections", "Connections that wait for something", labels=["reason"]
        )
        waiting = [broker.publishing.waiting() for broker in self._worker.brokers]
        family.add_metric(["journal"], sum(committing for committing, _ in waiting))
        family.add_metric(["disk_full"], sum(full for _, full in waiting))
        family.add_metric(["shard"], sum(broker.gate.crowded for broker in self._worker.brokers))
        family.add_metric(["socket"], self._worker.slow)
        family.add_metric(["disk_read"], sum(len(broker.unread) for broker in self._worker.brokers))
        return family

    def _loop(self) -> Iterator[Metric]:
        watchdog = self._watchdog
        stalls = CounterMetricFamily(
            "headrace_loop_stalls", "Stretches of more than 5 ms on the event loop", labels=["what"]
        )
        seconds = CounterMetricFamily("headrace_loop_stalled_seconds", "Their time", labels=["what"])
        for kind in KINDS:
            stalls.add_metric([kind], watchdog.stalls[kind])
            seconds.add_metric([kind], watchdog.stalled_s[kind])
        yield stalls
        yield seconds
        yield GaugeMetricFamily(
            "headrace_loop_longest_stall_seconds", "The longest of them", value=watchdog.longest_s
        )
        failures = CounterMetricFamily(
            "headrace_failures",
            "Failures that were contained: each is a bug or want of memory",
            labels=["place"],
        )
        for place, count in self._worker.failures.counts.items():
            failures.add_metric([place], count)
        yield failures


def _high_watermark(broker: Broker) -> int:
    return int(broker.commit.high_watermark)


def _pending_bytes(broker: Broker) -> int:
    return int(broker.commit.pending_bytes)


def _is_full(broker: Broker) -> int:
    return int(broker.gate.full)


def _dropped(tenants: dict[str, list[Counters]]) -> Metric:
    family = CounterMetricFamily(
        "headrace_dropped_messages", "Messages lost, by DropReason", labels=["tenant", "reason"]
    )
    for tenant, parts in tenants.items():
        for reason, name in DROP_REASONS.items():
            family.add_metric([tenant, name], sum(part.dropped.get(reason, 0) for part in parts))
    return family


def _refused(tenants: dict[str, list[Counters]]) -> Metric:
    family = CounterMetricFamily(
        "headrace_refused_packets",
        "CONNECT, PUBLISH and subscriptions that were refused, by reason code",
        labels=["tenant", "packet", "reason"],
    )
    for tenant, parts in tenants.items():
        refused: Counter[tuple[str, int]] = Counter()
        for part in parts:
            refused.update(part.refused)
        for (packet, code), count in sorted(refused.items()):
            family.add_metric([tenant, packet, _snake(reason_codes.name(code))], count)
    return family


def _snake(name: str) -> str:
    """Return a name in snake case: "Not authorized" -> "not_authorized"."""
    return name.lower().replace(" ", "_").replace("-", "_")


def _per_tenant(name: str, text: str, tenants: Tenants, value: Callable[[Tenant], float]) -> Metric:
    family = GaugeMetricFamily(f"headrace_{name}", text, labels=["tenant"])
    for tenant, parts in tenants.items():
        family.add_metric([tenant], sum(value(part) for part in parts))
    return family


class Reads(Protocol):
    """A journal that counts what it was asked for and no longer had in memory."""

    disk_reads: int
    damaged_reads: int
    failed_reads: int


class PastReads:
    """What journals counted that are closed by now, so that no sum goes down."""

    def __init__(self) -> None:
        self.disk_reads = 0
        self.damaged_reads = 0
        self.failed_reads = 0

    def add(self, reads: Reads) -> None:
        """Count with these what a journal has counted, which is about to be closed."""
        self.disk_reads += reads.disk_reads
        self.damaged_reads += reads.damaged_reads
        self.failed_reads += reads.failed_reads


class ReadsCollector(Collector):
    """What was read back from the journals of all shards for backlogs."""

    def __init__(self, reads: Sequence[Reads]) -> None:
        self._reads = reads

    def _sum(self, name: str) -> int:
        return sum(getattr(one, name) for one in self._reads)

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "headrace_journal_disk_reads", "Batches read back from the disk", value=self._sum("disk_reads")
        )
        yield CounterMetricFamily(
            "headrace_journal_damaged_reads",
            "Messages or pages that could not be read back",
            value=self._sum("damaged_reads"),
        )
        yield CounterMetricFamily(
            "headrace_journal_failed_reads",
            "Reads that failed for the moment; whoever needs the message waits",
            value=self._sum("failed_reads"),
        )


class DoorsCollector(Collector):
    """What each listener let in and turned away, by its URL."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    def collect(self) -> Iterator[Metric]:
        listeners = [(listener.url, listener.connections) for listener in self._doors.listeners]
        accepted = CounterMetricFamily(
            "headrace_listener_accepted", "Connections let in", labels=["listener"]
        )
        now = GaugeMetricFamily("headrace_listener_connections", "Connections open", labels=["listener"])
        away = CounterMetricFamily(
            "headrace_listener_turned_away",
            "Connections not let in, or cut off",
            labels=["listener", "reason"],
        )
        waits = CounterMetricFamily(
            "headrace_listener_held_back",
            "Times that accepting waited for accepts_per_s",
            labels=["listener"],
        )
        for url, connections in listeners:
            waits.add_metric([url], connections.held_back)
            accepted.add_metric([url], connections.accepted)
            now.add_metric([url], len(connections.open))
            for reason, count in connections.turned_away.items():
                away.add_metric([url, reason], count)
        yield from (accepted, now, away, waits)


class BuildCollector(Collector):
    """Says which headrace runs, as labels of a 1: to be joined with whatever it explains."""

    def __init__(self, version: str, build: str) -> None:
        self._labels = {"version": version, "build": build, "python": platform.python_version()}

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("headrace_build", "Version, build and Python of this broker", self._labels)


def registry(worker: Worker, doors: Doors, watchdog: Watchdog, *others: Collector) -> CollectorRegistry:
    found = CollectorRegistry()
    found.register(BrokerCollector(worker, watchdog))
    found.register(DoorsCollector(doors))
    for collector in others:
        found.register(collector)
    return found
