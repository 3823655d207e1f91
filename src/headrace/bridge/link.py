"""The connection to the remote broker, as the core sees it: a link whose client happens to be a broker.

PUBLISH and its acknowledgements look the same in both directions of MQTT, so everything that makes them safe is the
core's: the session's serial numbers are the packet ids out, a message counts as delivered when the remote broker
acknowledges it, and what comes in is acknowledged when it is durable here. What is different is who says CONNECT,
SUBSCRIBE and PINGREQ, and that is this file::

    CONNECT -> CONNACK -> session attached, durable -> PUBLISH "1", SUBSCRIBE... -> their answers -> messages

Compiled with the core, like `net.connection`. What both do with their streams is in `links.stream_link`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from headrace.bridge.counters import BridgeCounters
from headrace.bridge.rendering import BridgeAccess, BridgeRendering
from headrace.bridge.suspect import PASSING, Suspect
from headrace.bridge.terms import Terms, refusal_of
from headrace.core.broker import Broker
from headrace.core.commit import Deferred
from headrace.core.inbound.bridging import Bridging
from headrace.core.outbound.reserving import reserve_chunk
from headrace.core.ports.access import LinkRights
from headrace.core.ports.timers import Timer
from headrace.core.state.inflight import NOT_IN_FLIGHT
from headrace.core.state.producers import without_producer
from headrace.core.state.queue import REF_QOS
from headrace.core.state.session import Session
from headrace.errors import ProtocolError
from headrace.links.stream_link import PENDING_BYTES_MAX, StreamLink
from headrace.mqtt import codec, packets
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.client_protocol import ClientHandler, ClientProtocol
from headrace.mqtt.data_types import shown_name
from headrace.mqtt.packets import Connack, Connect, Disconnect, Publish, Suback, SubscriptionRequest
from headrace.mqtt.properties import Properties
from headrace.sockets.plain import PlainTransport
from headrace.stream import UNLIMITED

if TYPE_CHECKING:
    import asyncio

STATE_ID: Final = (
    65_535  # the packet id of "1" on the state topic, which no message has; SUBSCRIBE uses those below
)
_SUBSCRIPTION_IDENTIFIER: Final = b"\x0b"


class RemoteLink(StreamLink):
    """One connection to the remote broker. `on_up` is called when messages may flow, `on_end` once, with the reason,
    when it is over, `on_drop` for a message that goes no further: in what way, its topic there, and why."""

    def __init__(
        self,
        broker: Broker,
        bridging: Bridging,
        session: Session,
        connect: Connect,
        terms: Terms,
        counters: BridgeCounters,
        suspect: Suspect,
        on_up: Callable[[bool], None],
        on_end: Callable[[str], None],
        on_drop: Callable[[str, str, str], None],
    ) -> None:
        super().__init__(broker.worker, PENDING_BYTES_MAX, UNLIMITED)
        self.broker = broker
        self.identity = session.tenant.identity_of(None)
        self._bridging = bridging
        self._for = session
        self._connect = connect
        self._terms = terms
        self._counters = counters
        self._on_up = on_up
        self._on_end = on_end
        self._on_drop = on_drop
        self._suspect = suspect
        self._present = False
        self._full_window: i64 = 0
        self._up_ms: i64 = 0
        self._sent: BridgeRendering | None = None  # what was sent and is not answered
        self._is_announced = False  # the remote broker was told that we are there
        self._awaited: dict[
            int, str
        ] = {}  # packet id -> filter whose SUBACK is due; "" for the state message
        self._ping: _Ping | None = None
        self._reason = ""
        self.version = connect.version
        self.unanswered = False
        self.refused_filters: list[str] = []
        self._remote = _Remote(self)
        aliases = connect.properties.topic_alias_maximum or 0
        self._protocol = ClientProtocol(self._remote, terms.packet_bytes_max, aliases)
        self._stream = self._protocol

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
        if not self._reason:
            lost += self._what_it_was_told()
            if error is None or isinstance(error, (ConnectionResetError, BrokenPipeError)):
                self._note_suspect()
        try:
            self.broker.on_connection_lost(self)
        finally:
            self._on_end(self._reason or lost)

    def _what_it_was_told(self) -> str:
        """Return what the handshake waited for, in words: remote brokers close for topics that they do not like."""
        for name in self._awaited.values():
            if name:
                return f" before it answered SUBSCRIBE to {name!r}"
            return f" before it acknowledged the state on {self._terms.state_topic!r}"
        return ""

    def _note_suspect(self) -> None:
        """Note which message the remote broker had not answered when it closed the connection."""
        rendering, queue = self._sent, self._for.queue
        if rendering is None or self.session is not self._for:
            return
        for packet_id, topic in rendering.unanswered.items():
            serial: i64 = 0 if queue is None else queue.serial_of(packet_id)
            if serial:
                self._suspect.closed_at(serial, topic)
                return
        if self.ready:
            self._suspect.closed_idle(self.worker.clock.mono_ms - self._up_ms)

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
        window: i64 = min(self._terms.inflight_max, self.identity.limits.inflight_max)
        if properties.receive_maximum is not None:
            window = min(window, properties.receive_maximum)
        self._full_window = window
        self.chunk = reserve_chunk(int(window))
        self.max_packet_size = properties.maximum_packet_size or 0
        trace = self._terms.trace if self.version == packets.VERSION_5 else b""
        retain = properties.retain_available != 0
        self._sent = BridgeRendering(self._terms.topics, trace, retain, self._counters)
        self.rendering = self._sent
        self._send_alone(self._suspect.is_alone)
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
        self._begin_once_answered()

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
        self._begin_once_answered()

    def on_puback(self, packet_id: int, reason_code: int) -> None:
        if self._awaited and self._awaited.pop(packet_id, None) is not None:
            self._begin_once_answered()
            return
        self._answered(packet_id, reason_code)
        self.broker.on_puback(self, packet_id, reason_code)

    def on_pubrec(self, packet_id: int, reason_code: int) -> None:
        self._answered(packet_id, reason_code)
        self.broker.on_pubrec(self, packet_id, reason_code)

    def _answered(self, packet_id: int, reason_code: int) -> None:
        """Note that the remote broker has a message, or does not want it: that is the end of it, and it is said."""
        if self._suspect.is_alone:
            self._suspect.clear()
            self._send_alone(False)
        topic = b"" if self._sent is None else self._sent.unanswered.pop(packet_id, b"")
        if reason_code >= rc.UNSPECIFIED_ERROR:
            self._on_drop("refused by the remote broker", shown_name(topic), rc.name(reason_code))

    def _send_alone(self, is_alone: bool) -> None:
        """Send one message at a time and none of QoS 0, or as many as the remote broker takes."""
        self.window = 1 if is_alone else self._full_window
        if self._sent is not None:
            self._sent.is_alone = is_alone

    def _give_up_suspect(self) -> None:
        """Give up the message at which the remote broker has closed so many connections: it counts as refused."""
        suspect, queue = self._suspect, self._for.queue
        if not suspect.is_given_up or queue is None:
            return
        serial, topic, times = suspect.serial, shown_name(suspect.topic), int(suspect.times)
        suspect.clear()
        self._send_alone(False)
        ref = queue.inflight.get(serial)
        if ref == NOT_IN_FLIGHT or queue.inflight.is_received(serial):
            return
        packet_id = queue.packet_id(serial)
        if ref & REF_QOS == 1:
            self.broker.on_puback(self, packet_id, rc.UNSPECIFIED_ERROR)
        else:
            self.broker.on_pubrec(self, packet_id, rc.UNSPECIFIED_ERROR)
        self._on_drop("given up", topic, f"the remote broker closed {times} connections at it")

    def _begin_once_answered(self) -> None:
        """Go on when everything of the handshake is answered: NOT-ACKED first, then the backlog, then live."""
        if self._awaited or self.ready:
            return
        self._give_up_suspect()
        self.ready = True
        self._up_ms = self.worker.clock.mono_ms
        self._bridging.resumed(self, self._for)
        if not self._suspect.spares_retained():
            self._bridging.send_retained(self, self._for)
        elif not self._suspect.is_alone:
            why = "the remote broker closed each connection on which they were"
            self._on_drop("left out", "of all that are retained at QoS 0", why)
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

    def on_odd_publish(self, packet: Publish) -> None:
        """Refuse a message whose topic would be in logs and paths what no name may be: the next ones are wanted."""
        self._counters.received += 1
        self._counters.odd += 1
        self._bridging.refuse(self._for, self, packet.qos, packet.packet_id)
        self._on_drop(
            "not taken in", shown_name(packet.topic), "control character or noncharacter in a topic"
        )

    def _settle(self, packet: Publish) -> None:
        """Acknowledge without taking, in its place behind earlier acknowledgements."""
        if packet.qos:
            self._bridging.settle(self, packet.qos, packet.packet_id)

    def on_protocol_error(self, error: ProtocolError) -> None:
        self._reason = self._reason or f"protocol error: {error}"
        self.broker.on_protocol_error(self, error)

    def disconnected(self, packet: Disconnect) -> None:
        why = packet.properties.reason_string or rc.name(packet.reason_code)
        if packet.reason_code not in PASSING:
            self._note_suspect()
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

    def on_odd_publish(self, packet: Publish) -> bool:
        self._link.on_odd_publish(packet)
        return True

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
