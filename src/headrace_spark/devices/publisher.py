"""Publishes messages of one producer to a broker, each once: MQTT 5 over a plain socket. Runs in a Spark task.

Every message carries `producer-id` and `producer-sequence` (`docs/reference/mqtt.md`, idempotent producers), so whatever
is sent again is stored once: after a lost connection everything unacknowledged is sent again, and a repeated task sends
all of it again. As many messages are in flight as the broker's Receive Maximum allows. The client id belongs to the
producer: the next attempt at a task takes the connection over from one that is still running somewhere.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from headrace.errors import ProtocolError
from headrace.mqtt import codec, data_types, reason_codes
from headrace.mqtt.client_protocol import ClientHandler, ClientProtocol
from headrace.mqtt.data_types import VARINT_MAX
from headrace.mqtt.packets import NO_EXPIRY, Connack, Connect, Disconnect
from headrace_spark.base.broker_address import BrokerAddress
from headrace_spark.base.errors import BrokerRefused, BrokerUnreachable, Superseded

FLUSH_BYTES: Final = 256 << 10
_READ_BYTES: Final = 64 << 10
_WAIT_FIRST_S: Final = 0.05
_WAIT_MAX_S: Final = 2.0
_BURST_S: Final = 0.1  # what a rate may make up for after a pause
# What passes by itself: a full disk, a broker that starts, stops or has too much to do.
_PASSING: Final = {
    reason_codes.QUOTA_EXCEEDED,
    reason_codes.SERVER_UNAVAILABLE,
    reason_codes.SERVER_BUSY,
    reason_codes.SERVER_SHUTTING_DOWN,
    reason_codes.MESSAGE_RATE_TOO_HIGH,
    reason_codes.CONNECTION_RATE_EXCEEDED,
}
_WINDOW_MAX: Final = 65_535
_SEQUENCE_HEAD: Final = b"\x26" + data_types.text("producer-sequence")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message; `properties` in wire encoding without their length, without the producer's."""

    sequence: int
    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    properties: bytes = b""
    message_expiry_s: int = NO_EXPIRY


class _Passing(Exception):
    """Says that this connection is over; another one may do."""


class _PutAside(Exception):
    """Says that a message was refused and put aside: those behind it need another connection (idempotent producers)."""


