"""EVENT records: what happened to sessions, subscriptions, retained messages and wills.

A 16-byte header (`record`), then one MessagePack map with string keys; unknown keys are ignored, which is how it grows::

     0 u32 length   4 u8 kind = 2   5 u8 subkind   6 u16 reserved   8 u64 timestamp_us

  Keys: inc incarnation, t tenant, c client id (t and c beside inc: for who reads a part of the journal; a fold must not
  need them, early journals lack them); ty session type, ex session expiry in s, v protocol version, w will, u user, lim
  sent_limit; will: 1 if it is still to come; reason, code: of a close or an end, in words and as MQTT 5 reason code if
  there was one; dropped: messages the session had queued when it ended; subs: rows of filter, QoS, no local, retain as
  published, retain handling, subscription id; f: filters; ret: offset, QoS, subscription id of retained messages, flat;
  rs: their sizes, rp: the bytes of their payloads; topic, off: of a retained message.

Each kind has a class here, and the keys are known to this file alone: `at` makes an event that is journaled at a time,
properties read one. The map stays as it was read, so keys of later versions are still in it when it is written again.
"""

from __future__ import annotations

from typing import Final, NamedTuple, cast

import msgspec
from librt.strings import BytesWriter
from mypy_extensions import i64

from headrace.core.records.record import (
    KIND_EVENT,
    SHORT_HEADER,
    SHORT_HEADER_SIZE,
    Record,
    short_record_into,
)
from headrace.errors import CorruptRecord
from headrace.mqtt.packets import Will

BROKER_STARTED: Final = 1
SESSION_OPENED: Final = 2
SESSION_RESUMED: Final = 3
SESSION_CLOSED: Final = 4
SESSION_ENDED: Final = 5
SUBSCRIBED: Final = 6
UNSUBSCRIBED: Final = 7
WILL_FIRED: Final = 8
WILL_CANCELLED: Final = 9
RETAINED_EXPIRED: Final = 10
RETAINED_QUEUED: Final = 11

_encode_map: Final = msgspec.msgpack.Encoder()
_decode_map: Final = msgspec.msgpack.Decoder()


class SubscriptionRow(NamedTuple):
    """A subscription as events and snapshots have it (options: section 3.8.3.1); `subscription_id` 0 is none."""

    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    subscription_id: int


class SessionName:
    """Says whose event it is: a fold needs the incarnation alone, whoever reads a part of the journal the others too."""

    def __init__(self, incarnation: int, tenant: str | None = None, client_id: str | None = None) -> None:
        self.incarnation = incarnation
        self.tenant = tenant
        self.client_id = client_id

    def fields(self) -> dict[str, object]:
        """Return the keys that an event begins with, in a new map."""
        if self.tenant is None:
            return {"inc": self.incarnation}
        return {"inc": self.incarnation, "t": self.tenant, "c": self.client_id}


class Event(Record):
    """An event of any kind, those that this version does not know included; `fields` are the map of the record."""

    def __init__(self, subkind: int, timestamp_us: int, fields: dict[str, object]) -> None:
        super().__init__(KIND_EVENT, timestamp_us)
        self.subkind = subkind
        self.fields = fields

    def encode_into(self, out: BytesWriter) -> None:
        short_record_into(out, KIND_EVENT, self.subkind, self.timestamp_us, _encode_map.encode(self.fields))

    def text(self, key: str) -> str:
        """Return the text under a key. Raises CorruptRecord if there is none."""
        value = self.fields.get(key)
        if not isinstance(value, str):
            raise CorruptRecord(f"event {self.subkind} without text field {key!r}")
        return value

    def text_or_none(self, key: str) -> str | None:
        """Return the text under a key, None without it."""
        return None if self.fields.get(key) is None else self.text(key)

    def number(self, key: str) -> int:
        """Return the number under a key, 0 without it. Raises CorruptRecord if something else is there."""
        value = self.fields.get(key, 0)
        if not isinstance(value, int):
            raise CorruptRecord(f"event {self.subkind}: field {key!r} is not a number")
        return value

    def number_or_none(self, key: str) -> int | None:
        """Return the number under a key, None without it. Raises CorruptRecord if something else is there."""
        return None if self.fields.get(key) is None else self.number(key)

    def numbers(self, key: str) -> list[int]:
        """Return the numbers in the list under a key; none without it."""
        value = self.fields.get(key)
        return [n for n in value if isinstance(n, int)] if isinstance(value, list) else []

    def listed(self, key: str) -> list[object]:
        """Return the list under a key. Raises CorruptRecord if there is none."""
        value = self.fields.get(key)
        if not isinstance(value, list):
            raise CorruptRecord(f"event {self.subkind} without list {key!r}")
        return value


