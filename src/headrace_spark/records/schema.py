"""The columns that the source has, for each of the three schemas of records (decision 5; option `schema`).

`messages`: one row for every message that the journal holds. `message_id` names a message for ever (decisions
2 and 3), in one of two forms that cannot be mistaken for each other:

    client:<tenant>/<client id>/<message-id>    the publisher sent the user property `message-id`,
                                                and not empty. In the client id `%`
                                                and `/` are written %25 and %2F; a tenant has no `/`
    journal:<uuid>:<epoch>:<offset>             otherwise. The epoch is the one at the time of writing

So a message that a publisher sent again under the same `message-id` has two rows (two offsets) and one
message id. A message that came as a frame of a device has the form `journal:`; the broker's answer to the device
carries the MD5 of `message_id` (ADR 0013), so that `unhex(md5(message_id))` joins the two. Every column is nullable as
far as Spark is concerned, which spares Delta a check per row; the comments say which ones are never null.

`events`: what happened to sessions, subscriptions, wills and retained messages. A row is one thing that
happened; a record that lists several (SUBSCRIBE with ten filters) has a row for each, numbered by `item`, so
(journal_uuid, journal_epoch, journal_offset, item) names a row for ever. Kinds, and what each has beside
tenant, client and incarnation:

    broker_started                        nothing else; every session open before it is closed
    session_opened, session_resumed       session_expiry_s, protocol_version, sent_limit; opened: session_type
    session_closed                        a session that lives on: session_expiry_s, sent_limit, reason,
                                          reason_code; `will_set` says whether its will is still to come
    session_ended                         the session is no more: reason, dropped (what it had queued)
    subscribed                            topic_filter, qos, no_local, retain_as_published, retain_handling,
                                          subscription_id
    unsubscribed                          topic_filter
    will_set                              topic, payload, qos, retain, properties, will_delay_s,
                                          message_expiry_s; in the record of opened or resumed, as a later item
    owner_set                             owner: the user to whom the client id belongs from here on; in the record
                                          of opened or resumed, as its last item
    will_fired, will_cancelled            nothing else; what fired is a message of its own
    retained_set                          topic, payload, qos, properties, message_expiry_s: a PUBLISH with RETAIN
    retained_cleared                      topic: a PUBLISH with RETAIN and no payload
    retained_expired                      topic, message_offset of the message that was retained
    device_owned                          owner: the user whom the device, by its client id, belongs to
    queue_opened                          topic: it has a queue for consumer clusters
    queue_closed                          message_offset: that of the record `queue_opened`
    cluster_made                          topic, cluster
    retained_queued                       message_offset, qos, subscription_id, payload_bytes: a retained message
                                          put into the queue of a session

`record` holds the bytes of the whole record, for those who fold it again (`headrace.core.state.state`); it is there on
item 0 only. Journals of the first headrace name tenant and client only where a session opens: there they are
null in the other kinds, and `incarnation` leads to them.

`progress`: what became of messages that sessions had queued, one row for each entry of a record. `serial`
counts the QoS 1 and 2 messages of one session (or of one shared group) from 1.

    acked, received (PUBREC seen)         incarnation, serial
    released (PUBREL seen)                incarnation, packet_id
    sent_limit                            incarnation, serial: nothing above it was sent
    dropped                               incarnation, serial, count (serial up to serial + count - 1), reason, one
                                          of `DROP_REASONS` of `headrace.core.records.record`; `expired` is one of them
    bound                                 incarnation, serial, packet_id
    shared_drawn                          group_id, serial, incarnation, packet_id, qos
    shared_finished, shared_received      group_id, serial
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace_spark.base.errors import BadOption

MESSAGE_ID_PROPERTY: Final = "message-id"
PROTOCOL_COMMENT: Final = "how it came: mqtt, or frame of a device; null in rows of a headrace before frames"
PROTOCOL_NAMES: Final = ("mqtt", "frame")
ADDED_TO_MESSAGES: Final = frozenset({"protocol"})  # tables of an older headrace have no such column

_USER_PROPERTY: Final = StructType([StructField("name", StringType()), StructField("value", StringType())])


def _column(name: str, kind: DataType, comment: str) -> StructField:
    return StructField(name, kind, nullable=True, metadata={"comment": comment})


MESSAGES: Final = StructType(
    [
        _column("tenant", StringType(), "tenant of the publisher"),
        _column("topic", StringType(), "topic name within the tenant"),
        _column("client_id", StringType(), "publisher; empty for the broker itself"),
        _column("qos", ByteType(), "QoS of the PUBLISH, 0 to 2"),
        _column("retain", BooleanType(), "RETAIN of the PUBLISH"),
        _column("dup", BooleanType(), "DUP of the PUBLISH: the publisher sent it before"),
        _column("will", BooleanType(), "published by the broker as the client's will"),
        _column("mqtt5", BooleanType(), "published with MQTT 5"),
        _column("protocol", StringType(), PROTOCOL_COMMENT),
        _column("payload_format_indicator", ByteType(), "1: the payload is UTF-8; null if absent"),
        _column("content_type", StringType(), "null if absent"),
        _column("response_topic", StringType(), "null if absent"),
        _column("correlation_data", BinaryType(), "null if absent"),
        _column("message_expiry_s", LongType(), "Message Expiry Interval in seconds; null if absent"),
        _column("user_properties", ArrayType(_USER_PROPERTY), "in the order sent; empty if there are none"),
        _column("publish_timestamp", TimestampType(), "when the broker received it, microseconds"),
        _column(
            "incarnation",
            LongType(),
            "offset of the record that opened the publisher's session; 0: the broker",
        ),
        _column("journal_uuid", StringType(), "the journal it was read from"),
        _column("journal_epoch", LongType(), "epoch of the journal when it was written"),
        _column("journal_offset", LongType(), "offset of its record in the journal"),
        _column(
            "message_id", StringType(), "client:<tenant>/<client>/<id> or journal:<uuid>:<epoch>:<offset>"
        ),
        _column("payload", BinaryType(), "as published; empty, never null"),
        _column("date", DateType(), "day of publish_timestamp, UTC"),
    ]
)


_TENANT = _column("tenant", StringType(), "tenant; null for the broker itself, and in old records")
_INCARNATION = _column("incarnation", LongType(), "offset of the record that opened the session")
_PLACE: Final = (
    MESSAGES["journal_uuid"],
    MESSAGES["journal_epoch"],
    MESSAGES["journal_offset"],
    _column("item", IntegerType(), "number of the row within its record, from 0"),
)

EVENTS: Final = StructType(
    [
        _column("kind", StringType(), "what happened"),
        _TENANT,
        _column("client_id", StringType(), "client whose session it is; of retained_set: the publisher"),
        _INCARNATION,
        _column("topic_filter", StringType(), "as subscribed, with $share/<group>/ if it is shared"),
        _column("topic", StringType(), "of a will or a retained message"),
        _column("qos", ByteType(), "granted, or of the will or message"),
        _column("no_local", BooleanType(), "subscription option"),
        _column("retain_as_published", BooleanType(), "subscription option"),
        _column("retain_handling", ByteType(), "subscription option, 0 to 2"),
        _column("subscription_id", LongType(), "Subscription Identifier; null if there is none"),
        _column("retain", BooleanType(), "the will is to be retained"),
        _column("payload", BinaryType(), "of a will or a retained message"),
        _column("properties", BinaryType(), "of a will or a retained message, in MQTT 5 wire encoding"),
        _column("message_expiry_s", LongType(), "of a will or a retained message; null if absent"),
        _column("will_delay_s", LongType(), "Will Delay Interval in seconds"),
        _column(
            "message_offset",
            LongType(),
            "offset of the retained message, or of the queue_opened, it is about",
        ),
        _column("payload_bytes", LongType(), "of retained_queued: of its payload; null in old records"),
        _column("session_type", StringType(), "DEVICE or APPLICATION"),
        _column("session_expiry_s", LongType(), "0: ends with the connection; 4294967295: never expires"),
        _column("protocol_version", ByteType(), "3 is MQTT 3.1, 4 is 3.1.1, 5 is 5.0"),
        _column("sent_limit", LongType(), "serials above it have not been sent"),
        _column("will_set", BooleanType(), "of session_closed: the will is still to come"),
        _column("owner", StringType(), "user to whom the client id belongs, where it has one"),
        _column("cluster", StringType(), "name of a consumer cluster"),
        _column("reason", StringType(), "of session_closed and session_ended, in words; null in old records"),
        _column("reason_code", ShortType(), "MQTT 5 reason code of the close; null if there was none"),
        _column("dropped", LongType(), "messages that the session still had queued when it ended"),
        _column("event_timestamp", TimestampType(), "when the broker decided it, microseconds"),
        *_PLACE,
        _column("record", BinaryType(), "the whole record, on item 0; null on the others"),
        _column("date", DateType(), "day of event_timestamp, UTC"),
    ]
)

PROGRESS: Final = StructType(
    [
        _column("kind", StringType(), "what became of it"),
        _INCARNATION,
        _column("group_id", LongType(), "shared group: offset of its first subscription << 16 | place in it"),
        _column("serial", LongType(), "the message's number in the queue of the session or group"),
        _column("count", LongType(), "of dropped: how many serials; 1 otherwise"),
        _column("reason", StringType(), "of dropped: why"),
        _column("packet_id", IntegerType(), "Packet Identifier"),
        _column("qos", ByteType(), "of shared_drawn"),
        _column("progress_timestamp", TimestampType(), "when the broker noted it, microseconds"),
        *_PLACE,
        _column("date", DateType(), "day of progress_timestamp, UTC"),
    ]
)

SCHEMAS: Final = {"messages": MESSAGES, "events": EVENTS, "progress": PROGRESS}


def select(columns: str, schema: str = "messages") -> StructType:
    """Return the part of a schema that a comma-separated list names, in the order of the list; all of it for ''."""
    whole = SCHEMAS[schema]
    names = [name.strip() for name in columns.split(",") if name.strip()]
    unknown = [name for name in names if name not in whole.names]
    if unknown or len(set(names)) < len(names):
        what = f"unknown: {', '.join(unknown)}" if unknown else "a column is named twice"
        raise BadOption("columns", columns, f"{what}; the columns of {schema} are {', '.join(whole.names)}")
    return StructType([whole[name] for name in names]) if names else whole


def check_columns(given: StructType, schema: str = "messages") -> None:
    """Refuse a schema given by hand (`.schema(...)`) that is not part of the one that is read."""
    whole = SCHEMAS[schema]
    for field in given:
        if field.name not in whole.names or whole[field.name].dataType != field.dataType:
            raise BadOption(
                "schema",
                field.simpleString(),
                f"not a column of {schema}; leave .schema() out, or use option columns",
            )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return what Spark expects of record batches for `schema`."""
    return to_arrow_schema(schema, timezone="UTC")
