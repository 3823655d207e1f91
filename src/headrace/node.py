"""The composition root: puts a broker, its journal, its sockets and its clock together and runs them.

Runs on the event loop. Start: open the journal (which repairs its tail), load the newest snapshot, replay what is behind
it, close the sessions that a crash left open, listen. Stop: say goodbye, wait for the journal, snapshot, close.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import ssl
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog
import uvloop
from prometheus_client.registry import Collector

from headrace import __version__
from headrace.api.admin import Admin
from headrace.api.app import application, bind
from headrace.api.journal import JournalRoutes
from headrace.api.operations import ClientRoutes, ClusterRoutes, TraceRoutes
from headrace.api.server import CONNECTIONS_MAX, Bounds
from headrace.api.tokens import Tokens
from headrace.build import PURE, build
from headrace.config import Config, endpoint
from headrace.core.ports.clock import Clock
from headrace.core.records.message_id import JournalName
from headrace.core.worker import Worker
from headrace.journal.errors import FULL_REASONS, OffsetOutOfRange, reason_of
from headrace.journal.log import SegmentedLog
from headrace.journal.snapshot import newest_chain
from headrace.naming import keys_named
from headrace.net.address import parse as parse_listener
from headrace.net.tls import server_context
from headrace.reloading import Reloading
from headrace.services.access import FileAccess
from headrace.services.audit import AuditCollector
from headrace.services.bridges import BridgeCollector, Bridges
from headrace.services.cluster_rows import ClusterRows
from headrace.services.device_metrics import DeviceCollector
from headrace.services.doors import Doors
from headrace.services.failures import FailureLog
from headrace.services.histogram import Histogram
from headrace.services.journal_metrics import JournalCollector, JournalFigures, Limits
from headrace.services.laggards import Laggards
from headrace.services.latencies import HistogramCollector, LatencyHistograms
from headrace.services.metrics import BuildCollector, ReadsCollector, registry
from headrace.services.notify import Notifier
from headrace.services.process_metrics import ProcessFigures
from headrace.services.repeating import Repeating, repeat
from headrace.services.sys_topics import SystemPublisher
from headrace.services.ticks import LoopScheduler, Stalls
from headrace.services.watchdog import Watchdog
from headrace.storage.embedded.local import LocalJournal
from headrace.storage.embedded.recovery import load
from headrace.storage.embedded.snapshotting import Snapshotting
from headrace.storage.embedded.upkeep import Upkeep
from headrace.syscalls import Syncer
from headrace.wiring import (
    access_is_needed,
    access_settings,
    audit_log,
    bridge_settings,
    broker_settings,
    door_settings,
    limit_users,
    log_settings,
)
from headrace.workers.layout import Layout

TIMER_INTERVAL_S = 0.1
BEHIND_INTERVAL_S = 0.001  # more is due than one pass of the loop should do
HOUSEKEEPING_INTERVAL_S = 1.0
SWITCH_INTERVAL_S = 0.0005
DRAIN_TIMEOUT_S = 10.0
# The collector looks at what is new, a millisecond's worth at a time, and never again at what has outlived that: 200 000
# retained messages would take it 160 ms. Nothing of ours needs it; connections, sessions and scrapes leave no cycles.
GC_THRESHOLDS = (10_000, 1_000_000, 100)

log = structlog.get_logger("headrace")


class Node:
    """One broker with all that belongs to it. With `owns_process` false it is a part of somebody else's program, whose
    signals and garbage collector it leaves alone."""

    def __init__(
        self, config: Config, owns_process: bool = True, reread: Callable[[], Config] | None = None
    ) -> None:
        self.config = config
        self.ready = asyncio.Event()
        self._owns_process = owns_process
        self._notifier = Notifier(os.environ if owns_process else {})
        self.clock = Clock()
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._not_ready = "starting"
        self._full = ""
        self._rounds: list[Repeating] = []
        self._tick_clock()
        self._audit = audit_log(config)
        with keys_named(config, "access"):  # whatever it raises, the journal is not open yet
            self._access = self._access_control()
        self._check_certificates()
        with keys_named(config, "data_dir"):
            self._log = SegmentedLog.open(Path(config.data_dir), log_settings(config), self._report)
        self._journal = LocalJournal(self._log, OffsetOutOfRange, self._report)
        self.watchdog = Watchdog()
        scheduler = LoopScheduler(self._loop, self.watchdog)
        self.worker = Worker(scheduler, self.clock, broker_settings(config))
        limit_users(self.worker.anyone.limits, config)
        self.broker = self.worker.own(0, self._journal)
        self.broker.devices.name_journal(JournalName(self._log.uuid, self._log.epochs()))
        scheduler.end_tick = self.worker.end_tick
        self._synced = Histogram("headrace_journal_sync_duration_seconds", "Write and fdatasync of a batch")
        self.worker.latencies = self._latencies = LatencyHistograms()
        self.worker.failures.tell = FailureLog(log.error).report
        self.broker.journal_failed = self._fail
        self._on_high_watermark = self.watchdog.watched("apply", self.broker.commit.on_high_watermark)
        self._on_timer = self.watchdog.watched("timer", self.worker.on_timer)
        journal = config.journal
        interval_bytes, interval_s = journal.snapshot_interval_bytes, journal.snapshot_interval_s
        snapshots = Snapshotting(self.broker, self._log, interval_bytes, interval_s, self.watchdog)
        self._upkeep = Upkeep(self.broker, self._log, snapshots, self.watchdog)
        self._bridges = Bridges(self.worker, self._log.uuid, log.info, log.warning)
        with keys_named(config, "limits"):
            self._doors = Doors(self.worker, door_settings(config), self._access, log.warning, self._audit)
        self._admin = Admin(self._admin_context)
        self._reloading = Reloading(
            config, reread, self.worker, self._doors, self._access, self._bridges, self._admin
        )

    def _access_control(self) -> FileAccess | None:
        """Return the access control, None where everybody may do everything. Raises ConfigError."""
        if not access_is_needed(self.config):
            return None
        return FileAccess(access_settings(self.config), self._audit, self._loop)

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

    def _report(self, line: str) -> None:
        log.warning("journal", detail=line)

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
        self._start_log()
        self.broker.sessions.start()
        self.broker.devices.consuming.start()
        tcp_keep_alive_s = self.config.limits.tcp_keep_alive_s
        self._bridges.open([bridge_settings(bridge, tcp_keep_alive_s) for bridge in self.config.bridge])
        await self._settle()
        await self._listen()
        self._tick_clock()
        self._stalls = Stalls(self.clock)
        self._repeat("timer", self._time, TIMER_INTERVAL_S)
        if self.config.sys_interval_s:
            self._publish_system()
        self._bridges.start()
        self._not_ready = ""
        self._announce()
        upkeep = repeat(self.worker.failures, self._upkeep.turn, HOUSEKEEPING_INTERVAL_S, _not_kept)
        housekeeping = self._loop.create_task(upkeep)
        try:
            await self._stopping.wait()
        finally:
            housekeeping.cancel()
        return await self._stop()

    def _take_signals(self) -> None:
        """Take the signals, which only the main thread can; a node in another one is ended by `stop`."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stopping.set)
        self._loop.add_signal_handler(signal.SIGHUP, self._reloading.run)

    def _recover(self) -> None:
        started = time.monotonic()
        chain = newest_chain(self._log.directory, self._report)
        replayed = load(
            self.broker.fold, chain, self._log.scan, self._log.start_offset, self._report_progress
        )
        if self._owns_process:
            gc.freeze()  # what was recovered is there to stay
        log.info(
            "recovered",
            snapshot=chain[-1].position if chain else None,
            replayed=replayed,
            sessions=len(self.broker.fold.by_incarnation),
            high_watermark=self._log.high_watermark,
            seconds=round(time.monotonic() - started, 3),
        )

    def _start_log(self) -> None:
        syncer = None
        if self._doors.poller is not None:
            syncer = Syncer()
            self._doors.poller.watch_signal(syncer.fd, self._on_synced)
        on_synced = self._synced.observe
        self._log.start(self._on_durable, self._on_failure, self._on_full, syncer, on_synced)

    def _on_synced(self) -> None:
        self._log.finish_write()
        self._on_high_watermark(self._log.high_watermark)

    def _report_progress(self, line: str) -> None:
        log.info(line)

    async def _listen(self) -> None:
        with keys_named(self.config, "listeners"):
            for url in self.config.listeners:
                self._doors.open(url)
        if self.config.admin:
            figures, process = JournalFigures(self._log), ProcessFigures()
            token_file = self.config.journal.token_file
            tokens = Path(token_file) if token_file else None
            journal = JournalRoutes(Layout.open(Path(self.config.data_dir)).directories(), tokens)
            traces = TraceRoutes(self._doors.tracing, Tokens(tokens))
            clients = ClientRoutes(Laggards(self.broker.fold), Tokens(tokens))
            clusters = self.broker.devices.consuming.clusters
            rows = ClusterRows(self.broker.fold, clusters, self._journal, self.clock)
            queues = ClusterRoutes(rows, Tokens(tokens))
            routes = [journal.mount(), *traces.routes(), *clients.routes(), *queues.routes()]
            more = [process, *self._collectors(figures)]
            collectors = registry(self.worker, self._doors, self.watchdog, *more)
            refresh = (figures.refresh, process.refresh)
            app = application(lambda: self._not_ready or self._full, collectors, routes, refresh)
            bounds = Bounds(min(CONNECTIONS_MAX, self._doors.admin_max))
            with keys_named(self.config, "admin"):
                at = endpoint("admin", self.config.admin, "http", "https")
                bound = bind(self.config.admin, at.host, at.port)
                url = f"{at.scheme}://{at.shown_host}:{bound.getsockname()[1]}"
                await self._admin.open(bound, url, app, self._doors.report, bounds)

    def _collectors(self, figures: JournalFigures) -> list[Collector]:
        """Return what /metrics tells beside the broker and its listeners."""
        journal = self.config.journal
        limits = Limits(journal.retention_bytes, journal.consumer_retention_bytes, journal.reserve_bytes)
        found = [
            BuildCollector(__version__, build()),
            BridgeCollector(self._bridges),
            ReadsCollector(self._journal),
            DeviceCollector(self.broker),
            JournalCollector(figures, limits),
            HistogramCollector(self._synced, self._latencies.puback, self._latencies.delivery),
        ]
        if self._access is not None:
            found.append(AuditCollector(self._audit, self._access.verifying))
        return found

    def _admin_context(self) -> ssl.SSLContext | None:
        """Return the TLS context of the admin address, if it has one. Raises UnusableCertificate."""
        if not self.config.admin.startswith("https:"):
            return None
        return server_context(door_settings(self.config).tls, "http/1.1")

    def _announce(self) -> None:
        promise = {
            "fsync": "acknowledged = on disk (fdatasync)",
            "os": "acknowledged = written to the operating system; a power cut may lose it",
            "none": "acknowledged = received; a crash may lose it",
        }[self.config.durability]
        if build() == PURE:
            log.warning("this is the pure Python build, a ninth as fast as the compiled one")
        log.info(
            "ready",
            version=__version__,
            build=build(),
            listeners=self._doors.urls,
            admin=self._admin.url or None,
            data_dir=self.config.data_dir,
            durability=self.config.durability,
            promise=promise,
        )
        self._notifier.ready(f"accepts clients on {', '.join(self._doors.urls)}")
        if self._notifier.watchdog_s:
            self._repeat("timer", self._tell_alive, self._notifier.watchdog_s)
        self.ready.set()

    def _tell_alive(self) -> float:
        self._notifier.alive()
        return self._notifier.watchdog_s

    # The journal's thread calls these; the loop does the work

    def _on_durable(self, high_watermark: int) -> None:
        self._loop.call_soon_threadsafe(self._on_high_watermark, high_watermark)

    def _on_failure(self, error: BaseException) -> None:
        self._loop.call_soon_threadsafe(self._fail, error)

    def _on_full(self, reason: str) -> None:
        self._loop.call_soon_threadsafe(self._set_full, reason)

    def _set_full(self, reason: str) -> None:
        """Note that nothing can be written for want of space, or of descriptors, or that it can again (reason "").
        Subscribers drain; publishers wait (decision 22)."""
        what = "the journal's disk is full" if reason in FULL_REASONS else "the journal cannot be written now"
        self._full = f"{what}: {reason}" if reason else ""
        self.broker.set_storage_full(bool(reason))
        if reason:
            publishers = self.config.journal.full_disk
            log.error("nothing new is acknowledged", reason=self._full, publishers=publishers)
        else:
            log.warning("the journal is written again")

    def _fail(self, error: BaseException) -> None:
        """Acknowledge nothing, stop, exit non-zero: nothing can be made durable any more (decision 21)."""
        self._failure = error
        self._not_ready = f"journal failed: {error}"
        self.broker.commit.on_failure(error)
        log.error("journal failed, stopping: nothing is acknowledged any more", error=str(error))
        self._stopping.set()

    async def _settle(self) -> None:
        """Wait until the journal has everything."""
        self.worker.end_tick()
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while not self.worker.idle and self._failure is None and time.monotonic() < deadline:
            await asyncio.sleep(0.001)

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
        interval_s = self.config.sys_interval_s
        system = SystemPublisher(self.worker, __version__, time.monotonic(), self._doors.accepted)
        publish = self.watchdog.watched("system", system.publish)

        def turn() -> float:
            publish(time.monotonic())
            return interval_s

        self._repeat("system", turn, interval_s)

    # Stop

    async def _stop(self) -> int:
        self._not_ready = "stopping"
        self._notifier.stopping()
        log.info("stopping", connections=self.broker.sessions.connected)
        self._doors.stop_accepting()
        await self._bridges.stop()
        if self._failure is None:
            self.broker.sessions.stop()
            self.broker.devices.stop()
            await self._settle()
            await self._last_snapshot()
        self._doors.close()
        await self._admin.close()
        self._log.close()
        self._end_rounds()
        log.info("stopped", clean=self._failure is None)
        return 0 if self._failure is None else 1

    def _abandon(self) -> None:
        """Give up ports, files and the lock: the start has failed, or the program has cancelled the task."""
        self._end_rounds()
        if self._not_ready != "stopping":
            self._doors.stop_accepting()
            self._doors.close()
        self._admin.end()
        self._log.close()

    def _end_rounds(self) -> None:
        for repeating in self._rounds:
            repeating.stop()

    async def _last_snapshot(self) -> None:
        try:
            await self._upkeep.snapshot(compact=False)
        except (OSError, MemoryError) as error:
            log.error("no snapshot at the stop; the next start replays the journal", error=reason_of(error))


def _not_kept(error: OSError) -> None:
    log.error("housekeeping failed; the journal keeps what it needs", error=str(error))


def run(config: Config, reread: Callable[[], Config] | None = None) -> int:
    """Run a node on uvloop in this thread; returns the exit status. `reread` gives the configuration of now, at SIGHUP.

    Raises JournalError, OSError at start.
    """
    # The journal's writer must get the interpreter soon after its system call returns (decision 23: switch interval).
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLDS)

    async def main() -> int:
        return await Node(config, reread=reread).run()

    return uvloop.run(main())
