"""A connection: the protocol of one client, thirty lines of I/O around `mqtt.protocol`.

Compiled with the core (decision 27): asyncio takes any object with these methods as a protocol. Reads call the parser,
which calls the broker; writes are joined and leave once per tick.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, cast

from mypy_extensions import i64, mypyc_attr

from headrace.core.ports.link import Host
from headrace.core.ports.timers import Timer
from headrace.mqtt.protocol import ServerHandler, ServerProtocol
from headrace.mqtt_link import MqttLink
from headrace.net.remote import has_hung_up, peer_of
from headrace.sockets.plain import PlainTransport, Receiver
from headrace.stream import MORE, WHOLE, ByteStream

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from headrace.errors import ProtocolError
    from headrace.mqtt.packets import Connect

_LINGER_MS: Final = 5000
# What one connection gets parsed in a pass of the loop, some 400 small packets: a few milliseconds at most. How many
# packets of them is a question of how many others there are (`core.inbound.turns`).
_SHARE_BYTES: Final = 32 << 10
PENDING_BYTES_MAX: Final = 16 << 20
# What all who have not been let in yet may make us hold of their CONNECT, beyond the few bytes that most need.
_STRANGER_BYTES: Final = 4 << 10
STRANGERS_BYTES_MAX: Final = 32 << 20
_STILL_US: Final = 250_000  # the node's timer sets the clock more often: after so long the loop stood still
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


class Connection(MqttLink, Receiver):
    """One client's byte stream. `transport` is our own, an asyncio Transport, or what net.websocket puts in front of one.

    `source` is "host:port" of the client, as it was accepted or as a PROXY header has it; "": the transport is asked.
    """

    def __init__(self, host: Host, listener: ConnectionSet, source: str = "") -> None:
        super().__init__(host)
        settings = host.settings
        self._set = listener
        self.source = source
        self._transport: PlainTransport | asyncio.Transport | None = None
        self.messages_per_s = listener.messages_per_s
        self.subscriptions_max = listener.subscriptions_max
        self.packet_bytes_max = listener.packet_bytes_max or settings.packet_bytes_max
        self._packets: ServerProtocol | None = None
        self._protocol = self.make_stream()
        self._since_ms = host.clock.mono_ms
        self.made = False
        self._pending_bytes_max = listener.pending_bytes_max
        self._closing = False
        self._held = False
        self._aside: bytes | None = None  # read, and not parsed yet; b"" when that is in the parser
        self._aside_at: i64 = 0
        self._in_turn = False
        self._cut = ""  # why we cut it off
        self._charged: i64 = 0  # bytes of an unfinished CONNECT that count against all strangers
        self._below: i64 = 0  # of them, those that the transport holds

    def make_stream(self) -> ByteStream:
        """Make what takes its bytes apart."""
        settings = self.host.settings
        packets = ServerProtocol(self, int(self.packet_bytes_max), settings.topic_alias_maximum)
        packets.reason_strings = settings.reason_strings
        self._packets = packets
        return packets

    def is_stranger(self) -> bool:
        """Return whether nobody has been let in yet."""
        return self.session is None

    # asyncio.Protocol

    def connection_made(self, transport: PlainTransport | asyncio.Transport) -> None:
        self._transport = transport
        self.made = True
        self._set.add(self)
        transport.set_write_buffer_limits(high=self.host.settings.write_buffer_high)
        try:
            self.certificate_name = self._set.identity_of(transport)
        except Exception as error:  # noqa: BLE001  without a name it must not be let in
            self.failed(error)
        deadline = _ConnectDeadline(self)
        self.timer = deadline
        self.host.timers.schedule(self._since_ms + self._set.connect_timeout_ms, deadline)

    def data_received(self, data: bytes) -> None:
        host = self.host
        clock = host.clock
        if clock.stale:
            clock.stale = False
            now_us = time.time_ns() // 1000
            if not 0 <= now_us - clock.now_us <= _STILL_US:
                clock.mono_ms = time.monotonic_ns() // 1_000_000
            clock.now_us = now_us
            host.request_tick()
        host.bytes_received += len(data)
        try:
            if self._aside is None and len(data) <= _SHARE_BYTES:
                self._protocol.packets_at_once = host.share
                self._protocol.receive_data(data)
                if self._protocol.outcome == WHOLE:
                    self.last_seen_ms = clock.mono_ms
                else:
                    self._unfinished()
            else:
                self._set_aside(data)
        except Exception as error:  # noqa: BLE001  it must not cost the others, whatever the transport makes of it
            self.failed(error)

    def _unfinished(self) -> None:
        """The parser has handled its share of packets, or holds a part of one: no sign of life [MQTT-3.1.2-22]."""
        if self._protocol.outcome == MORE:
            self.last_seen_ms = self.host.clock.mono_ms
            if self._aside is None:
                self._keep_aside(b"")
                self._take_turn()
        elif self._protocol.version == 0:
            self._charge(self._protocol.buffered + self._below)

    def note_below(self, held: i64) -> None:
        """The transport holds so many bytes of a frame that is not whole: a stranger's count as those of its CONNECT."""
        if held != self._below and self._protocol.version == 0 and not self.closed:
            self._below = held
            self._charge(self._protocol.buffered + held)

    def _charge(self, held: i64) -> None:
        """Count what a stranger makes us hold against all strangers: who goes on when it is too much is cut."""
        more: i64 = max(0, held - _STRANGER_BYTES) - self._charged
        self._charged += more
        if self._set.charge(more) and more > 0:
            self.turn_away("strangers_bytes")

    def forgive(self) -> None:
        """Count what it makes us hold against the strangers no more."""
        self._charge(0)

    def _set_aside(self, data: bytes) -> None:
        """Keep what is more than a share of a pass: read no more, and take turns with the others."""
        aside = self._aside
        if aside is not None:
            self._aside = aside[self._aside_at :] + data
            self._aside_at = 0
            return
        self._keep_aside(data)
        self._read_on()

    def _keep_aside(self, data: bytes) -> None:
        self._aside = data
        self._aside_at = 0
        if self._transport is not None and not self._held:
            self._transport.pause_reading()

    def _take_turn(self) -> None:
        if not self._in_turn:
            self._in_turn = True
            self.host.take_turns(self)

    def read_on(self) -> None:
        try:
            self._read_on()
        except Exception as error:  # noqa: BLE001  it must not cost the others their turns
            self.failed(error)

    def _read_on(self) -> None:
        aside = self._aside
        self._in_turn = False
        if aside is None or self._held:
            return
        protocol = self._protocol
        start: i64 = self._aside_at
        protocol.packets_at_once = self.host.share
        if protocol.outcome == MORE:
            protocol.go_on()
        else:
            self._aside_at = min(start + _SHARE_BYTES, len(aside))
            protocol.receive_data(aside[start : start + _SHARE_BYTES])
        if protocol.outcome == WHOLE:
            self.last_seen_ms = self.host.clock.mono_ms
        else:
            self._unfinished()
        aside = self._aside
        if aside is None:
            return
        if protocol.outcome == MORE or self._aside_at < len(aside):
            self._take_turn()
            return
        self._aside = None
        self._read_again()

    def _read_again(self) -> None:
        transport = self._transport
        if transport is not None and not self._held and not self._closing:
            transport.resume_reading()

    def deaf(self) -> bool:
        return self._held or self._aside is not None or self.held_back

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self.host.slow -= self.paused
        self.paused = False
        self._aside = None
        self.out = None
        self._transport = None
        self._protocol.stop()
        self._charge(0)
        self._set.discard(self)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.host.on_connection_lost(self)

    def pause_writing(self) -> None:
        self.paused = True
        self.host.slow += 1

    def resume_writing(self) -> None:
        self.paused = False
        self.host.slow -= 1
        self.host.on_writable(self)

    # Link

    def flush(self) -> None:
        out = self.out
        if out is None:
            return
        self.out = None
        transport = self._transport
        if transport is not None:
            self.host.bytes_sent += len(out)
            try:
                transport.write(out.getvalue())
            except Exception as error:  # noqa: BLE001  the others have something to write, too
                self.failed(error)
            self.host.buffers.give_back(out)
            if self._closing:
                transport.close()
            else:
                self.bound_pending()

    def bound_pending(self) -> None:
        """Deliveries stop at the high mark; what still grows are answers to somebody who does not read: cut it off."""
        transport = self._transport
        if (
            self.paused
            and not self._closing
            and transport is not None
            and transport.get_write_buffer_size() > self._pending_bytes_max
        ):
            self.turn_away("pending_bytes")

    def close(self) -> None:
        self._protocol.stop()
        self._closing = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        transport = self._transport
        if self.out is None and transport is not None:
            transport.close()
        if transport is not None:
            # A peer that never reads must not keep the socket: cut it off after the linger time.
            self.timer = _Linger(self)
            self.host.timers.schedule(self.host.clock.mono_ms + _LINGER_MS, self.timer)

    def abort(self) -> None:
        transport = self._transport
        if transport is not None:
            transport.abort()

    def failed(self, error: Exception) -> None:
        """An exception that nobody expected costs this connection, and nobody else anything."""
        self._set.report_error(error)
        self.turn_away("error")

    def count_turned_away(self, reason: str) -> None:
        self._set.turn_away(reason)

    def turn_away(self, reason: str) -> None:
        """Cut it off, and count why, once."""
        if not self._cut:
            self._cut = reason
            self._set.cut_off(self, reason)
        self.abort()

    def on_connect(self, packet: Connect) -> None:
        self._charge(0)
        self.host.on_connect(self, packet)

    def refuse(self, error: ProtocolError) -> None:
        packets = self._packets
        answer = b"" if packets is None else packets.refusal(error, self.ready)
        if answer:
            self.send(answer)

    def pause_reading(self) -> None:
        transport = self._transport
        if transport is not None and not self._held:
            self._held = True
            if self._aside is None:
                transport.pause_reading()

    def resume_reading(self) -> None:
        transport = self._transport
        if self._held:
            self._held = False
            self.last_seen_ms = self.host.clock.mono_ms
            if self._aside is not None:
                self._take_turn()
            elif transport is not None and not self._closing:
                transport.resume_reading()

    def hold(self) -> None:
        """Parse and read nothing more until `release`: the answer to CONNECT needs time."""
        self._protocol.hold()
        self.pause_reading()

    def release(self) -> None:
        self.resume_reading()
        self._protocol.packets_at_once = self.host.share
        self._protocol.release()
        if self._protocol.outcome != WHOLE:
            self._unfinished()

    def spend(self, units: i64) -> None:
        self._protocol.spend(units)

    def route_through(
        self, handler: ServerHandler, around: Callable[[asyncio.Transport], asyncio.Transport] | None
    ) -> None:
        """Packets go to `handler` from now on, and bytes to what `around` makes of the transport, where there is one: a
        trace listens in. Who is not traced pays nothing for it."""
        if self._packets is not None:
            self._packets.hand_to(handler)
        transport = self._transport
        if around is not None and transport is not None:
            self._transport = around(cast("asyncio.Transport", transport))

    def listener(self) -> str:
        return self._set.url

    def why_cut(self) -> str:
        return self._cut

    def hung_up(self) -> bool:
        transport = self._transport
        return transport is None or has_hung_up(transport.get_extra_info("socket"))

    def is_revoked(self) -> bool:
        """Return whether its client certificate has been revoked since it came."""
        return self._transport is not None and self._set.is_revoked(self._transport)

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
        self.pending = 0
        self.accepted = 0
        self.strangers_bytes: i64 = 0  # counted at the node's set alone
        self.turned_away: dict[str, int] = dict.fromkeys(REASONS, 0)

    def note_pending(self, more: int) -> None:
        """Count `more` that were accepted and still shake hands, or fewer if negative: each of them has a descriptor."""
        self.pending += more
        if self.parent is not None:
            self.parent.note_pending(more)

    def room(self) -> int:
        """Return how many more there may be, here and in all; negative while those that made room for others end."""
        room = self.connections_max - len(self.open) - self.pending
        return room if self.parent is None else min(room, self.parent.room())

    def add(self, connection: Connection) -> None:
        self.accepted += 1
        self.open.add(connection)
        if self.parent is not None:
            self.parent.add(connection)

    def discard(self, connection: Connection) -> None:
        self.open.discard(connection)
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
        """A connection is about to be cut for one of REASONS."""
        self.turn_away(reason)

    def identity_of(self, transport: PlainTransport | asyncio.Transport) -> str | None:
        """Return who the transport says the client is: a listener may take the name from its certificate. None: it
        has none."""
        return ""

    def is_revoked(self, transport: PlainTransport | asyncio.Transport) -> bool:
        """Return whether the client's certificate is on the list of revoked ones as it is now."""
        return False


class _ConnectDeadline(Timer):
    """No CONNECT within the time allowed (3.1.4): close."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def fire(self, now_ms: int) -> None:
        if self._connection.is_stranger():
            self._connection.turn_away("connect_timeout")


class _Linger(Timer):
    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def fire(self, now_ms: int) -> None:
        self._connection.abort()
