"""The doors of a node: its listeners, who is let in, and what SIGHUP reads again. Runs on the loop."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from urllib.parse import urlsplit

from headrace.core.ports.access import Access
from headrace.core.worker import Worker
from headrace.errors import ConfigError
from headrace.net.address import Options, parse
from headrace.net.bound import allow_all_descriptors, reserve, room_for_connections
from headrace.net.connection import Connection, ConnectionSet
from headrace.net.frame_connection import FrameConnection
from headrace.net.gate import BANNED, Allowance, Gate, GateSettings, Networks
from headrace.net.incidents import Incidents
from headrace.net.listener import Listener, ListenerSet
from headrace.net.tls import TlsFiles, UnusableCertificate
from headrace.services.audit import Audit
from headrace.services.connection_log import ConnectionLog
from headrace.services.evicting import Evicting
from headrace.services.node_counts import NodeCounts
from headrace.services.node_table import key_of
from headrace.services.node_times import NodeTimes
from headrace.services.tracing import Tracing
from headrace.sockets.poller import HAS_EPOLL, Poller

CONNECTIONS_MAX = 100_000  # where nothing else is said


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """What holds for a listener whose URL leaves it out, and for all listeners together.

    `connections_max` 0: as many as there is room for.
    """

    connections_max: int
    connect_timeout_s: float
    pending_bytes_max: int
    tls: TlsFiles
    tcp_keep_alive_s: int = 0
    gate: GateSettings = field(default_factory=GateSettings)
    messages_per_s: int = 0  # of one connection
    accepts_per_s: float = 0.0  # of one listener
    separator: str = ""  # of tenants in the names that certificates give; "": there are none


def connections_allowed(wanted: int, descriptors: int) -> int:
    """Return how many connections a node takes, of which each needs a descriptor. Raises ConfigError when that is no
    number of connections, or not the number that was asked for."""
    room = room_for_connections(descriptors)
    if room < 1:
        raise ConfigError(f"the limit of {descriptors} open files (ulimit -n) leaves no room for connections")
    if wanted > room:
        raise ConfigError(
            f"limits.connections_max: {wanted} connections need more than the {descriptors} open files that the system "
            f"allows (ulimit -n); there is room for {room}"
        )
    return wanted or min(room, CONNECTIONS_MAX)


class Doors:
    """All listeners of a node; makes connections for `worker`. `access` says who is let in, None: everybody. `warn`
    takes a line for the log, with more about it by name."""

    def __init__(
        self,
        worker: Worker,
        settings: DoorSettings,
        access: Access | None,
        warn: Callable[..., object],
        audit: Audit | None = None,
        counts: NodeCounts | None = None,
        times: NodeTimes | None = None,
    ) -> None:
        self._worker = worker
        self._settings = settings
        self._access = access
        self._warn = warn
        self._incidents = Incidents(warn)
        # Told of each connection that has ended, if it was more than a socket: its libraries may have left garbage.
        self.ended: Callable[[], object] | None = None
        self._listeners: list[Listener] = []
        self._sets: list[ListenerSet] = []
        self.poller = Poller(asyncio.get_running_loop()) if HAS_EPOLL else None
        descriptors = allow_all_descriptors()
        self._connections_max = connections_allowed(settings.connections_max, descriptors)
        if not settings.connections_max and self._connections_max < CONNECTIONS_MAX:
            warn(
                "fewer connections than usual fit under the limit of open files",
                connections=self._connections_max,
            )
        self.admin_max = reserve(descriptors) // 3  # connections of the admin HTTP: of the reserve
        self._all = ConnectionSet(self._connections_max, int(settings.connect_timeout_s * 1000))
        self._counts = counts
        self._times = times
        self._count(self._all, "node")
        worker.guard(access)
        self.gate = None if settings.gate == GateSettings() else self._gate(settings.gate)
        if access is not None:
            access.guard = self.gate
        if audit is None:
            audit = Audit(warn)
        loop = asyncio.get_running_loop()
        self.tracing = Tracing(lambda: list(self._all.open), loop)
        self._log = ConnectionLog(audit, self.tracing)
        worker.testimony.witness = self._log
        self._refuses_all = False
        self._evicting = Evicting(audit, self._judge, asyncio.get_running_loop().call_soon)

    @property
    def report(self) -> Callable[[str, str], None]:
        """Return the function that tells what happened, and more about it: at most one line a second for the same
        thing."""
        return self._incidents.report

    @property
    def urls(self) -> list[str]:
        return [listener.url for listener in self._listeners]

    def accepted(self) -> int:
        """Return how many connections were let in, by all listeners."""
        return self._all.accepted

    def connections(self) -> list[Connection]:
        """Return all connections whose clients are at home here, or have not said yet where."""
        return list(self._all.open)

    @property
    def relayed(self) -> int:
        """Return how many sockets there are whose clients are at home in other workers."""
        return len(self._all.relayed)

    @property
    def listeners(self) -> list[Listener]:
        return list(self._listeners)

    def open(self, url: str, bound: socket.socket | None = None) -> None:
        """Listen on an address; on `bound` where the supervisor of several workers has bound it. Raises OSError that
        names the address, UnusableCertificate."""
        address = parse(url)
        options, settings = address.options, self._settings
        connections = ListenerSet(
            options.connections_max or self._connections_max,
            int((options.connect_timeout_s or settings.connect_timeout_s) * 1000),
            options.packet_bytes_max,
            self._all,
            options.pending_bytes_max or settings.pending_bytes_max,
        )
        connections.all_of_node = self._sets
        connections.refuses_all = self._refuses_all
        connections.note_away = self._log.turned_away
        connections.came, connections.went = self.tracing.came, self.tracing.went
        if address.encrypted or address.websocket or options.proxy != "off":
            connections.ended = self.ended
        self._limit(connections, options)
        report = self._incidents.report
        self._listeners.append(
            Listener(
                address,
                settings.tls,
                connections,
                self._frame_connection if address.frames else self._connection,
                report,
                self.poller,
                settings.tcp_keep_alive_s,
                bound,
                settings.separator,
            )
        )
        self._sets.append(connections)
        self._count(connections, "listener", connections.url)

    def refuse_all(self, refuses: bool) -> None:
        """Let nobody in from now on, or let clients in again; those who are here stay."""
        self._refuses_all = refuses
        for connections in self._sets:
            connections.refuses_all = refuses

    def sockets(self) -> list[Connection]:
        """Return the connections whose sockets are in this process, wherever their clients are at home."""
        here = [one for one in self._all.open if not one.arrived or one.descriptor() >= 0]
        return [*here, *self._all.relayed]

    def _count(self, connections: ConnectionSet, *names: str) -> None:
        """Count connections with those of the other workers."""
        counts = self._counts
        if counts is not None:
            key = key_of(*names)
            connections.tell, connections.others = partial(counts.set, key), partial(counts.others, key)

    def _limit(self, connections: ListenerSet, options: Options) -> None:
        """Limit what a listener lets in, and what its clients may do in a second."""
        settings = self._settings
        connections.gate = self.gate
        connections.messages_per_s = options.messages_per_s or settings.messages_per_s
        connections.subscriptions_max = options.subscriptions_max
        rate, name = options.accepts_per_s or settings.accepts_per_s, f"accepts {connections.url}"
        connections.accepts = None
        if rate:
            connections.accepts = Allowance(rate, max(1.0, rate), time.monotonic, self._times, name)

    def _gate(self, settings: GateSettings) -> Gate:
        return Gate(settings, time.monotonic, self._times)

    def _guard(self) -> Gate:
        """Have a gate from now on, for whoever comes to a listener and whoever signs in."""
        self.gate = gate = self._gate(self._settings.gate)
        if self._access is not None:
            self._access.guard = gate
        return gate

    def ban(self, networks: Networks) -> None:
        """Turn these away from now on, beside those of the ban file."""
        gate = self.gate
        if gate is None:
            if not networks:
                return
            gate = self._guard()
            for listener in self._listeners:
                listener.connections.gate = gate
        gate.ban(networks)

    def limit(self, settings: DoorSettings) -> None:
        """Keep the limits of these from now on, for those who are here as well."""
        self._settings = replace(
            self._settings,
            gate=replace(settings.gate, ban_file=self._settings.gate.ban_file),
            messages_per_s=settings.messages_per_s,
            accepts_per_s=settings.accepts_per_s,
        )
        if self.gate is not None:
            self.gate.limit(self._settings.gate)
        elif self._settings.gate != GateSettings():
            self._guard()
        for listener in self._listeners:
            self._limit(listener.connections, listener.options)
            for connection in listener.connections.open:
                connection.messages_per_s = listener.connections.messages_per_s

    def _connection(self, connections: ListenerSet, source: str) -> Connection:
        # The loop may have stood still since the clock was set, and the time to CONNECT begins now.
        self._worker.clock.mono_ms = time.monotonic_ns() // 1_000_000
        return Connection(self._worker, connections, source)

    def _frame_connection(self, connections: ListenerSet, source: str) -> Connection:
        self._worker.clock.mono_ms = time.monotonic_ns() // 1_000_000
        return FrameConnection(self._worker, connections, source)

    def reload(self) -> list[str]:
        """Read certificates, passwords and ACL again; a file that cannot be used changes nothing. What failed."""
        failed = []
        for listener in self._listeners:
            try:
                listener.reload(self._settings.tls)
            except UnusableCertificate as error:
                failed.append(f"certificate of {listener.url}")
                self._warn(
                    "certificate not reloaded, the old one stays", listener=listener.url, error=str(error)
                )
        try:
            if self._access is not None:
                self._access.reload()
        except (ConfigError, OSError) as error:
            failed.append("passwords and ACL")
            self._warn("passwords and ACL not reloaded, the old ones stay", error=str(error))
        try:
            if self.gate is not None:
                self.gate.reload()
        except (ConfigError, OSError) as error:
            failed.append("bans")
            self._warn("bans not reloaded, the old ones stay", error=str(error))
        self._evicting.begin([*self._all.open, *self._all.relayed])
        return failed

    def judge_again(self) -> None:
        """Put out who may not stay any more by the directory as it is known now."""
        self._evicting.begin_after(lambda: [*self._all.open, *self._all.relayed])

    def _judge(self, connection: Connection) -> str:
        """Return why a connection may not stay under what was read again, "" if it may."""
        if self.gate is not None and self.gate.is_banned(connection.peer()):
            return BANNED
        if connection.is_revoked():
            return "certificate_revoked"
        return "" if self._access is None else self._access.must_go(connection)

    def take_over(self, url: str, accepted: socket.socket, source: str, sent: bytes, came_ms: int) -> None:
        """Go on with a client that another worker has accepted at the listener of this URL; `sent` is what it has sent,
        `came_ms` when its CONNECT came (`Link.came_ms`). The socket is the connection's from now on, and closed where
        there is no such listener."""
        listener = self._listener(url)
        if listener is None:
            accepted.close()
        else:
            listener.take_over(accepted, source, sent, came_ms)

    def take_relayed(
        self, url: str, source: str, name: str | None, connect: Callable[[Connection], None]
    ) -> bool:
        """Go on with a client whose socket another worker keeps, which came in at the listener of this URL: `connect`
        gives its connection a transport. `name` is that of its certificate. False: it was not taken."""
        listener = self._listener(url)
        return listener is not None and listener.take_relayed(source, name, connect)

    def _listener(self, url: str) -> Listener | None:
        """Return the listener of a URL that another worker has named; None, and a line in the log, if there is none."""
        listener = next((one for one in self._listeners if one.url == url), None)
        if listener is None:
            self.report("a connection from another worker came in at no listener of ours", url)
        return listener

    def like(self, url: str) -> str | None:
        """Return the URL of the listener that is like one of another node: the same, else the only one of its scheme.
        None where there is none, or several, whose options may differ."""
        urls = self.urls
        alike = [one for one in urls if urlsplit(one).scheme == urlsplit(url).scheme]
        if url in urls:
            return url
        return alike[0] if len(alike) == 1 else None

    def stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.stop_accepting()

    def close(self) -> None:
        """Cut the connections that are still open."""
        for connection in [*self._all.open, *self._all.relayed]:
            connection.abort()
        if self.poller is not None:
            self.poller.close()
        if self._access is not None:
            self._access.close()
