"""Steps of the job `clean`, DataFrame -> DataFrame; each opens and closes with the columns it is about.

    judge       `messages` -> a row for each, with its schema, its decoded fields, and `reason` if it is no good
    mark_repeats    adds `repeat`: this message id is in `clean` or `quarantine` already, or earlier among these rows
    clean_rows, quarantine_rows, repeat_rows    what goes into which table; every row goes into exactly one

Reasons: `no_schema` no schema has the topic; `too_large` above `payload_bytes_max`, and left in `messages`;
`not_utf8`; `not_json`; `not_avro`; `not_protobuf`; `wrong_type` JSON, but a field is not what the schema says, or it is
no object;
`missing:<field>` a required field, or the event time, is absent or null, or a time outside of the years 1 to 9999.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StringType

from headrace_spark.clean.payload_formats import PayloadFormat
from headrace_spark.clean.topic_schemas import (
    BROKEN,
    RESCUED,
    VALUE,
    WHOLE,
    Kind,
    TopicSchema,
    filter_pattern,
)
from headrace_spark.records.schema import MESSAGES

# What identifies a row and says where it came from; the same in all three tables.
ORIGIN: Final = (
    "tenant",
    "topic",
    "client_id",
    "qos",
    "publish_timestamp",
    "message_id",
    "journal_uuid",
    "journal_epoch",
    "journal_offset",
)
PLACE: Final = ("journal_uuid", "journal_epoch", "journal_offset")
# Only ids that publishers choose can come twice: the other form is the row's own place in the journal.
CHOSEN_ID: Final = "client:"
# Years 1 to 9999, in seconds: what every reader of the tables can show. One number outside of them would
# otherwise end the query (an overflow), or the statistics of a file.
_FIRST_S: Final = -62_135_596_800
_LAST_S: Final = 253_402_300_799
_MARK: Final = "\ufeff"
_TIMES: Final = {
    "timestamp_s": (F.timestamp_seconds, 1),
    "timestamp_ms": (F.timestamp_millis, 1_000),
    "timestamp_us": (F.timestamp_micros, 1_000_000),
}


def judge(
    messages: DataFrame, schemas: Sequence[TopicSchema], payload_bytes_max: int, late_after_s: float
) -> DataFrame:
    """Decode every payload by the schema of its topic. No row is lost, none is added."""
    # Every step copies its rows: a payload of hundreds of megabytes goes no further than this.
    large = F.octet_length("payload") > payload_bytes_max
    rows = messages.select(
        *ORIGIN,
        F.when(~large, F.col("payload")).alias("payload"),
        large.alias("large"),
        "date",
        _schema_of_topic(schemas).alias("schema"),
    )
    text = F.col("payload").cast("string")
    text = F.when(F.is_valid_utf8(text), _without_mark(text))
    forms = {schema.name: schema.form for schema in schemas if schema.form is not None}
    if forms:
        text = F.when(F.col("schema").isin(list(forms)), _as_json(forms)).otherwise(text)
    rows = rows.select("*", text.alias("text"))
    decoded = [schema for schema in schemas if schema.decoded]
    rows = rows.select("*", *(_parsed(schema).alias(f"json_{schema.name}") for schema in decoded))
    rows = rows.select("*", _reason(schemas).alias("reason"))
    good = F.col("reason").isNull()
    event = F.coalesce(_event_time(schemas), F.col("publish_timestamp"))
    rows = rows.select("*", F.when(good, event).alias("event_timestamp"))
    delay_us = F.unix_micros("publish_timestamp") - F.unix_micros("event_timestamp")
    opaque = F.col("schema").isin([schema.name for schema in schemas if not schema.decoded])
    judged = rows.select(
        *ORIGIN,
        "schema",
        "reason",
        "event_timestamp",
        (delay_us > int(late_after_s * 1_000_000)).alias("late"),
        F.when(~good | opaque, F.col("payload")).alias("payload"),
        "date",
        *(_column(schema, good).alias(schema.name) for schema in decoded),
    )
    # Spark moves no filter to the other side of an observation. A filter by `reason` would otherwise be moved to the
    # front, with all of the decoding in it, several times over.
    return judged.observe("judged", F.count("*").alias("rows"))


def mark_repeats(judged: DataFrame, messages: DataFrame, known: DataFrame) -> DataFrame:
    """Add `repeat` to what `judge` made of `messages`. `known`: `message_id`, PLACE of rows in the tables already.

    A row that is in the tables itself is no repeat of itself: a batch that is done again comes to the same end.
    """
    chosen = messages.where(F.col("message_id").startswith(CHOSEN_ID)).select(
        "message_id", "publish_timestamp", *PLACE
    )
    # Passes over ids alone; what comes out is few rows, and joined by broadcast.
    first = F.min(F.struct("publish_timestamp", *PLACE)).alias("first")
    among_these = chosen.groupBy("message_id").agg(first, F.count("*").alias("copies")).where("copies > 1")
    ids = F.broadcast(chosen.select("message_id"))
    before = (
        known.join(ids, "message_id", "left_semi")
        .groupBy("message_id")
        .agg(F.min(F.struct(*PLACE)).alias("known"))
    )
    again = among_these.select("message_id", "first").join(before, "message_id", "full")
    marked = judged.join(F.broadcast(again), "message_id", "left")
    not_first = F.col("first") != F.struct("publish_timestamp", *PLACE)
    elsewhere = F.col("known") != F.struct(*PLACE)
    repeat = F.coalesce(not_first, F.lit(False)) | F.coalesce(elsewhere, F.lit(False))
    return marked.select(*judged.columns, repeat.alias("repeat"))


def clean_rows(marked: DataFrame) -> DataFrame:
    """Return the rows of table `clean`."""
    return marked.where(~F.col("repeat") & F.col("reason").isNull()).drop("repeat", "reason")


def quarantine_rows(marked: DataFrame) -> DataFrame:
    """Return the rows of table `quarantine`."""
    return marked.where(~F.col("repeat") & F.col("reason").isNotNull()).select(
        *ORIGIN, "schema", "reason", "payload", "date"
    )


def repeat_rows(marked: DataFrame) -> DataFrame:
    """Return the rows of table `repeats`."""
    return marked.where("repeat").select(*ORIGIN, "date")


def _schema_of_topic(schemas: Sequence[TopicSchema]) -> Column:
    """Return the name of the first schema that has the topic, or null."""
    found = F.lit(None).cast("string")
    for schema in reversed(schemas):
        found = F.when(_matches(schema.topics), F.lit(schema.name)).otherwise(found)
    return found


def _matches(filters: Sequence[str]) -> Column:
    exact = [topic for topic in filters if "+" not in topic and "#" not in topic]
    wild = [topic for topic in filters if topic not in exact]
    tests = [F.col("topic").isin(exact)] if exact else []
    if wild:
        tests.append(F.col("topic").rlike("|".join(map(filter_pattern, wild))))
    return reduce(lambda one, other: one | other, tests)


def _as_json(forms: Mapping[str, PayloadFormat]) -> Column:
    """Return the payloads of these schemas as JSON, null where one is none of its format. Runs on Python workers."""

    def convert(names: pa.Array, payloads: pa.Array) -> pa.Array:
        return pa.array(
            [
                forms[name].as_json(payload) if name in forms and payload is not None else None
                for name, payload in zip(names.to_pylist(), payloads.to_pylist(), strict=True)
            ],
            pa.string(),
        )

    wanted = F.when(F.col("schema").isin(list(forms)), F.col("payload"))
    # Spark takes the kind of function from its types, and warns who names it as its stubs ask.
    decode = arrow_udf(convert, StringType())  # type: ignore[call-overload]
    converted: Column = decode(F.col("schema"), wanted)
    return converted


def _without_mark(text: Column) -> Column:
    """Return a text without its byte order mark: a mark in front of JSON may be ignored (RFC 8259, section 8.1)."""
    return F.when(F.startswith(text, F.lit(_MARK)), F.substr(text, F.lit(2))).otherwise(text)


def _parsed(schema: TopicSchema) -> Column:
    text = F.col("text")
    if schema.payload is not None:
        text = F.concat(F.lit(f'{{"{VALUE}":'), text, F.lit("}"))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BROKEN, "allowSingleQuotes": "false"}
    options["allowNonNumericNumbers"] = "false"
    return F.when(F.col("schema") == schema.name, F.from_json(text, schema.json, options))


def _reason(schemas: Sequence[TopicSchema]) -> Column:
    reason = F.when(F.col("schema").isNull(), "no_schema")
    reason = reason.when(F.col("large"), "too_large")
    for schema in schemas:
        own = F.col("schema") == schema.name
        reason = reason.when(own, _reason_in(schema) if schema.decoded else F.lit(None))
    return reason


def _reason_in(schema: TopicSchema) -> Column:
    parsed = F.col(f"json_{schema.name}")
    broken = parsed.isNull() | parsed[BROKEN].isNotNull()
    reason = F.when(F.col("text").isNull(), "not_utf8" if schema.form is None else schema.form.reason)
    if schema.payload is None:
        no_json = broken & F.get_json_object("text", "$").isNull()
    else:  # what ends the object around it, or adds to it, is no JSON on its own
        no_json = F.try_parse_json("text").isNull()
        broken |= _value(schema.payload, parsed[VALUE], schema.lenient).isNull()
    if schema.lenient:
        broken |= _uneven_in(schema, parsed)
    reason = reason.when(no_json, "not_json")
    reason = reason.when(broken, "wrong_type")
    for field in schema.required:
        reason = reason.when(parsed[field].isNull(), f"missing:{field}")
    if schema.event_time:
        reason = reason.when(_event_time_in(schema).isNull(), f"missing:{schema.event_time}")
    return reason


def _event_time(schemas: Sequence[TopicSchema]) -> Column:
    """Return when it happened, for the schemas that name a field for it."""
    found = F.lit(None).cast("timestamp")
    for schema in schemas:
        if schema.event_time:
            found = F.when(F.col("schema") == schema.name, _event_time_in(schema)).otherwise(found)
    return found


def _event_time_in(schema: TopicSchema) -> Column:
    field = str(schema.event_time)
    return _value(schema.fields[field], F.col(f"json_{schema.name}")[field], schema.lenient)


def _uneven_in(schema: TopicSchema, parsed: Column) -> Column:
    fields = schema.fields if schema.payload is None else {VALUE: schema.payload}
    return F.coalesce(_uneven(fields, parsed), F.lit(False))


def _uneven(kind: Kind | Mapping[str, Kind], parsed: Column) -> Column:
    """Return whether a number in it is not whole where it should be, or too large; null and false mean the same."""
    if isinstance(kind, str):
        return parsed.isNotNull() & _whole(parsed).isNull() if kind in WHOLE else F.lit(False)
    if isinstance(kind, tuple):
        return F.exists(parsed, lambda value: F.coalesce(_uneven(kind[1], value), F.lit(False)))
    found = (F.coalesce(_uneven(of, parsed[field]), F.lit(False)) for field, of in kind.items())
    return reduce(lambda one, other: one | other, found)


def _whole(parsed: Column) -> Column:
    """Return the number as a long, null if it is none."""
    fits = (parsed == F.floor(parsed)) & parsed.between(-(1 << 63), (1 << 63) - 1)
    return F.when(fits, parsed.cast("long"))


def _column(schema: TopicSchema, good: Column) -> Column:
    parsed = F.col(f"json_{schema.name}")
    if schema.payload is not None:
        return F.when(good, _value(schema.payload, parsed[VALUE], schema.lenient))
    values = _values(schema.fields, parsed, schema.lenient)
    if schema.rescue:
        values.append(_rescued(schema).alias(RESCUED))
    return F.when(good & parsed.isNotNull(), F.struct(*values))


def _rescued(schema: TopicSchema) -> Column:
    """Return the fields of the object that the schema does not name, as JSON; null if there are none."""
    everything = F.from_json("text", "map<string,variant>")
    others = F.map_filter(everything, lambda name, _: ~name.isin(list(schema.fields)))
    return F.when(F.size(others) > 0, F.to_json(others))


def _object(fields: Mapping[str, Kind], parsed: Column, lenient: bool) -> Column:
    return F.when(parsed.isNotNull(), F.struct(*_values(fields, parsed, lenient)))


def _values(fields: Mapping[str, Kind], parsed: Column, lenient: bool) -> list[Column]:
    return [_value(kind, parsed[field], lenient).alias(field) for field, kind in fields.items()]


def _value(kind: Kind, parsed: Column, lenient: bool) -> Column:
    """Return the value as the table has it: numbers since 1970 become timestamps, at any depth; a time that cannot be
    is null."""
    if isinstance(kind, str):
        return _scalar(kind, _whole(parsed) if lenient and kind in WHOLE else parsed)
    if isinstance(kind, dict):
        return _object(kind, parsed, lenient)
    item = kind[1]
    return F.transform(parsed, lambda value: _value(item, value, lenient))


def _scalar(kind: str, parsed: Column) -> Column:
    if kind in _TIMES:
        convert, per_second = _TIMES[kind]
        return F.when(parsed.between(_FIRST_S * per_second, _LAST_S * per_second), convert(parsed))
    if kind == "timestamp":
        return F.when(F.unix_seconds(parsed).between(_FIRST_S, _LAST_S), parsed)
    if kind == "date":
        return F.when(F.unix_date(parsed).between(_FIRST_S // 86_400, _LAST_S // 86_400), parsed)
    return parsed


MESSAGES_READ: Final = tuple(name for name in MESSAGES.names if name in {*ORIGIN, "payload", "date"})
"""The columns of `messages` that `judge` needs."""
