"""A message as a record of Kafka: key = topic, value = payload, and headers that say everything else.

    headrace-message-id             32 hexadecimal digits: the message id, as clients get it
    mqtt.tenant, mqtt.client-id     of the publisher
    mqtt.qos                        0, 1 or 2
    mqtt.retain, mqtt.will          1, where it was published so
    mqtt.payload-format-indicator, mqtt.message-expiry-interval (seconds), mqtt.content-type, mqtt.response-topic,
    mqtt.correlation-data           properties that the message has
    mqtt.user.NAME                  each of its user properties, in their order
    mqtt.properties                 all of them as they came, in the place of the others, where they cannot be read
    headrace-left-out               where the record would be too large: the bytes of the payload, which is left out

The record's time is when the broker received the message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.core.records.message import Message
from headrace.core.records.record import FLAG_RETAIN, FLAG_WILL
from headrace.errors import HeadraceError
from headrace.mqtt.properties import Properties

_PUBLISH: Final = 3
_FRAMING: Final = 100  # bytes of a record beside key, value and headers: less than that
_HEADER: Final = 10  # bytes of a header beside its name and value: at most
LEFT_OUT: Final = "headrace-left-out"

Header = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A record of Kafka to be."""

    key: bytes
    value: bytes
    headers: list[Header]
    timestamp_ms: int
    is_whole: bool = True

    @property
    def size(self) -> int:
        """Return its bytes in Kafka, at most."""
        headers = sum(len(name.encode()) + len(value) + _HEADER for name, value in self.headers)
        return _FRAMING + len(self.key) + len(self.value) + headers


def rendered(message: Message, message_id: bytes, bytes_max: int) -> Rendered:
    """Return a message as a record of at most `bytes_max`: one that would be larger has no payload, and if its properties
    alone are too large, none of those."""
    timestamp_ms = message.timestamp_us // 1000
    own = _of_publisher(message, message_id)
    found = Rendered(message.topic, message.payload, own + _of_properties(message), timestamp_ms)
    if found.size <= bytes_max:
        return found
    left_out = (LEFT_OUT, str(len(message.payload)).encode())
    found = Rendered(message.topic, b"", [left_out, *found.headers], timestamp_ms, is_whole=False)
    if found.size <= bytes_max:
        return found
    return Rendered(message.topic, b"", [left_out, *own], timestamp_ms, is_whole=False)


def _of_publisher(message: Message, message_id: bytes) -> list[Header]:
    headers = [
        ("headrace-message-id", message_id.hex().encode()),
        ("mqtt.tenant", message.tenant.encode()),
        ("mqtt.client-id", message.origin[message.tenant_len :]),
        ("mqtt.qos", b"%d" % message.qos),
    ]
    if message.flags & FLAG_RETAIN:
        headers.append(("mqtt.retain", b"1"))
    if message.flags & FLAG_WILL:
        headers.append(("mqtt.will", b"1"))
    return headers


def _of_properties(message: Message) -> list[Header]:
    headers: list[Header] = []
    if message.message_expiry_s >= 0:
        headers.append(("mqtt.message-expiry-interval", b"%d" % message.message_expiry_s))
    if not message.properties:
        return headers
    try:
        found = Properties.decode(message.properties, 0, len(message.properties), _PUBLISH)
    except HeadraceError:  # of a message that another headrace has let in
        return [*headers, ("mqtt.properties", message.properties)]
    if found.payload_format_indicator is not None:
        headers.append(("mqtt.payload-format-indicator", b"%d" % found.payload_format_indicator))
    if found.content_type is not None:
        headers.append(("mqtt.content-type", found.content_type.encode()))
    if found.response_topic is not None:
        headers.append(("mqtt.response-topic", found.response_topic.encode()))
    if found.correlation_data is not None:
        headers.append(("mqtt.correlation-data", found.correlation_data))
    headers += [(f"mqtt.user.{name}", value.encode()) for name, value in found.user_properties]
    return headers
