"""The properties of MQTT 5 as a table (section 2.2.2.2): identifier, attribute, type, packets."""

from __future__ import annotations

from typing import Final

PAYLOAD_FORMAT_INDICATOR: Final = 0x01
MESSAGE_EXPIRY_INTERVAL: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION_DATA: Final = 0x09
SUBSCRIPTION_IDENTIFIER: Final = 0x0B
SESSION_EXPIRY_INTERVAL: Final = 0x11
WILL_DELAY_INTERVAL: Final = 0x18
TOPIC_ALIAS: Final = 0x23
USER_PROPERTY: Final = 0x26

# Packets by their type; 0 stands for the Will Properties inside CONNECT.
WILL: Final = 0
_CONNECT: Final = 1 << 1
_CONNACK: Final = 1 << 2
_PUBLISH: Final = 1 << 3
_PUBACKS: Final = 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7
_SUBSCRIBE: Final = 1 << 8
_SUBACKS: Final = 1 << 9 | 1 << 11
_UNSUBSCRIBE: Final = 1 << 10
_DISCONNECT: Final = 1 << 14
_AUTH: Final = 1 << 15
_WILL: Final = 1 << WILL
_ANY: Final = (
    _WILL
    | _CONNECT
    | _CONNACK
    | _PUBLISH
    | _PUBACKS
    | _SUBSCRIBE
    | _SUBACKS
    | _UNSUBSCRIBE
    | _DISCONNECT
    | _AUTH
)

# Types of values
BIT: Final = 1  # a byte that must be 0 or 1
U16: Final = 2
U16_NONZERO: Final = 3
U32: Final = 4
U32_NONZERO: Final = 5
VARINT_LIST: Final = 6  # Subscription Identifier, never 0
TEXT: Final = 7
BINARY: Final = 8
PAIRS: Final = 9  # User Property

TABLE: Final[list[tuple[int, str, int, int]]] = [
    (0x01, "payload_format_indicator", BIT, _PUBLISH | _WILL),
    (0x02, "message_expiry_interval", U32, _PUBLISH | _WILL),
    (0x03, "content_type", TEXT, _PUBLISH | _WILL),
    (0x08, "response_topic", TEXT, _PUBLISH | _WILL),
    (0x09, "correlation_data", BINARY, _PUBLISH | _WILL),
    (0x0B, "subscription_identifiers", VARINT_LIST, _PUBLISH | _SUBSCRIBE),
    (0x11, "session_expiry_interval", U32, _CONNECT | _CONNACK | _DISCONNECT),
    (0x12, "assigned_client_identifier", TEXT, _CONNACK),
    (0x13, "server_keep_alive", U16, _CONNACK),
    (0x15, "authentication_method", TEXT, _CONNECT | _CONNACK | _AUTH),
    (0x16, "authentication_data", BINARY, _CONNECT | _CONNACK | _AUTH),
    (0x17, "request_problem_information", BIT, _CONNECT),
    (0x18, "will_delay_interval", U32, _WILL),
    (0x19, "request_response_information", BIT, _CONNECT),
    (0x1A, "response_information", TEXT, _CONNACK),
    (0x1C, "server_reference", TEXT, _CONNACK | _DISCONNECT),
    (0x1F, "reason_string", TEXT, _CONNACK | _PUBACKS | _SUBACKS | _DISCONNECT | _AUTH),
    (0x21, "receive_maximum", U16_NONZERO, _CONNECT | _CONNACK),
    (0x22, "topic_alias_maximum", U16, _CONNECT | _CONNACK),
    (0x23, "topic_alias", U16, _PUBLISH),
    (0x24, "maximum_qos", BIT, _CONNACK),
    (0x25, "retain_available", BIT, _CONNACK),
    (0x26, "user_properties", PAIRS, _ANY),
    (0x27, "maximum_packet_size", U32_NONZERO, _CONNECT | _CONNACK),
    (0x28, "wildcard_subscription_available", BIT, _CONNACK),
    (0x29, "subscription_identifiers_available", BIT, _CONNACK),
    (0x2A, "shared_subscription_available", BIT, _CONNACK),
]
IDENTIFIER_MAX: Final = 0x2A
# `SEEN >> identifier` is the bit of a property. From the top down: mypyc turns `1 << n` into a 32 bit shift.
SEEN: Final = 1 << 62


def _column(column: int) -> list[int]:
    found = [0] * (IDENTIFIER_MAX + 1)
    for row in TABLE:
        found[row[0]] = row[2] if column == 2 else row[3]
    return found


KINDS: Final = bytes(_column(2))
ALLOWED: Final[list[int]] = _column(3)
ATTRIBUTES: Final[dict[int, str]] = {row[0]: row[1] for row in TABLE}
