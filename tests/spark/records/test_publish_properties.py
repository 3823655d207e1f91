"""Property columns: values where a message has them, null or empty lists elsewhere."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import ProtocolError
from headrace.mqtt.properties import Properties
from headrace_spark.records.publish_properties import PropertyColumns
from headrace_spark.records.schema import MESSAGES, arrow_schema


def area(content_type: str | None = None, *pairs: tuple[str, str]) -> bytes:
    properties = Properties()
    properties.content_type = content_type
    properties.user_properties = list(pairs)
    return properties.encode()


def columns(count: int, areas: dict[int, bytes]) -> PropertyColumns:
    return PropertyColumns(count, np.array(list(areas), np.int64), list(areas.values()))


def test_values_come_to_their_rows() -> None:
    made = columns(5, {1: area("a"), 3: area(None), 4: area("b")})
    assert made.column("content_type", pa.string()).to_pylist() == [None, "a", None, None, "b"]
    assert made.column("correlation_data", pa.binary()).to_pylist() == [None] * 5


def test_user_properties_keep_their_order() -> None:
    made = columns(4, {0: area(None, ("x", "1"), ("x", "2")), 2: area("t"), 3: area(None, ("", ""))})
    found = made.user_properties()
    assert found.type == arrow_schema(MESSAGES).field("user_properties").type
    assert found.to_pylist() == [
        [{"name": "x", "value": "1"}, {"name": "x", "value": "2"}],
        [],
        [],
        [{"name": "", "value": ""}],
    ]


def test_nobody_has_any() -> None:
    made = columns(3, {})
    assert made.user_properties().to_pylist() == [[], [], []]
    assert made.message_ids == ([], [])


def test_the_first_message_id_counts() -> None:
    first = area(None, ("message-id", "m1"), ("message-id", "m2"))
    other = area(None, ("Message-Id", "no"))
    assert columns(3, {0: other, 2: first}).message_ids == ([2], ["m1"])


def test_an_empty_message_id_is_none() -> None:
    empty, several = area(None, ("message-id", "")), area(None, ("message-id", ""), ("message-id", "m2"))
    assert columns(3, {0: empty, 1: several, 2: area(None, ("message-id", "m1"))}).message_ids == (
        [2],
        ["m1"],
    )


def test_broken_properties_are_refused() -> None:
    with pytest.raises(ProtocolError):
        columns(1, {0: b"\x03\x00\x09abc"})
