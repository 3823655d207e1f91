"""`headrace serve`: one process, or a supervisor with workers, as the configuration and the data directory say.

The supervisor writes the configuration, as it counts now, to its runtime directory, and workers read that alone: one that
is started again gets what the others have, whatever has been changed in a file meanwhile. SIGHUP reads the sources again,
keeps what a running broker takes over, and has the workers do the same.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from headrace import __version__
from headrace.api.admin import Admin
from headrace.api.app import bind as bind_admin
from headrace.api.requests import Checked, names_of
from headrace.api.resource import Resource
from headrace.api.server import Bounds
from headrace.build import build
from headrace.config import Config, differing, endpoint, load, reloaded, show
from headrace.data.claim import Claim
from headrace.data.layout import is_new
from headrace.errors import ConfigError
from headrace.journal.errors import reason_of
from headrace.naming import keys_named
from headrace.net.address import Address, parse
from headrace.net.bound import allow_all_descriptors, bind, release
from headrace.net.incidents import Incidents
from headrace.net.tls import UnusableCertificate, server_context
from headrace.node.interpreter import python_options
from headrace.node.node import Node, promise_of, run_on_loop
from headrace.node.node import run as run_alone
from headrace.node.ports import check_free
from headrace.node.reloading import CONFIGURATION
from headrace.node.wiring import door_settings, wish
from headrace.services.configuration import Reloaded
from headrace.services.node_counts import forget
from headrace.services.notify import Notifier
from headrace.workers.bridge_states import BridgeStates
from headrace.workers.control import RECOVERING, Control
from headrace.workers.member import Member
from headrace.workers.membership import Membership
from headrace.workers.overview import Overview
from headrace.workers.place import Place
from headrace.workers.runtime import (
    CONFIG,
    CONNECTIONS,
    Runtime,
    make_runtime,
    remove_left_over,
    write_config,
)
from headrace.workers.supervisor import Supervisor
from headrace.workers.system import NodeSystem

ADMIN_CONNECTIONS_MAX: Final = 100
DESCRIPTORS: Final = 24  # of a supervisor, beside those for its workers and the admin HTTP
DESCRIPTORS_OF_WORKER: Final = (
    3  # its line, and while it is started the other end of that and what tells of its failure
)
OF_THE_SERVICE_MANAGER: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")

log = structlog.get_logger("headrace")

Reread = Callable[[], Config]


def serve(config: Config, sources: Reread) -> int:
    """Run a broker in this process, or in several; returns the exit status. `sources` gives the configuration of now.

    Raises ConfigError, JournalError, OSError at start.
    """
    with keys_named(config, "data_dir"):
        makes_one = is_new(Path(config.data_dir))
    if makes_one:
        check_free(config)
    if config.workers == 1:
        return run_alone(config, sources)
    with keys_named(config, "data_dir"):
        claim = Claim(Path(config.data_dir), wish(config))
    try:
        if claim.workers > 1:
            return asyncio.run(supervise(config, sources, claim))
    finally:
        claim.close()
    if claim.layout.shards == 1:
        log.info(
            "one worker: a data directory of one shard has no use for more; `headrace reshard` divides it"
        )
    return run_alone(config, sources)


def reread(file: Path) -> Config:
    """Return the configuration that the supervisor has written. Raises InvalidKey."""
    return load(file, [], {})


def work(config: Config, sources: Reread, place: Place, control: int, bound: Sequence[int]) -> int:
    """Run one worker until its supervisor stops it, or is gone; returns the exit status.

    Raises ConfigError, JournalError, OSError at start.
    """
    sockets = [socket.socket(fileno=fd) for fd in bound]
    end = socket.socket(fileno=control)

    async def main() -> int:
        line = Control(end)
        node = Node(config, reread=sources, membership=Membership(place, sockets, line))
        line.trouble = lambda: node.trouble
        line.degraded = lambda: node.degraded
        line.lost = node.stop
        if line.is_lost:
            node.stop()
        line.tell(RECOVERING)
        status = await node.run()
        if line.is_lost:
            shutil.rmtree(place.runtime, ignore_errors=True)
        return status

    return run_on_loop(main())


# The supervisor


@dataclass(slots=True)
class Listening:
    """An address with its bound socket, which the workers share."""

    address: Address
    socket: socket.socket

    @property
    def url(self) -> str:
        """Return the address with the port that it has got."""
        return self.address.url(0 if self.address.scheme == "unix" else self.socket.getsockname()[1])


async def supervise(config: Config, sources: Reread, claim: Claim) -> int:
    """Run workers until a signal ends them. Raises ConfigError, JournalError, OSError at start."""
    with keys_named(config, "data_dir"):
        await asyncio.to_thread(claim.wait_for_workers)
    descriptors = allow_all_descriptors()  # so that the workers may
    runtime = Runtime(make_runtime())
    try:
        remove_left_over(runtime.path.parent)
        bounds = Bounds(admin_connections_max(descriptors, claim.workers))
        node = SupervisedNode(config, sources, claim, runtime, bounds)
        return await node.run()
    finally:
        runtime.close()


def admin_connections_max(descriptors: int, workers: int) -> int:
    """Return how many connections the admin HTTP of a supervisor takes: strangers must not keep it from starting a worker
    again, and each connection may need a second descriptor for what it asks."""
    room = descriptors - DESCRIPTORS - DESCRIPTORS_OF_WORKER * workers
    return max(1, min(ADMIN_CONNECTIONS_MAX, room // 2))


class SupervisedNode:
    """A node of several workers, from its listeners to its end."""

    def __init__(
        self, config: Config, sources: Reread, claim: Claim, runtime: Runtime, admin: Bounds
    ) -> None:
        self._config = config
        self._admin_bounds = admin
        self._sources = sources
        self._claim = claim
        self._runtime = runtime
        self._started_s = time.monotonic()
        self._notifier = Notifier()
        self._listening: list[Listening] = []
        self._admin = Admin(self._admin_context)
        self._incidents = Incidents(log.warning)
        self._members = [Member(index, self._spawn) for index in range(claim.workers)]
        self._supervisor = Supervisor(self._members, self._announce, self._stop_listening, log)
        self._supervisor.has_ended = self._has_ended
        self._supervisor.has_said = BridgeStates(self._members).look
        self._supervisor.around = self._around
        self._supervisor.has_looked = self._keep_runtime
        self._not_kept = ""  # why the runtime directory could not be made again
        self._environment = {
            name: value for name, value in os.environ.items() if name not in OF_THE_SERVICE_MANAGER
        }

    async def run(self) -> int:
        """Run until a signal ends it; returns the exit status. Raises ConfigError, OSError at start."""
        self._write_config()
        try:
            self._listen()
            await self._open_admin()
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._supervisor.stop)
            loop.add_signal_handler(signal.SIGHUP, self._reload)
            status = await self._supervisor.run()
        finally:
            self._stop_listening()
            await self._admin.close()
        log.info("stopped", clean=status == 0)
        return status

    # Workers

    def _spawn(self, index: int, run: int, end: socket.socket) -> subprocess.Popen[bytes]:
        """Start a worker by exec: it inherits the sockets that it is told of, and nothing else. It finds its
        configuration whatever has become of the file since: who cleans up in /tmp takes what is old. Raises OSError."""
        self._runtime.keep()
        self._write_config()
        layout = self._claim.layout
        place = Place(index, self._claim.workers, layout.shards, self._runtime.path, layout.node, run)
        sockets = [listening.socket.fileno() for listening in self._listening]
        command = [sys.executable, *python_options(), "-m", "headrace", "worker"]
        command += ["--config", str(self._runtime.path / CONFIG), "--place", place.pack()]
        command += ["--control", str(end.fileno())]
        for fd in sockets:
            command += ["--bound", str(fd)]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[end.fileno(), self._claim.workers_fd, self._runtime.held, *sockets],
            env=self._environment,
            process_group=0,  # the interrupt of a terminal is for the supervisor, who passes it on
        )

    def _write_config(self) -> None:
        write_config(self._runtime.path, show(self._config))

    def _keep_runtime(self) -> None:
        """Make again what another program has removed of the runtime directory; the workers do their part when it is
        there."""
        try:
            made = self._runtime.keep()
            if made or not (self._runtime.path / CONFIG).exists():
                self._write_config()
            if made:
                log.warning("the runtime directory is made again", path=str(self._runtime.path))
            self._not_kept = ""
        except OSError as error:
            if not self._not_kept:
                log.error("the runtime directory cannot be made again", error=str(error))
            self._not_kept = str(error)

    def _around(self) -> str:
        """Return what is missing of the files by which processes of this node find each other."""
        kinds = ("peer", "hand", "admin") if self._config.admin else ("peer", "hand")
        return self._not_kept or self._runtime.missing(range(self._claim.workers), kinds)

    def _has_ended(self, member: Member) -> None:
        """Count no connection of a worker whose process has ended: it may stay away, and what it had would keep clients
        of the others out."""
        try:
            forget(self._runtime.path / CONNECTIONS, member.index, self._claim.workers)
        except (OSError, MemoryError) as error:
            log.warning("connections of a worker that has ended still count", error=reason_of(error))

    # Addresses

    def _listen(self) -> None:
        with keys_named(self._config, "listeners"):
            for url in self._config.listeners:
                address = parse(url)
                self._listening.append(Listening(address, bind(address)))

    def _stop_listening(self) -> None:
        if self._listening:
            self._notifier.stopping()
            log.info("stopping", workers=sum(member.lives for member in self._members))
        while self._listening:
            listening = self._listening.pop()
            release(listening.address, listening.socket)

    async def _open_admin(self) -> None:
        config = self._config
        if not config.admin:
            return
        tokens = Path(config.journal.token_file) if config.journal.token_file else None
        layout = self._claim.layout
        overview = Overview(self._runtime.path, self._members, layout.shards)
        more: Sequence[Resource] = ()
        if config.tenants.enabled:
            from headrace.api.bans import OF_BANS
            from headrace.api.documents import OF_DOCUMENTS
            from headrace.api.tenants import OF_DIRECTORY

            more = (*OF_DIRECTORY, *OF_DOCUMENTS, *OF_BANS)
        supervisor = self._supervisor
        app = overview.site(
            layout.directories(),
            tokens,
            lambda: supervisor.trouble,
            lambda: supervisor.degraded,
            more,
            self,
        )
        with keys_named(config, "admin"):
            at = endpoint("admin", config.admin, "http", "https")
            bound = bind_admin(config.admin, at.host, at.port)
            url = f"{at.scheme}://{at.shown_host}:{bound.getsockname()[1]}"
            checked = Checked(app, names_of(at.host, config.admin_names))
            await self._admin.open(bound, url, checked, self._incidents.report, self._admin_bounds)

    def _admin_context(self) -> ssl.SSLContext | None:
        """Return the TLS context of the admin address, if it has one. Raises UnusableCertificate."""
        if not self._config.admin.startswith("https:"):
            return None
        return server_context(door_settings(self._config).tls, "http/1.1")

    # While it runs

    def _announce(self) -> None:
        urls = [listening.url for listening in self._listening]
        log.info(
            "ready",
            version=__version__,
            build=build(),
            listeners=urls,
            admin=self._admin.url or None,
            data_dir=self._config.data_dir,
            durability=self._config.durability,
            promise=promise_of(self._config.durability),
            workers=self._claim.workers,
            shards=self._claim.layout.shards,
        )
        self._notifier.ready(f"{self._claim.workers} workers accept clients on {', '.join(urls)}")
        self._tell_alive()
        if self._config.sys_interval_s:
            system = NodeSystem(self._members, __version__, self._started_s)
            self._supervisor.serves_again = system.tell
            self._publish_system(system)

    def _publish_system(self, system: NodeSystem) -> None:
        interval_s = self._config.sys_interval_s
        asyncio.get_running_loop().call_later(interval_s, self._publish_system, system)
        system.publish(time.monotonic())

    def _tell_alive(self) -> None:
        if self._notifier.watchdog_s:
            self._notifier.alive()
            asyncio.get_running_loop().call_later(self._notifier.watchdog_s, self._tell_alive)

    def _reload(self) -> None:
        """Read the configuration again, and have the workers do so: SIGHUP."""
        self.reload()
        self._supervisor.send(signal.SIGHUP)

    def pending(self) -> Reloaded:
        """Return what of the configuration `reload` would change. Changes nothing."""
        try:
            config, restart = reloaded(self._config, self._sources())
        except ConfigError as error:
            return Reloaded(failed=[CONFIGURATION], why=str(error))
        return Reloaded(differing(self._config, config), restart)

    def reload(self) -> Reloaded:
        """Read the configuration again, and write down what of it a running broker takes over, for workers to read."""
        found = Reloaded()
        try:
            config, restart = reloaded(self._config, self._sources())
            self._runtime.keep()
            write_config(self._runtime.path, show(config))
            found = Reloaded(differing(self._config, config), restart)
            self._config = (
                config  # what workers read that are started later is what those read that are there
            )
            if restart:
                log.warning("some changes of the configuration need a restart", keys=restart)
        except (ConfigError, OSError) as error:
            log.warning("configuration not reloaded, the old one stays", error=str(error))
            found = Reloaded(failed=[CONFIGURATION], why=str(error))
        try:
            self._admin.reload()
        except UnusableCertificate as error:
            address = self._config.admin
            log.warning("certificate not reloaded, the old one stays", listener=address, error=str(error))
            found = replace(found, failed=[*found.failed, address])
        return found

    def remind(self, index: int) -> None:
        """Have a worker read its configuration again as soon as it can."""
        self._supervisor.send_to(self._members[index], signal.SIGHUP)
