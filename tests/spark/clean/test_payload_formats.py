"""Avro, Protobuf and Sparkplug B become JSON, and whatever else comes becomes nothing at all."""

from __future__ import annotations

import io
import json
import os
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from headrace_spark.clean.payload_formats import AVRO, PROTOBUF, BadFormat, PayloadFormat, sparkplug_format

RECORD = {
    "type": "record",
    "name": "Reading",
    "namespace": "plant",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "value", "type": ["null", "double"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "raw", "type": "bytes"},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        },
    ],
}
AVRO_FORMAT = PayloadFormat(AVRO, json.dumps(RECORD).encode())


def avro(record: dict[str, Any], schema: dict[str, Any] = RECORD) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return out.getvalue()


def reading(**changes: Any) -> dict[str, Any]:
    at = datetime(2025, 10, 10, 12, tzinfo=UTC)
    return {
        "device": "d",
        "at": at,
        "value": 1.5,
        "tags": ["a"],
        "raw": b"\0\xff",
        "price": Decimal("9.99"),
    } | changes


def descriptors(package: str = "plant") -> bytes:
    """What protoc makes of `message Motor { string device = 1; int64 count = 2; repeated double values = 3; }`."""
    file = descriptor_pb2.FileDescriptorProto(name="motor.proto", package=package, syntax="proto3")
    motor = file.message_type.add(name="Motor")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, number, kind, label in (
        ("device", 1, kinds.TYPE_STRING, kinds.LABEL_OPTIONAL),
        ("count", 2, kinds.TYPE_INT64, kinds.LABEL_OPTIONAL),
        ("values", 3, kinds.TYPE_DOUBLE, kinds.LABEL_REPEATED),
    ):
        motor.field.add(name=name, number=number, type=kind, label=label)
    return bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


PROTOBUF_FORMAT = PayloadFormat(PROTOBUF, descriptors(), "plant.Motor")


def decoded(form: PayloadFormat, payload: bytes) -> Any:
    text = form.as_json(payload)
    return None if text is None else json.loads(text)


def test_a_record_of_avro() -> None:
    expected = {
        "device": "d",
        "at": "2025-10-10T12:00:00Z",
        "value": 1.5,
        "tags": ["a"],
        "raw": "AP8=",
        "price": 9.99,
    }
    assert decoded(AVRO_FORMAT, avro(reading())) == expected
    assert decoded(AVRO_FORMAT, avro(reading(value=None)))["value"] is None
    assert decoded(AVRO_FORMAT, avro(reading(value=float("nan"))))["value"] == "NaN"


def test_what_is_cut_off_or_goes_on_is_no_record() -> None:
    whole = avro(reading())
    assert decoded(AVRO_FORMAT, whole + b"\0") is None
    assert [decoded(AVRO_FORMAT, whole[:cut]) for cut in range(len(whole))] == [None] * len(whole)
    assert decoded(AVRO_FORMAT, b'{"device": "d"}') is None


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (b"hello", "no Avro schema"),
        (b'{"type": "record", "name": "R", "fields": 3}', "no Avro schema"),
        (b'{"type": "nothing"}', "no Avro schema"),
        (b'"double"', "the schema of a record is needed"),
        (
            json.dumps(
                {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
            ).encode(),
            "holds itself",
        ),
        (
            json.dumps(
                {
                    "type": "record",
                    "name": "N",
                    "namespace": "a",
                    "fields": [{"name": "next", "type": {"type": "array", "items": "a.N"}}],
                }
            ).encode(),
            "holds itself",
        ),
        (
            json.dumps(
                {
                    "type": "record",
                    "name": "N",
                    "fields": [{"name": "many", "type": {"type": "array", "items": "null"}}],
                }
            ).encode(),
            "no bytes",
        ),
    ],
)
def test_a_schema_of_avro_that_cannot_be_used_is_said(source: bytes, problem: str) -> None:
    with pytest.raises(BadFormat, match=problem):
        PayloadFormat(AVRO, source).check()


def test_a_type_may_be_used_twice_side_by_side() -> None:
    point = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "long"}]}
    fields = [{"name": "a", "type": point}, {"name": "b", "type": "P"}]
    source = {"type": "record", "name": "R", "fields": fields}
    form = PayloadFormat(AVRO, json.dumps(source).encode())
    assert decoded(form, avro({"a": {"x": 1}, "b": {"x": 2}}, source)) == {"a": {"x": 1}, "b": {"x": 2}}


