"""A connection: the protocol of one client, thirty lines of I/O around `mqtt.protocol`.

Compiled with the core (decisions 27): asyncio takes any object with these methods as a protocol. Reads call the parser,
which calls the broker; writes are joined and leave once per tick.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from headrace.core.broker import Broker
from headrace.core.interfaces import Link
from headrace.core.timers import Timer
from headrace.mqtt.protocol import ServerProtocol
from headrace.sockets.plain import PlainTransport, Receiver

if TYPE_CHECKING:
    import asyncio

    from headrace.errors import ProtocolError

_LINGER_MS: Final = 5000
# What one connection gets parsed in a pass of the loop, some 400 small packets: a few milliseconds at most.
_SHARE_BYTES: Final = 32 << 10
PENDING_BYTES_MAX: Final = 16 << 20
# Why a listener turns a connection away: its limit of connections; no TLS, PROXY header or WebSocket; no CONNECT in time;
# more waits to be read than `pending_bytes_max`.
REASONS: Final = ("connections_max", "handshake", "connect_timeout", "pending_bytes")


class Connection(Link, Receiver):
    """One client's byte stream. `transport` is our own, an asyncio Transport, or what net.websocket puts in front of one.

    `source` is "host:port" of the client where the transport does not know it: behind a PROXY header.
    """

    def __init__(self, broker: Broker, listener: ConnectionSet, source: str = "") -> None:
        super().__init__(broker)
        settings = broker.settings
        self._set = listener
        self._source = source
        self._transport: PlainTransport | asyncio.Transport | None = None
        self.packet_bytes_max = listener.packet_bytes_max or settings.packet_bytes_max
        self._protocol = ServerProtocol(self, int(self.packet_bytes_max), settings.topic_alias_maximum)
        self._protocol.reason_strings = settings.reason_strings
        self.made = False
        self._pending_bytes_max = listener.pending_bytes_max
        self._closing = False
        self._held = False
        self._aside: bytes | None = None  # read, and not parsed yet
        self._aside_at: i64 = 0

    # asyncio.Protocol

    def connection_made(self, transport: PlainTransport | asyncio.Transport) -> None:
        self._transport = transport
        self.made = True
        transport.set_write_buffer_limits(high=self.broker.settings.write_buffer_high)
        self.identity = self._set.identity_of(transport)
        self._set.add(self)
        deadline = _ConnectDeadline(self)
        self.timer = deadline
        self.broker.timers.schedule(self.broker.clock.mono_ms + self._set.connect_timeout_ms, deadline)

    def data_received(self, data: bytes) -> None:
        broker = self.broker
        clock = broker.clock
        if clock.stale:
            clock.stale = False
            clock.now_us = time.time_ns() // 1000
            broker.request_tick()
        self.last_seen_ms = clock.mono_ms
        broker.bytes_received += len(data)
        if self._aside is None and len(data) <= _SHARE_BYTES:
            self._protocol.receive_data(data)
        else:
            self._set_aside(data)

    def _set_aside(self, data: bytes) -> None:
        """More than its share of a pass: keep it, read no more, and take turns with the others."""
        if self._aside is not None:
            self._aside += data
            return
        self._aside = data
        self._aside_at = 0
        if self._transport is not None and not self._held:
            self._transport.pause_reading()
        self.read_on()

    def read_on(self) -> None:
        aside = self._aside
        if aside is None:
            return
        start: i64 = self._aside_at
        end: i64 = start + _SHARE_BYTES
        last = end >= len(aside)
        if not last:
            self._aside_at = end
            self.broker.take_turns(self)
        self._protocol.receive_data(aside[start:end])
        if last:
            self._aside = None
            transport = self._transport
            if transport is not None and not self._held and not self._closing:
                transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self.broker.slow -= self.paused
        self.paused = False
        self._aside = None
        self.out = None
        self._transport = None
        self._protocol.stop()
        self._set.discard(self)
        self.broker.on_connection_lost(self)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def pause_writing(self) -> None:
        self.paused = True
        self.broker.slow += 1

    def resume_writing(self) -> None:
        self.paused = False
        self.broker.slow -= 1
        self.broker.on_writable(self)

    # Link

    def flush(self) -> None:
        out = self.out
        if out is None:
            return
        self.out = None
        transport = self._transport
        if transport is not None:
            self.broker.bytes_sent += len(out)
            transport.write(out.getvalue())
            self.broker.buffers.give_back(out)
            if self._closing:
                transport.close()
            elif self.paused and transport.get_write_buffer_size() > self._pending_bytes_max:
                # Deliveries stop at the high mark; what still grows are answers to somebody who does not read.
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
            self.broker.timers.schedule(self.broker.clock.mono_ms + _LINGER_MS, self.timer)

    def abort(self) -> None:
        transport = self._transport
        if transport is not None:
            transport.abort()

    def count_turned_away(self, reason: str) -> None:
        self._set.turn_away(reason)

    def turn_away(self, reason: str) -> None:
        """Cut it off, and count why."""
        self._set.turn_away(reason)
        self.abort()

    def refuse(self, error: ProtocolError) -> None:
        answer = self._protocol.refusal(error, self.ready)
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
            if transport is not None and not self._closing and self._aside is None:
                transport.resume_reading()

    def hold(self) -> None:
        """Parse and read nothing more until `release`: the answer to CONNECT needs time."""
        self._protocol.hold()
        self.pause_reading()

    def release(self) -> None:
        self.resume_reading()
        self._protocol.release()

    def peer(self) -> str:
        transport = self._transport
        if self._source or transport is None:
            return self._source
        address = transport.get_extra_info("peername")
        if not isinstance(address, tuple):
            return "unix"
        return f"[{address[0]}]:{address[1]}" if len(address) == 4 else f"{address[0]}:{address[1]}"


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
        self.open: set[Connection] = set()
        self.accepted = 0
        self.turned_away: dict[str, int] = dict.fromkeys(REASONS, 0)

    def full(self, pending: int) -> bool:
        """Is there no room for another one, beside `pending` that are not open yet?"""
        if len(self.open) + pending >= self.connections_max:
            return True
        return self.parent is not None and self.parent.full(pending)

    def add(self, connection: Connection) -> None:
        self.accepted += 1
        self.open.add(connection)
        if self.parent is not None:
            self.parent.add(connection)

    def discard(self, connection: Connection) -> None:
        self.open.discard(connection)
        if self.parent is not None:
            self.parent.discard(connection)

    def turn_away(self, reason: str) -> None:
        """Count a connection that we ended, or never let in. `reason` is one of REASONS."""
        self.turned_away[reason] += 1
        if self.parent is not None:
            self.parent.turn_away(reason)

    def identity_of(self, transport: PlainTransport | asyncio.Transport) -> str:
        """Who the transport says the client is: a listener may take the name from its certificate."""
        return ""


class _ConnectDeadline(Timer):
    """No CONNECT within the time allowed (3.1.4): close."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def fire(self, now_ms: int) -> None:
        if self._connection.session is None:
            self._connection.turn_away("connect_timeout")


class _Linger(Timer):
    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def fire(self, now_ms: int) -> None:
        self._connection.abort()
