"""Steps of the job `clean`, DataFrame -> DataFrame; each opens and closes with the columns it is about.

    judge       `messages` -> a row for each, with its schema, its decoded fields, and `reason` if it is no good
    mark_repeats    adds `repeat`: this message id is in `clean` or `quarantine` already, or earlier among these rows
    clean_rows, quarantine_rows, repeat_rows    what goes into which table; every row goes into exactly one

Reasons: `no_schema` no schema has the topic; `too_large` above `payload_bytes_max`, and left in `messages`;
`not_utf8`; `not_json` not one JSON document and nothing else; `not_avro`; `not_protobuf`; `wrong_type` JSON, but a field
is not what the schema says or its column cannot hold it, or it is no object;
`missing:<field>` a required field, or the event time, is absent or null.

A value that is in `clean` is the one that was sent: a number of a `double` is the nearest there is, a time is of
microseconds, and of a name that comes twice in an object the last one counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from secrets import token_hex
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StringType

from headrace_spark.clean.payload_formats import PayloadFormat
from headrace_spark.clean.rescuing import others_of
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
# Type -> how many there are in a second.
_TIMES: Final = {"timestamp_s": 1, "timestamp_ms": 1_000, "timestamp_us": 1_000_000}
_DAY: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_ZONE: Final = r"(Z|[+-][0-9]{2}(:?[0-9]{2})?)?"
_MOMENT: Final = rf"^{_DAY}([T ][0-9]{{2}}:[0-9]{{2}}(:[0-9]{{2}}(\.[0-9]{{1,9}})?)?{_ZONE})?\z"
_WHOLE: Final = r"^-?[0-9]{1,19}(\.0*)?\z"
_EXACT: Final = 1 << 53  # from here on a double may be the neighbour of the whole number that was sent


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
    options = _reading(BROKEN, is_json=schema.form is None)
    return F.when(F.col("schema") == schema.name, F.from_json(text, schema.json, options))


def _reading(broken: str, is_json: bool) -> dict[str, str]:
    """Return how Spark reads JSON. What was a number in another format may be none, or endless, and says so in a text."""
    return {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": broken,
        "allowSingleQuotes": "false",
        "allowNonNumericNumbers": "false" if is_json else "true",
    }


def _is_one_document() -> Column:
    """Return whether a text that Spark could read to the end of its first document has nothing behind that, and nothing
    that opens or ends one which is put around it: the mark behind it is the second of two, wherever it is cut."""
    mark = token_hex(16)
    listed = F.concat(F.lit("["), F.col("text"), F.lit(f',"{mark}"]'))
    return F.coalesce(F.get_json_object(listed, "$[1]") == mark, F.lit(False))


def _is_json() -> Column:
    """Return whether a text that is one document is JSON to the letter."""
    listed = F.concat(F.lit(f'{{"{VALUE}":'), F.col("text"), F.lit("}"))
    read = F.from_json(listed, f"{VALUE} string, {BROKEN} string", _reading(BROKEN, is_json=True))
    return read[BROKEN].isNull()


def _reason(schemas: Sequence[TopicSchema]) -> Column:
    reason = F.when(F.col("schema").isNull(), "no_schema")
    reason = reason.when(F.col("large"), "too_large")
    for schema in schemas:
        own = F.col("schema") == schema.name
        reason = reason.when(own, _reason_in(schema) if schema.decoded else F.lit(None))
    return reason


def _reason_in(schema: TopicSchema) -> Column:
    parsed = F.col(f"json_{schema.name}")
    text = F.col("text")
    reason = F.when(text.isNull(), "not_utf8" if schema.form is None else schema.form.reason)
    broken = parsed.isNull() | parsed[BROKEN].isNotNull()
    if schema.form is None:
        reason = reason.when(~_is_one_document() | (broken & ~_is_json()), "not_json")
    fields = schema.fields if schema.payload is None else {VALUE: schema.payload}
    wrong = broken | _is_wrong(schema, fields, parsed)
    if schema.payload is not None:
        wrong |= _value(schema, schema.payload, parsed[VALUE]).isNull()
    reason = reason.when(wrong, "wrong_type")
    for field in schema.required:
        reason = reason.when(_value(schema, fields[field], parsed[field]).isNull(), f"missing:{field}")
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
    return _value(schema, schema.fields[field], F.col(f"json_{schema.name}")[field])


def _is_wrong(schema: TopicSchema, kind: Kind | Mapping[str, Kind], parsed: Column) -> Column:
    """Return whether anything in it was sent, and is not what the table can have there: false where nothing was."""
    if isinstance(kind, str):
        if not _may_be_wrong(schema, kind):
            return F.lit(False)
        was_sent = parsed.isNotNull()
        if _is_variant(schema, kind):
            was_sent &= ~F.is_variant_null(parsed)
        return was_sent & _scalar(schema, kind, parsed).isNull()
    if isinstance(kind, tuple):
        found = F.exists(parsed, lambda value: _is_wrong(schema, kind[1], value))
        return F.coalesce(found, F.lit(False))
    parts = (_is_wrong(schema, of, parsed[field]) for field, of in kind.items())
    return reduce(lambda one, other: one | other, parts)


def _is_variant(schema: TopicSchema, kind: str) -> bool:
    return kind == "string" or (schema.lenient and kind in WHOLE)


def _may_be_wrong(schema: TopicSchema, kind: str) -> bool:
    """Return whether what Spark has read may be no value of that type."""
    if kind == "double":
        return schema.form is None
    return kind != "boolean" and (kind != "long" or schema.lenient)


def _column(schema: TopicSchema, good: Column) -> Column:
    parsed = F.col(f"json_{schema.name}")
    if schema.payload is not None:
        return F.when(good, _value(schema, schema.payload, parsed[VALUE]))
    values = _values(schema, schema.fields, parsed)
    if schema.rescue:
        values.append(_rescued(schema).alias(RESCUED))
    return F.when(good & parsed.isNotNull(), F.struct(*values))


def _rescued(schema: TopicSchema) -> Column:
    """Return the members of the object that the schema does not name, as JSON; null if there are none. Runs on Python
    workers."""
    named = frozenset(schema.fields)

    def find(texts: pa.Array) -> pa.Array:
        found = [None if text is None else others_of(text, named) for text in texts.to_pylist()]
        return pa.array(found, pa.string())

    # Spark takes the kind of function from its types, and warns who names it as its stubs ask.
    rescue: Any = arrow_udf(find, StringType())  # type: ignore[call-overload]
    rescued: Column = rescue(F.when(F.col("schema") == schema.name, F.col("text")))
    return rescued


def _values(schema: TopicSchema, fields: Mapping[str, Kind], parsed: Column) -> list[Column]:
    return [_value(schema, kind, parsed[field]).alias(field) for field, kind in fields.items()]


def _value(schema: TopicSchema, kind: Kind, parsed: Column) -> Column:
    """Return the value as the table has it, at any depth; null where it is not what the schema says."""
    if isinstance(kind, str):
        return _scalar(schema, kind, parsed)
    if isinstance(kind, dict):
        return F.when(parsed.isNotNull(), F.struct(*_values(schema, kind, parsed)))
    item = kind[1]
    return F.transform(parsed, lambda value: _value(schema, item, value))


def _scalar(schema: TopicSchema, kind: str, parsed: Column) -> Column:
    """Return what was read as what the table has, null where it cannot be that."""
    if kind in WHOLE and schema.lenient:
        parsed = _whole(parsed)
    if kind in _TIMES:
        return _since_1970(parsed, _TIMES[kind])
    if kind == "string":
        is_text = F.schema_of_variant(parsed) == "STRING"
        return F.when(is_text, F.try_variant_get(parsed, "$", "string"))
    if kind == "timestamp":
        time = F.when(parsed.rlike(_MOMENT), parsed.try_cast("timestamp"))
        return F.when(F.unix_seconds(time).between(_FIRST_S, _LAST_S), time)
    if kind == "date":
        day = F.when(parsed.rlike(rf"^{_DAY}\z"), parsed.try_cast("date"))
        return F.when(F.unix_date(day).between(_FIRST_S // 86_400, _LAST_S // 86_400), day)
    if kind == "double" and schema.form is None:
        return F.when(F.abs(parsed) < float("inf"), parsed)  # JSON has no infinity: it was a number too large
    return parsed


def _since_1970(parsed: Column, per_second: int) -> Column:
    """Return the time that a number stands for, the nearest microsecond; null outside of the years 1 to 9999."""
    is_in = (parsed >= _FIRST_S * per_second) & (parsed < (_LAST_S + 1) * per_second)
    if per_second == 1:  # a double: taken apart, since the product of all of it may be microseconds off
        second = F.floor(parsed)
        micros = second * 1_000_000 + F.rint((parsed - second) * 1_000_000).cast("long")
        return F.when(is_in & (micros < (_LAST_S + 1) * 1_000_000), F.timestamp_micros(micros))
    return F.when(is_in, F.timestamp_micros(parsed * (1_000_000 // per_second)))


def _whole(parsed: Column) -> Column:
    """Return the number in a variant as a long, null if it is none: it may have a fraction of zero, or be a text."""
    kind = F.schema_of_variant(parsed)
    number = F.try_variant_get(parsed, "$", "double")
    is_exact = (number == F.floor(number)) & (F.abs(number) < _EXACT)
    text = F.try_variant_get(parsed, "$", "string")
    digits = F.when(text.rlike(_WHOLE), F.substring_index(text, ".", 1).try_cast("long"))
    return F.when(kind == "DOUBLE", F.when(is_exact, number.cast("long"))).otherwise(digits)


MESSAGES_READ: Final = tuple(name for name in MESSAGES.names if name in {*ORIGIN, "payload", "date"})
"""The columns of `messages` that `judge` needs."""