class BrokerStarted(Event):
    """The broker is there again: whoever was connected is not any more."""

    @staticmethod
    def at(now_us: int) -> BrokerStarted:
        return BrokerStarted(BROKER_STARTED, now_us, {})


class SessionEvent(Event):
    """Tells what happened to one session. Early journals have neither its tenant nor its client id."""

    @property
    def incarnation(self) -> int:
        return self.number("inc")

    @property
    def tenant(self) -> str | None:
        return self.text_or_none("t")

    @property
    def client_id(self) -> str | None:
        return self.text_or_none("c")


class ClientConnected(SessionEvent):
    """A client opened a session or came back to one, with all that its CONNECT decides."""

    @property
    def expiry_s(self) -> int:
        return self.number("ex")

    @property
    def version(self) -> int:
        return self.number("v")

    @property
    def will(self) -> Will | None:
        will = will_from(self.fields.get("w"))
        if will is not None:
            will.version = self.version or 5
        return will

    @property
    def sent_limit(self) -> int:
        return self.number("lim")

    @property
    def user(self) -> str | None:
        """Return the user whom the session belongs to from now on; None where it already belongs to somebody, or to
        nobody."""
        value = self.fields.get("u")
        return value if isinstance(value, str) else None


class SessionOpened(ClientConnected):
    """A session began. The offset of this record is its incarnation."""

    @staticmethod
    def at(
        now_us: int,
        tenant: str,
        client_id: str,
        session_type: int,
        expiry_s: int,
        version: int,
        will: Will | None,
        sent_limit: int,
        user: str | None,
    ) -> SessionOpened:
        fields: dict[str, object] = {"t": tenant, "c": client_id, "ty": session_type}
        return SessionOpened(
            SESSION_OPENED, now_us, _connected(fields, expiry_s, version, will, sent_limit, user)
        )

    @property
    def incarnation(self) -> int:
        return self.offset

    @property
    def tenant(self) -> str:
        return self.text("t")

    @property
    def client_id(self) -> str:
        return self.text("c")

    @property
    def session_type(self) -> int:
        return self.number("ty")


class SessionResumed(ClientConnected):
    """A client came back to its session."""

    @staticmethod
    def at(
        now_us: int,
        session: SessionName,
        expiry_s: int,
        version: int,
        will: Will | None,
        sent_limit: int,
        user: str | None,
    ) -> SessionResumed:
        fields = _connected(session.fields(), expiry_s, version, will, sent_limit, user)
        return SessionResumed(SESSION_RESUMED, now_us, fields)


def _connected(
    fields: dict[str, object],
    expiry_s: int,
    version: int,
    will: Will | None,
    sent_limit: int,
    user: str | None,
) -> dict[str, object]:
    fields["ex"] = expiry_s
    fields["v"] = version
    fields["w"] = will_fields(will)
    fields["lim"] = sent_limit
    if user is not None:
        fields["u"] = user
    return fields


class SessionOver(SessionEvent):
    """The connection of a session or the session itself came to an end: why, in words, and the MQTT 5 reason code that
    either side gave, None if none did."""

    @property
    def reason(self) -> str | None:
        return self.text_or_none("reason")

    @property
    def reason_code(self) -> int | None:
        return self.number_or_none("code")


