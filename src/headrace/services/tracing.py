"""Traces: what some clients do, packet by packet, for somebody who looks, for a limited time. Runs on the loop.

    trace = tracing.begin("topic", "a/#", 60.0)
    trace.take()                               the rows since the last call; who does not call for IDLE_S has left

A connection that is traced gets a `Tap` between its parser and the broker, and another around its transport. All others,
and all of them while there is no trace, run the same instructions as ever. Payloads are not shown, only their size.
"""

from __future__ import annotations

import asyncio
import fnmatch
import ipaddress
import secrets
import time
from collections import deque
from collections.abc import Callable

from headrace.mqtt.topics import malformed_filter, matches
from headrace.net.connection import Connection
from headrace.net.remote import host_of
from headrace.services.packet_rows import Row
from headrace.services.tap import Tap

KINDS = ("client", "topic", "address")
TRACES_MAX = 4
SECONDS_MAX = 3600.0
IDLE_S = 5.0
ROWS_MAX = 2000  # that wait to be taken
ROWS_PER_S = 1000
LOOKED_AT_MAX = 200  # connections in a pass
PATTERN_CHARACTERS_MAX = 1024


class InvalidTrace(ValueError):
    """What is asked for makes no sense, or too many traces are on. The message says which."""


class Trace:
    """One trace that somebody reads. `over` once its time is."""

    def __init__(self, kind: str, pattern: str, seconds: float, clock: Callable[[], float]) -> None:
        self.id = secrets.token_hex(8)
        self.kind = kind
        self.over = False
        self._pattern = pattern
        self._network = _network(pattern) if kind == "address" else None
        self._clock = clock
        self._until = clock() + seconds
        self._asked_at = clock()
        self._rows: deque[Row] = deque()
        self._left_out = 0
        self._second = 0
        self._in_second = 0

    def take(self) -> tuple[list[Row], int]:
        """Return the rows since the last call, and how many were left out."""
        self._asked_at = self._clock()
        rows, left_out = list(self._rows), self._left_out
        self._rows.clear()
        self._left_out = 0
        return rows, left_out

    def ends(self) -> bool:
        """Return whether the trace's time is over, or its reader has left."""
        now = self._clock()
        if now >= self._until:
            self.over = True
        return self.over or self.left()

    def left(self) -> bool:
        """Return whether the trace's reader has not asked for so long that it has left."""
        return self._clock() - self._asked_at > IDLE_S

    def wants_client(self, client_id: str, peer: str) -> bool:
        if self.kind == "client":
            return fnmatch.fnmatchcase(client_id, self._pattern)
        return self.kind == "address" and self._holds(peer)

    def wants_all_of(self, client_id: str, peer: str) -> bool:
        """Return whether that connection is to be listened to, which may not have said its client id yet."""
        return self.kind == "topic" or (
            (self.kind == "client" and not client_id) or self.wants_client(client_id, peer)
        )

    def wants(self, row: Row, peer: str) -> bool:
        if self.kind != "topic":
            return self.wants_client(str(row.get("client", "")), peer)
        topic = row.get("topic")
        return isinstance(topic, str) and matches(self._pattern, topic)

    def add(self, row: Row) -> None:
        """Keep a row for the reader, if that is not too much."""
        second = int(self._clock())
        if second != self._second:
            self._second, self._in_second = second, 0
        self._in_second += 1
        if self._in_second > ROWS_PER_S or len(self._rows) >= ROWS_MAX:
            self._left_out += 1
        else:
            self._rows.append(row)

    def _holds(self, peer: str) -> bool:
        if self._network is None:
            return fnmatch.fnmatchcase(peer, self._pattern)
        try:
            return ipaddress.ip_address(host_of(peer)) in self._network
        except ValueError:
            return False


