"""CONNECT (section 3.1): three versions of one packet, told apart by name and level of the protocol.

protocol name | level | flags | keep alive | properties (5) | client id | will | user name | password
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from headrace.errors import MalformedPacket, ProtocolError
from headrace.mqtt import packets
from headrace.mqtt.data_types import decode_name, read_binary, read_u16, varint_size
from headrace.mqtt.decoder import expect_end
from headrace.mqtt.packets import Connect, Will
from headrace.mqtt.properties import area_length, read_properties
from headrace.mqtt.property_table import WILL
from headrace.mqtt.publish import scan
from headrace.mqtt.topics import checked_topic

_BRIDGE_BIT: Final = 0x80


def protocol_level(buf: bytes, pos: i64, end: i64) -> i64:
    """Return the protocol level, 3, 4 or 5; ProtocolError 0x84 for a level of the right name that nobody speaks."""
    name = read_binary(buf, pos, end)
    pos += 2 + len(name)
    if name != b"MQTT" and name != b"MQIsdp":
        raise MalformedPacket("unknown protocol name")  # [MQTT-3.1.2-1]
    if pos >= end:
        raise MalformedPacket("CONNECT without a protocol level")
    level: i64 = buf[pos]
    plain: i64 = level & 0x7F
    if plain == 3 if name == b"MQIsdp" else plain == 4 or level == 5:
        return plain
    misnamed = 3 <= plain <= 5
    raise ProtocolError(0x84, f"protocol level {level}", 1 if misnamed else 0)  # [MQTT-3.1.2-2]


def decode_connect(buf: bytes, pos: i64, end: i64, version: i64) -> Connect:
    """Decode a CONNECT behind its protocol level, which `protocol_level` has read."""
    pos += 2 + read_u16(buf, pos, end)
    level: i64 = buf[pos]
    pos += 1
    if pos >= end:
        raise MalformedPacket("CONNECT without flags")
    flags: i64 = buf[pos]
    _check_connect_flags(flags, version)
    keep_alive_s = read_u16(buf, pos + 1, end)
    connect = Connect(version, "", flags & 2 == 2, keep_alive_s, bridge=level & _BRIDGE_BIT != 0)
    pos += 3
    if version == 5:
        connect.properties, pos = read_properties(buf, pos, end, packets.CONNECT)
        properties = connect.properties
        if properties.authentication_data is not None and properties.authentication_method is None:
            raise ProtocolError(0x82, "Authentication Data without a method")
    raw = read_binary(buf, pos, end)
    pos += 2 + len(raw)
    connect.client_id = _client_id(raw)
    if flags & 4:
        connect.will, pos = _decode_will(buf, pos, end, version, flags)
    pos = _decode_credentials(connect, buf, pos, end, flags)
    expect_end(pos, end)
    return connect


def _client_id(raw: bytes) -> str:
    try:
        return decode_name(raw)  # [MQTT-3.1.3-3] [MQTT-3.1.3-4]
    except MalformedPacket as error:
        raise ProtocolError(0x85, f"client identifier: {error.message}") from None


def _decode_credentials(connect: Connect, buf: bytes, pos: i64, end: i64, flags: i64) -> i64:
    """Decode user name and password. What is wrong with them is not told to the peer.

    In 3.1 the flags may promise what is not there (section 3.1 of MQTT 3.1: the length takes precedence).
    """
    missing_is_allowed = connect.version == 3
    try:
        if flags & 0x80 and not (missing_is_allowed and pos == end):
            raw = read_binary(buf, pos, end)
            pos += 2 + len(raw)
            connect.username = decode_name(raw)  # [MQTT-3.1.3-11]
        if flags & 0x40 and not (missing_is_allowed and pos == end):
            connect.password = read_binary(buf, pos, end)
            pos += 2 + len(connect.password)
    except MalformedPacket as error:
        error.silent = True
        raise
    return pos


def _check_connect_flags(flags: i64, version: i64) -> None:
    if flags & 1 and version != 3:
        raise MalformedPacket("reserved CONNECT flag set")  # [MQTT-3.1.2-3]
    if flags & 4:
        if flags >> 3 & 3 == 3:
            raise MalformedPacket("Will QoS 3")  # [MQTT-3.1.2-12]
    elif flags & 0x38 and version != 3:
        raise MalformedPacket("Will QoS or Will Retain without a Will")  # [MQTT-3.1.2-11] [MQTT-3.1.2-13]
    if flags & 0x40 and not flags & 0x80 and version != 5:
        raise MalformedPacket("password without a user name")  # [MQTT-3.1.2-22] of 3.1.1


def _decode_will(buf: bytes, pos: i64, end: i64, version: i64, flags: i64) -> tuple[Will, i64]:
    delay_s: i64 = 0
    expiry_s: i64 = packets.NO_EXPIRY
    forwardable = b""
    if version == 5:
        length = area_length(buf, pos, end)
        pos += varint_size(length)
        found = scan(buf, pos, pos + length, WILL, False)
        pos += length
        forwardable, delay_s, expiry_s = found.properties, found.delay_s, found.message_expiry_s
    topic = read_binary(buf, pos, end)
    pos += 2 + len(topic)
    payload = read_binary(buf, pos, end)
    name = checked_topic(topic).decode()  # [MQTT-3.1.3-11]
    will = Will(name, payload, flags >> 3 & 3, flags & 0x20 != 0, forwardable, delay_s, expiry_s)
    return will, pos + 2 + len(payload)
