"""The wire format of MQTT 3.1, 3.1.1 and 5.0, seen from a client, for audits.

It shares no code with headrace: it is written from the specifications, so that an error in the broker's
codec cannot hide itself.  Decoding is strict: what a broker must never send fails an assertion.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE = range(1, 9)
SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(9, 16)
KIND_NAMES = (
    *("RESERVED", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP"),
    *("SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH"),
)

# Property identifiers of MQTT 5.0, table 2-4.
PAYLOAD_FORMAT, MESSAGE_EXPIRY, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA = 0x01, 0x02, 0x03, 0x08, 0x09
SUBSCRIPTION_ID, SESSION_EXPIRY, ASSIGNED_CLIENT_ID, SERVER_KEEP_ALIVE = 0x0B, 0x11, 0x12, 0x13
WILL_DELAY, REASON_STRING, RECEIVE_MAXIMUM, TOPIC_ALIAS_MAXIMUM, TOPIC_ALIAS = 0x18, 0x1F, 0x21, 0x22, 0x23
MAXIMUM_QOS, USER_PROPERTY, MAXIMUM_PACKET_SIZE, SHARED_AVAILABLE = 0x24, 0x26, 0x27, 0x2A

_BYTE = frozenset({0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A})
_U16 = frozenset({0x13, 0x21, 0x22, 0x23})
_U32 = frozenset({0x02, 0x11, 0x18, 0x27})
_TEXT = frozenset({0x03, 0x08, 0x12, 0x15, 0x1A, 0x1C, 0x1F})
_BINARY = frozenset({0x09, 0x16})
_REPEATED = frozenset({SUBSCRIPTION_ID, USER_PROPERTY})

NEVER = 0xFFFFFFFF
Properties = Mapping[int, Any]


@dataclass(slots=True)
class Packet:
    kind: int
    flags: int = 0
    packet_id: int = 0
    reason: int = 0
    session_present: bool = False
    codes: bytes = b""
    topic: str = ""
    payload: bytes = b""
    properties: dict[int, Any] = field(default_factory=dict)

    @property
    def qos(self) -> int:
        return self.flags >> 1 & 3

    @property
    def dup(self) -> bool:
        return bool(self.flags & 8)

    @property
    def retain(self) -> bool:
        return bool(self.flags & 1)

    def __str__(self) -> str:
        name = KIND_NAMES[self.kind]
        head = f"{name} flags={self.flags:x} id={self.packet_id} reason={self.reason:#x}"
        return f"{head} {self.topic} {self.payload[:40]!r}"


def varint(number: int) -> bytes:
    out = bytearray()
    while True:
        number, digit = number >> 7, number & 127
        out.append(digit | 128 if number else digit)
        if not number:
            return bytes(out)


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack(">H", len(data)) + data


def _property_value(identifier: int, value: Any) -> bytes:
    if identifier in _BYTE:
        return bytes([value])
    if identifier in _U16:
        return struct.pack(">H", value)
    if identifier in _U32:
        return struct.pack(">I", value)
    if identifier == SUBSCRIPTION_ID:
        return varint(value)
    if identifier == USER_PROPERTY:
        return text(value[0]) + text(value[1])
    return text(value)


def encode_properties(properties: Properties | None) -> bytes:
    body = b""
    for identifier, value in (properties or {}).items():
        for one in value if identifier in _REPEATED and isinstance(value, list) else [value]:
            body += varint(identifier) + _property_value(identifier, one)
    return varint(len(body)) + body


def packet(first_byte: int, body: bytes) -> bytes:
    return bytes([first_byte]) + varint(len(body)) + body


class _Cursor:
    """Reads one packet body from the front; running past its end is a broker's mistake."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        assert self.at + size <= len(self.data), f"packet too short: {self.data!r}"
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def varint(self) -> int:
        value = shift = 0
        while True:
            digit = self.number(1)
            value |= (digit & 127) << shift
            if digit < 128:
                return value
            shift += 7

    def binary(self) -> bytes:
        return self.take(self.number(2))

    def value(self, identifier: int) -> Any:
        if identifier in _BYTE:
            return self.number(1)
        if identifier in _U16:
            return self.number(2)
        if identifier in _U32:
            return self.number(4)
        if identifier == SUBSCRIPTION_ID:
            return self.varint()
        if identifier == USER_PROPERTY:
            return (self.binary().decode(), self.binary().decode())
        assert identifier in _TEXT or identifier in _BINARY, f"unknown property {identifier:#x}"
        return self.binary().decode() if identifier in _TEXT else self.binary()

    def properties(self) -> dict[int, Any]:
        found: dict[int, Any] = {}
        end = self.varint()
        end += self.at
        while self.at < end:
            identifier = self.varint()
            value = self.value(identifier)
            if identifier in _REPEATED:
                found.setdefault(identifier, []).append(value)
            else:
                assert identifier not in found, f"property {identifier:#x} twice"
                found[identifier] = value
        assert self.at == end, "properties overrun their length"
        return found

    @property
    def left(self) -> int:
        return len(self.data) - self.at