class Tracing:
    """The traces of a node. `connections` gives those that are open."""

    def __init__(
        self,
        connections: Callable[[], list[Connection]],
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.traces: list[Trace] = []
        self._over: list[Trace] = []  # whose time is over, while their readers have not fetched the last rows
        self._connections = connections
        self._loop = loop
        self._clock = clock
        self._taps: dict[Connection, Tap] = {}
        self._left: deque[Connection] = deque()
        self._walking = False
        self._watching = False

    def begin(self, kind: str, pattern: str, seconds: float) -> Trace:
        """Start a trace. Raises InvalidTrace."""
        if kind not in KINDS:
            raise InvalidTrace(f"kind: {kind!r} is none of {', '.join(KINDS)}")
        if not pattern or len(pattern) > PATTERN_CHARACTERS_MAX:
            raise InvalidTrace(f"pattern: 1 to {PATTERN_CHARACTERS_MAX} characters")
        wrong = malformed_filter(pattern) if kind == "topic" else ""
        if not wrong and kind == "address" and _network(pattern) is None and _is_network_meant(pattern):
            wrong = f"{pattern!r} is no address and no network"
        if wrong:
            raise InvalidTrace(f"pattern: {wrong}")
        if not 0 < seconds <= SECONDS_MAX:
            raise InvalidTrace(f"seconds: {seconds:g} is not above 0 and up to {SECONDS_MAX:g}")
        if len(self.traces) >= TRACES_MAX:
            raise InvalidTrace(f"{TRACES_MAX} traces are on, which is as many as there may be")
        trace = Trace(kind, pattern, seconds, self._clock)
        self.traces.append(trace)
        self._look_again()
        if not self._watching:
            self._watching = True
            self._loop.call_later(1.0, self._watch)
        return trace

    def find(self, trace_id: str) -> Trace | None:
        """Return the trace of that id: one that is on, or whose last rows nobody has fetched yet."""
        return next((trace for trace in (*self.traces, *self._over) if trace.id == trace_id), None)

    def end(self, trace: Trace) -> None:
        """End a trace for good: its reader has all rows, has said so or has left."""
        if trace in self._over:
            self._over.remove(trace)
        self._stop(trace)

    def _stop(self, trace: Trace) -> None:
        if trace in self.traces:
            self.traces.remove(trace)
            self._look_again()

    def _watch(self) -> None:
        """Watch the traces: every second, stop those whose time is over, and forget those whose readers have left."""
        for trace in [trace for trace in self.traces if trace.ends()]:
            self._stop(trace)
            self._over.append(trace)
        self._over = [trace for trace in self._over if not trace.left()]
        self._watching = bool(self.traces or self._over)
        if self._watching:
            self._loop.call_later(1.0, self._watch)

    # Connections

    def _look_again(self) -> None:
        """Look at all connections, some in each pass: each is traced, or not, as the traces want it now."""
        self._left = deque(self._connections())
        if not self._walking:
            self._walking = True
            self._loop.call_soon(self._walk)

    def _walk(self) -> None:
        for _ in range(min(LOOKED_AT_MAX, len(self._left))):
            connection = self._left.popleft()
            if not connection.closed:
                self._consider(connection)
        self._walking = bool(self._left)
        if self._walking:
            self._loop.call_soon(self._walk)

    def _consider(self, connection: Connection) -> None:
        client_id, peer = connection.client_id, connection.peer()
        wanted = any(trace.wants_all_of(client_id, peer) for trace in self.traces)
        tap = self._taps.get(connection)
        if wanted and tap is None:
            tap = self._taps[connection] = Tap(connection, peer, self)
            tap.attach()
        elif tap is not None and not wanted:
            del self._taps[connection]
            tap.detach()

    def came(self, connection: Connection) -> None:
        if self.traces:
            self._consider(connection)

    def went(self, connection: Connection) -> None:
        tap = self._taps.pop(connection, None)
        if tap is not None and not connection.closed:  # it goes on, for another worker
            tap.detach()

    def named(self, connection: Connection) -> None:
        """Note that a traced connection has said its client id: now it is known whether anybody wants it."""
        self._loop.call_soon(self._consider_open, connection)

    def _consider_open(self, connection: Connection) -> None:
        if not connection.closed:
            self._consider(connection)

    # What happens

    def packet(self, row: Row, peer: str) -> None:
        """Note that a traced connection has sent or got a packet."""
        for trace in self.traces:
            if trace.wants(row, peer):
                trace.add(row)

    def event(self, event: str, client: str, peer: str, more: dict[str, str]) -> None:
        """Note that a connection has begun or ended, or somebody was refused."""
        row: Row = {"time": time.time(), "client": client, "address": peer, "event": event}
        row |= {name: value for name, value in more.items() if value}
        self.packet(row, peer)


def _network(pattern: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Return the network that is meant; None for a pattern of the address as it is written."""
    try:
        return ipaddress.ip_network(pattern, strict=False)
    except ValueError:
        return None


def _is_network_meant(pattern: str) -> bool:
    """Return whether a pattern begins with an address and a slash, as a network does and no peer's address."""
    address, slash, _ = pattern.partition("/")
    return bool(slash) and _network(address) is not None
