"""From values to the bytes of one packet, both directions.

Optional tails are left out when they say nothing: an acknowledgement of success is four bytes in every
version, a DISCONNECT without properties ends after its reason code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.mqtt.data_types import binary, text, u16, u32, varint
from headrace.mqtt.packets import NO_EXPIRY, Connect, SubscriptionRequest, Will
from headrace.mqtt.properties import Properties, property_area

PINGREQ: Final = b"\xc0\x00"
PINGRESP: Final = b"\xd0\x00"
# First bytes of the acknowledgements, for whoever writes their four bytes of success in place.
PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70
_PUBACK: Final = b"\x40\x02"
_PUBREC: Final = b"\x50\x02"
_PUBREL: Final = b"\x62\x02"
_PUBCOMP: Final = b"\x70\x02"


def encode_connack(
    version: int, session_present: bool, reason_code: int, properties: Properties | None = None
) -> bytes:
    """Encode a CONNACK. 3.x: `reason_code` is the return code (`reason_codes.connack_code_3` translates)."""
    body = bytes((1 if session_present else 0, reason_code))  # [MQTT-3.2.2-1]
    return _packet(0x20, body + property_area(properties) if version == 5 else body)


def encode_puback(
    version: int, packet_id: int, reason_code: int = 0, properties: Properties | None = None
) -> bytes:
    if properties is not None and version == 5:
        return _packet(0x40, u16(packet_id) + bytes((reason_code,)) + property_area(properties))
    if reason_code and version == 5:
        return b"\x40\x03" + u16(packet_id) + bytes((reason_code,))
    return _PUBACK + u16(packet_id)


def encode_pubrec(
    version: int, packet_id: int, reason_code: int = 0, properties: Properties | None = None
) -> bytes:
    if properties is not None and version == 5:
        return _packet(0x50, u16(packet_id) + bytes((reason_code,)) + property_area(properties))
    if reason_code and version == 5:
        return b"\x50\x03" + u16(packet_id) + bytes((reason_code,))
    return _PUBREC + u16(packet_id)


def encode_pubrel(version: int, packet_id: int, reason_code: int = 0) -> bytes:
    if reason_code and version == 5:
        return b"\x62\x03" + u16(packet_id) + bytes((reason_code,))
    return _PUBREL + u16(packet_id)


def encode_pubcomp(version: int, packet_id: int, reason_code: int = 0) -> bytes:
    if reason_code and version == 5:
        return b"\x70\x03" + u16(packet_id) + bytes((reason_code,))
    return _PUBCOMP + u16(packet_id)


def encode_suback(
    version: int, packet_id: int, codes: Sequence[int], properties: Properties | None = None
) -> bytes:
    """Encode a SUBACK with one code for each topic filter. 3.x clients know one failure, 0x80."""
    if version == 5:
        return _packet(0x90, u16(packet_id) + property_area(properties) + bytes(codes))
    return _packet(0x90, u16(packet_id) + bytes([code if code < 0x80 else 0x80 for code in codes]))


def encode_unsuback(
    version: int, packet_id: int, codes: Sequence[int], properties: Properties | None = None
) -> bytes:
    if version == 5:
        return _packet(0xB0, u16(packet_id) + property_area(properties) + bytes(codes))
    return b"\xb0\x02" + u16(packet_id)


def encode_pingreq() -> bytes:
    return PINGREQ


def encode_pingresp() -> bytes:
    return PINGRESP


def encode_disconnect(version: int, reason_code: int = 0, properties: Properties | None = None) -> bytes:
    """Encode a DISCONNECT: in 3.x only a client sends it, and it says nothing but goodbye."""
    if version != 5 or (reason_code == 0 and properties is None):
        return b"\xe0\x00"
    if properties is None:
        return b"\xe0\x01" + bytes((reason_code,))
    return _packet(0xE0, bytes((reason_code,)) + property_area(properties))


def encode_auth(reason_code: int, properties: Properties | None = None) -> bytes:
    if reason_code == 0 and properties is None:
        return b"\xf0\x00"
    return _packet(0xF0, bytes((reason_code,)) + property_area(properties))


def encode_connect(packet: Connect) -> bytes:
    level = packet.version | 0x80 if packet.bridge and packet.version != 5 else packet.version
    parts = [
        b"\0\x06MQIsdp" if packet.version == 3 else b"\0\x04MQTT",
        bytes((level, _connect_flags(packet))),
    ]
    parts.append(u16(packet.keep_alive_s))
    if packet.version == 5:
        parts.append(property_area(packet.properties))
    parts.append(text(packet.client_id))
    if packet.will is not None:
        if packet.version == 5:
            parts.append(_will_properties(packet.will))
        parts.append(text(packet.will.topic) + binary(packet.will.payload))
    if packet.username is not None:
        parts.append(text(packet.username))
    if packet.password is not None:
        parts.append(binary(packet.password))
    return _packet(0x10, b"".join(parts))


def _connect_flags(packet: Connect) -> int:
    flags = 2 if packet.clean_start else 0
    will = packet.will
    if will is not None:
        flags |= 4 | will.qos << 3 | (0x20 if will.retain else 0)
    if packet.username is not None:
        flags |= 0x80
    if packet.password is not None:
        flags |= 0x40
    return flags


def _will_properties(will: Will) -> bytes:
    area = will.properties
    if will.message_expiry_s != NO_EXPIRY:
        area = b"\x02" + u32(will.message_expiry_s) + area
    if will.delay_s:
        area = b"\x18" + u32(will.delay_s) + area
    return varint(len(area)) + area


def encode_publish(
    version: int,
    topic: bytes,
    payload: bytes,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_id: int = 0,
    properties: bytes = b"",
    message_expiry_s: int = NO_EXPIRY,
    topic_alias: int = 0,
) -> bytes:
    """Encode a PUBLISH. `properties` as in `Publish`: the property area without its length, alias and expiry."""
    first = 0x30 | (8 if dup else 0) | qos << 1 | (1 if retain else 0)
    parts = [binary(topic)]
    if qos:
        parts.append(u16(packet_id))
    if version == 5:
        area = properties
        if message_expiry_s != NO_EXPIRY:
            area = b"\x02" + u32(message_expiry_s) + area
        if topic_alias:
            area = b"\x23" + u16(topic_alias) + area
        parts.append(varint(len(area)))
        parts.append(area)
    parts.append(payload)
    return _packet(first, b"".join(parts))


def encode_subscribe(
    version: int, packet_id: int, filters: Sequence[SubscriptionRequest], properties: Properties | None = None
) -> bytes:
    parts = [u16(packet_id)]
    if version == 5:
        parts.append(property_area(properties))
    for request in filters:
        parts.append(text(request.filter))
        parts.append(bytes((_options(request) if version == 5 else request.qos,)))
    return _packet(0x82, b"".join(parts))


def _options(request: SubscriptionRequest) -> int:
    options = request.qos | request.retain_handling << 4
    if request.no_local:
        options |= 4
    return options | 8 if request.retain_as_published else options


def encode_unsubscribe(
    version: int, packet_id: int, filters: Sequence[str], properties: Properties | None = None
) -> bytes:
    parts = [u16(packet_id)]
    if version == 5:
        parts.append(property_area(properties))
    parts.extend([text(topic_filter) for topic_filter in filters])
    return _packet(0xA2, b"".join(parts))


def _packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + varint(len(body)) + body
