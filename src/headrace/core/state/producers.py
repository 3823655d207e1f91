"""Idempotent producers: which message a publisher sends again after a lost acknowledgement, and is stored already.

A QoS 1 or 2 PUBLISH of MQTT 5 may carry two user properties: `producer-id`, 1 to 128 bytes, a name within tenant, user
and client id; and `producer-sequence`, a decimal number below 2^63 that grows from message to message and may leave gaps.
A message whose sequence is not above the last one of its producer is acknowledged and not stored again. One that is more
than `GAP_MAX` away from it, up or down, is refused: no counter and no clock in nanoseconds makes such a gap, and believed
it would silence the producer, or be acknowledged as stored while it is not. Once a message of a producer was refused,
nothing more of producers is taken on that connection: a higher sequence would make the refused one look stored.

Where access control is on, the broker adds `producer-owner`, a digest of the user, to what it journals, in place of what
the client may have put there: the fold knows whose a sequence is from the record alone, long after its session ended.
Messages of before have none. Their sequences count for whoever sends next under that client id and producer id, until
that user has a sequence of its own.

What came over a bridge (`bridged-by`) is an ordinary message: the client id there is the bridge's, and the sequences are
those of all who publish behind it. Our bridges take these properties out, since an earlier headrace would count them.

What is known is a fold over the records, which carry the properties and a flag that says so: `apply` is called for
each one when it is durable, live and in recovery alike. The bounds are part of the fold, so that everybody who reads
the journal forgets the same producers: the longest unused ones beyond `PRODUCERS_MAX` a tenant, and beyond half of that
for one user, or without one for one client id. None is forgotten for its age: that is the time of day's word, and a clock
that is set ahead for a moment would forget all of them.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from mypy_extensions import i64

from headrace.core.records.message import Message
from headrace.mqtt.data_types import binary
from headrace.mqtt.publish import user_property, without_user_properties

ID_PROPERTY: Final = b"producer-id"
SEQUENCE_PROPERTY: Final = b"producer-sequence"
OWNER_PROPERTY: Final = b"producer-owner"
BRIDGED_PROPERTY: Final = b"bridged-by"  # of each headrace that passed a message on
# As it stands in a property area: whoever has not these bytes is no such message, and pays one search.
SEQUENCE_MARK: Final = b"\x26\x00\x11producer-sequence"
ID_BYTES_MAX: Final = 128
SEQUENCE_DIGITS_MAX: Final = 19
SEQUENCE_MAX: Final = (1 << 63) - 1
GAP_MAX: Final = 1 << 56  # two years in nanoseconds; 2^24 batches of the Spark sink
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
    their way to the journal, which nobody forgets before they are there. `most`: how many are known, half of them of one
    owner."""

    def __init__(self, most: int = PRODUCERS_MAX) -> None:
        self._most = most
        self._most_of_one = (most + 1) // 2
        self._known: OrderedDict[bytes, Producer] = OrderedDict()
        self._on_their_way: dict[bytes, int] = {}
        self._taken = (
            b""  # the producer of the message that was NEW last, and its sequence before that, or -1
        )
        self._before_taken = -1
        self._counts: dict[bytes, int] = {}  # owner -> producers
        # The keys of each owner that had the most it may have, longest unused first; found once, then kept up.
        self._crowded: dict[bytes, OrderedDict[bytes, None]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def take(self, message: Message) -> int:
        """Return what a message is that is about to be journaled: ORDINARY, NEW (from now on taken), REPEATED or
        MALFORMED, which is refused."""
        if not is_sequenced(message.properties):
            return ORDINARY
        key = _key(message)
        sequence = _sequence(message)
        if key is None or sequence < 0 or not 0 < _id_bytes(key) <= ID_BYTES_MAX:
            return MALFORMED
        last = self._last(key)
        if last < 0:
            last = self._last_of_before(key, sequence)
        if last >= 0 and not -GAP_MAX <= sequence - last <= GAP_MAX:
            return MALFORMED
        if sequence <= last:
            return REPEATED
        self._on_their_way[key] = sequence
        self._taken = key
        self._before_taken = last
        return NEW

    def give_back(self) -> None:
        """Note that the message which was NEW last could not be journaled: it is NEW when it comes again."""
        if self._before_taken < 0:
            self._on_their_way.pop(self._taken, None)
        else:
            self._on_their_way[self._taken] = self._before_taken

    def _last(self, key: bytes) -> int:
        """Return the highest sequence of a producer that was taken, -1 if there is none."""
        last = self._on_their_way.get(key, -1)
        producer = self._known.get(key)
        return last if producer is None else max(last, int(producer.sequence))

    def _last_of_before(self, key: bytes, sequence: int) -> int:
        """Return the last sequence of the same client id and producer id from before there were owners, -1 if there is
        none, or none that can be of this producer."""
        parts = key.split(b"\0")
        last = self._last(b"\0".join(parts[:2])) if len(parts) > 2 else -1
        return last if -GAP_MAX <= sequence - last <= GAP_MAX else -1

    def apply(self, message: Message) -> None:
        """Note that a message that was NEW is durable."""
        key = _key(message)
        if key is None:
            return
        producer = self._known.get(key)
        if producer is None:
            producer = self._add(key)
        else:
            self._known.move_to_end(key)
            if self._crowded:
                self._touch(key)
        sequence = _sequence(message)
        producer.sequence = max(producer.sequence, sequence)
        producer.last_us = message.timestamp_us
        if self._on_their_way.get(key, sequence + 1) <= sequence:
            del self._on_their_way[key]
        self._keep_bounds(_owner(key))

    # Bounds: of what is durable, by its last use, and nothing else: a replay forgets the same wherever it begins

    def _add(self, key: bytes) -> Producer:
        producer = Producer()
        self._known[key] = producer
        owner = _owner(key)
        self._counts[owner] = self._counts.get(owner, 0) + 1
        own = self._crowded.get(owner)
        if own is not None:
            own[key] = None
        return producer

    def _touch(self, key: bytes) -> None:
        own = self._crowded.get(_owner(key))
        if own is not None:
            own.move_to_end(key)

    def _keep_bounds(self, owner: bytes) -> None:
        """Forget the longest unused producer of an owner that has too many, and of all when they are too many."""
        if self._counts[owner] > self._most_of_one:
            own = self._crowded.get(owner)
            if own is None:
                own = OrderedDict((key, None) for key in self._known if _owner(key) == owner)
                self._crowded[owner] = own
            self._forget(next(iter(own)))
        if len(self._known) > self._most:
            self._forget(next(iter(self._known)))

    def _forget(self, key: bytes) -> None:
        del self._known[key]
        owner = _owner(key)
        left = self._counts[owner] - 1
        own = self._crowded.get(owner)
        if own is not None:
            del own[key]
            if left < self._most_of_one // 2:
                del self._crowded[owner]
        if left:
            self._counts[owner] = left
        else:
            del self._counts[owner]

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
        producer = self._add(key)
        producer.sequence = sequence
        producer.last_us = last_us


def is_sequenced(properties: bytes) -> bool:
    """Return whether a PUBLISH is one of an idempotent producer, and not what a bridge brings of the producers behind
    it."""
    return (
        SEQUENCE_MARK in properties
        and user_property(properties, SEQUENCE_PROPERTY) is not None
        and user_property(properties, ID_PROPERTY) is not None
        and user_property(properties, BRIDGED_PROPERTY) is None
    )


def owned(properties: bytes, user: str | None, is_known: bool) -> bytes:
    """Return the properties of a sequenced PUBLISH with the digest of its user, and without what the client says of an
    owner. `is_known`: access control says who everybody is; then "" stands for whoever has no user name."""
    if OWNER_PROPERTY in properties:
        properties = without_user_properties(properties, (OWNER_PROPERTY,))
    if not is_known:
        return properties
    digest = "" if user is None else hashlib.blake2b(user.encode("utf-8"), digest_size=16).hexdigest()
    return properties + b"\x26" + binary(OWNER_PROPERTY) + binary(digest.encode("ascii"))


def without_producer(properties: bytes) -> bytes:
    """Return the properties of a PUBLISH without those of idempotent producers, which are for one broker alone."""
    if ID_PROPERTY not in properties and SEQUENCE_PROPERTY not in properties:
        return properties
    return without_user_properties(properties, (ID_PROPERTY, SEQUENCE_PROPERTY, OWNER_PROPERTY))


def client_of_producer(tenant: str, row: list[object]) -> str:
    """Return the client id of a row of `Producers.entries`."""
    key = row[0]
    assert isinstance(key, bytes)
    return key[len(tenant.encode("utf-8")) : key.index(b"\0")].decode("utf-8")


def _key(message: Message) -> bytes | None:
    """Return the key of a message: tenant and client, producer id and, where it has one, owner, each behind a zero, which
    none of them holds. None where a message lacks one of the two properties."""
    producer_id = user_property(message.properties, ID_PROPERTY)
    if producer_id is None or user_property(message.properties, SEQUENCE_PROPERTY) is None:
        return None
    key = message.origin + b"\0" + producer_id
    owner = user_property(message.properties, OWNER_PROPERTY)
    return key if owner is None else key + b"\0" + owner


def _id_bytes(key: bytes) -> int:
    """Return the length of the producer id in a key."""
    return len(key.split(b"\0")[1])


def _owner(key: bytes) -> bytes:
    """Return whose producer it is for the bounds: the user's, or the client id's where there is none."""
    parts = key.split(b"\0")
    return b"\0" + parts[2] if len(parts) > 2 and parts[2] else parts[0]


def _sequence(message: Message) -> i64:
    """Return the sequence of a message, -1 if it is no number that counts."""
    digits = user_property(message.properties, SEQUENCE_PROPERTY)
    if digits is None or not digits.isdigit() or len(digits) > SEQUENCE_DIGITS_MAX:
        return -1
    number = int(digits)
    return number if number <= SEQUENCE_MAX else -1
