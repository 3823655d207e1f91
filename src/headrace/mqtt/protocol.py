"""The server's side of a connection: bytes in, calls of a `ServerHandler` out. No I/O, no clock."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from headrace.errors import ProtocolError
from headrace.mqtt import packets, states
from headrace.mqtt.codec import encode_connack, encode_disconnect
from headrace.mqtt.connect import decode_connect, protocol_level
from headrace.mqtt.data_types import read_u16
from headrace.mqtt.decoder import Filters, decode_auth, decode_disconnect
from headrace.mqtt.framing import PacketStream, PeerHandler, no_content, reserved_flags
from headrace.mqtt.packets import Auth, Connect, Disconnect, Subscribe, Unsubscribe, plain_publish
from headrace.mqtt.properties import Properties


@mypyc_attr(allow_interpreted_subclasses=True)
class ServerHandler(PeerHandler):
    """What a client sent. `on_protocol_error` comes at most once, and nothing after it."""

    def on_connect(self, packet: Connect) -> None: ...

    def on_plain_publish(self, topic: bytes, packet: bytes, payload_at: i64) -> None:
        """Handle a PUBLISH at QoS 0, neither retained nor with properties: the whole packet, and where its payload
        begins."""
        self.on_publish(plain_publish(topic, packet, payload_at))

    def on_subscribe(self, packet: Subscribe) -> None: ...

    def on_unsubscribe(self, packet: Unsubscribe) -> None: ...

    def on_pingreq(self) -> None: ...

    def on_disconnect(self, packet: Disconnect) -> None: ...

    def on_auth(self, packet: Auth) -> None: ...


_PLAIN_PUBLISH: Final = 0x30  # its first byte: QoS 0, not retained
_FILTER_WORK: Final = 2  # of a filter, in small packets: it goes through the journal
_ASKING_WORK: Final = 4  # of a packet or part with filters, beside them: a record, and an answer behind it
_FILTERS_LEAST: Final = 16  # that are handled at once, however little a call may do
_NOBODY: Final = ServerHandler()
# What a stranger may make us hold: the longest client id, user name, password, will topic and will payload together.
CONNECT_BYTES_MAX: Final = 512 << 10


class ServerProtocol(PacketStream):
    """Parses what one client sends.

    A handler method may raise ProtocolError: it is reported like one of the parser's own. After a CONNECT
    with an Authentication Method only AUTH and DISCONNECT pass until `authenticated` is called.
    """

    def __init__(self, handler: ServerHandler, max_packet_size: int, topic_alias_maximum: int) -> None:
        super().__init__(
            handler, states.SERVER_MAY, min(max_packet_size, CONNECT_BYTES_MAX), topic_alias_maximum, False
        )
        self._size_after_connect: i64 = max_packet_size
        self._handler = handler
        self._method: str | None = None
        self._session_ends_with_connection = False
        self.reason_strings = False
        self._wants_reasons = True
        self._client_limit: i64 = 0
        self._filters: Filters | None = None  # of a packet that is handled in parts
        self._subscribed: Subscribe | None = None  # its last part
        self._unsubscribed: Unsubscribe | None = None

    def stop(self) -> None:
        """Ignore whatever comes, and let go of the handler: the two would keep each other alive."""
        super().stop()
        self._handler = _NOBODY
        self._peer = _NOBODY
        self._filters = None

    def hand_to(self, handler: ServerHandler) -> None:
        """Call `handler` from the next packet on; nobody, once the stream has stopped."""
        if self._handler is not _NOBODY:
            self._handler = handler
            self._peer = handler

    def authenticated(self) -> None:
        """Note that the CONNACK of an extended authentication was sent: every packet is allowed now."""
        if self.state == states.AUTHENTICATING:
            self.state = states.CONNECTED_WITH_METHOD

    def refusal(self, error: ProtocolError, ready: bool) -> bytes:
        if error.silent:
            return b""
        if self.version == 0:
            return _refusal_of_version(error)
        if self.version == 5:
            return self._refusal_5(error, ready)
        if ready:
            return b""
        return encode_connack(self.version, False, error.connack_code, None) if error.connack_code else b""

    def _refusal_5(self, error: ProtocolError, connack_sent: bool) -> bytes:
        """Encode a refusal, with a Reason String where the broker gives them, the client did not decline them
        [MQTT-3.1.2-29] and it fits [MQTT-3.14.2-3]."""
        properties: Properties | None = None
        if self.reason_strings and (self._wants_reasons or not connack_sent):
            properties = Properties()
            properties.reason_string = error.message
        encoded = self._encode_refusal(error.reason_code, connack_sent, properties)
        if properties is not None and self._client_limit and len(encoded) > self._client_limit:
            encoded = self._encode_refusal(error.reason_code, connack_sent, None)
        return b"" if self._client_limit and len(encoded) > self._client_limit else encoded  # [MQTT-3.1.2-24]

    def _encode_refusal(self, reason_code: int, connack_sent: bool, properties: Properties | None) -> bytes:
        if connack_sent:
            return encode_disconnect(packets.VERSION_5, reason_code, properties)
        return encode_connack(packets.VERSION_5, False, reason_code, properties)

    def _publish(self, data: bytes, first: i64, start: i64, pos: i64, end: i64) -> None:
        payload_at = _payload_of_plain(data, first, pos, end, self.version)
        if payload_at < 0:
            super()._publish(data, first, start, pos, end)
            return
        topic = self._aliases.topic_at(data, pos + 2, read_u16(data, pos, end))
        self._handler.on_plain_publish(topic, data[start:end], payload_at - start)

    def _other_packet(self, first: i64, data: bytes, pos: i64, end: i64) -> None:
        handler = self._handler
        packet_type: i64 = first >> 4
        if packet_type == packets.PINGREQ:
            if pos != end:
                raise no_content(packet_type)
            handler.on_pingreq()
        elif packet_type in (packets.SUBSCRIBE, packets.UNSUBSCRIBE):
            self._filters = Filters(data, pos, end, self.version, packet_type)
            self._next_part()
        elif packet_type == packets.CONNECT:
            self._connect(first & 15, data, pos, end)
        elif packet_type == packets.DISCONNECT:
            self._disconnect(data, pos, end)
        else:
            self._auth(data, pos, end)

    def _next_part(self) -> None:
        """Handle as many filters of a SUBSCRIBE or UNSUBSCRIBE as this call may. Who asks for more is served in
        parts, as if several packets had come [MQTT-3.8.4-5]: what is wrong in a later one undoes nothing."""
        filters = self._filters
        if filters is None:
            return
        most: i64 = max(_FILTERS_LEAST, self._left // _FILTER_WORK)
        if filters.packet_type == packets.SUBSCRIBE:
            asked = filters.subscribe(most, self._subscribed)
            self._note_part(asked.more, len(asked.filters))
            self._subscribed = asked if asked.more else None
            self._handler.on_subscribe(asked)
        else:
            left = filters.unsubscribe(most, self._unsubscribed)
            self._note_part(left.more, len(left.filters))
            self._unsubscribed = left if left.more else None
            self._handler.on_unsubscribe(left)

    def _note_part(self, more: bool, count: i64) -> None:
        self.spend(_ASKING_WORK + _FILTER_WORK * count)
        self._unfinished = more
        if more:
            self._left = 0
        else:
            self._filters = None

    def _connect(self, flags: i64, data: bytes, pos: i64, end: i64) -> None:
        self.version = protocol_level(data, pos, end)
        if flags and self.version > packets.VERSION_3_1:
            raise reserved_flags()
        packet = decode_connect(data, pos, end, self.version)
        self._method = packet.properties.authentication_method
        self._session_ends_with_connection = not packet.properties.session_expiry_interval
        self._wants_reasons = packet.properties.request_problem_information != 0
        self._client_limit = packet.properties.maximum_packet_size or 0
        self._max_packet_size = self._size_after_connect
        self.state = states.CONNECTED if self._method is None else states.AUTHENTICATING
        self._handler.on_connect(packet)

    def _disconnect(self, data: bytes, pos: i64, end: i64) -> None:
        packet = decode_disconnect(data, pos, end, self.version)
        if packet.properties.session_expiry_interval and self._session_ends_with_connection:
            raise ProtocolError(0x82, "DISCONNECT sets a Session Expiry Interval that CONNECT did not")
        self.state = states.CLOSED  # [MQTT-3.14.4-1]
        self._handler.on_disconnect(packet)

    def _auth(self, data: bytes, pos: i64, end: i64) -> None:
        packet = decode_auth(data, pos, end)
        if packet.properties.authentication_method != self._method:
            # [MQTT-4.12.0-5] [MQTT-4.12.1-1]
            raise ProtocolError(0x82, "AUTH changes the Authentication Method")
        self._handler.on_auth(packet)


def _payload_of_plain(data: bytes, first: i64, pos: i64, end: i64, version: i64) -> i64:
    """Return where the payload of a plain PUBLISH begins, -1 if it is none. One with a longer Remaining Length than
    needed is none either: as it came it must not go to others [MQTT-1.5.5-1]."""
    if first != _PLAIN_PUBLISH or data[pos - 1] == 0 or pos + 3 > end:
        return -1
    topic_size = read_u16(data, pos, end)
    payload_at: i64 = pos + 2 + topic_size
    if version == packets.VERSION_5:
        payload_at += 1
    if topic_size == 0 or payload_at > end:
        return -1
    if version == packets.VERSION_5 and data[payload_at - 1]:
        return -1
    return payload_at


def _refusal_of_version(error: ProtocolError) -> bytes:
    """Return the refusal of a CONNECT: a level that nobody speaks is answered as MQTT 5 would, a level under the wrong
    name as 3.1.1 does."""
    if error.reason_code != 0x84:
        return b""
    if error.connack_code:
        return encode_connack(packets.VERSION_3_1_1, False, error.connack_code, None)
    return encode_connack(packets.VERSION_5, False, error.reason_code, None)
