"""The topic schema file: what it says, which topics match, and errors that name the place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from headrace.mqtt.topics import matches
from headrace_spark.clean.topic_schemas import (
    BadTopicSchema,
    column_type,
    filter_pattern,
    json_type,
    load_topic_schemas,
    parse_topic_schemas,
)
from spark.odd_values import ENDS_OF_LINES

READING: dict[str, Any] = {
    "name": "reading",
    "topics": ["plant/+/temperature", "x/#"],
    "event_time": "at",
    "required": ["device"],
    "fields": {
        "device": "string",
        "at": "timestamp_ms",
        "tags": ["string"],
        "position": {"lat": "double", "seen": ["timestamp_s"]},
    },
}


def changed(**changes: Any) -> dict[str, Any]:
    return {"schema": [READING | changes]}


def test_a_schema_and_its_types() -> None:
    (schema,) = parse_topic_schemas(changed())
    assert (schema.name, schema.event_time, schema.required) == ("reading", "at", ("device",))
    assert column_type(schema.fields).simpleString() == (
        "struct<device:string,at:timestamp,tags:array<string>,position:struct<lat:double,seen:array<timestamp>>>"
    )
    assert json_type(schema.fields).simpleString() == (
        "struct<device:variant,at:bigint,tags:array<variant>,position:struct<lat:double,seen:array<double>>,_broken:string>"
    )


def test_a_schema_without_fields_keeps_payloads_as_they_are() -> None:
    (schema,) = parse_topic_schemas({"schema": [{"name": "picture", "topics": ["camera/#"]}]})
    assert not schema.fields


@pytest.mark.parametrize(
    ("topic_filter", "matching", "others"),
    [
        ("a/+/c", ["a/b/c", "a//c", "a/$x/c"], ["a/c", "a/b/b/c", "xa/b/c", "a/b/c/"]),
        ("a/#", ["a", "a/b", "a//", "a/b/c"], ["ab", "b/a"]),
        ("#", ["a", "/", "a/b\nc"], ["$SYS/broker"]),
        ("+/b", ["a/b", "/b"], ["$SYS/b", "b"]),
        ("+", ["a", ""], ["a/b", "$a"]),
        ("$SYS/#", ["$SYS", "$SYS/broker"], ["xSYS/broker"]),
        ("a.b/c*", ["a.b/c*"], ["axb/c*", "a.b/cc"]),
        ("/", ["/"], ["", "//"]),
    ],
)
def test_topic_filters_as_patterns(topic_filter: str, matching: list[str], others: list[str]) -> None:
    pattern = re.compile(filter_pattern(topic_filter))
    assert all(pattern.search(topic) for topic in matching)
    assert not any(pattern.search(topic) for topic in others)
    for end in ENDS_OF_LINES:
        for topic in (*matching, *others):
            odd = f"{topic}{end}"
            assert bool(pattern.search(odd)) == matches(topic_filter, odd), repr(odd)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({}, r"\[\[schema\]\]"),
        ({"schema": [], "more": 1}, r"\[\[schema\]\]"),
        ({"schema": [1]}, "schema 1: name=None"),
        (changed(name="Reading"), "schema 1: name='Reading'"),
        ({"schema": [READING, READING]}, "schema reading is there twice"),
        (changed(colour=1), "schema reading: unknown key colour"),
        (changed(topics=[]), "schema reading: topics: at least one"),
        (changed(topics="a"), "schema reading: topics='a': must be a list of texts"),
        (changed(topics=["a/#/b"]), "'a/#/b' is no MQTT topic filter"),
        (changed(topics=["a+"]), "'a\\+' is no MQTT topic filter"),
        (changed(topics=[""]), "'' is no MQTT topic filter"),
        (changed(event_time="device"), "schema reading: event_time='device': must be a field of type"),
        (changed(required=["nothing"]), "schema reading: required: no field 'nothing'"),
        (changed(fields={"device": "text"}), "schema reading: fields.device='text': no such type"),
        (changed(fields={"a": {"b": ["x"]}}), r"schema reading: fields.a.b\[\]='x': no such type"),
        (changed(fields={"a": "string", "A": "string"}), "schema reading: fields.A: not a name"),
        (changed(payload="double"), "schema reading: payload: is for payloads that are no objects"),
        (changed(fields={"_rescued": "string"}), "schema reading: fields._rescued: not a name"),
        (
            {"schema": [{"name": "a", "topics": ["a"], "payload": "long", "rescue": True}]},
            "schema a: rescue:",
        ),
        (changed(lenient="yes"), "schema reading: lenient='yes': must be true or false"),
        (changed(fields={"a": {}}), "schema reading: fields.a={}: must be a table"),
    ],
)
def test_errors_name_the_schema_and_the_key(tables: dict[str, Any], said: str) -> None:
    with pytest.raises(BadTopicSchema, match=said) as caught:
        parse_topic_schemas(tables)
    assert caught.value.exit_code == 2


def test_a_file_that_nests_without_end_is_refused() -> None:
    kind: Any = "string"
    for _ in range(100):
        kind = {"a": kind}
    with pytest.raises(BadTopicSchema, match="levels deep"):
        parse_topic_schemas(changed(event_time=None, required=[], fields=kind))


def test_a_file_is_named_in_what_is_said_of_it(tmp_path: Path) -> None:
    file = tmp_path / "schemas.toml"
    with pytest.raises(BadTopicSchema, match=f"cannot read topic schema file {file}"):
        load_topic_schemas(file)
    file.write_text("[[schema]\n")
    with pytest.raises(BadTopicSchema, match=f"{file} is not TOML"):
        load_topic_schemas(file)
    file.write_text("a = " + "[" * 10_000)
    with pytest.raises(BadTopicSchema, match=f"{file} is nested too deeply"):
        load_topic_schemas(file)
    file.write_text('[[schema]]\nname = "a"\ntopics = ["a"]\ncolour = 1\n')
    with pytest.raises(BadTopicSchema, match=f"{file}: schema a: unknown key colour"):
        load_topic_schemas(file)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"avro": "no.avsc", "fields": {"a": "long"}}, "cannot read"),
        ({"avro": "../x.avsc", "fields": {"a": "long"}}, "a file beside this one"),
        ({"avro": "bad.avsc", "fields": {"a": "long"}}, "no Avro schema"),
        ({"avro": "good.avsc"}, "fields: name those"),
        ({"avro": "good.avsc", "protobuf": "a.desc", "fields": {"a": "long"}}, "one of avro"),
        ({"avro": "good.avsc", "payload": "long"}, "one of avro"),
        ({"avro": "good.avsc", "message": "M", "fields": {"a": "long"}}, "message: is for"),
        ({"protobuf": "bad.desc", "message": "M", "fields": {"a": "long"}}, "no descriptor set"),
        ({"protobuf": 7, "message": "M", "fields": {"a": "long"}}, "a file beside this one"),
        ({"sparkplug": "yes"}, "must be true or false"),
        ({"sparkplug": True, "fields": {"a": "long"}}, "are known"),
    ],
)
def test_other_formats_are_checked_with_their_files(entry: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "good.avsc").write_text('{"type": "record", "name": "R", "fields": []}')
    (tmp_path / "bad.avsc").write_text("record")
    (tmp_path / "bad.desc").write_bytes(b"message M {}")
    with pytest.raises(BadTopicSchema, match=f"schema s: .*{said}"):
        parse_topic_schemas({"schema": [{"name": "s", "topics": ["#"]} | entry]}, tmp_path)