class Publisher(ClientHandler):
    """The connection of one producer to a broker. `acknowledged` and `sent` count messages, repeats included in
    `sent`."""

    def __init__(
        self,
        address: BrokerAddress,
        producer_id: str,
        patience_s: float = 60.0,
        rate: float = 0.0,
        put_aside: Callable[[Outgoing, str], None] | None = None,
    ) -> None:
        """Begin without a connection. `patience_s`: how long to try without one acknowledgement; `rate`: messages a
        second at most, 0: no limit.

        `put_aside`: is told of every message that the broker refuses for good, and why; the others go on. Without it
        the first one ends the work.
        """
        super().__init__()
        self.sent = 0
        self.acknowledged = 0
        self._address = address
        self._client_id = producer_id
        self._patience_s = patience_s
        self._interval_s = 1 / rate if rate else 0.0
        self._due_s = 0.0  # when the next message may leave
        self._producer = b"\x26" + data_types.text("producer-id") + data_types.text(producer_id)
        self._socket: socket.socket | None = None
        self._protocol = ClientProtocol(self, VARINT_MAX + 5, 0)
        self._connack: Connack | None = None
        self._put_aside = put_aside
        self._forbidden: dict[str, str] = {}  # topic -> why: asked once
        self._window = 0
        self._window_now = _WINDOW_MAX  # small behind a refused message: more may follow, each a connection
        self._packet_bytes_max = VARINT_MAX + 5
        self._qos_max = 2
        self._retains = True
        self._last_id = 0
        self._waiting: dict[int, Outgoing] = {}  # by packet id, in the order sent
        self._again: deque[Outgoing] = deque()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._failure: Exception | None = None
        self._heard_s = 0.0
        self._pause_s = _WAIT_FIRST_S

    def publish(self, messages: Iterable[Outgoing]) -> None:
        """Send all messages, in order; returns when the last one is acknowledged.

        Raises BrokerRefused, BrokerUnreachable, Superseded.
        """
        source = iter(messages)
        more = True
        self._heard_s = time.monotonic()
        while more or self._waiting or self._again:
            try:
                if self._socket is None:
                    self._connect()
                more = self._fill(source, more)
                self._flush()
                self._read(self._idle_s(more))
            except _PutAside:
                self._begin_again()
            except (OSError, _Passing) as error:
                self._lost(error)

    def close(self) -> None:
        """Say goodbye."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.sendall(codec.encode_disconnect(5))
            self._hang_up()

    # One connection

    def _connect(self) -> None:
        connect = Connect(
            5, self._client_id, True, 0, username=self._address.username, password=self._address.password
        )
        self._failure = None
        self._last_id = 0
        self._protocol = ClientProtocol(self, VARINT_MAX + 5, 0)
        self._socket = self._address.dial(self._patience_s)
        self._socket.sendall(self._protocol.connect(connect))
        while self._connack is None:
            self._read(self._patience_s)
        self._admitted(self._connack)

    def _admitted(self, connack: Connack) -> None:
        if connack.reason_code:
            why = connack.properties.reason_string or reason_codes.name(connack.reason_code)
            if connack.reason_code in _PASSING:
                raise _Passing(f"the broker refused the connection: {why}")
            self._hang_up()
            raise BrokerRefused(
                f"broker {self._address.url} refused client {self._client_id}, "
                f"user {self._address.username or 'without a name'}: {why} (0x{connack.reason_code:02X})"
            )
        self._window = connack.properties.receive_maximum or 65_535
        self._packet_bytes_max = connack.properties.maximum_packet_size or VARINT_MAX + 5
        highest = connack.properties.maximum_qos
        self._qos_max = 2 if highest is None else highest
        self._retains = connack.properties.retain_available != 0

    def _fill(self, source: Iterator[Outgoing], more: bool) -> bool:
        """Encode what the window takes; False when `source` has ended."""
        while not self._is_full() and self._out_bytes < FLUSH_BYTES:
            if self._interval_s and not self._is_due():
                break
            if self._again:
                self._send(self._again.popleft())
                continue
            message = next(source, None) if more else None
            if message is None:
                return False
            if not self._waiting:
                self._heard_s = time.monotonic()  # until now there was nothing to hear
            self._send(message)
        return more

    def _is_full(self) -> bool:
        return len(self._waiting) >= min(self._window, self._window_now)

    def _is_due(self) -> bool:
        """Return whether the rate lets a message leave now; then the next one is due an interval later."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return False
        self._due_s = max(self._due_s, now_s - _BURST_S) + self._interval_s
        return True

    def _idle_s(self, more: bool) -> float:
        """Return how long there is nothing to do but to wait for the broker."""
        if self._is_full() or (self._waiting and not more and not self._again):
            return self._patience_s
        return max(0.0, self._due_s - time.monotonic()) if self._interval_s else 0.0

    def _send(self, message: Outgoing) -> None:
        if self._put_aside is not None and message.topic in self._forbidden:
            self._put_aside(message, self._forbidden[message.topic])
            return
        while True:
            self._last_id = self._last_id % 65_535 + 1
            if self._last_id not in self._waiting:
                break
        packet = codec.encode_publish(
            5,
            message.topic.encode(),
            message.payload,
            message.qos,
            message.retain,
            False,
            self._last_id,
            message.properties + self._producer + _SEQUENCE_HEAD + data_types.text(str(message.sequence)),
            message.message_expiry_s,
        )
        if len(packet) > self._packet_bytes_max:
            self._give_up_too_large(message, len(packet))
            return
        if message.qos > self._qos_max or (message.retain and not self._retains):
            self._give_up_unsupported(message)
            return
        self._waiting[self._last_id] = message
        self._put(packet)
        self.sent += 1

    def _give_up_too_large(self, message: Outgoing, size: int) -> None:
        if self._put_aside is None:
            raise _refused(message, f"{size} bytes, it takes {self._packet_bytes_max}", 0x95)
        self._put_aside(
            message, f"larger than the {self._packet_bytes_max} bytes that the broker takes (0x95)"
        )

    def _give_up_unsupported(self, message: Outgoing) -> None:
        """Give up a message that the broker, as its CONNACK says, would answer with the end of the connection."""
        code = reason_codes.RETAIN_NOT_SUPPORTED
        if message.qos > self._qos_max:
            code = reason_codes.QOS_NOT_SUPPORTED
        if self._put_aside is None:
            raise _refused(message, reason_codes.name(code), code)
        self._put_aside(message, f"{reason_codes.name(code)} (0x{code:02X})")

    def _put(self, packet: bytes) -> None:
        self._out.append(packet)
        self._out_bytes += len(packet)

    def _flush(self) -> None:
        if self._out and self._socket is not None:
            data = b"".join(self._out)
            self._out.clear()
            self._out_bytes = 0
            self._socket.sendall(data)

    def _read(self, wait_s: float) -> None:
        """Take what has arrived, or arrives within `wait_s`."""
        assert self._socket is not None
        pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()
        if not pending and not select.select([self._socket], [], [], wait_s)[0]:
            if wait_s >= self._patience_s:
                raise _Passing("it does not answer")
            return
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise _Passing("the broker closed the connection")
        self._protocol.receive_data(data)
        if self._failure is not None:
            raise self._failure

    def _lost(self, error: Exception) -> None:
        """Note that the connection is over: whatever waits is sent again, after a pause. Raises BrokerUnreachable."""
        self._begin_again()
        if time.monotonic() - self._heard_s > self._patience_s:
            raise BrokerUnreachable(
                f"no acknowledgement from broker {self._address.url} for {self._patience_s:.0f} s: {error}"
            ) from None
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _WAIT_MAX_S)

    def _begin_again(self) -> None:
        self._hang_up()
        self._again.extendleft(reversed(self._waiting.values()))
        self._waiting.clear()

    def _hang_up(self) -> None:
        self._protocol.stop()
        self._connack = None
        self._out.clear()
        self._out_bytes = 0
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # ClientHandler

    def on_connack(self, packet: Connack) -> None:
        self._connack = packet

    def on_puback(self, packet_id: int, reason_code: int) -> None:
        self._done(packet_id, reason_code)

    def on_pubrec(self, packet_id: int, reason_code: int) -> None:
        if reason_code >= 0x80:
            self._done(packet_id, reason_code)
        else:
            self._put(codec.encode_pubrel(5, packet_id))

    def on_pubcomp(self, packet_id: int, reason_code: int) -> None:
        self._done(packet_id, 0)

    def on_disconnect(self, packet: Disconnect) -> None:
        why = packet.properties.reason_string or reason_codes.name(packet.reason_code)
        if packet.reason_code == reason_codes.SESSION_TAKEN_OVER:
            self._fail(Superseded(f"client {self._client_id} connected again: another attempt took over"))
        else:
            self._fail(_Passing(f"the broker disconnected: {why}"))

    def on_protocol_error(self, error: ProtocolError) -> None:
        self._fail(_Passing(f"the broker broke the protocol: {error}"))

    def _done(self, packet_id: int, reason_code: int) -> None:
        if self._failure is not None:
            return  # behind a refused one nothing of a producer is taken
        message = self._waiting.get(packet_id)
        if message is None:
            return
        if reason_code >= 0x80:
            if reason_code in _PASSING:
                self._fail(_Passing(f"the broker takes nothing now: {reason_codes.name(reason_code)}"))
            else:
                self._refuse(packet_id, reason_code)
            return
        del self._waiting[packet_id]
        self.acknowledged += 1
        self._window_now = min(self._window_now + 1, _WINDOW_MAX)
        self._heard()

    def _refuse(self, packet_id: int, reason_code: int) -> None:
        """Give up a message that the broker will never take."""
        message, why = self._waiting[packet_id], reason_codes.name(reason_code)
        if self._put_aside is None:
            self._fail(_refused(message, why, reason_code))
            return
        del self._waiting[packet_id]
        reason = f"{why} (0x{reason_code:02X})"
        self._put_aside(message, reason)
        if reason_code == reason_codes.NOT_AUTHORIZED:
            self._forbidden[message.topic] = reason
        self._window_now = 1
        self._heard()
        self._fail(_PutAside())

    def _heard(self) -> None:
        self._heard_s = time.monotonic()
        self._pause_s = _WAIT_FIRST_S

    def _fail(self, failure: Exception) -> None:
        if self._failure is None:
            self._failure = failure


def _refused(message: Outgoing, why: str, reason_code: int) -> BrokerRefused:
    return BrokerRefused(
        f"the broker refused message {message.sequence} to topic {message.topic!r}: {why} (0x{reason_code:02X}); "
        "everything before it is published, nothing behind it"
    )
