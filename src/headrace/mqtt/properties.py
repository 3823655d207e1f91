"""Properties of MQTT 5 (section 2.2.2) as an object: one class with an attribute for each, decode and encode.

A property area is `varint length | (identifier, value)*`. What may stand in it says `property_table`.
"""

from __future__ import annotations

from mypy_extensions import i64

from headrace.errors import MalformedPacket, ProtocolError
from headrace.mqtt import data_types
from headrace.mqtt.data_types import decode_text, read_binary, read_u16, read_u32, read_varint, varint_size
from headrace.mqtt.property_table import (
    ALLOWED,
    ATTRIBUTES,
    BINARY,
    BIT,
    IDENTIFIER_MAX,
    KINDS,
    PAIRS,
    SEEN,
    TABLE,
    TEXT,
    U16_NONZERO,
    U32_NONZERO,
    VARINT_LIST,
)


class Properties:
    """Every property of MQTT 5; None, or an empty list, means absent."""

    def __init__(self) -> None:
        self.payload_format_indicator: int | None = None
        self.message_expiry_interval: int | None = None
        self.content_type: str | None = None
        self.response_topic: str | None = None
        self.correlation_data: bytes | None = None
        self.subscription_identifiers: list[int] = []
        self.session_expiry_interval: int | None = None
        self.assigned_client_identifier: str | None = None
        self.server_keep_alive: int | None = None
        self.authentication_method: str | None = None
        self.authentication_data: bytes | None = None
        self.request_problem_information: int | None = None
        self.will_delay_interval: int | None = None
        self.request_response_information: int | None = None
        self.response_information: str | None = None
        self.server_reference: str | None = None
        self.reason_string: str | None = None
        self.receive_maximum: int | None = None
        self.topic_alias_maximum: int | None = None
        self.topic_alias: int | None = None
        self.maximum_qos: int | None = None
        self.retain_available: int | None = None
        self.user_properties: list[tuple[str, str]] = []
        self.maximum_packet_size: int | None = None
        self.wildcard_subscription_available: int | None = None
        self.subscription_identifiers_available: int | None = None
        self.shared_subscription_available: int | None = None

    @staticmethod
    def decode(buf: bytes, pos: int, end: int, packet_type: int) -> Properties:
        """Decode the properties between `pos` and `end` (behind the length), checked for this packet type."""
        return _decode(buf, pos, end, packet_type)

    def encode(self) -> bytes:
        """Return the property area without its length; identifiers ascend, user properties keep their order."""
        parts: list[bytes] = []
        for identifier, attribute, kind, _ in TABLE:
            value = getattr(self, attribute)
            if value is not None:
                parts.append(_encode_value(identifier, kind, value))
        return b"".join(parts)

    def as_dict(self) -> dict[str, object]:
        """Return what is present, by name."""
        present: dict[str, object] = {}
        for row in TABLE:
            value = getattr(self, row[1])
            if value is not None and value != []:
                present[row[1]] = value
        return present

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Properties) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash(self.encode())

    def __repr__(self) -> str:
        return f"Properties({self.as_dict()})"


def property_area(properties: Properties | None) -> bytes:
    """Return the property area with its length."""
    if properties is None:
        return b"\0"
    body = properties.encode()
    return data_types.varint(len(body)) + body


def area_length(buf: bytes, pos: i64, end: i64) -> i64:
    """Return the length of the property area at `pos`; the area itself starts `varint_size(length)` further."""
    length = read_varint(buf, pos, end)
    if length > end - pos - varint_size(length):
        raise MalformedPacket("property length runs over the end of the packet")
    return length


def read_properties(buf: bytes, pos: i64, end: i64, packet_type: i64) -> tuple[Properties, i64]:
    """Read the property area at `pos` and the position behind it."""
    length = area_length(buf, pos, end)
    pos += varint_size(length)
    return _decode(buf, pos, pos + length, packet_type), pos + length


