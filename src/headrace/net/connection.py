"""A connection: the protocol of one client over a stream (`links.stream_link`), and the limits of its listener.

Compiled with the core (decision 27). Strangers, who have not been let in yet, are counted in bytes and in seconds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, cast

from mypy_extensions import i64, mypyc_attr

from headrace.core.ports.clock import Hearing
from headrace.core.ports.link import BrokerPort, WorkerPort
from headrace.core.ports.timers import Timer
from headrace.links.stream_link import PENDING_BYTES_MAX, StreamLink
from headrace.mqtt.protocol import ServerHandler, ServerProtocol
from headrace.net.remote import has_hung_up, peer_of
from headrace.sockets.plain import PlainTransport
from headrace.stream import UNLIMITED, ByteStream

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    from headrace.errors import ProtocolError
    from headrace.mqtt.packets import Connect

# Some 400 small packets: a few milliseconds at most.
_SHARE_BYTES: Final = 32 << 10
# What all who have not been let in yet may make us hold of their CONNECT, beyond the few bytes that most need.
_STRANGER_BYTES: Final = 4 << 10
STRANGERS_BYTES_MAX: Final = 32 << 20
# Why a listener turns a connection away: its limit of connections; no TLS, PROXY header or WebSocket; no CONNECT in time;
# more waits to be read than `pending_bytes_max`; all strangers together hold too much; a stranger while others came and
# there was no room; an error of ours.
REASONS: Final = (
    "connections_max",
    "handshake",
    "connect_timeout",
    "pending_bytes",
    "strangers_bytes",
    "crowded_out",
    "error",
)


class Connection(StreamLink):
    """One client's byte stream, over our own transport, asyncio's, or what net.websocket puts in front of one.

    `source` is "host:port" of the client, as it was accepted or as a PROXY header has it; "": the transport is asked.
    """

    def __init__(self, worker: WorkerPort, listener: ConnectionSet, source: str = "") -> None:
        super().__init__(worker, listener.pending_bytes_max, _SHARE_BYTES)
        settings = worker.settings
        self._set = listener
        self.source = source
        self.messages_per_s = listener.messages_per_s
        self.subscriptions_max = listener.subscriptions_max
        self.packet_bytes_max = listener.packet_bytes_max or settings.packet_bytes_max
        self._packets: ServerProtocol | None = None
        self._since_ms = worker.clock.mono_ms
        self.made = False
        self._plain = False  # its bytes are the socket's
        self.relayed = False  # its client is at home in another worker, and the socket stays here
        self.hearing: Hearing | None = None  # of the worker that has its socket, where that is another one
        self._cut = ""  # why we cut it off
        self._charged: i64 = 0  # bytes of an unfinished CONNECT that count against all strangers
        self._below: i64 = 0  # of them, those that the transport holds
        self._stream = self.make_stream()

    def make_stream(self) -> ByteStream:
        """Make the parser that takes the connection's bytes apart."""
        settings = self.worker.settings
        packets = ServerProtocol(self, int(self.packet_bytes_max), settings.topic_alias_maximum)
        packets.reason_strings = settings.reason_strings
        self._packets = packets
        return packets

    def connect_due_ms(self) -> i64:
        """Return until when its CONNECT is to be here."""
        return self._since_ms + self._set.connect_timeout_ms

    def is_stranger(self) -> bool:
        """Return whether nobody has been let in yet."""
        return self.session is None and not self.relayed

    def give_up(self) -> None:
        """Let go of the parser, which refers to us: there will be no transport, so nobody tells us of its end."""
        self.closed = True
        self._stream.stop()

    # asyncio.Protocol

    def connection_made(self, transport: PlainTransport | asyncio.Transport) -> None:
        super().connection_made(transport)
        self.made = True
        self._plain = isinstance(transport, PlainTransport)
        self._set.add(self)
        try:
            if not self.arrived:  # else the worker that has the socket has said it
                self.certificate_name = self._set.identity_of(transport)
        except Exception as error:  # noqa: BLE001  without a name it must not be let in
            self.failed(error)
        deadline = _ConnectDeadline(self)
        self.timer = deadline
        self.worker.timers.schedule(self.connect_due_ms(), deadline)

    def connection_lost(self, error: Exception | None) -> None:
        self.worker.slow -= self.paused
        self.paused = False
        super().connection_lost(error)
        self._charge(0)
        self._set.discard(self)
        self.broker.on_connection_lost(self)

    def pause_writing(self) -> None:
        self.worker.slow += 1
        super().pause_writing()

    def resume_writing(self) -> None:
        self.worker.slow -= 1
        super().resume_writing()

    # What strangers hold

    def note_partial(self) -> None:
        if self._stream.version == 0:
            self._charge(self._stream.buffered + self._below)

    def note_below(self, held: i64) -> None:
        """Note that the transport holds so many bytes of a frame that is not whole: a stranger's count as those of its
        CONNECT."""
        if held != self._below and self._stream.version == 0 and not self.closed:
            self._below = held
            self._charge(self._stream.buffered + held)

    def _charge(self, held: i64) -> None:
        """Count what a stranger makes us hold against all strangers: who goes on when it is too much is cut."""
        more: i64 = max(0, held - _STRANGER_BYTES) - self._charged
        self._charged += more
        if self._set.charge(more) and more > 0:
            self.turn_away("strangers_bytes")

    def forgive(self) -> None:
        """Count what the connection makes us hold against the strangers no more."""
        self._charge(0)

    # The end

    def failed(self, error: Exception) -> None:
        self._set.report_error(error)
        self.turn_away("error")

    def cut_unread(self) -> None:
        self.turn_away("pending_bytes")

    def count_turned_away(self, reason: str) -> None:
        self._set.turn_away(reason)

    def turn_away(self, reason: str) -> None:
        """Cut a connection off, and count why, once."""
        if not self._cut:
            self._cut = reason
            self._set.cut_off(self, reason)
        self.abort()

    # Link

    def on_connect(self, packet: Connect) -> None:
        self._charge(0)
        if not self.arrived:  # else the worker that has accepted it has looked
            now_ms = time.monotonic_ns() // 1_000_000
            self.came_ms = max(self._since_ms, self.worker.clock.waits_since_ms(now_ms))
        self.broker.on_connect(self, packet)

    def limit_packets(self, bytes_max: i64) -> None:
        super().limit_packets(bytes_max)
        if self._packets is not None:
            self._packets.limit_packets(self.packet_bytes_max)

    def refuse(self, error: ProtocolError) -> None:
        packets = self._packets
        answer = b"" if packets is None else packets.refusal(error, self.ready)
        if answer:
            self.send(answer)

    def spend(self, units: i64) -> None:
        self._stream.spend(units)

    def route_through(
        self, handler: ServerHandler, around: Callable[[asyncio.Transport], asyncio.Transport] | None
    ) -> None:
        """Let packets go to `handler` from now on, and bytes to what `around` makes of the transport, where there is
        one: a trace listens in. Who is not traced pays nothing for it."""
        if self._packets is not None:
            self._packets.hand_to(handler)
        transport = self._transport
        if around is not None and transport is not None:
            self._transport = around(cast("asyncio.Transport", transport))

    def listener(self) -> str:
        return self._set.url

    def why_cut(self) -> str:
        return self._cut

    def descriptor(self) -> int:
        """Return the descriptor of the socket that the client's bytes come from as they are; -1 if there is TLS or a
        WebSocket between."""
        transport = self._transport
        if not self._plain or transport is None:
            return -1
        return cast("socket.socket", transport.get_extra_info("socket")).fileno()

    def stream_version(self) -> int:
        """Return the version of its protocol, 0 until that is known."""
        return int(self._stream.version)

    def relay(self, stream: ByteStream, broker: BrokerPort) -> None:
        """Give what comes to `stream` from now on, and the rest to `broker`: the client, who has left, is at home in
        another worker, and no stranger here any more."""
        self._stream.stop()
        self._stream = stream
        self._aside = None
        self.broker = broker
        self.relayed = True
        self._pending_bytes_max = (
            UNLIMITED  # what its home has sent, within the window of the channel: that counts there
        )
        self._stop_timer()
        self._set.relay(self)

    def hung_up(self) -> bool:
        transport = self._transport
        if self.arrived and not self._plain:
            return self.closed  # the socket is another worker's, which closes the channel
        return transport is None or has_hung_up(transport.get_extra_info("socket"))

    def unheard_ms(self, due_ms: i64, now_ms: i64) -> i64:
        excused_ms = super().unheard_ms(due_ms, now_ms)
        hearing = self.hearing
        if hearing is None:
            return excused_ms
        return max(excused_ms, hearing.unheard_ms(self.last_seen_ms, due_ms, now_ms))

    def is_revoked(self) -> bool:
        """Return whether the client's certificate has been revoked since it connected."""
        return self._transport is not None and not self.arrived and self._set.is_revoked(self._transport)

    def peer(self) -> str:
        transport = self._transport
        if self.source or transport is None:
            return self.source
        return peer_of(transport.get_extra_info("peername"))


