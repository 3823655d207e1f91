"""The columns of the table `messages`: one row for every message that the journal holds.

`message_id` names a message for ever (decisions 2 and 3), in one of two forms that cannot be mistaken for
each other:

    client:<tenant>/<client id>/<message-id>    the publisher sent the user property `message-id`. In the
    client id `%`
                                                and `/` are written %25 and %2F; a tenant has no `/`
    journal:<uuid>:<epoch>:<offset>             otherwise. The epoch is the one at the time of writing

So a message that a publisher sent again under the same `message-id` has two rows (two offsets) and one
message id. Every column is nullable as far as Spark is concerned, which spares Delta a check per row; the
comments say which ones are never null.
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
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace_spark.errors import BadOption

MESSAGE_ID_PROPERTY: Final = "message-id"

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


def select(columns: str) -> StructType:
    """The part of `messages` that a comma-separated list names, in the order of the list; all of it for ''."""
    names = [name.strip() for name in columns.split(",") if name.strip()]
    unknown = [name for name in names if name not in MESSAGES.names]
    if unknown or len(set(names)) < len(names):
        what = f"unknown: {', '.join(unknown)}" if unknown else "a column is named twice"
        raise BadOption("columns", columns, f"{what}; the columns are {', '.join(MESSAGES.names)}")
    return StructType([MESSAGES[name] for name in names]) if names else MESSAGES


def check_columns(schema: StructType) -> None:
    """Refuse a schema given by hand (`.schema(...)`) that is not part of `messages`."""
    for field in schema:
        if field.name not in MESSAGES.names or MESSAGES[field.name].dataType != field.dataType:
            raise BadOption(
                "schema",
                field.simpleString(),
                "not a column of messages; leave .schema() out, or use option columns",
            )


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark expects of record batches for `schema`."""
    return to_arrow_schema(schema, timezone="UTC")