def decode(first_byte: int, body: bytes, version: int) -> Packet:
    kind, flags, cursor = first_byte >> 4, first_byte & 15, _Cursor(body)
    out = Packet(kind, flags)
    if kind == PUBLISH:
        assert out.qos < 3, "QoS 3"
        assert out.qos or not out.dup, "DUP with QoS 0 [MQTT-3.3.1-2]"
        out.topic = cursor.binary().decode()
        if out.qos:
            out.packet_id = cursor.number(2)
            assert out.packet_id, "packet id 0 [MQTT-2.2.1-3]"
        if version == 5:
            out.properties = cursor.properties()
        out.payload = cursor.take(cursor.left)
        return out
    assert flags == (2 if kind == PUBREL else 0), (
        f"reserved flags {flags} in {KIND_NAMES[kind]} [MQTT-2.1.3-1]"
    )
    if kind == CONNACK:
        acknowledge_flags = cursor.number(1)
        assert acknowledge_flags < 2, "reserved bits in the acknowledge flags [MQTT-3.2.2-1]"
        out.session_present, out.reason = bool(acknowledge_flags), cursor.number(1)
    elif kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
        out.packet_id = cursor.number(2)
        out.reason = cursor.number(1) if cursor.left else 0
    elif kind in (SUBACK, UNSUBACK):
        out.packet_id = cursor.number(2)
    elif kind in (DISCONNECT, AUTH):
        out.reason = cursor.number(1) if cursor.left else 0
    if version == 5 and cursor.left and kind != PINGRESP:
        out.properties = cursor.properties()
    if kind in (SUBACK, UNSUBACK):
        out.codes = cursor.take(cursor.left)
    assert not cursor.left, f"{cursor.left} bytes too many in {KIND_NAMES[kind]}"
    return out


def connect_packet(
    client_id: str,
    *,
    version: int = 4,
    clean: bool = True,
    keep_alive_s: int = 60,
    properties: Properties | None = None,
    will: tuple[str, bytes] | None = None,
    will_qos: int = 0,
    will_retain: bool = False,
    will_properties: Properties | None = None,
    user_name: str | None = None,
    password: bytes | None = None,
) -> bytes:
    flags = (
        (2 if clean else 0) | (0x80 if user_name is not None else 0) | (0x40 if password is not None else 0)
    )
    if will is not None:
        flags |= 4 | will_qos << 3 | (0x20 if will_retain else 0)
    body = text("MQIsdp" if version == 3 else "MQTT") + struct.pack(">BBH", version, flags, keep_alive_s)
    body += encode_properties(properties) if version == 5 else b""
    body += text(client_id)
    if will is not None:
        body += (encode_properties(will_properties) if version == 5 else b"") + text(will[0]) + text(will[1])
    body += text(user_name) if user_name is not None else b""
    body += text(password) if password is not None else b""
    return packet(CONNECT << 4, body)