@mypyc_attr(allow_interpreted_subclasses=True)
class ConnectionSet:
    """The open connections of one listener and its limits; `parent` is the set of the whole node."""

    def __init__(
        self,
        connections_max: int,
        connect_timeout_ms: int,
        packet_bytes_max: int = 0,
        parent: ConnectionSet | None = None,
        pending_bytes_max: int = PENDING_BYTES_MAX,
    ) -> None:
        self.connections_max = connections_max
        self.connect_timeout_ms = connect_timeout_ms
        self.packet_bytes_max = packet_bytes_max
        self.pending_bytes_max = pending_bytes_max
        self.parent = parent
        self.url = ""
        self.messages_per_s = 0
        self.subscriptions_max = 0
        self.open: set[Connection] = set()
        self.relayed: set[Connection] = set()  # whose client is another worker's: open there
        self.pending = 0
        self.accepted = 0
        # Of a node of several workers: told how many there are here; says how many the others have.
        self.tell: Callable[[int], None] | None = None
        self.others: Callable[[], int] | None = None
        self.strangers_bytes: i64 = 0  # counted at the node's set alone
        self.turned_away: dict[str, int] = dict.fromkeys(REASONS, 0)

    def note_pending(self, more: int) -> None:
        """Count `more` that were accepted and still shake hands, or fewer if negative: each of them has a descriptor."""
        self.pending += more
        self._changed()
        if self.parent is not None:
            self.parent.note_pending(more)

    def room(self) -> int:
        """Return how many more there may be, here and in all; negative while those that made room for others end."""
        room = self.own_room()
        return room if self.parent is None else min(room, self.parent.own_room())

    def own_room(self) -> int:
        """Return how many more may be in this set: over all workers, and of descriptors in this one."""
        others = 0 if self.others is None else self.others()
        return self.connections_max - len(self.open) - self.pending - max(others, len(self.relayed))

    def _changed(self) -> None:
        if self.tell is not None:
            self.tell(len(self.open) + self.pending)

    def add(self, connection: Connection) -> None:
        if not connection.arrived:  # else another worker has accepted it
            self.accepted += 1
        self.open.add(connection)
        self._changed()
        if self.parent is not None:
            self.parent.add(connection)

    def relay(self, connection: Connection) -> None:
        """Note that a connection keeps its socket here, and that its client is at home in another worker."""
        self.open.discard(connection)
        self.relayed.add(connection)
        self._changed()
        if self.parent is not None:
            self.parent.relay(connection)

    def discard(self, connection: Connection) -> None:
        self.open.discard(connection)
        self.relayed.discard(connection)
        self._changed()
        if self.parent is not None:
            self.parent.discard(connection)

    def charge(self, more: i64) -> bool:
        """Count `more` bytes, or fewer if negative, of unfinished CONNECT packets; True when they are too many."""
        if self.parent is not None:
            return self.parent.charge(more)
        self.strangers_bytes += more
        return self.strangers_bytes > STRANGERS_BYTES_MAX

    def report_error(self, error: Exception) -> None:
        """Say what went wrong with a connection, to whoever wants to know."""
        if self.parent is not None:
            self.parent.report_error(error)

    def turn_away(self, reason: str) -> None:
        """Count a connection that we ended, or never let in. `reason` is one of REASONS."""
        self.turned_away[reason] = self.turned_away.get(reason, 0) + 1
        if self.parent is not None:
            self.parent.turn_away(reason)

    def cut_off(self, connection: Connection, reason: str) -> None:
        """Note that a connection is about to be cut for one of REASONS."""
        self.turn_away(reason)

    def identity_of(self, transport: PlainTransport | asyncio.Transport) -> str | None:
        """Return who the transport says the client is: a listener may take the name from its certificate. None: it
        has none."""
        return ""

    def is_revoked(self, transport: PlainTransport | asyncio.Transport) -> bool:
        """Return whether the client's certificate is on the list of revoked ones as it is now."""
        return False


class _ConnectDeadline(Timer):
    """Closes a connection without a CONNECT within the time allowed (3.1.4)."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def fire(self, now_ms: int) -> None:
        connection = self._connection
        if not connection.is_stranger():
            return
        due_ms = connection.connect_due_ms()
        if connection.hearing is not None:  # the rest of a long CONNECT waits where the socket is
            due_ms += connection.hearing.unheard_ms(due_ms, due_ms, now_ms)
        if due_ms <= now_ms:
            connection.turn_away("connect_timeout")
        else:
            connection.worker.timers.schedule(int(due_ms), self)
