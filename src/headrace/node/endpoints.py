"""What the admin address of a node serves: the parts of the node, put behind their routes and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar, overload

from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from headrace import __version__
from headrace.api.app import application
from headrace.api.backlogs import of_backlogs
from headrace.api.cluster import OF_CLUSTER, of_cluster
from headrace.api.configuration import of_configuration
from headrace.api.drain import of_drain
from headrace.api.events import of_events
from headrace.api.journal import JournalRoutes
from headrace.api.openapi import description
from headrace.api.operations import (
    RESOURCES,
    Answers,
    of_laggards,
    of_queues,
    of_removals,
    of_retained,
    of_sessions,
    of_traces,
)
from headrace.api.posts import of_posts
from headrace.api.read_only import of_read_only
from headrace.api.refusals import of_refusals
from headrace.api.resource import Resource, served
from headrace.api.tokens import Elsewhere, Tokens
from headrace.build import build
from headrace.core.worker import Worker
from headrace.node.member import Member
from headrace.node.shard import OwnedShard
from headrace.node.stores import OpenStores
from headrace.peers.handover import HandOver
from headrace.peers.handover_metrics import HandOverCollector
from headrace.peers.peer_metrics import PeerCollector
from headrace.peers.peers import Peers
from headrace.services.access import DirectoryAccess
from headrace.services.audit import Audit, AuditCollector
from headrace.services.backlog_rows import BacklogRows
from headrace.services.bridges import BridgeCollector, Bridges
from headrace.services.cluster_rows import ClusterRows
from headrace.services.configuration import Configured
from headrace.services.device_metrics import DeviceCollector
from headrace.services.doors import Doors
from headrace.services.draining import Draining
from headrace.services.events import EventLog
from headrace.services.histogram import Histogram
from headrace.services.journal_metrics import JournalCollector, JournalFigures, Limits
from headrace.services.laggards import Laggards
from headrace.services.latencies import HistogramCollector, LatencyHistograms
from headrace.services.metrics import BuildCollector, PastReads, Reads, ReadsCollector, registry
from headrace.services.paging import ByHome, ShardRows
from headrace.services.posts import Posts
from headrace.services.process_metrics import ProcessFigures
from headrace.services.refusals import Refusals
from headrace.services.removals import Removals
from headrace.services.retained_rows import RetainedRows, WalksByShard
from headrace.services.session_rows import SessionRows
from headrace.services.store_metrics import StoreCollector
from headrace.services.subscription_rows import SubscriptionRows
from headrace.services.watchdog import Watchdog

if TYPE_CHECKING:
    from headrace.api.tenants import Desk

Found = TypeVar("Found")


class OfShards(Sequence[Found], Generic[Found]):
    """What there is of the shards that this worker owns, at the moment when somebody looks: shards come and go."""

    def __init__(self, found: Callable[[], list[Found]]) -> None:
        self._found = found

    def __len__(self) -> int:
        return len(self._found())

    def __iter__(self) -> Iterator[Found]:
        return iter(self._found())

    @overload
    def __getitem__(self, at: int) -> Found: ...

    @overload
    def __getitem__(self, at: slice) -> list[Found]: ...

    def __getitem__(self, at: int | slice) -> Found | list[Found]:
        return self._found()[at]


class ByShard(Mapping[int, Found], Generic[Found]):
    """The same by the numbers of the shards. `make` is called for the shard that is asked for."""

    def __init__(self, shards: Sequence[OwnedShard], make: Callable[[OwnedShard], Found]) -> None:
        self._shards = shards
        self._make = make

    def __len__(self) -> int:
        return len(self._shards)

    def __iter__(self) -> Iterator[int]:
        return iter([shard.number for shard in self._shards])

    def __getitem__(self, number: int) -> Found:
        for shard in self._shards:
            if shard.number == number:
                return self._make(shard)
        raise KeyError(number)


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a node that somebody may look at. `shards` are those that it owns, which change while it runs; those
    in `lost` were given up for a failed journal, and are on their way out or back. `directories`: the data directories of
    all shards of the node, whoever owns them; `index`: which worker it is; `more`: what else tells figures; `granted`:
    what tokens may that are in no file; `desk`: where tenants are administered; `configured` reads the configuration
    again, `draining` lets no client in any more; `member` knows the cluster, if the node is one of one."""

    worker: Worker
    shards: Sequence[OwnedShard]
    directories: Sequence[Path]
    doors: Doors
    bridges: Bridges
    watchdog: Watchdog
    access: DirectoryAccess | None
    audit: Audit
    synced: Histogram
    latencies: LatencyHistograms
    peers: Peers | None
    handover: HandOver | None
    past: PastReads
    lost: Mapping[int, str]
    stores: OpenStores
    events: EventLog
    index: int = 0
    more: Sequence[Collector] = ()
    granted: Elsewhere | None = None
    desk: Desk | None = None
    configured: Configured | None = None
    draining: Draining | None = None
    member: Member | None = None


