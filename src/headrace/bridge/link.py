"""The connection to the remote broker, as the core sees it: a link whose client happens to be a broker.

PUBLISH and its acknowledgements look the same in both directions of MQTT, so everything that makes them safe is the
core's: the session's serial numbers are the packet ids out, a message counts as delivered when the remote broker
acknowledges it, and what comes in is acknowledged when it is durable here. What is different is who says CONNECT,
SUBSCRIBE and PINGREQ, and that is this file::

    CONNECT -> CONNACK -> session attached, durable -> PUBLISH "1", SUBSCRIBE... -> their answers -> messages

Compiled with the core, like `net.connection`. What both do with their streams is in `stream_link`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from headrace.bridge.counters import BridgeCounters
from headrace.bridge.rendering import BridgeAccess, BridgeRendering
from headrace.bridge.terms import Terms, refusal_of
from headrace.core.broker import Broker
from headrace.core.commit import Deferred
from headrace.core.inbound.bridging import Bridging
from headrace.core.outbound.reserving import reserve_chunk
from headrace.core.ports.access import LinkRights
from headrace.core.ports.timers import Timer
from headrace.core.state.producers import without_producer
from headrace.core.state.session import Session
from headrace.errors import ProtocolError
from headrace.mqtt import codec, packets
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.client_protocol import ClientHandler, ClientProtocol
from headrace.mqtt.packets import Connack, Connect, Disconnect, Publish, Suback, SubscriptionRequest
from headrace.mqtt.properties import Properties
from headrace.sockets.plain import PlainTransport
from headrace.stream import UNLIMITED
from headrace.stream_link import PENDING_BYTES_MAX, StreamLink

if TYPE_CHECKING:
    import asyncio

STATE_ID: Final = (
    65_535  # the packet id of "1" on the state topic, which no message has; SUBSCRIBE uses those below
)
_SUBSCRIPTION_IDENTIFIER: Final = b"\x0b"


class RemoteLink(StreamLink):
    """One connection to the remote broker. `on_up` is called when messages may flow, `on_end` once, with the reason,
    when it is over."""

    def __init__(
        self,
        broker: Broker,
        bridging: Bridging,
        session: Session,
        connect: Connect,
        terms: Terms,
        counters: BridgeCounters,
        on_up: Callable[[bool], None],
        on_end: Callable[[str], None],
    ) -> None:
        super().__init__(broker.worker, PENDING_BYTES_MAX, UNLIMITED)
        self.broker = broker
        self._bridging = bridging
        self._for = session
        self._connect = connect
        self._terms = terms
        self._counters = counters
        self._on_up = on_up
        self._on_end = on_end
        self._remote = _Remote(self)
        aliases = connect.properties.topic_alias_maximum or 0
        self._protocol = ClientProtocol(self._remote, terms.packet_bytes_max, aliases)
        self._stream = self._protocol
        self._present = False
        self._is_announced = False  # the remote broker was told that we are there
        self._awaited: dict[
            int, str
        ] = {}  # packet id -> filter whose SUBACK is due; "" for the state message
        self._ping: _Ping | None = None
        self._reason = ""
        self.version = connect.version
        self.unanswered = False
        self.refused_filters: list[str] = []

    # asyncio.Protocol

    def connection_made(self, transport: PlainTransport | asyncio.Transport) -> None:
        super().connection_made(transport)
        transport.write(self._protocol.connect(self._connect))

    def failed(self, error: Exception) -> None:
        """End the connection after an exception that nobody expected; the next attempt comes as after any end."""
        self._reason = self._reason or f"{type(error).__name__}: {error}"
        self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._stop_ping()
        lost = str(error) if error is not None else "the remote broker closed the connection"
        try:
            self.broker.on_connection_lost(self)
        finally:
            self._on_end(self._reason or lost)

    # Link

    def cut_unread(self) -> None:
        self._reason = self._reason or "the remote broker does not read what it is sent"
        self.abort()

    def close(self) -> None:
        self.closed = True
        self._stop_ping()
        super().close()

    def refuse(self, error: ProtocolError) -> None:
        answer = self._protocol.refusal(error)
        if answer:
            self.send(answer)

    def peer(self) -> str:
        transport = self._transport
        return "" if transport is None else str(transport.get_extra_info("peername"))

    # The handshake

    def accepted(self, packet: Connack) -> None:
        """Take the limits of a CONNACK over and attach the session, or give up with the reason."""
        properties = packet.properties
        refusal = refusal_of(packet, int(self.version), self._terms.out_qos)
        if refusal:
            self.fail(refusal)
            return
        self._present = packet.session_present
        window: i64 = min(self._terms.inflight_max, self.worker.settings.inflight_max)
        if properties.receive_maximum is not None:
            window = min(window, properties.receive_maximum)
        self.window = window
        self.chunk = reserve_chunk(int(window))
        self.max_packet_size = properties.maximum_packet_size or 0
        trace = self._terms.trace if self.version == packets.VERSION_5 else b""
        retain = properties.retain_available != 0
        self.rendering = BridgeRendering(self._terms.topics, trace, retain, self._counters)
        self.rights = LinkRights(BridgeAccess(self._terms.topics), self)
        keep_alive_s = properties.server_keep_alive
        self._start_ping(self._connect.keep_alive_s if keep_alive_s is None else keep_alive_s)
        attached = _Attached(self)
        self._bridging.attach(self, self._for, int(self.version), not packet.session_present, attached)

    def attached(self) -> None:
        """Note that the session is ours, durably: say that we are there, and ask for what is to come in.

        Not before: a remote broker without a session for us sends nothing until it is asked, and by now the packet ids
        of an older one are forgotten.
        """
        if self.closed or self._for.link is not self:
            return
        terms, version = self._terms, int(self.version)
        if terms.state_topic:
            self._awaited[STATE_ID] = ""
            self._is_announced = True
            topic = terms.state_topic.encode("utf-8")
            self.send(codec.encode_publish(version, topic, b"1", 1, True, False, STATE_ID))
        packet_id = STATE_ID
        for name, qos in terms.filters.items():
            packet_id = self._free_below(packet_id)
            # 5: nothing of our own comes back, and retained messages come once, not at every reconnection.
            request = SubscriptionRequest(name, qos, True, True, 1)
            self._awaited[packet_id] = name
            self.send(codec.encode_subscribe(version, packet_id, [request]))
        self._go_on()

    def _free_below(self, packet_id: int) -> int:
        """Return the next packet id downwards that no message in flight has."""
        queue = self._for.queue
        packet_id -= 1
        while queue is not None and queue.serial_of(packet_id):
            packet_id -= 1
        return packet_id

    def subscribed(self, packet: Suback) -> None:
        name = self._awaited.pop(packet.packet_id, "")
        if name and packet.reason_codes[0] > 2:
            self.refused_filters.append(name)
        self._go_on()

    def on_puback(self, packet_id: int, reason_code: int) -> None:
        if self._awaited and self._awaited.pop(packet_id, None) is not None:
            self._go_on()
            return
        self.broker.on_puback(self, packet_id, reason_code)

    def _go_on(self) -> None:
        """Go on when everything of the handshake is answered: NOT-ACKED first, then the backlog, then live."""
        if self._awaited or self.ready:
            return
        self.ready = True
        self._bridging.resumed(self, self._for)
        self._bridging.send_retained(self, self._for)
        self._on_up(self._present)

    def fail(self, reason: str) -> None:
        """End the link for this reason."""
        self._reason = self._reason or reason
        self.broker.on_connection_lost(self)
        self.close()

    def say_goodbye(self) -> None:
        """We are stopping: the remote broker learns it, and knows that the will is not meant."""
        if self.session is not None and self._is_announced:
            packet_id = STATE_ID
            while packet_id in self._awaited:  # "1" is not acknowledged yet
                packet_id = self._free_below(packet_id)
            topic = self._terms.state_topic.encode("utf-8")
            self.send(codec.encode_publish(int(self.version), topic, b"0", 1, True, False, packet_id))
        if self._transport is not None:
            self.send(codec.encode_disconnect(int(self.version)))
        self.fail("stopped")

    # Messages

    def on_publish(self, packet: Publish) -> None:
        """Take a message of the remote broker, unless it came from here or no rule wants it: then it is settled at
        once."""
        terms, counters = self._terms, self._counters
        counters.received += 1
        if packet.properties and terms.trace in packet.properties:
            counters.loops += 1
            self._settle(packet)
            return
        topic = terms.topics.inward(packet.topic)
        if not topic:
            counters.unmatched += 1
            self._settle(packet)
            return
        packet.topic = topic
        if _SUBSCRIPTION_IDENTIFIER in packet.properties:
            packet.properties = _without_identifiers(packet.properties)
        if packet.properties:
            packet.properties = without_producer(
                packet.properties
            )  # which are of others, behind the remote broker
        if self.version == packets.VERSION_5:
            packet.properties += terms.trace
        try:
            self.broker.on_publish(self, packet)
        except ProtocolError as error:
            # The remote broker passes on what its publishers say of a payload: no reason to part, and to part again.
            if error.reason_code != rc.PAYLOAD_FORMAT_INVALID:
                raise

    def _settle(self, packet: Publish) -> None:
        """Acknowledge without taking, in its place behind earlier acknowledgements."""
        if packet.qos:
            self._bridging.settle(self, packet.qos, packet.packet_id)

    def on_protocol_error(self, error: ProtocolError) -> None:
        self._reason = self._reason or f"protocol error: {error}"
        self.broker.on_protocol_error(self, error)

    def disconnected(self, packet: Disconnect) -> None:
        why = packet.properties.reason_string or rc.name(packet.reason_code)
        self.fail(f"the remote broker disconnected: {why}")

    # Keep alive

    def _start_ping(self, keep_alive_s: int) -> None:
        if keep_alive_s:
            self._ping = _Ping(self, keep_alive_s * 1000)
            self.worker.timers.schedule(self.worker.clock.mono_ms + keep_alive_s * 1000, self._ping)

    def _stop_ping(self) -> None:
        if self._ping is not None:
            self._ping.cancel()
            self._ping = None

    def ping(self) -> bool:
        """Ask whether the remote broker is still there; False when it has not answered the last time."""
        if self.unanswered and not self.deaf():
            self._reason = self._reason or "no PINGRESP within the keep alive"
            self.abort()
            return False
        self.unanswered = True
        self.send(codec.PINGREQ)
        return True


def _without_identifiers(properties: bytes) -> bytes:
    """Return the properties without Subscription Identifiers, which belong to the subscription that brought the
    message."""
    found = Properties.decode(properties, 0, len(properties), packets.PUBLISH)
    found.subscription_identifiers = []
    return found.encode()


class _Remote(ClientHandler):
    """What the remote broker sends, handed to the link."""

    def __init__(self, link: RemoteLink) -> None:
        self._link = link

    def on_connack(self, packet: Connack) -> None:
        self._link.accepted(packet)

    def on_suback(self, packet: Suback) -> None:
        self._link.subscribed(packet)

    def on_pingresp(self) -> None:
        self._link.unanswered = False

    def on_publish(self, packet: Publish) -> None:
        self._link.on_publish(packet)

    def on_puback(self, packet_id: int, reason_code: int) -> None:
        self._link.on_puback(packet_id, reason_code)

    def on_pubrec(self, packet_id: int, reason_code: int) -> None:
        self._link.on_pubrec(packet_id, reason_code)

    def on_pubrel(self, packet_id: int, reason_code: int) -> None:
        self._link.on_pubrel(packet_id, reason_code)

    def on_pubcomp(self, packet_id: int, reason_code: int) -> None:
        self._link.on_pubcomp(packet_id, reason_code)

    def on_disconnect(self, packet: Disconnect) -> None:
        self._link.disconnected(packet)

    def on_protocol_error(self, error: ProtocolError) -> None:
        self._link.on_protocol_error(error)


class _Attached(Deferred):
    """Knows when it is durable that the session is attached."""

    def __init__(self, link: RemoteLink) -> None:
        super().__init__(link)
        self._link = link

    def run(self) -> None:
        self._link.attached()


class _Ping(Timer):
    def __init__(self, link: RemoteLink, interval_ms: int) -> None:
        super().__init__()
        self._link = link
        self._interval_ms = interval_ms

    def fire(self, now_ms: int) -> None:
        if self._link.ping():
            self._link.worker.timers.schedule(now_ms + self._interval_ms, self)
