"""Payloads that are no JSON, for the job `clean`: Avro, Protobuf and Sparkplug B, turned into JSON that says the same.

Behind that a payload is one like all others: the topic schema names the fields, and what does not fit is put aside.

    Avro        one record without a header, by the schema in an `.avsc` file. Bytes and fixed are base64, times ISO 8601,
                decimals numbers, unions their value; a union's value, an enum's and a map's are what they are.
                A number that is none, or endless, is the text that it is in Protobuf: NaN, Infinity, -Infinity.
    Protobuf    one message, by a descriptor set (`protoc --include_imports --descriptor_set_out`), in the JSON mapping of
                Protobuf under the names of the `.proto` file; fields without presence are there with their default.
    Sparkplug   the payload of Sparkplug B 3.0 (section 6.4.1), a Protobuf message whose descriptor is below.

A worker decodes what strangers have sent: a payload either becomes JSON or is no good, and ends nothing else.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isfinite
from typing import Any, Final

import fastavro
import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError

AVRO: Final = "avro"
PROTOBUF: Final = "protobuf"
SPARKPLUG: Final = "sparkplug"
_SPARKPLUG_MESSAGE: Final = "org.eclipse.tahu.protobuf.Payload"
# What a hostile payload, or one of another schema, makes of a reader of Avro.
_BROKEN: Final = (ArithmeticError, EOFError, LookupError, TypeError, ValueError, struct.error, DecodeError)
MODULES: Final = ("fastavro", "google.protobuf")
"""What workers need to decode these formats, beside what all jobs need."""
_ODD_NUMBERS: Final = {inf: "Infinity", -inf: "-Infinity"}
_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")

Decoder = Callable[[bytes], object]


class BadFormat(Exception):
    """A file of a schema cannot be used; the message says why."""


@dataclass(frozen=True)
class PayloadFormat:
    """Says how payloads are read: `source` is the text of an `.avsc` file, or a descriptor set that has `message`."""

    name: str
    source: bytes
    message: str = ""

    @property
    def reason(self) -> str:
        """Return the reason of rows that are put aside for it."""
        return f"not_{AVRO if self.name == AVRO else PROTOBUF}"

    def check(self) -> None:
        """Check that payloads of this format can be decoded. Raises BadFormat."""
        _decoder(self)

    def as_json(self, payload: bytes) -> str | None:
        """Return the payload as JSON, None if it is none of this format."""
        try:
            return _ENCODER.encode(_decoder(self)(payload)).decode()
        except _BROKEN:
            return None


@lru_cache(maxsize=256)
def _decoder(form: PayloadFormat) -> Decoder:
    """Return the decoder of a format. Raises BadFormat."""
    return avro_decoder(form.source) if form.name == AVRO else protobuf_decoder(form.source, form.message)


def avro_decoder(source: bytes) -> Decoder:
    """Return the decoder of an Avro schema. Raises BadFormat for what is no schema of a record, or holds itself: its
    payloads can be of any depth."""
    try:
        written = json.loads(source)
        schema = fastavro.parse_schema(written)
    except (
        *_BROKEN,
        fastavro.schema.SchemaParseException,
        fastavro.schema.UnknownType,
        RecursionError,
    ) as error:
        raise BadFormat(f"it is no Avro schema ({type(error).__name__}: {error})") from None
    if not isinstance(written, dict) or written.get("type") != "record":
        raise BadFormat("the schema of a record is needed")
    problem = _endless(written, "", frozenset())
    if problem:
        raise BadFormat(f"{problem}, so a short payload can be of any size: such are not decoded")

    def decode(payload: bytes) -> object:
        read = io.BytesIO(payload)
        record = fastavro.schemaless_reader(read, schema, None)
        if read.tell() != len(payload):
            raise ValueError("bytes behind the record")
        return _with_texts(record)

    return decode


def _with_texts(value: Any) -> Any:
    """Return the same with texts for the numbers that JSON has not."""
    if isinstance(value, float):
        return value if isfinite(value) else _ODD_NUMBERS.get(value, "NaN")
    if isinstance(value, dict):
        return {key: _with_texts(of) for key, of in value.items()}
    return [_with_texts(of) for of in value] if isinstance(value, list) else value


def _endless(schema: Any, space: str, around: frozenset[str]) -> str:
    """Return what lets a payload of a few bytes be endless: a type within itself, or a list of what takes none."""
    if isinstance(schema, str):
        return "a record in it holds itself" if {schema, f"{space}.{schema}"} & around else ""
    if isinstance(schema, list):
        return next(filter(None, (_endless(part, space, around) for part in schema)), "")
    space = schema.get("namespace", space)
    if "fields" in schema:
        around |= {schema["name"], f"{space}.{schema['name']}"}
    if schema["type"] == "array" and _takes_nothing(schema["items"]):
        return "the items of a list in it take no bytes"
    inner = [field["type"] for field in schema.get("fields", [])]
    inner += [schema[key] for key in ("items", "values", "type") if key in schema]
    return _endless(inner, space, around)


def _takes_nothing(schema: Any) -> bool:
    """Return whether a value of this type has no bytes. Those of a union have, and a name is not looked up."""
    if not isinstance(schema, dict):
        return bool(schema == "null")
    if "fields" in schema:
        return all(_takes_nothing(field["type"]) for field in schema["fields"])
    return schema["type"] == "null" or schema.get("size") == 0


def protobuf_decoder(source: bytes, message: str) -> Decoder:
    """Return the decoder of a Protobuf message. Raises BadFormat."""
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(source)
        for file in files.file:
            pool.Add(file)
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
    except KeyError:
        raise BadFormat(f"it has no message {message!r}, or not all that it imports") from None
    except (DecodeError, TypeError, ValueError) as error:
        raise BadFormat(f"it is no descriptor set ({error})") from None

    def decode(payload: bytes) -> object:
        return json_format.MessageToDict(
            kind.FromString(payload),
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            descriptor_pool=pool,
        )

    return decode


# Field of Sparkplug's messages -> number and type. What the specification calls uint32 and uint64 carries signed numbers
# in two's complement, so they are read as signed; messages that nobody asks for here are bytes.
_PAYLOAD: Final = {
    "timestamp": (1, "int64"),
    "seq": (3, "int64"),
    "uuid": (4, "string"),
    "body": (5, "bytes"),
}
_METRIC: Final = {
    "name": (1, "string"),
    "alias": (2, "int64"),
    "timestamp": (3, "int64"),
    "datatype": (4, "int32"),
    "is_historical": (5, "bool"),
    "is_transient": (6, "bool"),
    "is_null": (7, "bool"),
    "metadata": (8, "bytes"),
    "properties": (9, "bytes"),
    "int_value": (10, "int32"),
    "long_value": (11, "int64"),
    "float_value": (12, "float"),
    "double_value": (13, "double"),
    "boolean_value": (14, "bool"),
    "string_value": (15, "string"),
    "bytes_value": (16, "bytes"),
    "dataset_value": (17, "bytes"),
    "template_value": (18, "bytes"),
    "extension_value": (19, "bytes"),
}
_COLUMNS: Final = {"int64": "long", "int32": "long", "float": "double", "bool": "boolean", "bytes": "string"}


def _columns(fields: Mapping[str, tuple[int, str]]) -> dict[str, Any]:
    kinds = {field: _COLUMNS.get(kind, kind) for field, (_, kind) in fields.items()}
    return kinds | {"timestamp": "timestamp_ms"}


SPARKPLUG_FIELDS: Final = {**_columns(_PAYLOAD), "metrics": [_columns(_METRIC)]}
"""The fields of such a payload, as a topic schema would name them."""


def sparkplug_format() -> PayloadFormat:
    """Return the format of Sparkplug B."""
    file = descriptor_pb2.FileDescriptorProto(name="sparkplug_b.proto", package="org.eclipse.tahu.protobuf")
    payload = file.message_type.add(name="Payload")
    _add_fields(payload, _PAYLOAD)
    kinds = descriptor_pb2.FieldDescriptorProto
    payload.field.add(
        name="metrics", number=2, label=kinds.LABEL_REPEATED, type=kinds.TYPE_MESSAGE, type_name="Metric"
    )
    _add_fields(payload.nested_type.add(name="Metric"), _METRIC)
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    return PayloadFormat(SPARKPLUG, files.SerializeToString(deterministic=True), _SPARKPLUG_MESSAGE)


def _add_fields(message: Any, fields: Mapping[str, tuple[int, str]]) -> None:
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, (number, kind) in fields.items():
        kind_number = kinds.Type.Value(f"TYPE_{kind.upper()}")
        message.field.add(name=name, number=number, label=kinds.LABEL_OPTIONAL, type=kind_number)
