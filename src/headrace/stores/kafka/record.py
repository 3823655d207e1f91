"""What a record of a client's topic is: an entry of its queue, so that any consumer of Kafka has the message, and the
broker has back what it put, byte for byte.

The key is the MQTT topic, the value the payload. Headers, numbers in decimal digits::

    headrace.serial         the serial number within the session; a record that comes twice has the same one
    headrace.incarnation    of the session
    headrace.generation     of the stream; what is made anew begins with messages that were there before
    headrace.journal        the uuid of the shard's journal, in hexadecimal digits
    headrace.entry          all of the entry before the payload (`core.outbound.stored_session`)
    mqtt.qos  mqtt.retain  mqtt.timestamp_us  mqtt.expiry_s  mqtt.content-type  mqtt.response-topic
    mqtt.correlation-data  mqtt.payload-format                  what the message has of them
    any other name                                              a user property

A placeholder, of a message that was gone when its turn came or is too large, has neither key nor value.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from librt.strings import BytesWriter

from headrace.core.ports.queue_store import IN_JOURNAL, NOTHING
from headrace.core.records.message import Message, decode_record, varint_into
from headrace.errors import HeadraceError
from headrace.mqtt.properties import Properties, read_properties

OURS: Final = ("headrace.", "mqtt.")  # no user property has a name that begins so
PROPERTIES_MAX: Final = (
    16 << 10
)  # bytes; of a message with more they are in the entry alone, and no loop is held up
_SERIAL: Final = "headrace.serial"
_INCARNATION: Final = "headrace.incarnation"
_GENERATION: Final = "headrace.generation"
_JOURNAL: Final = "headrace.journal"
_ENTRY: Final = "headrace.entry"
_REFERENCE_SIZE: Final = 8
_PUBLISH: Final = 3

Headers = list[tuple[str, bytes]]


class StreamKey(NamedTuple):
    """The stream within a client's topic."""

    journal: str
    incarnation: int
    generation: int


class Found(NamedTuple):
    """A record that was read. `entry` is None where only its place was wanted."""

    offset: int
    key: StreamKey | None  # None: it is not one of ours
    serial: int
    entry: bytes | None


def record_of(key: StreamKey, serial: int, entry: bytes) -> tuple[bytes | None, bytes | None, Headers]:
    """Return key, value and headers of the record of an entry."""
    ours: Headers = [
        (_SERIAL, b"%d" % serial),
        (_INCARNATION, b"%d" % key.incarnation),
        (_GENERATION, b"%d" % key.generation),
        (_JOURNAL, key.journal.encode()),
    ]
    message = _message(entry)
    if message is None:
        return None, None, [*ours, (_ENTRY, entry)]
    head = len(entry) - len(message.payload)
    headers = [*ours, (_ENTRY, entry[:head]), *_of_message(message)]
    return message.topic, message.payload, headers


def found_in(offset: int, headers: Headers | None, value: bytes | None, wanted: bool) -> Found:
    """Return what a record is. `wanted`: the entry too."""
    ours: dict[str, bytes] = {}
    for name, text in headers or ():
        ours.setdefault(name, text)
    try:
        key = StreamKey(ours[_JOURNAL].decode(), int(ours[_INCARNATION]), int(ours[_GENERATION]))
        serial = int(ours[_SERIAL])
        head = ours[_ENTRY] or b""
    except (KeyError, ValueError, TypeError):
        return Found(offset, None, 0, None)
    return Found(offset, key, serial, head + (value or b"") if wanted else None)


def _message(entry: bytes) -> Message | None:
    """Return the message of an entry, None for one that is no message."""
    if entry in (NOTHING, IN_JOURNAL) or len(entry) <= _REFERENCE_SIZE:
        return None
    try:
        record, _ = decode_record(entry, _REFERENCE_SIZE)
    except (HeadraceError, ValueError, IndexError):
        return None
    if not isinstance(record, Message) or not entry.endswith(record.payload):
        return None
    return record


def _of_message(message: Message) -> Headers:
    """Return the headers that say what the message has beside topic and payload."""
    found: Headers = [
        ("mqtt.qos", b"%d" % message.qos),
        ("mqtt.retain", b"%d" % message.retain),
        ("mqtt.timestamp_us", b"%d" % message.timestamp_us),
    ]
    if message.message_expiry_s >= 0:
        found.append(("mqtt.expiry_s", b"%d" % message.message_expiry_s))
    properties = _properties(message)
    if properties is None:
        return found
    if properties.content_type is not None:
        found.append(("mqtt.content-type", _bytes(properties.content_type)))
    if properties.response_topic is not None:
        found.append(("mqtt.response-topic", _bytes(properties.response_topic)))
    if properties.correlation_data is not None:
        found.append(("mqtt.correlation-data", properties.correlation_data))
    if properties.payload_format_indicator is not None:
        found.append(("mqtt.payload-format", b"%d" % properties.payload_format_indicator))
    for name, value in properties.user_properties:
        if not name.startswith(OURS):
            found.append((name, _bytes(value)))
    return found


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _properties(message: Message) -> Properties | None:
    """Return the properties of a message, None if it has none."""
    if not message.properties or len(message.properties) > PROPERTIES_MAX:
        return None
    area = BytesWriter()
    varint_into(area, len(message.properties))
    area.write(message.properties)
    try:
        return read_properties(area.getvalue(), 0, len(area.getvalue()), _PUBLISH)[0]
    except (HeadraceError, ValueError, IndexError):
        return None