def test_a_message_of_protobuf() -> None:
    payload = bytes.fromhex("0a0164") + b"\x10\x96\x01" + b"\x1a\x08" + bytes.fromhex("000000000000f83f")
    assert decoded(PROTOBUF_FORMAT, payload) == {"device": "d", "count": "150", "values": [1.5]}
    assert decoded(PROTOBUF_FORMAT, b"") == {"device": "", "count": "0", "values": []}
    assert decoded(PROTOBUF_FORMAT, payload[:-1]) is None
    assert decoded(PROTOBUF_FORMAT, b"hello") is None


def test_descriptors_that_cannot_be_used_are_said() -> None:
    with pytest.raises(BadFormat, match=r"no message 'plant\.Pump'"):
        PayloadFormat(PROTOBUF, descriptors(), "plant.Pump").check()
    with pytest.raises(BadFormat, match="no descriptor set"):
        PayloadFormat(PROTOBUF, b"syntax = 'proto3';", "plant.Motor").check()


def test_two_sets_of_one_name_are_two() -> None:
    other = PayloadFormat(PROTOBUF, descriptors("other"), "other.Motor")
    assert decoded(other, b"\x10\x01")["count"] == decoded(PROTOBUF_FORMAT, b"\x10\x01")["count"] == "1"


# As Tahu writes it: timestamp 1 000 ms, seq 7; metrics temperature = 21.5 (Double), flow = -2 (Int32), alias 3 = true.
SPARKPLUG_PAYLOAD = bytes.fromhex(
    "08e807"
    "1218 0a0b 74656d7065726174757265 200a 69 0000000000803540"
    "120e 0a04 666c6f77 2003 50 feffffff0f"
    "1204 1003 7001"
    "1807"
)


def test_a_payload_of_sparkplug() -> None:
    found = decoded(sparkplug_format(), SPARKPLUG_PAYLOAD)
    assert (found["timestamp"], found["seq"]) == ("1000", "7")
    assert found["metrics"] == [
        {"name": "temperature", "datatype": 10, "double_value": 21.5},
        {"name": "flow", "datatype": 3, "int_value": -2},
        {"alias": "3", "boolean_value": True},
    ]
    assert decoded(sparkplug_format(), SPARKPLUG_PAYLOAD[:-1]) is None


FORMATS = (AVRO_FORMAT, PROTOBUF_FORMAT, sparkplug_format())


@pytest.mark.parametrize(
    ("number", "text"),
    [(float("nan"), "NaN"), (float("inf"), "Infinity"), (float("-inf"), "-Infinity")],
)
def test_numbers_that_json_has_not_are_texts(number: float, text: str) -> None:
    """As the JSON mapping of Protobuf has them, at any depth."""
    inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "float"}]}
    fields = [
        {"name": "value", "type": ["null", "double"]},
        {"name": "values", "type": {"type": "array", "items": "double"}},
        {"name": "map", "type": {"type": "map", "values": inner}},
    ]
    schema = {"type": "record", "name": "R", "fields": fields}
    sent = {"value": number, "values": [1.5, number], "map": {"a": {"x": number}}}
    found = decoded(PayloadFormat(AVRO, json.dumps(schema).encode()), avro(sent, schema))
    assert found == {"value": text, "values": [1.5, text], "map": {"a": {"x": text}}}
    packed = b"\x1a\x08" + struct.pack("<d", number)
    assert decoded(PROTOBUF_FORMAT, packed)["values"] == [text]


@given(st.sampled_from(FORMATS), st.binary(max_size=60))
def test_no_payload_ends_anything_else(form: PayloadFormat, payload: bytes) -> None:
    text = form.as_json(payload)
    assert text is None or isinstance(json.loads(text), dict)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_mutations_of_good_payloads_end_nothing_either(form: PayloadFormat) -> None:
    whole = {AVRO: avro(reading()), PROTOBUF: b"\x0a\x01d\x10\x01"}.get(form.name, SPARKPLUG_PAYLOAD)
    for place in range(len(whole)):
        for byte in (0, 1, 0x7F, 0x80, 0xFF, *os.urandom(4)):
            text = form.as_json(whole[:place] + bytes([byte]) + whole[place + 1 :])
            assert text is None or isinstance(json.loads(text), dict)
