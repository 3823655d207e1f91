"""The client's side of a connection: bytes in, calls of a `ClientHandler` out. No I/O, no clock.

It shares the parse loop with the server; only the table of states and the packets of one side differ.
"""

from __future__ import annotations

from mypy_extensions import i64, mypyc_attr

from headrace.errors import OddName, ProtocolError
from headrace.mqtt import packets, states
from headrace.mqtt.codec import encode_connect, encode_disconnect
from headrace.mqtt.data_types import name_is_clean, read_u16, shown_name
from headrace.mqtt.decoder import (
    decode_auth,
    decode_connack,
    decode_disconnect,
    decode_suback,
    decode_unsuback,
)
from headrace.mqtt.framing import PacketStream, PeerHandler, no_content
from headrace.mqtt.packets import Auth, Connack, Connect, Disconnect, Publish, Suback, Unsuback
from headrace.mqtt.publish import decode_odd_publish, decode_publish


@mypyc_attr(allow_interpreted_subclasses=True)
class ClientHandler(PeerHandler):
    """What a server sent."""

    def on_connack(self, packet: Connack) -> None: ...

    def on_suback(self, packet: Suback) -> None: ...

    def on_unsuback(self, packet: Unsuback) -> None: ...

    def on_pingresp(self) -> None: ...

    def on_disconnect(self, packet: Disconnect) -> None: ...

    def on_auth(self, packet: Auth) -> None: ...

    def on_odd_publish(self, packet: Publish) -> bool:
        """Settle a PUBLISH whose topic or Response Topic has characters that it should not have; it has no properties and
        no payload. Returns whether that is done: else the connection ends [MQTT-1.5.4]."""
        return False


class ClientProtocol(PacketStream):
    """Parses what one server sends, from the CONNACK on. The two maxima are what this client accepts."""

    def __init__(self, handler: ClientHandler, max_packet_size: int, topic_alias_maximum: int) -> None:
        super().__init__(handler, states.CLIENT_MAY, max_packet_size, topic_alias_maximum, True)
        self._handler = handler
        self._clean_start = True
        self._is_odd = False  # an odd topic has come: one of the aliases may stand for it

    def connect(self, packet: Connect) -> bytes:
        """Return the bytes of the CONNECT; from now on the server's answers are parsed in its version."""
        self.version = packet.version
        self._clean_start = packet.clean_start
        with_method = packet.properties.authentication_method is not None
        self.state = states.AUTHENTICATING if with_method else states.AWAITING_CONNECT
        return encode_connect(packet)

    def refusal(self, error: ProtocolError) -> bytes:
        """Return what to send before the connection is closed because of `error`."""
        if self.version != packets.VERSION_5 or error.silent:
            return b""
        return encode_disconnect(self.version, error.reason_code, None)

    def _publish(self, data: bytes, first: i64, start: i64, pos: i64, end: i64) -> None:
        """Hand a PUBLISH on. What is wrong with it names its topic: nobody could find the message otherwise."""
        try:
            try:
                packet = decode_publish(data, first & 15, pos, end, self.version, self._aliases, True)
            except OddName:
                self._is_odd = True
                packet = decode_odd_publish(data, first & 15, pos, end, self.version, self._aliases)
                self._settle_odd(packet)
                return
            if self._is_odd and not name_is_clean(packet.topic.decode("utf-8")):
                self._settle_odd(packet)
                return
        except ProtocolError as error:
            stop = pos + 2 + (read_u16(data, pos, end) if end - pos > 1 else 0)
            shown = shown_name(data[pos + 2 : min(stop, end)])
            error.message = f"{error.message}, topic {shown}"  # mypyc knows no += of an exception's attribute
            raise
        self._handler.on_publish(packet)

    def _settle_odd(self, packet: Publish) -> None:
        if not self._handler.on_odd_publish(packet):
            raise OddName("control character or non-character in a name")

    def _other_packet(self, first: i64, data: bytes, pos: i64, end: i64) -> None:
        handler = self._handler
        packet_type: i64 = first >> 4
        if packet_type == packets.SUBACK:
            handler.on_suback(decode_suback(data, pos, end, self.version))
        elif packet_type == packets.UNSUBACK:
            handler.on_unsuback(decode_unsuback(data, pos, end, self.version))
        elif packet_type == packets.PINGRESP:
            if pos != end:
                raise no_content(packet_type)
            handler.on_pingresp()
        elif packet_type == packets.CONNACK:
            self._connack(data, pos, end)
        elif packet_type == packets.DISCONNECT:
            self._disconnect(data, pos, end)
        else:
            handler.on_auth(decode_auth(data, pos, end))

    def _connack(self, data: bytes, pos: i64, end: i64) -> None:
        packet = decode_connack(data, pos, end, self.version)
        if packet.session_present and self._clean_start:
            raise ProtocolError(0x82, "session present after a clean start")  # [MQTT-3.2.2-4]
        if packet.reason_code:
            self.state = states.CLOSED
        elif self.state == states.AUTHENTICATING:
            self.state = states.CONNECTED_WITH_METHOD
        else:
            self.state = states.CONNECTED
        self._handler.on_connack(packet)

    def _disconnect(self, data: bytes, pos: i64, end: i64) -> None:
        if self.version != packets.VERSION_5:
            raise ProtocolError(0x82, "DISCONNECT from a server before version 5")
        packet = decode_disconnect(data, pos, end, self.version)
        self.state = states.CLOSED
        self._handler.on_disconnect(packet)
