"""Everything that is not CONNECT, PUBLISH or an acknowledgement: from the bytes of one packet to its object.

Each function gets the buffer, the position behind the fixed header and the end of the packet, and has to
arrive at the end exactly: bytes left over are a Malformed Packet.
"""

from __future__ import annotations

from mypy_extensions import i64

from headrace.errors import MalformedPacket, ProtocolError
from headrace.mqtt import packets
from headrace.mqtt.data_types import decode_name, read_binary, read_u16
from headrace.mqtt.packets import (
    Auth,
    Connack,
    Disconnect,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from headrace.mqtt.properties import Properties, read_properties
from headrace.mqtt.topics import in_long_form, malformed_filter, share_error


def expect_end(pos: i64, end: i64) -> None:
    if pos != end:
        raise MalformedPacket("bytes left over at the end of the packet")


def _packet_id(buf: bytes, pos: i64, end: i64) -> i64:
    packet_id = read_u16(buf, pos, end)
    if packet_id == 0:
        raise MalformedPacket("packet identifier 0")  # [MQTT-2.2.1-3]
    return packet_id


class Filters:
    """A SUBSCRIBE or UNSUBSCRIBE, whose filters are decoded some at a time: many small packets in one (MQTT-3.8.4-5)."""

    def __init__(self, buf: bytes, pos: i64, end: i64, version: i64, packet_type: i64) -> None:
        self.packet_type: i64 = packet_type
        self._buf = buf
        self._end: i64 = end
        self._version: i64 = version
        self._packet_id = _packet_id(buf, pos, end)
        self._properties = Properties()
        pos += 2
        if version == 5:
            self._properties, pos = read_properties(buf, pos, end, packet_type)
        if pos >= end:  # [MQTT-3.8.3-2] [MQTT-3.10.3-2]
            raise MalformedPacket(f"{packets.NAMES[packet_type]} without a topic filter")
        self._pos: i64 = pos

    @property
    def done(self) -> bool:
        return self._pos >= self._end

    def subscribe(self, most: i64, before: Subscribe | None = None) -> Subscribe:
        """Return the next filters, so many at most; `before` is the part that came last."""
        identifiers = self._properties.subscription_identifiers
        packet = Subscribe(self._packet_id, [], identifiers[0] if identifiers else 0, self._properties)
        while self._pos < self._end and most > 0:
            most -= 1
            raw = self._next()
            if self._pos >= self._end:
                raise MalformedPacket("topic filter without options")
            packet.filters.append(_request(_filter(raw), self._buf[self._pos], self._version))
            self._pos += 1
        packet.more = self._pos < self._end
        packet.answer = None if before is None else before.answer
        return packet

    def unsubscribe(self, most: i64, before: Unsubscribe | None = None) -> Unsubscribe:
        """Return the next filters of an UNSUBSCRIBE, as `subscribe` does."""
        packet = Unsubscribe(self._packet_id, [], self._properties)
        while self._pos < self._end and most > 0:
            most -= 1
            packet.filters.append(_filter(self._next()))
        packet.more = self._pos < self._end
        packet.answer = None if before is None else before.answer
        return packet

    def _next(self) -> bytes:
        raw = read_binary(self._buf, self._pos, self._end)
        self._pos += 2 + len(raw)
        return raw


def decode_subscribe(buf: bytes, pos: i64, end: i64, version: i64) -> Subscribe:
    return Filters(buf, pos, end, version, packets.SUBSCRIBE).subscribe(end)


def _filter(raw: bytes) -> str:
    topic_filter = in_long_form(decode_name(raw))  # [MQTT-3.8.3-1] [MQTT-3.10.3-1]
    wrong = malformed_filter(topic_filter)
    if wrong:
        raise MalformedPacket(wrong)
    wrong = share_error(topic_filter)
    if wrong:
        raise ProtocolError(0x82, wrong)
    return topic_filter


def _request(topic_filter: str, options: i64, version: i64) -> SubscriptionRequest:
    qos: i64 = options & 3
    handling: i64 = options >> 4 & 3
    if version != 5:
        if options > 2:
            raise MalformedPacket("QoS 3 or reserved bits in a subscription")  # [MQTT-3-8.3-4] of 3.1.1
        return SubscriptionRequest(topic_filter, qos)
    if options & 0xC0:
        raise MalformedPacket("reserved subscription options set")  # [MQTT-3.8.3-5]
    if qos == 3 or handling == 3:
        raise MalformedPacket("QoS 3 or Retain Handling 3 in a subscription")
    no_local = options & 4 != 0
    if no_local and topic_filter.startswith("$share/"):
        raise ProtocolError(0x82, "No Local on a shared subscription")  # [MQTT-3.8.3-4]
    return SubscriptionRequest(topic_filter, qos, no_local, options & 8 != 0, handling)


def decode_unsubscribe(buf: bytes, pos: i64, end: i64, version: i64) -> Unsubscribe:
    return Filters(buf, pos, end, version, packets.UNSUBSCRIBE).unsubscribe(end)


def decode_disconnect(buf: bytes, pos: i64, end: i64, version: i64) -> Disconnect:
    """Decode a DISCONNECT: reason code and properties may both be left out, or the properties alone (section
    3.14.2)."""
    if version != 5:
        expect_end(pos, end)
    reason_code, properties = _reason_and_properties(buf, pos, end, packets.DISCONNECT)
    return Disconnect(reason_code, properties)


def decode_auth(buf: bytes, pos: i64, end: i64) -> Auth:
    reason_code, properties = _reason_and_properties(buf, pos, end, packets.AUTH)
    if reason_code != 0 and reason_code != 0x18 and reason_code != 0x19:
        raise ProtocolError(0x82, f"AUTH with reason code 0x{reason_code:02X}")  # [MQTT-3.15.2-1]
    return Auth(reason_code, properties)


def _reason_and_properties(buf: bytes, pos: i64, end: i64, packet_type: i64) -> tuple[i64, Properties]:
    if pos == end:
        return 0, Properties()
    reason_code: i64 = buf[pos]
    if pos + 1 == end:
        return reason_code, Properties()
    properties, pos = read_properties(buf, pos + 1, end, packet_type)
    expect_end(pos, end)
    return reason_code, properties


def decode_connack(buf: bytes, pos: i64, end: i64, version: i64) -> Connack:
    if end - pos < 2:
        raise MalformedPacket("CONNACK of less than two bytes")
    flags: i64 = buf[pos]
    if flags > 1:
        raise MalformedPacket("reserved CONNACK flags set")  # [MQTT-3.2.2-1]
    reason_code: i64 = buf[pos + 1]
    if flags and reason_code:
        raise ProtocolError(0x82, "session present in a refusal")  # [MQTT-3.2.2-6]
    properties = Properties()
    pos += 2
    if version == 5 and pos < end:
        properties, pos = read_properties(buf, pos, end, packets.CONNACK)
    expect_end(pos, end)
    return Connack(flags == 1, reason_code, properties)


def decode_suback(buf: bytes, pos: i64, end: i64, version: i64) -> Suback:
    packet_id = _packet_id(buf, pos, end)
    properties = Properties()
    pos += 2
    if version == 5:
        properties, pos = read_properties(buf, pos, end, packets.SUBACK)
    if pos == end:
        raise MalformedPacket("SUBACK without a reason code")
    return Suback(packet_id, buf[pos:end], properties)


def decode_unsuback(buf: bytes, pos: i64, end: i64, version: i64) -> Unsuback:
    packet_id = _packet_id(buf, pos, end)
    properties = Properties()
    pos += 2
    if version != 5:
        expect_end(pos, end)
        return Unsuback(packet_id, b"", properties)
    properties, pos = read_properties(buf, pos, end, packets.UNSUBACK)
    if pos == end:
        raise MalformedPacket("UNSUBACK without a reason code")
    return Unsuback(packet_id, buf[pos:end], properties)
