"""Idempotent producers: which message a publisher sends again after a lost acknowledgement, and is stored already.

A QoS 1 or 2 PUBLISH of MQTT 5 may carry two user properties: `producer-id`, 1 to 128 bytes, a name within tenant and
client id; and `producer-sequence`, a decimal number below 2^63 that grows from message to message and may leave gaps.
A message whose sequence is not above the last one of its producer is acknowledged and not stored again. Once a message
of a producer was refused, nothing more of producers is taken on that connection: a higher sequence would make the
refused one look stored.

What is known is a fold over the records, which carry the properties and a flag that says so: `apply` is called for
each one when it is durable, live and in recovery alike. The bounds are part of the fold, so that everybody who reads
the journal forgets the same producers: the longest unused ones beyond `PRODUCERS_MAX` a tenant. None is forgotten for its
age: that is the time of day's word, and a clock that is set ahead for a moment would forget all of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from mypy_extensions import i64

from headrace.core.records.message import Message
from headrace.mqtt.publish import user_property

ID_PROPERTY: Final = b"producer-id"
SEQUENCE_PROPERTY: Final = b"producer-sequence"
# As it stands in a property area: whoever has not these bytes is no such message, and pays one search.
SEQUENCE_MARK: Final = b"\x26\x00\x11producer-sequence"
ID_BYTES_MAX: Final = 128
SEQUENCE_DIGITS_MAX: Final = 19
SEQUENCE_MAX: Final = (1 << 63) - 1
PRODUCERS_MAX: Final = 100_000
_PER_ENTRY: Final = 1_000

ORDINARY: Final = 0
NEW: Final = 1
REPEATED: Final = 2
MALFORMED: Final = 3


class Producer:
    """One producer: the sequence and the time of its last durable message."""

    def __init__(self) -> None:
        self.sequence: i64 = -1
        self.last_us: i64 = 0


class Producers:
    """The producers of one tenant, the longest unused one first. Beside them, and no part of the fold: the sequences on
    their way to the journal, which nobody forgets before they are there."""

    def __init__(self, most: int = PRODUCERS_MAX) -> None:
        self._most = most
        self._known: OrderedDict[bytes, Producer] = OrderedDict()
        self._on_their_way: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def take(self, message: Message) -> int:
        """Return what a message is that is about to be journaled: ORDINARY, NEW (from now on taken), REPEATED or
        MALFORMED."""
        key = _key(message)
        if key is None:
            return ORDINARY
        sequence = _sequence(message)
        if sequence < 0 or not 0 < len(key) - len(message.origin) - 1 <= ID_BYTES_MAX:
            return MALFORMED
        if sequence <= self._on_their_way.get(key, -1):
            return REPEATED
        producer = self._known.get(key)
        if producer is not None and sequence <= producer.sequence:
            return REPEATED
        self._on_their_way[key] = sequence
        return NEW

    def apply(self, message: Message) -> None:
        """Note that a message that was NEW is durable."""
        key = _key(message)
        if key is None:
            return
        producer = self._known.get(key)
        if producer is None:
            producer = Producer()
            self._known[key] = producer
        else:
            self._known.move_to_end(key)
        sequence = _sequence(message)
        producer.sequence = max(producer.sequence, sequence)
        producer.last_us = message.timestamp_us
        if self._on_their_way.get(key, sequence + 1) <= sequence:
            del self._on_their_way[key]
        if len(self._known) > self._most:  # of what is durable alone, so that a replay forgets the same
            self._known.popitem(last=False)

    # Snapshots

    def entries(self) -> Iterator[list[list[object]]]:
        """Yield the durable part, in rows of key, sequence and time, a thousand at a time."""
        producers = list(self._known.items())
        for start in range(0, len(producers), _PER_ENTRY):
            yield [
                [key, int(producer.sequence), int(producer.last_us)]
                for key, producer in producers[start : start + _PER_ENTRY]
            ]

    def restore(self, key: bytes, sequence: int, last_us: int) -> None:
        producer = Producer()
        producer.sequence = sequence
        producer.last_us = last_us
        self._known[key] = producer


def is_sequenced(properties: bytes) -> bool:
    """Return whether a PUBLISH is one of an idempotent producer."""
    return SEQUENCE_MARK in properties and user_property(properties, ID_PROPERTY) is not None


def client_of_producer(tenant: str, row: list[object]) -> str:
    """Return the client id of a row of `Producers.entries`."""
    key = row[0]
    assert isinstance(key, bytes)
    return key[len(tenant.encode("utf-8")) : key.index(b"\0")].decode("utf-8")


def _key(message: Message) -> bytes | None:
    """Return the key of a message: tenant, client and producer id; None where a message lacks one of the two
    properties."""
    producer_id = user_property(message.properties, ID_PROPERTY)
    if producer_id is None or user_property(message.properties, SEQUENCE_PROPERTY) is None:
        return None
    return message.origin + b"\0" + producer_id  # no client id holds a zero


def _sequence(message: Message) -> i64:
    """Return the sequence of a message, -1 if it is no number that counts."""
    digits = user_property(message.properties, SEQUENCE_PROPERTY)
    if digits is None or not digits.isdigit() or len(digits) > SEQUENCE_DIGITS_MAX:
        return -1
    number = int(digits)
    return number if number <= SEQUENCE_MAX else -1
