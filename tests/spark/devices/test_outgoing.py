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
        ({"topic": "a/#", "payload": b""}, "row 3: 'a/#' is no topic name"),
        ({"topic": None, "payload": b""}, "row 3: None is no topic name"),
        ({"topic": "", "payload": b""}, "row 3: '' is no topic name"),
        ({"topic": "t", "payload": b"", "qos": 0}, "row 3 to topic 't': QoS 0; exactly once needs 1 or 2"),
    ],
)
def test_a_row_that_is_no_message(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadRow, match=problem):
        message_of(row, 3)


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
