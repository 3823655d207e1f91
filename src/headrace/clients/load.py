"""The clients of `headrace bench`: publishers that keep a window full, subscribers that check what comes.

Compiled with the core, so that the generator is cheaper than what it measures. Used as asyncio protocols. The payload
starts with 16 bytes, big endian: u64 send time (monotonic nanoseconds), u32 publisher, u32 sequence number.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Final

from headrace.clients.tally import Tally
from headrace.errors import ProtocolError
from headrace.mqtt import codec
from headrace.mqtt.client_protocol import ClientHandler, ClientProtocol
from headrace.mqtt.data_types import VARINT_MAX
from headrace.mqtt.packets import Connack, Connect, Disconnect, Publish, Suback, SubscriptionRequest

if TYPE_CHECKING:
    import asyncio

HEAD: Final = struct.Struct(">QII")


class LoadClient(ClientHandler):
    """One connection, and after `again` the next one of the same client. `hello` opens it once bytes may flow."""

    def __init__(self, tally: Tally, connect: Connect, topic: str, qos: int) -> None:
        super().__init__()
        self.tally = tally
        self.connect_packet = connect
        self.version: int = connect.version
        self.topic = topic
        self.qos = qos
        self.protocol = ClientProtocol(self, VARINT_MAX + 5, 0)
        self.transport: asyncio.Transport | None = None
        self.out: list[bytes] = []
        self.now_ns: int = 0
        self.opened_ns: int = 0
        self.paused = False
        self.leaving = False

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def hello(self) -> None:
        """Send CONNECT."""
        self.now_ns = time.monotonic_ns()
        self.opened_ns = self.now_ns
        if self.transport is not None:
            self.transport.write(self.protocol.connect(self.connect_packet))

    def again(self) -> None:
        """Be ready for another connection."""
        self.protocol = ClientProtocol(self, VARINT_MAX + 5, 0)
        self.out = []
        self.paused = False
        self.leaving = False

    def leave(self) -> None:
        """Send DISCONNECT and close."""
        self.leaving = True
        if self.transport is not None:
            self.transport.write(codec.encode_disconnect(self.version))
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        self.now_ns = time.monotonic_ns()
        self.protocol.receive_data(data)
        self.flush()

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

    def flush(self) -> None:
        if self.out and self.transport is not None:
            self.transport.write(b"".join(self.out))
            self.out = []

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


class Subscriber(LoadClient):
    """Acknowledges at once; `expected` is the next sequence number of each publisher it has heard of.

    One that comes back for its session must find it: without it what waited is gone.
    """

    def __init__(self, tally: Tally, connect: Connect, topic: str, qos: int) -> None:
        super().__init__(tally, connect, topic, qos)
        self.expected: dict[int, int] = {}
        self.subscribed = False

    def connected(self, session_present: bool) -> None:
        if self.subscribed and not self.connect_packet.clean_start:
            self.tally.refused += not session_present
            self.tally.ready += 1
            return
        self.out.append(codec.encode_subscribe(self.version, 1, [SubscriptionRequest(self.topic, self.qos)]))

    def on_suback(self, packet: Suback) -> None:
        if packet.reason_codes[0] > 2:
            self.tally.refused += 1
        self.subscribed = True
        self.tally.ready += 1

    def on_publish(self, packet: Publish) -> None:
        if packet.qos == 1:
            self.out.append(codec.encode_puback(self.version, packet.packet_id))
        elif packet.qos == 2:
            self.out.append(codec.encode_pubrec(self.version, packet.packet_id))
        tally = self.tally
        tally.received += 1
        sent_ns, publisher, sequence = HEAD.unpack_from(packet.payload)
        if tally.measuring:
            since_ns = max(
                sent_ns, self.opened_ns
            )  # what waited for its subscriber is measured from the return
            tally.delivery.add((self.now_ns - since_ns) // 1000)
        expected = self.expected.get(publisher, 0)
        if sequence >= expected:
            self.expected[publisher] = sequence + 1
        elif packet.dup:
            tally.repeats += 1
        else:
            tally.reordered += 1

    def on_pubrel(self, packet_id: int, reason_code: int) -> None:
        self.out.append(codec.encode_pubcomp(self.version, packet_id))


class Publisher(LoadClient):
    """Keeps `window` messages unacknowledged; with `paced` it sends only when it is told to. `left` is how many it may
    still send, negative without a limit."""

    def __init__(
        self, tally: Tally, connect: Connect, topic: str, qos: int, number: int, window: int, padding: bytes
    ) -> None:
        super().__init__(tally, connect, topic, qos)
        self.number = number
        self.window = window
        self.padding = padding
        self.paced = False
        self.left: int = -1
        self.topic_utf8 = topic.encode("utf-8")
        self.unacked: dict[int, int] = {}  # packet id -> send time
        self.next_id = 1

    def fill(self) -> None:
        """Send until the window is full."""
        while len(self.unacked) < self.window and self.left != 0 and not self.tally.stopping:
            self.left -= 1
            self.send()

    def send(self) -> None:
        """Put one message into the output; `flush` writes it."""
        tally = self.tally
        sequence = tally.sequences[self.number]
        tally.sequences[self.number] = sequence + 1
        sent_ns = time.monotonic_ns()
        packet_id = 0
        if self.qos:
            packet_id = self.next_id
            self.next_id = packet_id + 1 if packet_id < 0xFFFF else 1
            self.unacked[packet_id] = sent_ns
        payload = HEAD.pack(sent_ns, self.number, sequence) + self.padding
        self.out.append(
            codec.encode_publish(self.version, self.topic_utf8, payload, self.qos, False, False, packet_id)
        )
        tally.sent += 1

    def on_puback(self, packet_id: int, reason_code: int) -> None:
        self._done(packet_id)

    def on_pubrec(self, packet_id: int, reason_code: int) -> None:
        self.out.append(codec.encode_pubrel(self.version, packet_id))

    def on_pubcomp(self, packet_id: int, reason_code: int) -> None:
        self._done(packet_id)

    def _done(self, packet_id: int) -> None:
        sent_ns = self.unacked.pop(packet_id, 0)
        tally = self.tally
        tally.acked += 1
        if tally.measuring:
            tally.acknowledgement.add((self.now_ns - sent_ns) // 1000)
        if not self.paced and not tally.stopping:
            self.fill()
