"""A listener: a bound socket, what is put in front of its connections, its limits. Runs on the loop, not compiled.

Accepting is our own: at the limit of descriptors (EMFILE) it pauses and says so instead of spinning or dropping clients
(decision 39), a PROXY header is read before TLS starts, and a new certificate serves the next connection. Who is banned,
or comes too often, is closed as soon as its address is known, before TLS and WebSocket cost anything. Where there is no
room, whoever has been a stranger for longest makes it.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Final

from headrace.errors import forget_calls
from headrace.net import tls
from headrace.net.address import Address, Options, listed
from headrace.net.bound import bind, release
from headrace.net.connection import Connection, ConnectionSet
from headrace.net.gate import BANNED, Allowance, Gate
from headrace.net.proxy import read_header
from headrace.net.remote import peer_of
from headrace.net.revocation import RevocationList
from headrace.net.strangers import Strangers
from headrace.net.subject import COMMON_NAME, SubjectTemplate
from headrace.net.tls import TlsFiles
from headrace.net.websocket_server import WebSocketTransport
from headrace.sockets.keep_alive import ask_silent_peer
from headrace.sockets.plain import PlainTransport
from headrace.sockets.poller import Poller

ACCEPT_BURST = 64  # in a pass of the loop: a connection costs as much as a few hundred messages
BEYOND_MAX = 16  # connections for a moment, while those that make room for them end
PAUSE_S = 0.25
CROWDED_S = 0.01  # while others than our own clients have to make room
# What accept(2) says of the one connection that it would have been, and not of us.
OF_THE_CLIENT = (
    errno.ECONNABORTED,
    errno.EPROTO,
    errno.EPERM,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENOPROTOOPT,
    errno.EOPNOTSUPP,
)
FRAME_OVERHEAD = 64 * 1024

REVOKED, TLS_MESSAGES = "certificate_revoked", "tls_messages"

Report = Callable[
    [str, str], None
]  # (what happened, more about it): at most one line a second for the same thing
Make = Callable[["ListenerSet", str], Connection]
DRAINING: Final = "draining"
NoteAway = Callable[
    [str, str, str], None
]  # whose connection is cut off before CONNECT, at which listener, and why


class ListenerSet(ConnectionSet):
    """The connections of one listener; `all_of_node` are the sets of all listeners, this one among them."""

    takes_identity = False
    template: SubjectTemplate | None = None  # of names; None: the common name is one
    gate: Gate | None = None
    accepts: Allowance | None = None  # how many in a second; others wait in the backlog
    refuses_all = False  # the node is drained
    held_back = 0  # times that accepting waited for this
    revocations: RevocationList | None = None
    report: Report | None = None
    note_away: NoteAway | None = None
    came: Callable[[Connection], None] | None = None  # told of each connection
    went: Callable[[Connection], None] | None = None
    ended: Callable[[], object] | None = None  # told of each connection's end, also of one that never began
    strangers: Strangers
    all_of_node: Sequence[ListenerSet] = ()

    def report_error(self, error: Exception) -> None:
        if self.report is not None:
            if isinstance(error, MemoryError):  # where it was missing says nothing
                self.report("a connection ended for want of memory", "")
                return
            self.report("an error of ours ended a connection", "".join(traceback.format_exception(error)))

    def add(self, connection: Connection) -> None:
        self.note_pending(-1)
        super().add(connection)
        if self.came is not None:
            self.came(connection)
        if self.gate is not None and self.gate.bans(connection.peer()):  # since it was accepted
            connection.turn_away(BANNED)
        elif connection.is_revoked():  # since its handshake began
            connection.turn_away(REVOKED)

    def make_room(self) -> bool:
        """Have the oldest stranger go: of this listener where this one is full, else of the one that has most of them."""
        if self.own_room() <= 0 or not self.all_of_node:
            return self.strangers.give_up_oldest()
        most = sorted(self.all_of_node, key=lambda one: len(one.strangers), reverse=True)
        return any(one.strangers.give_up_oldest() for one in most)

    def refuses(self, peer: str) -> bool:
        """Return whether who comes from there is turned away, which is counted then."""
        refusal = "" if self.gate is None else self.gate.refusal(peer)
        if refusal:
            self.turn_away(refusal)
        return bool(refusal)

    def relay(self, connection: Connection) -> None:
        super().relay(connection)
        self.strangers.gone(connection)
        if self.went is not None:
            self.went(connection)

    def discard(self, connection: Connection) -> None:
        super().discard(connection)
        self.strangers.gone(connection)
        if self.went is not None:
            self.went(connection)
        self.note_end()

    def note_end(self) -> None:
        if self.ended is not None:
            self.ended()

    def cut_off(self, connection: Connection, reason: str) -> None:
        super().cut_off(connection, reason)
        if self.note_away is not None and connection.is_stranger():
            self.note_away(connection.peer(), self.url, reason)

    def identity_of(self, transport: PlainTransport | asyncio.Transport) -> str | None:
        if not self.takes_identity or isinstance(transport, PlainTransport):
            return ""
        if self.template is None:
            return tls.common_name(transport)
        shown = tls.shown_certificate(transport)
        return self.template.name(shown) if shown else ""

    def is_revoked(self, transport: PlainTransport | asyncio.Transport) -> bool:
        if self.revocations is None or isinstance(transport, PlainTransport):
            return False
        certificate = tls.certificate(transport)
        return certificate is not None and self.revocations.names(certificate)


class Listener:
    """Listens on one address. `make` makes the connection of a client; `opening` are those still shaking hands.

    Plain MQTT goes through `poller`; without one, and for TLS and WebSockets, through the loop's own transports.
    """

    def __init__(
        self,
        address: Address,
        files: TlsFiles,
        connections: ListenerSet,
        make: Make,
        report: Report,
        poller: Poller | None,
        keep_alive_s: int = 0,
        bound: socket.socket | None = None,
        separator: str = "",
    ) -> None:
        """Listen on `address`; on `bound` where another process has bound it, which several may share. `separator` is
        that of tenants, "": there are none. Raises OSError that names the address, UnusableCertificate."""
        self._address = address
        self._keep_alive_s = 0 if address.scheme == "unix" else keep_alive_s
        self._proxied = address.options.proxy != "off"
        self._poller = None if address.encrypted or address.websocket else poller
        self.connections = connections
        connections.strangers = Strangers()
        self._make = make
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._timeout_s = connections.connect_timeout_ms / 1000
        self._origins = listed(address.options.origins)
        self._paths = listed(address.options.paths)
        self._context = self._read_certificates(files)
        self._paused: asyncio.TimerHandle | None = None
        self._beyond = False  # at the last call there was no room for anybody
        self.opening: set[asyncio.Task[None]] = set()
        identity = address.options.identity
        connections.takes_identity = bool(identity)
        is_template = identity not in ("", COMMON_NAME)
        connections.template = SubjectTemplate(identity, separator) if is_template else None
        connections.report = report
        self._is_shared = bound is not None
        self._socket = bind(address) if bound is None else bound
        port = 0 if address.scheme == "unix" else self._socket.getsockname()[1]
        self.url = connections.url = address.url(port)
        self._loop.add_reader(self._socket, self._accept)

    @property
    def options(self) -> Options:
        """Return what its URL asks for."""
        return self._address.options

    def _read_certificates(self, files: TlsFiles) -> ssl.SSLContext | None:
        if not self._address.encrypted:
            return None
        alpn = "http/1.1" if self._address.websocket else "frames" if self._address.frames else "mqtt"
        own = files.overridden_by(self._address)
        context, revocations = tls.server_context(own, alpn), tls.revocations(own)
        self.connections.revocations = revocations
        return context

    def reload(self, files: TlsFiles) -> None:
        """Serve new connections with what the files hold now. Raises UnusableCertificate, and keeps the old ones then."""
        self._context = self._read_certificates(files)

    def stop_accepting(self) -> None:
        if self._paused is not None:
            self._paused.cancel()
        self._loop.remove_reader(self._socket)
        if self._is_shared:
            self._socket.close()  # whoever has bound it goes on
        else:
            release(self._address, self._socket)
        for task in self.opening:
            task.cancel()

    def _accept(self) -> None:
        for number in range(ACCEPT_BURST):
            wait_s = self._wait_s()
            if wait_s:
                if number == 0:  # else the next call sees whether somebody waits
                    self._hold_back(wait_s)
                return
            if self.connections.room() <= -BEYOND_MAX:
                self._wait_for_room()
                return
            self._beyond = False
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in OF_THE_CLIENT:
                    continue
                self._report("accepting pauses", f"{self.url}: {error.strerror}")
                self._pause(PAUSE_S)
                return
            peer = peer_of(address)
            if self._turns_away(peer):
                accepted.close()
            else:
                self._admit(accepted, peer)

    def _wait_for_room(self) -> None:
        """Leave the next one in the backlog. Those of ours who make room are gone at the next call; those whom other
        workers have let in may stay, and the readable socket must not keep the loop busy for so long."""
        if self._beyond:
            self._pause(CROWDED_S)
        self._beyond = True

    def _turns_away(self, peer: str) -> bool:
        """Return whether who was accepted may not stay, which is counted and said then."""
        connections = self.connections
        if connections.refuses_all:
            connections.turn_away(DRAINING)
            return True
        if not self._proxied and connections.refuses(peer):
            return True
        if connections.accepts is not None:
            connections.accepts.draw("")
        if connections.room() <= 0 and not connections.make_room():
            connections.turn_away("connections_max")
            self._report("connection limit reached", self.url)
            return True
        return False

    def _hold_back(self, seconds: float) -> None:
        self.connections.held_back += 1
        self._report("more connections than a listener accepts in a second", self.url)
        self._pause(seconds)

    def _wait_s(self) -> float:
        return 0.0 if self.connections.accepts is None else self.connections.accepts.wait_s("")

    def _pause(self, seconds: float) -> None:
        """Pause accepting: clients wait in the backlog; the readable socket must not keep the loop busy meanwhile."""
        self._loop.remove_reader(self._socket)
        self._paused = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._paused = None
        self._loop.add_reader(self._socket, self._accept)

    def _admit(self, accepted: socket.socket, peer: str) -> None:
        """Admit a client: whatever fails here costs this connection only. Of a peer that has reset `peer` alone says
        who it was."""
        self.connections.note_pending(1)
        connection: Connection | None = None
        try:
            self._set_up(accepted)
            connection = self._make(self.connections, peer)
            self.connections.strangers.came(connection, accepted)
            if self._poller is not None and not self._proxied:
                PlainTransport(self._poller, accepted, connection).open()
                return
        except Exception as error:  # noqa: BLE001
            self._refuse(accepted, connection, error)
            return
        task = self._loop.create_task(self._open(accepted, connection))
        self.opening.add(task)
        task.add_done_callback(self.opening.discard)

    def take_over(self, accepted: socket.socket, source: str, sent: bytes, came_ms: int) -> None:
        """Go on with a client that another worker has accepted, and whose CONNECT came at `came_ms`: what it has sent is
        handled as if it came now."""
        self.connections.note_pending(1)
        connection: Connection | None = None
        try:
            if self._poller is None:
                raise ValueError("a descriptor for a listener that is not plain")
            accepted.setblocking(False)
            connection = self._make(self.connections, source)
            connection.arrived = True
            connection.came_ms = came_ms
            self.connections.strangers.came(connection, accepted)
            PlainTransport(self._poller, accepted, connection).open()
        except Exception as error:  # noqa: BLE001
            self._refuse(accepted, connection, error)
            return
        connection.worker.bytes_received -= len(sent)  # the other worker has counted them
        connection.data_received(sent)

    def take_relayed(self, source: str, name: str | None, connect: Callable[[Connection], None]) -> bool:
        """Go on with a client whose socket another worker keeps: `connect` gives its connection a transport. `name` is
        that of its certificate. Returns False where that has failed, and then there is nothing of it here."""
        self.connections.note_pending(1)
        connection: Connection | None = None
        try:
            connection = self._make(self.connections, source)
            connection.arrived = True
            connection.certificate_name = name
            self.connections.strangers.came(connection, None)
            connect(connection)
        except Exception as error:  # noqa: BLE001
            self._refuse(None, connection, error)
            return False
        return True

    def _set_up(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        if self._address.scheme != "unix":
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._keep_alive_s:
            ask_silent_peer(accepted, self._keep_alive_s)

    def _refuse(
        self, accepted: socket.socket | None, connection: Connection | None, error: BaseException
    ) -> None:
        peer = "" if connection is None else f"{connection.peer()}: "
        self._report("connection refused", f"{self.url}: {peer}{str(error) or type(error).__name__}")
        if connection is None or not connection.why_cut():
            self.connections.turn_away("handshake")
        if connection is not None and connection.made:
            connection.abort()  # the socket is the transport's
        else:
            self.connections.note_pending(-1)
            self._forget(accepted, connection)

    def _forget(self, accepted: socket.socket | None, connection: Connection | None) -> None:
        if accepted is not None:
            accepted.close()
        if connection is not None:
            self.connections.strangers.gone(connection)
            connection.give_up()
        self.connections.note_end()

    async def _open(self, accepted: socket.socket, connection: Connection) -> None:
        """Open a connection: PROXY header, TLS, WebSocket, all in the time that is allowed for CONNECT: whatever fails
        costs this connection only."""
        until = time.monotonic() + self._timeout_s
        try:
            if self._proxied:
                connection.source = await self._source(accepted) or connection.source
                if self.connections.refuses(connection.source):
                    self.connections.note_pending(-1)
                    self._forget(accepted, connection)
                    return
            if self._poller is not None:
                PlainTransport(self._poller, accepted, connection).open()
            else:
                await self._connect(accepted, connection, until)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
            self._refuse(accepted, connection, error)
            forget_calls(error)  # the transport keeps the error, and a call of it the transport

    async def _connect(self, accepted: socket.socket, connection: Connection, until: float) -> None:
        protocol = self._protocol(connection)
        try:
            if self._context is None:
                await self._loop.connect_accepted_socket(lambda: protocol, accepted)
            else:
                await self._shake_hands(accepted, connection, protocol, self._context, until)
        except BaseException:
            before: object = protocol
            if isinstance(before, WebSocketTransport) and not connection.made:
                before.give_up()  # nobody tells it that there will be no connection
            raise

    async def _shake_hands(
        self,
        accepted: socket.socket,
        connection: Connection,
        protocol: asyncio.Protocol,
        context: ssl.SSLContext,
        until: float,
    ) -> None:
        left_s = max(0.001, until - time.monotonic())
        heard = self._hearing(connection, protocol)

        def cut() -> None:
            connection.turn_away(TLS_MESSAGES)

        await tls.connect(self._loop, lambda: protocol, accepted, context, left_s, heard, cut)

    @staticmethod
    def _hearing(connection: Connection, protocol: object) -> Callable[[], int | None]:
        """Return a count of what comes out of TLS. Nobody else is read meanwhile, so the count of all serves for one
        connection."""
        if isinstance(protocol, WebSocketTransport):
            return lambda: protocol.received if connection.made else None
        worker = connection.worker
        return lambda: worker.bytes_received if connection.made else None

    async def _source(self, accepted: socket.socket) -> str:
        required = self._address.options.proxy == "required"
        async with asyncio.timeout(self._timeout_s):  # raises TimeoutError, an OSError
            header = await read_header(self._loop, accepted, required=required)
        return header.source

    def _protocol(self, connection: Connection) -> asyncio.Protocol:
        """Return the protocol that the socket's transport talks to."""
        if self._address.websocket:
            frame_bytes_max = 2 * int(connection.packet_bytes_max) + FRAME_OVERHEAD
            later = self._loop.call_soon
            origins, paths = self._origins, self._paths
            return WebSocketTransport(connection, frame_bytes_max, origins, later, paths)  # type: ignore[return-value]
        return connection  # type: ignore[return-value]
