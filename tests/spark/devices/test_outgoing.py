"""Rows as messages, and what is said of those that are none."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from headrace.mqtt.properties import Properties
from headrace_spark.base.errors import BadOption, BadRow
from headrace_spark.devices.outgoing import check_columns, message_of, rows_of
from headrace_spark.devices.publisher import Outgoing
from headrace_spark.records.schema import MESSAGES

PUBLISH = 3


def test_the_least_there_may_be() -> None:
    assert message_of({"topic": "t", "payload": None}, 5) == Outgoing(5, "t", b"", 1, False, b"", -1)
    assert message_of({"topic": "t", "payload": "é"}, 5).payload == "é".encode()


def test_everything_there_may_be() -> None:
    pairs = [{"name": "a", "value": "1"}, {"name": "producer-id", "value": "x"}, {"name": "a", "value": "2"}]
    row: dict[str, Any] = {
        "topic": "t",
        "payload": b"p",
        "qos": 2,
        "retain": True,
        "message_expiry_s": 60,
        "payload_format_indicator": 1,
        "content_type": "text/plain",
        "response_topic": "r",
        "correlation_data": b"c",
        "user_properties": pairs,
    }
    message = message_of(row, 9)
    assert (message.qos, message.retain, message.message_expiry_s) == (2, True, 60)
    found = Properties.decode(message.properties, 0, len(message.properties), PUBLISH)
    assert found.as_dict() == {
        "payload_format_indicator": 1,
        "content_type": "text/plain",
        "response_topic": "r",
        "correlation_data": b"c",
        "user_properties": [("a", "1"), ("a", "2")],
    }


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"topic": "a/#"}, "row 3 to topic 'a/#': that is no topic name"),
        ({"topic": None}, "row 3 to topic None: that is no topic name"),
        ({"topic": ""}, "row 3 to topic '': that is no topic name"),
        ({"topic": "t", "qos": 0}, "row 3 to topic 't': exactly once needs QoS 1 or 2"),
        ({"topic": "t", "message_expiry_s": -1}, "a message expiry is 0 to"),
        ({"topic": "t", "message_expiry_s": 1 << 32}, "a message expiry is 0 to"),
        (
            {"topic": "t", "payload_format_indicator": 2},
            "a property cannot be sent: property that is neither",
        ),
        ({"topic": "t", "payload_format_indicator": -1}, "a property cannot be sent"),
        ({"topic": "t", "content_type": "x" * 65_536}, "a property cannot be sent: 65536 bytes do not fit"),
        ({"topic": "t", "content_type": "a\0b"}, "a property cannot be sent"),
        ({"topic": "t", "response_topic": "answers/#"}, "a property cannot be sent: Response Topic"),
        ({"topic": "t", "user_properties": [{"name": "a", "value": None}]}, "a property cannot be sent"),
        ({"topic": "t", "user_properties": [None]}, "a property cannot be sent"),
    ],
)
def test_a_row_that_is_no_message(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadRow, match=problem):
        message_of({"payload": b""} | row, 3)


def schema(**kinds: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def test_the_table_messages_can_be_published() -> None:
    check_columns(MESSAGES)
    check_columns(
        schema(topic=StringType(), payload=StringType(), producer=StringType(), sequence=LongType())
    )


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (schema(payload=StringType()), "column topic is missing"),
        (schema(topic=StringType()), "column payload is missing"),
        (
            schema(topic=StringType(), payload=StringType(), colour=StringType()),
            "no such column; there are topic",
        ),
        (schema(topic=IntegerType(), payload=StringType()), "the column must be string"),
        (schema(topic=StringType(), payload=StringType(), producer=StringType()), "go together"),
    ],
)
def test_a_schema_that_cannot_be_published(columns: StructType, problem: str) -> None:
    with pytest.raises(BadOption, match=problem):
        check_columns(columns)


def test_columns_of_messages_that_mean_nothing_are_passed_over() -> None:
    batch = pa.RecordBatch.from_pydict({"topic": ["t"], "payload": [b"p"], "journal_offset": [7]})
    assert list(rows_of(batch)) == [{"topic": "t", "payload": b"p"}]
