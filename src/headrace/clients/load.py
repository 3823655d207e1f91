"""A client of `headrace bench`: the connection that a publisher and a subscriber have in common.

Compiled with the core, so that the generator is cheaper than what it measures. In a turn of the loop everything that is
ready is read before anybody answers: a broker gets the load of many clients at once, as from a generator in C.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from headrace.clients.tally import Tally
from headrace.errors import ProtocolError
from headrace.mqtt import codec
from headrace.mqtt.client_protocol import ClientHandler, ClientProtocol
from headrace.mqtt.data_types import VARINT_MAX
from headrace.mqtt.packets import Connack, Connect, Disconnect
from headrace.sockets.plain import PlainTransport

if TYPE_CHECKING:
    import asyncio

# What a payload starts with, big endian: i64 send time (monotonic nanoseconds), i32 publisher, u32 sequence number.
HEAD_BYTES: Final = 16


class Turn:
    """Knows who has read something in this turn of the loop: at its end, which `call_soon` finds, each of them
    answers."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._clients: list[LoadClient] = []

    def join(self, client: LoadClient) -> None:
        clients = self._clients
        if not clients:
            self._call_soon(self.end)
        clients.append(client)

    def end(self) -> None:
        clients = self._clients
        self._clients = []
        for client in clients:
            client.joined = False
            client.answer()


class LoadStream(ClientProtocol):
    """Parses what the broker sends, and says where a message lies: making a packet of it would cost more than all the
    rest."""

    def __init__(self, client: LoadClient) -> None:
        super().__init__(client, VARINT_MAX + 5, 0)
        self._client = client

    def _publish(self, data: bytes, first: i64, start: i64, pos: i64, end: i64) -> None:
        self._client.on_message(first, data, pos, end)


class LoadClient(ClientHandler):
    """One connection of a client of `headrace bench`, and after `again` the next one of the same client. `hello` opens
    it once bytes may flow."""

    def __init__(self, tally: Tally, turn: Turn, connect: Connect, topic: str, qos: int) -> None:
        self.tally = tally
        self.turn = turn
        self.joined = False
        self.connect_packet = connect
        self.version: int = connect.version
        self.topic = topic
        self.qos: int = qos
        self.transport: PlainTransport | asyncio.Transport | None = None
        self.out = BytesWriter()
        self.clock = time.monotonic_ns  # found once: of a module it would be looked up at every call
        self.now_ns: i64 = 0
        self.opened_ns: i64 = 0
        self.paused = False
        self.leaving = False
        self.protocol = LoadStream(self)

    # asyncio.Protocol

    def connection_made(self, transport: PlainTransport | asyncio.Transport) -> None:
        self.transport = transport

    def hello(self) -> None:
        """Send CONNECT."""
        self.now_ns = self.clock()
        self.opened_ns = self.now_ns
        if self.transport is not None:
            self.transport.write(self.protocol.connect(self.connect_packet))

    def again(self) -> None:
        """Be ready for another connection."""
        self.protocol = LoadStream(self)
        self.out.truncate(0)
        self.paused = False
        self.leaving = False

    def leave(self) -> None:
        """Send DISCONNECT and close."""
        self.leaving = True
        if self.transport is not None:
            self.transport.write(codec.encode_disconnect(self.version))
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        self.now_ns = self.clock()
        self.protocol.receive_data(data)
        if not self.joined:
            self.joined = True
            self.turn.join(self)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        if self.leaving:
            self.tally.left += 1
        elif not self.tally.stopping:
            self.tally.closed += 1

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False

    def answer(self) -> None:
        """Send the answers to what was read in this turn."""
        self.flush()

    def flush(self) -> None:
        out = self.out
        transport = self.transport
        if len(out) and transport is not None:
            transport.write(out.getvalue())
            out.truncate(0)

    def on_message(self, first: i64, data: bytes, pos: i64, end: i64) -> None:
        """Take a PUBLISH: its first byte, and what is behind its fixed header, in `data` from `pos` to `end`."""
        self.tally.refused += 1

    def on_connack(self, packet: Connack) -> None:
        if packet.reason_code:
            self.tally.refused += 1
            return
        if self.tally.measuring:
            self.tally.connecting.add((self.now_ns - self.opened_ns) // 1000)
        self.connected(packet.session_present)

    def connected(self, session_present: bool) -> None:
        self.tally.ready += 1

    def on_disconnect(self, packet: Disconnect) -> None:
        self.tally.refused += 1

    def on_protocol_error(self, error: ProtocolError) -> None:
        self.tally.refused += 1
