"""The columns of `messages`, and the choice among them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headrace_spark.base.errors import BadOption
from headrace_spark.records.schema import MESSAGES, arrow_schema, check_columns, select


def test_every_column_says_what_it_is() -> None:
    assert all(field.metadata["comment"] and field.nullable for field in MESSAGES)
    assert MESSAGES.names[0] == "tenant"
    assert MESSAGES.names[-1] == "date"


def test_columns_in_the_order_of_the_list() -> None:
    assert select("") == MESSAGES
    assert select(" payload ,topic").names == ["payload", "topic"]


@pytest.mark.parametrize(
    ("columns", "problem"), [("topic,colour", "unknown: colour"), ("qos,qos", "named twice")]
)
def test_other_columns_are_refused(columns: str, problem: str) -> None:
    with pytest.raises(BadOption, match=problem):
        select(columns)


def test_a_schema_given_by_hand_must_be_part_of_it() -> None:
    check_columns(StructType([StructField("topic", StringType())]))
    for field in (StructField("topic", LongType()), StructField("colour", StringType())):
        with pytest.raises(BadOption, match="not a column of messages"):
            check_columns(StructType([field]))


def test_arrow_types_are_what_spark_expects() -> None:
    schema = arrow_schema(MESSAGES)
    assert schema.names == MESSAGES.names
    assert schema.field("publish_timestamp").type == pa.timestamp("us", "UTC")
    assert schema.field("user_properties").type.value_field.name == "element"