class SessionClosed(SessionOver):
    """A session has no connection any more, and waits for its client."""

    @staticmethod
    def at(
        now_us: int,
        session: SessionName,
        expiry_s: int,
        sent_limit: int,
        will_set: bool,
        reason: str | None = None,
        reason_code: int = -1,
    ) -> SessionClosed:
        """Return the event of a session whose connection has ended. `will_set`: the session has a will that is still to
        come. `reason_code` -1 is none."""
        fields = session.fields()
        fields["ex"] = expiry_s
        fields["lim"] = sent_limit
        fields["will"] = int(will_set)
        _add_reason(fields, reason, reason_code)
        return SessionClosed(SESSION_CLOSED, now_us, fields)

    @property
    def expiry_s(self) -> int:
        return self.number("ex")

    @property
    def sent_limit(self) -> int:
        return self.number("lim")

    @property
    def will_set(self) -> bool:
        return self.number("will") != 0


class SessionEnded(SessionOver):
    """A session is gone, with what it had queued."""

    @staticmethod
    def at(now_us: int, session: SessionName, dropped: int, reason: str, reason_code: int) -> SessionEnded:
        """Return the event of a session that has ended. `dropped`: messages that the session had queued, 0 if none.
        `reason_code` -1 is none."""
        fields = session.fields()
        if dropped:
            fields["dropped"] = dropped
        _add_reason(fields, reason, reason_code)
        return SessionEnded(SESSION_ENDED, now_us, fields)

    @property
    def dropped(self) -> int | None:
        return self.number_or_none("dropped")


def _add_reason(fields: dict[str, object], reason: str | None, reason_code: int) -> None:
    if reason is not None:
        fields["reason"] = reason
    if reason_code >= 0:
        fields["code"] = reason_code