def site(
    parts: Parts,
    tokens: Path | None,
    limits: Limits,
    not_ready: Callable[[], str],
    degraded: Callable[[], str] = str,
) -> Starlette:
    """Return the application of an admin address. `tokens`: the file with the bearer tokens, None: nobody has one.
    `not_ready` says why no client is served, `degraded` what does not work though they are; "": nothing is wrong."""
    worker, lost, process = parts.worker, parts.lost, ProcessFigures()
    shards = OfShards(lambda: [one for one in parts.shards if one.number not in lost])
    brokers = OfShards(lambda: [broker for broker in worker.brokers if broker.shard not in lost])
    collectors = registry(worker, parts.doors, parts.watchdog, process, *_collectors(parts, limits))
    folds = OfShards(lambda: [broker.fold for broker in brokers])
    lists = _Lists(parts, shards)

    def refresh() -> None:
        for one in _figures(shards):
            one.refresh()
        process.refresh()

    answers = {
        **of_traces(parts.doors.tracing),
        **of_laggards(Laggards(folds)),
        **of_refusals(_refusals(parts)),
        **of_events(parts.events),
        **of_queues(ShardRows(ByShard(shards, lambda shard: _rows(shard, worker)), lost)),
        **lists.of_sessions(),
        **lists.of_backlogs(),
        **lists.of_retained(),
        **of_removals(Removals(brokers, lost)),
        **of_posts(Posts(brokers, lost)),
    }
    resources = [*RESOURCES, *_more_resources(parts, answers)]
    answers |= _of_process(parts)
    routes: list[BaseRoute] = [
        *JournalRoutes(parts.directories, tokens).routes(),
        *served(Tokens(tokens, parts.granted), answers, parts.events.add),
        *description(resources),
    ]
    return application(not_ready, collectors, routes, (refresh,), degraded)


def _of_process(parts: Parts) -> Answers:
    """Return what reads the configuration of a worker again, and drains it."""
    found = Answers()
    if parts.configured is not None:
        found |= of_configuration(parts.configured)
    if parts.draining is not None:
        found |= of_drain(parts.draining)
    return found


def _more_resources(parts: Parts, answers: Answers) -> list[Resource]:
    """Return the resources of a broker with tenants, and of a node of a cluster; what serves them goes to `answers`."""
    found: list[Resource] = []
    if parts.desk is not None:
        from headrace.api.bans import OF_BANS, of_bans
        from headrace.api.documents import OF_DOCUMENTS, of_documents
        from headrace.api.tenants import OF_DIRECTORY, of_tenants

        answers |= of_tenants(parts.desk) | of_documents(parts.desk) | of_bans(parts.desk)
        found += (*OF_DIRECTORY, *OF_DOCUMENTS, *OF_BANS)
    else:
        answers |= of_read_only()
    if parts.member is not None:
        answers |= of_cluster(parts.member.status)
        found += OF_CLUSTER
    return found


def _refusals(parts: Parts) -> Refusals:
    """Return who is refused from now on: where nobody can ask, nothing is kept."""
    found = Refusals(parts.index)
    parts.audit.heard = found.note
    return found


class _Lists:
    """Makes lists of what the shards of a worker hold."""

    def __init__(self, parts: Parts, shards: Sequence[OwnedShard]) -> None:
        self._parts = parts
        self._shards = shards
        self._walks = WalksByShard()

    def of_sessions(self) -> Answers:
        """Return what lists and shows sessions, their subscriptions and clients."""
        lost, homes, index = self._parts.lost, self._parts.worker.homes, self._parts.index
        sessions = ByShard(self._shards, lambda one: SessionRows(one.broker.fold, one.number, index, one.run))
        subscribed = ByShard(
            self._shards, lambda one: SubscriptionRows(one.broker.fold, one.number, index, one.run)
        )
        found = ByHome(sessions, homes.of_client, lost)
        return of_sessions(ShardRows(sessions, lost), found, ShardRows(subscribed, lost))

    def of_backlogs(self) -> Answers:
        """Return what lists the entries that wait for a session."""
        waiting = ByShard(self._shards, lambda one: BacklogRows(one.broker))
        return of_backlogs(ByHome(waiting, self._parts.worker.homes.of_client, self._parts.lost))

    def of_retained(self) -> Answers:
        """Return what lists and shows retained messages."""
        lost, worker = self._parts.lost, self._parts.worker

        def make(one: OwnedShard) -> RetainedRows:
            walks = self._walks.of(one.number, one.run)
            return RetainedRows(one.broker.fold, worker.clock, walks, one.number, self._parts.index)

        retained = ByShard(self._shards, make)
        return of_retained(ShardRows(retained, lost), ByHome(retained, worker.homes.of_topic, lost))


def _figures(shards: Sequence[OwnedShard]) -> list[JournalFigures]:
    """Return what the disks tell of the shards that have one."""
    return [shard.storage.figures for shard in list(shards) if shard.storage.figures is not None]


def _reads(parts: Parts) -> list[Reads]:
    """Return what counts the reads from disk, those from journals too that are closed by now."""
    return [parts.past, *(shard.storage.reads for shard in parts.shards)]


def _rows(shard: OwnedShard, worker: Worker) -> ClusterRows:
    broker = shard.broker
    return ClusterRows(broker.fold, broker.devices.consuming.clusters, worker.clock)


def _collectors(parts: Parts, limits: Limits) -> list[Collector]:
    """Return what /metrics tells beside the broker, its listeners and its process."""
    found = [
        BuildCollector(__version__, build()),
        BridgeCollector(parts.bridges),
        ReadsCollector(OfShards(lambda: _reads(parts))),
        DeviceCollector(parts.worker.brokers),
        JournalCollector(OfShards(lambda: _figures(parts.shards)), limits),
        HistogramCollector(parts.synced, parts.latencies.puback, parts.latencies.delivery),
        PeerCollector(parts.worker, parts.peers, ByShard(parts.shards, lambda shard: shard.storage.behind)),
        HandOverCollector(parts.handover),
        StoreCollector(parts.stores.figures),
    ]
    if parts.access is not None:
        found.append(AuditCollector(parts.audit, parts.access.verifying))
    return [*found, *parts.more]
