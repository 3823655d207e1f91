"""PUBLISH in place: from the read buffer to a `Publish` with four slices and one pass over the properties.

    topic name | packet id (QoS > 0) | property length, properties (version 5) | payload

Properties are checked but not turned into objects: what subscribers are to see is handed on as the bytes it
came in.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from headrace.errors import MalformedPacket, ProtocolError
from headrace.mqtt import property_table as props
from headrace.mqtt.data_types import (
    decode_text,
    read_binary,
    read_u16,
    read_u32,
    read_varint,
    skip_text,
    stands_at,
    varint_size,
)
from headrace.mqtt.packets import NO_EXPIRY, Publish
from headrace.mqtt.properties import area_length, misplaced, number_size, read_identifier, read_number
from headrace.mqtt.topics import checked_topic

_PUBLISH: Final = 3


class TopicAliases:
    """Topics that the peer named on this connection: its aliases (section 3.3.2.3.4) and the last one."""

    def __init__(self, maximum: int) -> None:
        self.maximum: i64 = maximum
        self._topics: dict[int, bytes] = {}
        self._last = b""

    def topic_at(self, buf: bytes, pos: i64, size: i64) -> bytes:
        """Return the one object that stands for the topic name at `pos`, which mostly is that of the PUBLISH before."""
        last = self._last
        if size != len(last) or size == 0 or not stands_at(buf, pos, last):
            last = checked_topic(buf[pos : pos + size])
            self._last = last
        return last

    def resolve(self, alias: i64, topic: bytes) -> bytes:
        """Return the topic of a PUBLISH that carries an alias; a topic in the packet redefines the alias."""
        if alias == 0 or alias > self.maximum:
            # [MQTT-3.3.2-8] [MQTT-3.3.2-9]
            raise ProtocolError(0x94, f"topic alias {alias} outside 1..{self.maximum}")
        if topic:
            self._topics[alias] = topic
            return topic
        known = self._topics.get(alias)
        if known is None:
            raise ProtocolError(0x82, f"topic alias {alias} was never defined")
        return known


class Forwardable:
    """What one pass over the properties of a PUBLISH or a Will finds."""

    def __init__(self) -> None:
        self.properties: bytes = b""
        self.topic_alias: i64 = -1
        self.message_expiry_s: i64 = NO_EXPIRY
        self.delay_s: i64 = 0


def decode_publish(
    buf: bytes, flags: i64, pos: i64, end: i64, version: i64, aliases: TopicAliases, from_server: bool
) -> Publish:
    qos: i64 = flags >> 1 & 3
    if qos == 3:
        raise MalformedPacket("QoS 3")  # [MQTT-3.3.1-4]
    if qos == 0 and flags & 8:
        raise MalformedPacket("DUP with QoS 0")  # [MQTT-3.3.1-2]
    topic_size = read_u16(buf, pos, end)
    topic_at: i64 = pos + 2
    pos = topic_at + topic_size
    if pos > end:
        raise MalformedPacket("packet ends inside the topic name")
    packet_id: i64 = 0
    if qos > 0:
        packet_id = read_u16(buf, pos, end)
        pos += 2
        if packet_id == 0:
            raise ProtocolError(0x82, "packet identifier 0")  # [MQTT-2.2.1-3]
    if version != 5:
        return Publish(
            aliases.topic_at(buf, topic_at, topic_size),
            qos,
            flags & 1 == 1,
            flags & 8 == 8,
            packet_id,
            b"",
            NO_EXPIRY,
            buf[pos:end],
        )
    length = area_length(buf, pos, end)
    pos += varint_size(length)
    forwardable = b""
    expiry_s: i64 = NO_EXPIRY
    topic = aliases.topic_at(buf, topic_at, topic_size) if topic_size else b""
    if length > 0:
        found = scan(buf, pos, pos + length, _PUBLISH, from_server)
        pos += length
        forwardable = found.properties
        expiry_s = found.message_expiry_s
        if found.topic_alias >= 0:
            topic = aliases.resolve(found.topic_alias, topic)
    if not topic:
        raise MalformedPacket("neither topic name nor topic alias")
    return Publish(topic, qos, flags & 1 == 1, flags & 8 == 8, packet_id, forwardable, expiry_s, buf[pos:end])


def decode_odd_publish(
    buf: bytes, flags: i64, pos: i64, end: i64, version: i64, aliases: TopicAliases
) -> Publish:
    """Return the head of a PUBLISH with an odd topic or Response Topic (`OddName`), for whoever drops it: without
    properties and payload, and with its topic as it came. A wildcard is a MalformedPacket here too."""
    topic_size = read_u16(buf, pos, end)
    topic = buf[pos + 2 : pos + 2 + topic_size]
    pos += 2 + topic_size
    if b"#" in topic or b"+" in topic:
        raise MalformedPacket("wildcard in a topic name")  # [MQTT-3.3.2-2]
    packet_id: i64 = 0
    if flags >> 1 & 3:
        packet_id = read_u16(buf, pos, end)
        pos += 2
    if version == 5:
        length = area_length(buf, pos, end)
        pos += varint_size(length)
        alias = _alias_in(buf, pos, pos + length)
        if alias >= 0:
            topic = aliases.resolve(alias, topic)
    return Publish(topic, flags >> 1 & 3, flags & 1 == 1, flags & 8 == 8, packet_id, b"", NO_EXPIRY, b"")


def _alias_in(buf: bytes, pos: i64, end: i64) -> i64:
    """Return the Topic Alias in the properties of a PUBLISH, -1 if there is none; a Response Topic may be odd."""
    while pos < end:
        identifier = read_identifier(buf, pos, end)
        if identifier == props.RESPONSE_TOPIC:
            pos += 3 + len(read_binary(buf, pos + 1, end))
            continue
        pos = _skip_value(buf, pos + 1, end, identifier)
        if identifier == props.TOPIC_ALIAS:
            return read_u16(buf, pos - 2, pos)
    return -1


def scan(buf: bytes, pos: i64, end: i64, packet_type: i64, from_server: bool) -> Forwardable:
    """Check the properties of a PUBLISH (3) or of a Will (0) and take out those that the broker itself
    obeys."""
    found = Forwardable()
    kept: list[bytes] | None = None
    kept_from: i64 = pos
    seen: i64 = 0
    while pos < end:
        start: i64 = pos
        identifier = read_identifier(buf, pos, end)
        pos = _skip_value(buf, pos + 1, end, identifier)
        _check_place(identifier, packet_type, from_server)
        if seen & props.SEEN >> identifier and identifier not in (
            props.USER_PROPERTY,
            props.SUBSCRIPTION_IDENTIFIER,
        ):
            raise ProtocolError(0x82, f"property 0x{identifier:02X} twice")
        seen |= props.SEEN >> identifier
        if _take(found, buf, pos, identifier):
            if kept is None:
                kept = []
            kept.append(buf[kept_from:start])
            kept_from = pos
    if kept is None:
        found.properties = buf[kept_from:end]
    else:
        kept.append(buf[kept_from:end])
        found.properties = b"".join(kept)
    return found


def payload_is_text(properties: bytes) -> bool:
    """Return whether checked properties of a PUBLISH or Will say that the payload is UTF-8 (3.3.2.3.2)."""
    pos: i64 = 0
    end: i64 = len(properties)
    while pos < end:
        identifier = read_identifier(properties, pos, end)
        if identifier == props.PAYLOAD_FORMAT_INDICATOR:
            return properties[pos + 1] == 1
        pos = _skip_value(properties, pos + 1, end, identifier)
    return False


def user_property(properties: bytes, name: bytes) -> bytes | None:
    """Return the value of the first user property `name` in checked properties of a PUBLISH, None if there is none."""
    pos: i64 = 0
    end: i64 = len(properties)
    while pos < end:
        identifier = read_identifier(properties, pos, end)
        if identifier == props.USER_PROPERTY:
            found = read_binary(properties, pos + 1, end)
            if found == name:
                return read_binary(properties, pos + 3 + len(found), end)
        pos = _skip_value(properties, pos + 1, end, identifier)
    return None


def without_user_properties(properties: bytes, names: tuple[bytes, ...]) -> bytes:
    """Return checked properties of a PUBLISH without the user properties of these names, all of each name."""
    kept: list[bytes] = []
    kept_from: i64 = 0
    pos: i64 = 0
    end: i64 = len(properties)
    while pos < end:
        start: i64 = pos
        identifier = read_identifier(properties, pos, end)
        pos = _skip_value(properties, pos + 1, end, identifier)
        if identifier == props.USER_PROPERTY and read_binary(properties, start + 1, end) in names:
            kept.append(properties[kept_from:start])
            kept_from = pos
    if kept_from == 0:
        return properties
    kept.append(properties[kept_from:end])
    return b"".join(kept)


def _check_place(identifier: i64, packet_type: i64, from_server: bool) -> None:
    allowed: i64 = props.ALLOWED[identifier]
    if not allowed >> packet_type & 1:
        raise misplaced(identifier, packet_type)
    if identifier == props.SUBSCRIPTION_IDENTIFIER and not from_server:
        raise misplaced(identifier, packet_type)  # [MQTT-3.3.4-6]


def _take(found: Forwardable, buf: bytes, behind: i64, identifier: i64) -> bool:
    """Return whether this property, which ends at `behind`, is for the broker and not for the subscribers."""
    if identifier == props.MESSAGE_EXPIRY_INTERVAL:
        found.message_expiry_s = read_u32(buf, behind - 4, behind)
    elif identifier == props.TOPIC_ALIAS:
        found.topic_alias = read_u16(buf, behind - 2, behind)
    elif identifier == props.WILL_DELAY_INTERVAL:
        found.delay_s = read_u32(buf, behind - 4, behind)
    else:
        return False
    return True


def _skip_value(buf: bytes, pos: i64, end: i64, identifier: i64) -> i64:
    kind: i64 = props.KINDS[identifier]
    if kind == props.PAIRS:
        return skip_text(buf, skip_text(buf, pos, end), end)
    if kind == props.TEXT:
        raw = read_binary(buf, pos, end)
        if identifier == props.RESPONSE_TOPIC:
            _check_response_topic(raw)
        else:
            decode_text(raw)
        return pos + 2 + len(raw)
    if kind == props.BINARY:
        return pos + 2 + len(read_binary(buf, pos, end))
    if kind == props.VARINT_LIST:
        number = read_varint(buf, pos, end)
        if number == 0:
            raise ProtocolError(0x82, "Subscription Identifier 0")
        return pos + varint_size(number)
    read_number(buf, pos, end, kind)
    return pos + number_size(kind)


def _check_response_topic(topic: bytes) -> None:
    if not topic or b"#" in topic or b"+" in topic:
        raise ProtocolError(0x82, "Response Topic empty or with a wildcard")  # [MQTT-3.3.2-14]
    checked_topic(topic)  # [MQTT-3.3.2-13]