class RetainedListing(SessionEvent):
    """An event that lists retained messages which were put into the queue of a session."""

    @property
    def retained(self) -> list[int]:
        """Return offset, QoS, subscription identifier (0 is none) of each, flat."""
        return self.numbers("ret")

    @property
    def sizes(self) -> list[int]:
        """Return the bytes that each counts in the queue; 0 in older records, which do not have them."""
        return self.numbers("rs") or [0] * (len(self.retained) // 3)

    @property
    def payloads(self) -> list[int]:
        """Return the bytes of the payload of each; none in older records, which do not have them."""
        found = self.numbers("rp")
        return found if len(found) == len(self.retained) // 3 else []

    def without(self, done: int) -> RetainedListing:
        """Return the event without its first `done` retained messages."""
        fields = dict(self.fields)
        fields["ret"] = self.retained[3 * done :]
        for key in ("rs", "rp"):
            if key in fields:
                fields[key] = self.numbers(key)[done:]
        rest = cast(RetainedListing, event_of(self.subkind, self.timestamp_us, fields))
        rest.offset = self.offset
        return rest


class Subscribed(RetainedListing):
    """What a SUBSCRIBE added or replaced, with the first of the retained messages that it put into the queue."""

    @staticmethod
    def at(
        now_us: int,
        session: SessionName,
        subscriptions: list[SubscriptionRow],
        retained: list[int] | None = None,
        sizes: list[int] | None = None,
        payloads: list[int] | None = None,
    ) -> Subscribed:
        """Return the event of subscriptions. `retained`, `sizes`, `payloads`: as `RetainedListing` reads them; what is
        None is left out of the map."""
        fields = session.fields()
        fields["subs"] = subscriptions
        if retained is not None:
            fields["ret"] = retained
        if sizes is not None:
            fields["rs"] = sizes
        if payloads is not None:
            fields["rp"] = payloads
        return Subscribed(SUBSCRIBED, now_us, fields)

    @property
    def subscriptions(self) -> list[SubscriptionRow]:
        """Return the subscriptions. Raises CorruptRecord where one is not of six values."""
        return [subscription_of(row) for row in self.listed("subs")]


class RetainedQueued(RetainedListing):
    """More of what a SUBSCRIBE found: a page of retained messages that were put into the queue of the session."""

    @staticmethod
    def at(
        now_us: int, session: SessionName, retained: list[int], sizes: list[int], payloads: list[int]
    ) -> RetainedQueued:
        fields = session.fields()
        fields["ret"] = retained
        fields["rs"] = sizes
        fields["rp"] = payloads
        return RetainedQueued(RETAINED_QUEUED, now_us, fields)


class Unsubscribed(SessionEvent):
    """What an UNSUBSCRIBE took away; filters that the session did not have may be among them."""

    @staticmethod
    def at(now_us: int, session: SessionName, filters: list[str]) -> Unsubscribed:
        fields = session.fields()
        fields["f"] = filters
        return Unsubscribed(UNSUBSCRIBED, now_us, fields)

    @property
    def filters(self) -> list[str]:
        return cast(list[str], self.listed("f"))


class WillFired(SessionEvent):
    """The will of a session was published: it has none any more."""

    @staticmethod
    def at(now_us: int, session: SessionName) -> WillFired:
        return WillFired(WILL_FIRED, now_us, session.fields())


class WillCancelled(SessionEvent):
    """The will of a session was forgotten: it has none any more."""

    @staticmethod
    def at(now_us: int, session: SessionName) -> WillCancelled:
        return WillCancelled(WILL_CANCELLED, now_us, session.fields())


class RetainedExpired(Event):
    """The retained message that was published at an offset is not retained any more."""

    @staticmethod
    def at(now_us: int, tenant: str, topic: str, message_offset: int) -> RetainedExpired:
        fields: dict[str, object] = {"t": tenant, "topic": topic, "off": message_offset}
        return RetainedExpired(RETAINED_EXPIRED, now_us, fields)

    @property
    def tenant(self) -> str:
        return self.text("t")

    @property
    def topic(self) -> str:
        return self.text("topic")

    @property
    def message_offset(self) -> int:
        return self.number("off")


_KINDS: Final[dict[int, type[Event]]] = {
    BROKER_STARTED: BrokerStarted,
    SESSION_OPENED: SessionOpened,
    SESSION_RESUMED: SessionResumed,
    SESSION_CLOSED: SessionClosed,
    SESSION_ENDED: SessionEnded,
    SUBSCRIBED: Subscribed,
    UNSUBSCRIBED: Unsubscribed,
    WILL_FIRED: WillFired,
    WILL_CANCELLED: WillCancelled,
    RETAINED_EXPIRED: RetainedExpired,
    RETAINED_QUEUED: RetainedQueued,
}


def event_of(subkind: int, timestamp_us: int, fields: dict[str, object]) -> Event:
    """Return the event that a record's map tells of; a plain `Event` where this version does not know the subkind."""
    return _KINDS.get(subkind, Event)(subkind, timestamp_us, fields)


def decode_event(body: bytes, pos: i64, end: i64) -> Event:
    """Return the EVENT record at `pos`. Raises CorruptRecord."""
    _, _, subkind, _, timestamp_us = SHORT_HEADER.unpack_from(body, pos)
    fields = _decode_map.decode(body[pos + SHORT_HEADER_SIZE : end])
    if not isinstance(fields, dict):
        raise CorruptRecord("event is not a map")
    return event_of(subkind, timestamp_us, fields)


def subscription_of(row: object) -> SubscriptionRow:
    """Return a subscription from a list in an event or a snapshot. Raises CorruptRecord if it is none of six values."""
    if isinstance(row, SubscriptionRow):
        return row
    if not isinstance(row, list) or len(row) != 6:
        raise CorruptRecord("a subscription that is not a list of six")
    topic_filter, qos, no_local, as_published, handling, identifier = row
    return SubscriptionRow(topic_filter, qos, bool(no_local), bool(as_published), handling, identifier)


def will_fields(will: Will | None) -> list[object] | None:
    """Return a will as it stands in events and snapshots."""
    if will is None:
        return None
    fields: list[object] = [
        will.topic,
        will.payload,
        will.qos,
        will.retain,
        will.properties,
        will.delay_s,
        will.message_expiry_s,
    ]
    if will.user is not None:
        fields.append(will.user)
    return fields


def will_from(value: object) -> Will | None:
    """Return the will that `will_fields` made such a list of; None where there is none."""
    if not isinstance(value, list) or len(value) < 7:
        return None
    topic, payload, qos, retain, properties, delay_s, expiry_s = value[:7]
    will = Will(
        str(topic),
        cast(bytes, payload),
        int(qos),
        bool(retain),
        cast(bytes, properties),
        int(delay_s),
        int(expiry_s),
    )
    will.user = str(value[7]) if len(value) > 7 else None
    return will
