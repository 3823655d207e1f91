"""The composition root: puts a broker, its journal, its sockets and its clock together and runs them.

Runs on the event loop. Start: open the journal (which repairs its tail), load the newest snapshot, replay what is behind
it, close the sessions that a crash left open, listen. Stop: say goodbye, wait for the journal, snapshot, close.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import ssl
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import uvloop
from prometheus_client.registry import Collector
from starlette.applications import Starlette

from headrace import __version__
from headrace.api.admin import Admin
from headrace.api.app import bind, bind_unix
from headrace.api.requests import Checked, names_of
from headrace.api.server import CONNECTIONS_MAX, Bounds
from headrace.build import PURE, build
from headrace.config import Config, InvalidKey, endpoint
from headrace.core.homes import Homes
from headrace.core.ports.clock import Clock
from headrace.core.worker import Worker
from headrace.data.claim import AUTO, Claim
from headrace.data.layout import Layout
from headrace.journal.presence import Known
from headrace.journal.watermark import NAME as WATERMARK
from headrace.kafka.metrics import SinkCollector, SourceCollector
from headrace.naming import keys_named
from headrace.net.address import parse as parse_listener
from headrace.net.tls import is_hang_up, server_context
from headrace.node.candidacy import POLL_S as CANDIDATE_POLL_S
from headrace.node.candidacy import Candidacy
from headrace.node.endpoints import Parts, site
from headrace.node.holdings import Holdings
from headrace.node.lookout import INTERVAL_S as LOOKOUT_S
from headrace.node.lookout import Lookout
from headrace.node.member import Member
from headrace.node.members import Members
from headrace.node.reloading import Reloading
from headrace.node.shard import Surroundings, settle
from headrace.node.sharing import Sharing
from headrace.node.sinks import Sinks
from headrace.node.stores import OpenStores
from headrace.node.tenants import Tenants
from headrace.node.wiring import (
    access_is_needed,
    access_settings,
    audit_log,
    bridge_settings,
    broker_settings,
    door_settings,
    embedded_settings,
    wish,
)
from headrace.peers.cluster_handover import ClusterHandOver
from headrace.peers.cluster_peers import ClusterPeers
from headrace.peers.handover import HandOver
from headrace.peers.peers import Peers
from headrace.peers.reaching import INTERVAL_S as REACHING_S
from headrace.peers.reaching import Reaching, Table
from headrace.services.access import DirectoryAccess, FileAccess
from headrace.services.bridges import Bridges
from headrace.services.collecting import Endings, take_charge
from headrace.services.doors import Doors
from headrace.services.draining import FILE as DRAIN
from headrace.services.draining import LOOK_S as DRAIN_LOOK_S
from headrace.services.draining import Draining
from headrace.services.events import EventLog
from headrace.services.failures import FailureLog
from headrace.services.histogram import Histogram
from headrace.services.journal_metrics import Limits
from headrace.services.latencies import LatencyHistograms
from headrace.services.node_counts import NodeCounts
from headrace.services.node_owned import NodeOwned
from headrace.services.node_sums import ENTRIES as NODE_SUMS_ENTRIES
from headrace.services.node_sums import INTERVAL_S as NODE_SUMS_S
from headrace.services.node_sums import NodeSums
from headrace.services.node_times import NodeTimes
from headrace.services.notify import Notifier
from headrace.services.repeating import Repeating, repeat
from headrace.services.sys_topics import SystemValues, numbers, state_of_bridge, tell, tell_of_member
from headrace.services.ticks import LoopScheduler, Stalls
from headrace.services.watchdog import Watchdog
from headrace.storage.embedded.storage import EmbeddedStorage, Listening, name_of
from headrace.storage.port import ShardStorage
from headrace.workers.control import PREPARED, READY, STOPPING, Control
from headrace.workers.membership import Membership
from headrace.workers.overview import socket_of
from headrace.workers.place import Place
from headrace.workers.runtime import CONNECTIONS, DEVICES, KEPT, SUBSCRIPTIONS, TIMES

if TYPE_CHECKING:
    from headrace.storage.kafka.cluster import Cluster

TIMER_INTERVAL_S = 0.1
STREAMS_WITHIN_S = 5.0  # for so long a worker waits for the others before clients come
STANDS_BY_S = 30.0  # within somebody else's program, whose loop waits
BEHIND_INTERVAL_S = 0.001  # more is due than one pass of the loop should do
SWITCH_INTERVAL_S = 0.0005
PROMISE_OF_KAFKA = (
    "acknowledged = on min.insync.replicas of Kafka; all of them losing power at once may lose it"
)

log = structlog.get_logger("headrace")


class Node:
    """The shards of one worker with all that belongs to them. With `owns_process` false it is a part of somebody else's
    program, whose signals and garbage collector it leaves alone. `membership`: how it belongs to the workers of a
    supervisor, None where it is alone; `place` alone: where it is among workers that nobody supervises."""

    def __init__(
        self,
        config: Config,
        owns_process: bool = True,
        reread: Callable[[], Config] | None = None,
        membership: Membership | None = None,
        place: Place | None = None,
    ) -> None:
        self.config = config
        self.ready = asyncio.Event()
        self._owns_process = owns_process
        self._membership = membership
        self._notifier = Notifier(os.environ if owns_process and membership is None else {})
        self.clock = Clock()
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._not_ready = "starting"
        self._rounds: list[Repeating] = []
        self._tick_clock()
        self._audit = audit_log(config)
        with keys_named(config, "access"):  # whatever it raises, the journal is not open yet
            self._access = self._access_control()
        self._check_certificates()
        self.watchdog = Watchdog()
        self._join_cluster()
        with keys_named(config, "data_dir"):
            self._claim_data(place if membership is None else membership.place)
        self._share_cluster()
        scheduler = LoopScheduler(self._loop, self.watchdog)
        self.worker = Worker(scheduler, self.clock, broker_settings(config), Homes(self.place.shards))
        scheduler.end_tick = self.worker.end_tick
        self._synced = Histogram("headrace_journal_sync_duration_seconds", "Write and fdatasync of a batch")
        self.worker.latencies = self._latencies = LatencyHistograms()
        self._hear_failures()
        self._on_timer = self.watchdog.watched("timer", self.worker.on_timer)
        end = self._stopping.set
        self._holdings = Holdings(self._index, self.owners, self.worker, self._storage_of, end, log)
        self.shards = self._holdings.shards
        self._stand_by()
        with keys_named(config, "data_dir"):
            self._own_shards()
        self._bridges = Bridges(self.worker, self._name(), log.info, log.warning)
        with keys_named(config, "limits"):
            self._doors = self._make_doors()
        self.peers = self._holdings.peers = self._make_peers()
        self.handover = self._hand_over()
        self._admin = Admin(self._admin_context)
        self._reloading = Reloading(
            config, reread, self.worker, self._doors, self._access, self._bridges, self._admin
        )

    def _name(self) -> str:
        """Return what the node is called where bridges tell it."""
        return self.place.node or self.shards[0].storage.uuid

    def _access_control(self) -> DirectoryAccess | None:
        """Return the access control, None where everybody may do everything. Raises ConfigError."""
        config = self.config
        self._tenants = Tenants(config, self._loop) if config.tenants.enabled else None
        if self._tenants is not None:
            settings = access_settings(self.config)
            tokens = self._tenants.tokens()
            return DirectoryAccess(self._tenants.directory, settings, self._audit, self._loop, tokens)
        if not access_is_needed(self.config):
            return None
        return FileAccess(access_settings(self.config), self._audit, self._loop)

    def _close_directory(self) -> None:
        if self._tenants is not None:
            self._tenants.close()

    def _make_doors(self) -> Doors:
        """Return the listeners to be; among other workers they count connections with those. Raises ConfigError,
        OSError."""
        self._subscriptions = self._devices = self._kept = counts = times = None
        self._tables: list[Table] = []
        place = self.place
        if not place.is_alone:
            at = place.index, place.workers
            counts = NodeCounts(place.runtime / CONNECTIONS, *at)
            times = NodeTimes(place.runtime / TIMES, *at)
            self._subscriptions = NodeOwned(NodeCounts(place.runtime / SUBSCRIPTIONS, *at, recovers=True))
            self._devices = NodeOwned(NodeCounts(place.runtime / DEVICES, *at, recovers=True))
            self._kept = NodeCounts(place.runtime / KEPT, *at, recovers=True, entries=NODE_SUMS_ENTRIES)
            self._tables = [counts, times, self._subscriptions, self._devices, self._kept]
            if self._access is not None:
                self._access.count_with(counts, times)
        settings = door_settings(self.config)
        doors = Doors(self.worker, settings, self._access, log.warning, self._audit, counts, times)
        doors.ended = Endings().note if self._owns_process else None
        if self._tenants is not None and self._access is not None:
            self._tenants.join(self._access, doors)
        told = None if place.is_alone else place.runtime / DRAIN
        self._draining = Draining(doors, time.monotonic, place.workers, told)
        return doors

    def _make_peers(self) -> Peers | None:
        """Return what links the shards, None where there is one."""
        if self.place.shards == 1:
            return None
        sharing = self._sharing
        if sharing is not None:
            return ClusterPeers(
                sharing.run,
                sharing.id,
                sharing.listening,
                self.owners,
                self.worker,
                self._loop,
                self._report,
                sharing.tls,
            )
        peers = Peers(self.place, self.owners, self.worker, self._loop, self._report)
        peers.linked = self._name_shards_of
        return peers

    def _hand_over(self) -> HandOver | None:
        """Return what takes clients to the workers where they are at home, None where there is no other worker."""
        self._reaching: asyncio.Task[None] | None = None
        if self.peers is None or (self.place.is_alone and self._sharing is None):
            return None
        peers, handover = self.peers, self._roads(self.peers)
        peers.accept = handover.accept
        self.worker.arrivals.elsewhere = handover
        return handover

    def _roads(self, peers: Peers) -> HandOver:
        """Return the ways to the other workers, or nodes."""
        ways = self.owners, self._doors, peers.open_channel, peers.is_silent, self._loop, self._report
        if self._sharing is not None:
            handover = ClusterHandOver(self._sharing.run, *ways)
            handover.say_leaving = peers.say_leaving
            return handover
        return HandOver(self.place, *ways)

    def _check_certificates(self) -> None:
        """Check the certificates, which are read again when a listener opens: what is wrong is said before anything
        is made."""
        addresses = [parse_listener(url) for url in self.config.listeners]
        own = door_settings(self.config).tls
        with keys_named(self.config, "listeners"):
            for address in addresses:
                if address.encrypted:
                    server_context(own.overridden_by(address), "mqtt")
        with keys_named(self.config, "admin"):
            self._admin_context()

    def _hear_failures(self) -> None:
        self.worker.failures.tell = FailureLog(log.error).report
        if self._loop.get_exception_handler() is None:  # else it is that of the program around us
            self._loop.set_exception_handler(self._on_loop_error)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle what the loop could not: without memory for a moment it reads again what told it of a signal."""
        error = context.get("exception")
        if isinstance(error, MemoryError):
            self.worker.failures.note("loop", "", error)
        elif not is_hang_up(context):
            loop.default_exception_handler(context)

    def _report(self, line: str) -> None:
        log.info("workers", detail=line)

    def _join_cluster(self) -> None:
        """Ask Kafka for the cluster that this node is to be one of, if any; look whether there may be sinks. Raises
        HeadraceError."""
        self._sinks = Sinks(self.config, log)
        self._cluster: Cluster | None = None
        self._lookout: Lookout | None = None
        if not self.config.cluster:
            return
        try:
            from headrace.storage.kafka.cluster import Cluster
            from headrace.storage.kafka.storage import SnapshotIntervals
        except ModuleNotFoundError as error:
            raise InvalidKey("cluster", f"{error.name} is missing: pip install 'headrace[kafka]'") from error
        journal = self.config.journal
        intervals = SnapshotIntervals(journal.snapshot_interval_bytes, journal.snapshot_interval_s)
        self._cluster = Cluster.open(self.config.cluster, self.config.node, intervals, self.watchdog)
        for line in self._cluster.warnings:
            self._on_cluster(line)
        self._lookout = Lookout(self._cluster.look, self._cluster.warnings, log)

    def _share_cluster(self) -> None:
        """Enter the roster of a cluster whose nodes share its shards. Raises NotAdmitted, KafkaUnusable, OSError."""
        self._sharing: Sharing | None = None
        self._index, self.owners = self.place.index, self.place.owners()
        url = self.config.peer_listen
        if self._cluster is None or not url or self.place.shards == 1:
            return
        at = endpoint("peer_listen", url, "tcp")
        listening = None
        try:
            self._cluster.check(self.layout.directories())
            listening = bind(url, at.host, at.port)
            self._sharing = Sharing(self.config, self._cluster, listening, log)
            self._index, self.owners = self._sharing.run, self._sharing.owners
        except BaseException:
            if listening is not None:
                listening.close()
            if self._claim is not None:
                self._claim.close()
            raise

    def _stand_by(self) -> None:
        """Wait, in a cluster whose nodes share nothing, until this node is to own its shards: everything that it has of
        its own was looked at by then. Raises KafkaUnusable, ConfigError."""
        self._candidacy: Candidacy | None = None
        if self._cluster is None or self._sharing is not None:
            return
        try:
            self._cluster.check(self.layout.directories())
            candidate = self._cluster.candidate(self._on_cluster)
            self._candidacy = Candidacy(candidate, self._notifier, self._end_from_anywhere, log)
            self._candidacy.stand_by(math.inf if self._owns_process else STANDS_BY_S)
        except BaseException:
            self._leave_cluster()
            if self._claim is not None:
                self._claim.close()
            raise

    def _on_cluster(self, line: str) -> None:
        log.warning("cluster", detail=line)

    def _end_from_anywhere(self) -> None:
        """Come to the end in good order; may be called on any thread."""
        self._loop.call_soon_threadsafe(self._stopping.set)

    def _leave_cluster(self) -> None:
        if self._candidacy is not None:
            self._candidacy.leave()
        if self._sharing is not None:
            self._sharing.leave()

    def _shards_of(self, cluster: Cluster) -> int:
        """Return how many shards there are. Raises InvalidKey if the configuration says another number."""
        if self.config.shards not in (0, cluster.shards):
            raise InvalidKey(
                "shards", f"{self.config.shards}, and the cluster has {cluster.shards}: leave out the key"
            )
        return cluster.shards

    def _claim_data(self, place: Place | None) -> None:
        """Open the data directory, or make it. Under a supervisor that has been done. Raises ConfigError, JournalError,
        OSError."""
        path = Path(self.config.data_dir)
        self._journals: dict[int, Known] = {}  # what is known of each that was opened, by shard
        self._claim = None
        if place is not None:
            self.place, self.layout = place, Layout.of_node(path, place.shards, place.node)
            return
        if self.config.workers not in (1, AUTO) and not self._owns_process:
            raise InvalidKey(
                "workers", "a broker inside a program is one worker; a process of its own may have several"
            )
        wanted = replace(wish(self.config), workers=1)
        if self._cluster is not None:
            wanted = replace(wanted, shards=self._shards_of(self._cluster))
        self._claim = claim = Claim(path, wanted)
        self.layout = claim.layout
        self.place = Place.alone(claim.layout.shards, claim.layout.node)

    def _own_shards(self) -> None:
        """Open the journals of our shards, and the directory where there are tenants: it may be beside them. Raises
        JournalError, OSError, ConfigError, and then holds none of them."""
        self._events = EventLog(Path(self.config.data_dir), self.place.index)
        full_disk = self.config.journal.full_disk
        self.stores = OpenStores(self.config.queues, self._store_failed, tenants=self.config.tenants.enabled)
        around = Surroundings(self.worker, self.watchdog, full_disk, self._holdings.fail, log, self.stores)
        try:
            self.stores.open()
            if self._tenants is not None:
                self.worker.divide()
            self._holdings.open(around)
            if self._tenants is not None:
                self._tenants.open(self.worker)
                self._holdings.brought_back = self._tenants.learn
        except BaseException:
            self._give_up_data()
            raise

    def _store_failed(self, error: Exception) -> None:
        self.worker.failures.note("store", "", error)

    def _storage_of(self, shard: int) -> ShardStorage:
        """Open the storage of a shard, on whichever thread. Raises JournalError, OSError."""
        several = self.place.shards > 1
        logger = log.bind(shard=shard) if several else log

        def report(line: str) -> None:
            logger.warning("journal", detail=line)

        if self._cluster is not None:
            return self._cluster.storage(shard, self.layout.directory(shard), report)
        said = Listening(report, self._synced.observe, self.watchdog)
        settings = embedded_settings(self.config, several)
        # The process before this one has served with it.
        known = self._journals.setdefault(shard, Known(is_begun=self.place.follows))
        # Workers whose supervisor was killed may still be ending.
        name = str(shard) if several else ""
        return EmbeddedStorage(self.layout.directory(shard), settings, said, name, several, self._loop, known)

    def _give_up_data(self) -> None:
        self._holdings.close()
        self.stores.close()
        self._leave_cluster()
        if self._claim is not None:
            self._claim.close()

    @property
    def trouble(self) -> str:
        """Return why it is not ready, and which shard; "" when it is."""
        found = self._not_ready or self._holdings.trouble or self._draining.trouble
        return found or ("" if self.peers is None or self._sharing is not None else self.peers.trouble)

    @property
    def degraded(self) -> str:
        """Return what is not as it must be though clients are served, "" when everything is."""
        cluster = "" if self._lookout is None else self._lookout.trouble
        if self._sharing is not None and self.peers is not None:
            cluster = "; ".join(filter(None, (cluster, self._sharing.trouble, self.peers.trouble)))
        return "; ".join(filter(None, (self.stores.trouble, cluster, self._sinks.trouble)))

    @property
    def failed(self) -> bool:
        """Return whether a journal takes nothing more."""
        return self._holdings.failed

    def _tick_clock(self) -> None:
        self.clock.now_us = time.time_ns() // 1000
        self.clock.mono_ms = time.monotonic_ns() // 1_000_000

    # Start

    async def run(self) -> int:
        """Serve until `stop`, SIGTERM or SIGINT; returns the exit status. Raises JournalError, OSError at start."""
        try:
            return await self._serve()
        except BaseException:
            if not self._owns_process:  # with the process goes everything that it holds
                self._abandon()
            raise

    def stop(self) -> None:
        """Let `run` come to its end. Call it on the loop."""
        self._stopping.set()

    async def _serve(self) -> int:
        if self._owns_process and threading.current_thread() is threading.main_thread():
            self._take_signals()
        self._recover()
        await self._learn_tenants()
        self._holdings.learn({one.number: one.name for one in self.shards})
        if self._cluster is not None:
            self._holdings.learn(self._cluster.names())
        for shard in self.shards:
            shard.start(self._doors.poller)
        if self.place.shards > 1:
            self._repeat("sums", NodeSums(self.worker.brokers, self._kept).share, NODE_SUMS_S)
        await settle(self.worker, self.shards)
        for other in range(self.place.workers):
            if other != self.place.index:  # what came from there before may be delivered before it is linked
                self._name_shards_of(other)
        for shard in self.shards:
            shard.begin()
        await self._hold_for_sinks()
        await self._open_bridges()
        if self.peers is not None:
            await self.peers.start()
            if self._membership is not None:
                await self.peers.settle(STREAMS_WITHIN_S, self._stopping.is_set)
        if not await self._may_serve():
            return await self._stop()
        self._tick_clock()
        self.clock.looked_ms = self.clock.mono_ms
        for shard in self.shards:
            shard.serve()
        await self._listen()
        self._repeat("drain", self._draining.turn, DRAIN_LOOK_S)
        self._stay_within_reach()
        self._tick_clock()
        self._stalls = Stalls(self.clock)
        self._repeat("timer", self._time, TIMER_INTERVAL_S)
        self._publish_system()
        self._bridges.start()
        self._sinks.start(self.place.index == 0)
        self._holdings.serve(self._doors, self._bridges)
        self._stay_in_cluster()
        await self._settle_in_cluster()
        self._not_ready = ""
        self._announce()
        await self._stopping.wait()
        return await self._stop()

    def _stay_in_cluster(self) -> None:
        """Hear from now on what the group of the cluster's nodes says, and what its topics are like, in a cluster."""
        if self._candidacy is not None:
            self._candidacy.hold()
            self._repeat("cluster", self._candidacy.poll, CANDIDATE_POLL_S)
        if self._sharing is not None:
            assert isinstance(self.peers, ClusterPeers), "made so"
            assert isinstance(self.handover, ClusterHandOver), "made so"
            members = Members(self._tell_of_member)
            self._sharing.begin(self._holdings, self.peers, self.handover, self._stopping.set, members)
            self._repeat("cluster", self._sharing.poll, CANDIDATE_POLL_S)
        if self._lookout is not None:
            self._repeat("cluster", self._lookout.turn, LOOKOUT_S)

    def _tell_of_member(self, event: str, name: str) -> None:
        """Tell the log, and the subscribers in the shards of this node, how another one is."""
        log.info("cluster", detail=f"{event} {name}")
        at_us = time.time_ns() // 1000
        tell_of_member(self.worker, name, {"event": event, "node": name, "timestamp_us": at_us})

    async def _settle_in_cluster(self) -> None:
        """Wait, before the node says that it is ready, until all shards are somebody's and speak to each other: for a
        bounded time, and meanwhile clients may come."""
        if self._sharing is not None and self.peers is not None:
            await self._sharing.settle(self._stopping.is_set)
            await self.peers.settle(STREAMS_WITHIN_S, self._stopping.is_set)

    async def _open_bridges(self) -> None:
        """Make the sessions of bridges, once the shards have begun: a new one asks all of them for what is retained."""
        tcp_keep_alive_s = self.config.limits.tcp_keep_alive_s
        self._bridges.open([bridge_settings(bridge, tcp_keep_alive_s) for bridge in self.config.bridge])
        await settle(self.worker, self.shards)

    async def _hold_for_sinks(self) -> None:
        """Have the journals of our shards kept for the sinks: nobody has published anything yet."""
        if self.config.cluster:
            return  # there are none, and the directory is a cache
        found = [(shard.number, self.layout.directory(shard.number)) for shard in self.shards]
        await asyncio.to_thread(self._sinks.hold, found)

    def _recover(self) -> None:
        for shard in self.shards:
            shard.recover(freeze=self._owns_process)
        if self._subscriptions is not None and self._devices is not None:
            self.worker.owned.join(self._subscriptions)
            self.worker.owned_devices.join(self._devices)

    async def _learn_tenants(self) -> None:
        """Know the tenants of what was brought back, where there are any, before wills are due in it."""
        if self._tenants is not None:
            for shard in self.shards:
                await self._tenants.learn(shard.broker.fold)

    def _take_signals(self) -> None:
        """Take the signals, which only the main thread can; a node in another one is ended by `stop`."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stopping.set)
        self._loop.add_signal_handler(signal.SIGHUP, self._reloading.run)

    def _name_shards_of(self, worker: int) -> None:
        """Learn what the journals of a worker's shards are called, before copies of what they hold come from there."""
        directories = {n: self.layout.directory(n) for n in self.owners.shards_of(worker)}
        begun = {
            n: path for n, path in directories.items() if (path / WATERMARK).exists()
        }  # not at the very first start
        found = {n: name_of(path, log, self.shards[0].origin) for n, path in begun.items()}
        self._holdings.learn({n: name for n, name in found.items() if name is not None})

    async def _may_serve(self) -> bool:
        """Wait until the other workers are prepared too. False if it is to stop instead."""
        if self._membership is None:
            return True
        control = self._membership.control
        control.tell(PREPARED)
        waiting = [self._loop.create_task(event.wait()) for event in (control.may_serve, self._stopping)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        return not self._stopping.is_set()

    async def _listen(self) -> None:
        given = () if self._membership is None else self._membership.bound
        with keys_named(self.config, "listeners"):
            for url, listening in zip_longest(self.config.listeners, given):
                self._doors.open(url, listening)
        if self.handover is not None:
            self.handover.open()
        if self.config.admin and self._membership is not None:
            bounds = Bounds(min(CONNECTIONS_MAX, self._doors.admin_max))
            path = socket_of(self.place.runtime, self.place.index)
            await self._admin.open(bind_unix(path), str(path), self._site(), self._doors.report, bounds)
        elif self.config.admin:
            bounds = Bounds(min(CONNECTIONS_MAX, self._doors.admin_max))
            app = self._site()
            with keys_named(self.config, "admin"):
                at = endpoint("admin", self.config.admin, "http", "https")
                bound = bind(self.config.admin, at.host, at.port)
                url = f"{at.scheme}://{at.shown_host}:{bound.getsockname()[1]}"
                checked = Checked(app, names_of(at.host, self.config.admin_names))
                await self._admin.open(bound, url, checked, self._doors.report, bounds)

    def _stay_within_reach(self) -> None:
        """Have the other workers, and the supervisor, find this one by its files, until the stop."""
        if self.peers is not None and self.handover is not None and self._sharing is None:
            admin = self._admin if self.config.admin and self._membership is not None else None
            reaching = Reaching(self.place, self.peers, self.handover, admin, self._tables, self._report)
            turns = repeat(self.worker.failures, reaching.look, REACHING_S, reaching.failed)
            self._reaching = self._loop.create_task(turns)

    def _site(self) -> Starlette:
        """Return what the admin address serves."""
        journal = self.config.journal
        tokens = Path(journal.token_file) if journal.token_file else None
        limits = Limits(journal.retention_bytes, journal.consumer_retention_bytes, journal.reserve_bytes)
        parts = Parts(
            self.worker,
            self.shards,
            self.layout.directories(),
            self._doors,
            self._bridges,
            self.watchdog,
            self._access,
            self._audit,
            self._synced,
            self._latencies,
            self.peers,
            self.handover,
            self._holdings.reads,
            self._holdings.lost,
            self.stores,
            self._events,
            self.place.index,
            self._more_figures(),
            None if self._tenants is None else self._tenants.granted,
            None if self._tenants is None else self._tenants.directory,
            configured=self._reloading,
            draining=self._draining,
            member=self._member(),
        )
        return site(parts, tokens, limits, lambda: self.trouble, lambda: self.degraded)

    def _member(self) -> Member | None:
        """Return what knows the cluster that this node is one of, if it is."""
        cluster, peers = self._cluster, self.peers
        if cluster is None:
            return None
        links = peers.heard if isinstance(peers, ClusterPeers) else dict[str, bool]
        return Member(cluster.node, cluster.status, links)

    def _more_figures(self) -> list[Collector]:
        found: list[Collector] = [
            SinkCollector(lambda: self._sinks.figures),
            SourceCollector(lambda: self._sinks.source_figures),
        ]
        return found if self._tenants is None else [*found, self._tenants.collector()]

    def _admin_context(self) -> ssl.SSLContext | None:
        """Return the TLS context of the admin address, if it has one. Raises UnusableCertificate."""
        if not self.config.admin.startswith("https:") or self._membership is not None:
            return None
        return server_context(door_settings(self.config).tls, "http/1.1")

    def _announce(self) -> None:
        if self._membership is not None:
            self._membership.control.tell(READY)
            log.info("worker ready", shards=self.owners.shards_of(self.place.index))
            self.ready.set()
            return
        if build() == PURE:
            log.warning("this is the pure Python build, a ninth as fast as the compiled one")
        log.info(
            "ready",
            version=__version__,
            build=build(),
            listeners=self._doors.urls,
            admin=self._admin.url or None,
            data_dir=self.config.data_dir,
            durability="kafka" if self._cluster else self.config.durability,
            promise=PROMISE_OF_KAFKA if self._cluster else promise_of(self.config.durability),
        )
        self._notifier.ready(f"accepts clients on {', '.join(self._doors.urls)}")
        if self._notifier.watchdog_s:
            self._repeat("timer", self._tell_alive, self._notifier.watchdog_s)
        self.ready.set()

    def _tell_alive(self) -> float:
        self._notifier.alive()
        return self._notifier.watchdog_s

    # While it runs

    def _time(self) -> float:
        """Fire what is due. Returns the seconds until the next look."""
        self._tick_clock()
        if self._stalls.timers_may_run():
            self._on_timer()
        self._audit.flush()
        return BEHIND_INTERVAL_S if self.worker.behind else TIMER_INTERVAL_S

    def _repeat(self, place: str, turn: Callable[[], float], otherwise_s: float) -> None:
        repeating = Repeating(self._loop, self.worker.failures, place, turn, otherwise_s)
        self._rounds.append(repeating)
        repeating.start()

    def _publish_system(self) -> None:
        """Tell every now and then what `$SYS` is to say."""
        interval_s = self.config.sys_interval_s
        if self._membership is not None:
            self._leave_system_to(self._membership.control)
        if self._membership is not None or not interval_s:
            return
        values = SystemValues(__version__, time.monotonic())
        publish = self.watchdog.watched("system", partial(tell, self.worker))

        def turn() -> float:
            publish(values.of(self._numbers(), time.monotonic()))
            return interval_s

        self._repeat("system", turn, interval_s)

    def _numbers(self) -> dict[str, int]:
        return numbers(self.worker, self._doors.accepted())

    def _leave_system_to(self, control: Control) -> None:
        """Tell what the supervisor makes of the numbers of all workers, and which bridges of the others are up. What
        fails costs no heartbeat."""
        publish = self.watchdog.watched("system", partial(tell, self.worker))

        def count() -> dict[str, int]:
            try:
                return self._numbers()
            except Exception as error:  # noqa: BLE001
                self.worker.failures.note("system", "", error)
                return {}

        def told(values: Mapping[str, str]) -> None:
            own = {state_of_bridge(name) for name in self._bridges.states}  # of which it knows more
            try:
                publish({name: value for name, value in values.items() if name not in own})
            except Exception as error:  # noqa: BLE001
                self.worker.failures.note("system", "", error)

        control.told = told
        control.bridges, self._bridges.changed = lambda: self._bridges.states, control.say
        if self.config.sys_interval_s:
            control.numbers = count

    # Stop

    async def _stop(self) -> int:
        self._not_ready = "stopping"
        if self._sharing is not None:
            await self._sharing.rest()
        await self._holdings.rest()
        if self._reaching is not None:
            self._reaching.cancel()
        if self._membership is not None:
            self._membership.control.tell(STOPPING)
        self._notifier.stopping()
        connections = sum(broker.sessions.connected for broker in self.worker.brokers)
        log.info("stopping", connections=connections)
        self._doors.stop_accepting()
        if self.handover is not None:
            self.handover.close()
        await self._bridges.stop()
        for shard in self.shards:
            shard.close_sessions()
        self.worker.flush()  # what is said to clients whose sockets other workers have goes over the links
        if self.handover is not None:
            await self.handover.drain()
        if self.peers is not None:
            await self.peers.stop()
        await settle(self.worker, self.shards)
        for shard in self.shards:
            await shard.snapshot()
        self._doors.close()
        await self._admin.close()
        self._events.close()
        self._close_directory()
        self._give_up_data()
        await self._sinks.stop()
        self._end_rounds()
        log.info("stopped", clean=not self.failed)
        is_over = self._is_over()
        return self._holdings.exit_status or int(is_over)

    def _is_over(self) -> bool:
        """Return whether it ends since another node is in its place."""
        places = self._candidacy, self._sharing
        return any(one is not None and one.is_over for one in places)

    def _abandon(self) -> None:
        """Give up ports, files and the lock: the start has failed, or the program has cancelled the task."""
        self._end_rounds()
        if self._not_ready != "stopping":
            self._doors.stop_accepting()
            self._doors.close()
        if self.handover is not None:
            self.handover.close()
        if self.peers is not None:
            self.peers.abandon()
        self._admin.end()
        self._sinks.abandon()
        self._close_directory()
        self._give_up_data()

    def _end_rounds(self) -> None:
        for repeating in self._rounds:
            repeating.stop()
        if self._reaching is not None:
            self._reaching.cancel()


def promise_of(durability: str) -> str:
    """Return what an acknowledgement means."""
    return {
        "fsync": "acknowledged = on disk (fdatasync)",
        "os": "acknowledged = written to the operating system; a power cut may lose it",
        "none": "acknowledged = received; a crash may lose it",
    }[durability]


def run(config: Config, reread: Callable[[], Config] | None = None) -> int:
    """Run a node on uvloop in this thread; returns the exit status. `reread` gives the configuration of now, at SIGHUP.

    Raises JournalError, OSError at start.
    """

    async def main() -> int:
        return await Node(config, reread=reread).run()

    return run_on_loop(main())


def run_on_loop(main: Coroutine[Any, Any, int]) -> int:
    """Run a program of a node on uvloop in this thread; returns its exit status."""
    # The journal's writer must get the interpreter soon after its system call returns (decision 23: switch interval).
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    take_charge()
    return uvloop.run(main)
