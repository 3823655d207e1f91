"""Rows of a DataFrame as MQTT 5 messages: the columns of the sink `headrace-mqtt`, by name, in any order.

    topic                     string            mandatory; no wildcards
    payload                   binary or string  mandatory; null is empty
    qos                       integer           1 (default) or 2: exactly once needs an acknowledgement
    retain                    boolean           default false
    message_expiry_s          integer           null: none
    payload_format_indicator  integer           null: absent
    content_type, response_topic  string        null: absent
    correlation_data          binary            null: absent
    user_properties           array of struct(name, value)

They have the names and types of the table `messages`, so that a row of it can be published as it is; its other columns
are passed over. Unknown names are refused. `producer` (string) and `sequence` (long) say which producer sends a row, and
its number: rows of a producer come in ascending order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegralType,
    LongType,
    StringType,
    StructType,
)

from headrace.errors import ProtocolError
from headrace.mqtt import data_types, publish
from headrace.mqtt.packets import NO_EXPIRY
from headrace.mqtt.properties import Properties
from headrace.mqtt.topics import valid_topic
from headrace_spark.base.errors import BadOption, BadRow
from headrace_spark.devices.publisher import Outgoing
from headrace_spark.records.schema import MESSAGES

PRODUCER: Final = "producer"
SEQUENCE: Final = "sequence"
_TYPES: Final[dict[str, tuple[type[DataType], ...]]] = {
    "topic": (StringType,),
    "payload": (BinaryType, StringType),
    "qos": (IntegralType,),
    "retain": (BooleanType,),
    "message_expiry_s": (IntegralType,),
    "payload_format_indicator": (IntegralType,),
    "content_type": (StringType,),
    "response_topic": (StringType,),
    "correlation_data": (BinaryType,),
    "user_properties": (ArrayType,),
    PRODUCER: (StringType,),
    SEQUENCE: (LongType,),
}
COLUMNS: Final = tuple(name for name in _TYPES if name not in (PRODUCER, SEQUENCE))
_PUBLISH: Final = 3
_EXPIRY_MAX_S: Final = (1 << 32) - 1
_RARE: Final = ("payload_format_indicator", "content_type", "response_topic", "correlation_data")


def check_columns(schema: StructType) -> None:
    """Check the columns of rows that are to be published. Raises BadOption unless rows of `schema` can be messages."""
    for name in ("topic", "payload"):
        if name not in schema.names:
            raise BadOption("schema", schema.simpleString(), f"column {name} is missing")
    for field in schema:
        expected = _TYPES.get(field.name)
        if expected is None and field.name not in MESSAGES.names:
            known = ", ".join(COLUMNS)
            raise BadOption("schema", field.simpleString(), f"no such column; there are {known}")
        if expected is not None and not isinstance(field.dataType, expected):
            wanted = " or ".join(kind.typeName() for kind in expected)
            raise BadOption("schema", field.simpleString(), f"the column must be {wanted}")
    if (PRODUCER in schema.names) != (SEQUENCE in schema.names):
        raise BadOption("schema", schema.simpleString(), f"{PRODUCER} and {SEQUENCE} go together")


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Return the rows of a record batch, with the columns that matter here."""
    kept = [name for name in batch.schema.names if name in _TYPES]
    columns = [batch.column(name).to_pylist() for name in kept]
    for values in zip(*columns, strict=True):
        yield dict(zip(kept, values, strict=True))


def message_of(row: dict[str, Any], sequence: int) -> Outgoing:
    """Return the message that a row describes. Raises BadRow."""
    topic, payload, qos, expiry_s = (
        row["topic"],
        row["payload"],
        row.get("qos"),
        row.get("message_expiry_s"),
    )
    if topic is None or not valid_topic(topic.encode()):
        raise BadRow(f"row {sequence} to topic {topic!r}", "that is no topic name")
    if qos not in (None, 1, 2):
        raise BadRow(f"row {sequence} to topic {topic!r}", "exactly once needs QoS 1 or 2")
    if expiry_s is not None and not 0 <= expiry_s <= _EXPIRY_MAX_S:
        raise BadRow(f"row {sequence} to topic {topic!r}", "a message expiry is 0 to 2^32 - 1 seconds")
    return Outgoing(
        sequence,
        topic,
        payload.encode() if isinstance(payload, str) else payload or b"",
        qos or 1,
        bool(row.get("retain")),
        _checked(row, sequence),
        NO_EXPIRY if expiry_s is None else expiry_s,
    )


def _checked(row: dict[str, Any], sequence: int) -> bytes:
    """Return the property area, as a broker takes it. Raises BadRow."""
    try:
        encoded = _properties(row)
        publish.scan(encoded, 0, len(encoded), _PUBLISH, False)
    except (ProtocolError, ValueError, OverflowError, AttributeError, TypeError) as error:
        raise BadRow(
            f"row {sequence} to topic {row['topic']!r}", f"a property cannot be sent: {error}"
        ) from None
    return encoded


def _properties(row: dict[str, Any]) -> bytes:
    """Return the property area, without what the producer adds."""
    encoded = b""
    if any(row.get(name) is not None for name in _RARE):
        properties = Properties()
        for name in _RARE:
            setattr(properties, name, row.get(name))
        encoded = properties.encode()
    for pair in row.get("user_properties") or ():
        if pair["name"] not in ("producer-id", "producer-sequence", "producer-owner"):
            encoded += b"\x26" + data_types.text(pair["name"]) + data_types.text(pair["value"])
    return encoded
