"""What the admin address of a node serves: the parts of the node, put behind their routes and metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from headrace import __version__
from headrace.api.app import application
from headrace.api.journal import JournalRoutes
from headrace.api.operations import ClientRoutes, ClusterRoutes, SessionRoutes, TraceRoutes
from headrace.api.tokens import Tokens
from headrace.build import build
from headrace.core.worker import Worker
from headrace.node.shard import OwnedShard
from headrace.peers.handover import HandOver
from headrace.peers.handover_metrics import HandOverCollector
from headrace.peers.peer_metrics import PeerCollector
from headrace.peers.peers import Peers
from headrace.services.access import FileAccess
from headrace.services.audit import Audit, AuditCollector
from headrace.services.bridges import BridgeCollector, Bridges
from headrace.services.cluster_rows import ClusterRows, ShardRows
from headrace.services.device_metrics import DeviceCollector
from headrace.services.doors import Doors
from headrace.services.histogram import Histogram
from headrace.services.journal_metrics import JournalCollector, JournalFigures, Limits
from headrace.services.laggards import Laggards
from headrace.services.latencies import HistogramCollector, LatencyHistograms
from headrace.services.metrics import BuildCollector, ReadsCollector, registry
from headrace.services.process_metrics import ProcessFigures
from headrace.services.removals import Removals
from headrace.services.watchdog import Watchdog


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a node that somebody may look at. `directories`: the data directories of all shards of the node,
    whoever owns them."""

    worker: Worker
    shards: Sequence[OwnedShard]
    directories: Sequence[Path]
    doors: Doors
    bridges: Bridges
    watchdog: Watchdog
    access: FileAccess | None
    audit: Audit
    synced: Histogram
    latencies: LatencyHistograms
    peers: Peers | None
    handover: HandOver | None = None


def site(parts: Parts, tokens: Path | None, limits: Limits, not_ready: Callable[[], str]) -> Starlette:
    """Return the application of an admin address. `tokens`: the file with the bearer tokens, None: nobody has one."""
    worker, shards, process = parts.worker, parts.shards, ProcessFigures()
    collectors = registry(worker, parts.doors, parts.watchdog, process, *_collectors(parts, limits))
    refresh = (*(one.refresh for one in _figures(shards)), process.refresh)
    removals = Removals(worker.brokers)
    rows = ShardRows({shard.number: _rows(shard, worker) for shard in shards})
    routes: list[BaseRoute] = [
        JournalRoutes(parts.directories, tokens).mount(),
        *TraceRoutes(parts.doors.tracing, Tokens(tokens)).routes(),
        *ClientRoutes(Laggards([broker.fold for broker in worker.brokers]), Tokens(tokens)).routes(),
        *ClusterRoutes(rows, removals, Tokens(tokens)).routes(),
        *SessionRoutes(removals, Tokens(tokens)).routes(),
    ]
    return application(not_ready, collectors, routes, refresh)


def _figures(shards: Sequence[OwnedShard]) -> list[JournalFigures]:
    """Return what the disks tell of the shards that have one."""
    return [shard.storage.figures for shard in shards if shard.storage.figures is not None]


def _rows(shard: OwnedShard, worker: Worker) -> ClusterRows:
    broker = shard.broker
    return ClusterRows(broker.fold, broker.devices.consuming.clusters, worker.clock)


def _collectors(parts: Parts, limits: Limits) -> list[Collector]:
    """Return what /metrics tells beside the broker, its listeners and its process."""
    found = [
        BuildCollector(__version__, build()),
        BridgeCollector(parts.bridges),
        ReadsCollector([shard.storage.reads for shard in parts.shards]),
        DeviceCollector(parts.worker.brokers),
        JournalCollector(_figures(parts.shards), limits),
        HistogramCollector(parts.synced, parts.latencies.puback, parts.latencies.delivery),
        PeerCollector(
            parts.worker, parts.peers, {shard.number: shard.storage.behind for shard in parts.shards}
        ),
        HandOverCollector(parts.handover),
    ]
    if parts.access is not None:
        found.append(AuditCollector(parts.audit, parts.access.verifying))
    return found