def misplaced(identifier: i64, packet_type: i64) -> ProtocolError:
    """Return the error for a known property in a packet that must not carry it."""
    return violation(packet_type, f"property 0x{identifier:02X} is not allowed here")


def violation(packet_type: i64, message: str) -> ProtocolError:
    """Return the error for a violation: section 2.2.2.2 says Malformed Packet, section 4.13 Protocol Error; the field
    chose by packet type."""
    if packet_type in (8, 10):
        return MalformedPacket(message)
    return ProtocolError(0x82, message)


def read_identifier(buf: bytes, pos: i64, end: i64) -> i64:
    """Read a known property identifier; they all take one byte."""
    identifier = read_varint(buf, pos, end)
    if identifier > IDENTIFIER_MAX or KINDS[identifier] == 0:
        raise MalformedPacket(f"unknown property 0x{identifier:02X}")
    return identifier


def _decode(buf: bytes, pos: i64, end: i64, packet_type: i64) -> Properties:
    found = Properties()
    seen: i64 = 0
    while pos < end:
        identifier = read_identifier(buf, pos, end)
        kind: i64 = KINDS[identifier]
        pos = _read_value(found, buf, pos + 1, end, identifier, kind)
        allowed: i64 = ALLOWED[identifier]
        if not allowed >> packet_type & 1:
            raise misplaced(identifier, packet_type)
        if seen & SEEN >> identifier and kind != PAIRS and not (kind == VARINT_LIST and packet_type == 3):
            raise ProtocolError(0x82, f"property 0x{identifier:02X} twice")
        seen |= SEEN >> identifier
    return found


def _read_value(into: Properties, buf: bytes, pos: i64, end: i64, identifier: i64, kind: i64) -> i64:
    """Read one value and return the position behind it. The type comes first, so that a cut value is
    malformed."""
    if kind == PAIRS:
        name = read_binary(buf, pos, end)
        pos += 2 + len(name)
        value = read_binary(buf, pos, end)
        into.user_properties.append((decode_text(name), decode_text(value)))
        return pos + 2 + len(value)
    if kind == VARINT_LIST:
        subscription = read_varint(buf, pos, end)
        if subscription == 0:
            raise ProtocolError(0x82, "Subscription Identifier 0")  # 3.8.2.1.2
        into.subscription_identifiers.append(subscription)
        return pos + varint_size(subscription)
    if kind in (TEXT, BINARY):
        raw = read_binary(buf, pos, end)
        setattr(into, ATTRIBUTES[identifier], raw if kind == BINARY else decode_text(raw))
        return pos + 2 + len(raw)
    number = read_number(buf, pos, end, kind)
    setattr(into, ATTRIBUTES[identifier], number)
    return pos + number_size(kind)


def number_size(kind: i64) -> i64:
    if kind == BIT:
        return 1
    return 2 if kind <= U16_NONZERO else 4


def read_number(buf: bytes, pos: i64, end: i64, kind: i64) -> i64:
    """Read a byte that is 0 or 1, or a two or four byte integer, with the values the specification excludes."""
    if kind == BIT:
        if pos >= end:
            raise MalformedPacket("packet ends inside a property")
        bit: i64 = buf[pos]
        if bit > 1:
            raise ProtocolError(0x82, "property that is neither 0 nor 1")
        return bit
    number = read_u16(buf, pos, end) if kind <= U16_NONZERO else read_u32(buf, pos, end)
    if number == 0 and (kind in (U16_NONZERO, U32_NONZERO)):
        raise ProtocolError(0x82, "property that must not be 0")
    return number


def _encode_value(identifier: int, kind: int, value: object) -> bytes:
    head = bytes((identifier,))
    if isinstance(value, str):
        return head + data_types.text(value)
    if isinstance(value, bytes):
        return head + data_types.binary(value)
    if isinstance(value, list):
        if kind == PAIRS:
            return b"".join([head + data_types.text(name) + data_types.text(text) for name, text in value])
        return b"".join([head + data_types.varint(number) for number in value])
    assert isinstance(value, int)
    return head + value.to_bytes(number_size(kind), "big")
