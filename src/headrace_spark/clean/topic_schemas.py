"""The topic schema file: which topics carry which JSON, for the job `clean`.

    [[schema]]
    name = "reading"                          # a column of `clean`, a struct of the fields below
    topics = ["plant/+/temperature"]          # MQTT topic filters; the first schema that matches a topic has it
    event_time = "at"                         # optional: the field that says when it happened
    required = ["device", "value"]            # optional: fields without which a payload is broken
    rescue = true                             # optional: fields that are not named below come as JSON in `_rescued`
    [schema.fields]
    device = "string"
    at = "timestamp_ms"
    value = "double"
    tags = ["string"]                         # a list
    position = { lat = "double", lon = "double" }   # an object

    [[schema]]
    name = "level"                            # a payload that is no object: a number, a text, a list
    topics = ["tank/+/level"]
    payload = "double"                        # or ["double"]
    lenient = true                            # optional: whole numbers may be written 1.0, 1e3 or "1"

    [[schema]]
    name = "pump"                             # the fields below are those of an Avro record
    topics = ["pump/+"]
    avro = "pump.avsc"                        # lies beside this file
    fields = { device = "string", at = "timestamp" }

    [[schema]]
    name = "motor"                            # and of a Protobuf message
    topics = ["motor/+"]
    protobuf = "motor.desc"                   # of protoc --include_imports --descriptor_set_out
    message = "plant.Motor"
    fields = { device = "string", count = "long" }

    [[schema]]
    name = "edge"                             # Sparkplug B, whose fields are known
    topics = ["spBv1.0/+/NDATA/#"]
    sparkplug = true

    [[schema]]
    name = "picture"                          # without fields: any payload is good, and is kept as it is
    topics = ["camera/#"]

Types: string, long, double, boolean, date, timestamp (ISO 8601 text), and timestamp_s, timestamp_ms,
timestamp_us (numbers since 1970). Fields of a payload that the schema does not name are left out.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from headrace_spark.base.errors import PipelineError
from headrace_spark.clean.payload_formats import (
    AVRO,
    PROTOBUF,
    SPARKPLUG,
    SPARKPLUG_FIELDS,
    BadFormat,
    PayloadFormat,
    sparkplug_format,
)

# Type -> its column, a time since 1970 aside.
SCALARS: Final[dict[str, DataType]] = {
    "string": StringType(),
    "long": LongType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamp_s": DoubleType(),
    "timestamp_ms": LongType(),
    "timestamp_us": LongType(),
}
# The types that are whole numbers.
WHOLE: Final = ("long", "timestamp_ms", "timestamp_us")
# As what Spark reads a type from JSON, where that is not its column: a variant says whether it was a text or a number,
# where Spark would make one of the other; of the texts that Spark takes for a day or a time, not all are one.
_READ_AS: Final[dict[str, DataType]] = {
    "string": VariantType(),
    "date": StringType(),
    "timestamp": StringType(),
}
TIMESTAMPS: Final = ("timestamp", "timestamp_s", "timestamp_ms", "timestamp_us")
DEPTH_MAX: Final = 16
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_KEYS: Final = (
    *("name", "topics", "event_time", "required", "fields", "payload", "lenient", "rescue"),
    *("avro", "protobuf", "message", "sparkplug"),
)
_FORMAT_FILE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\.(avsc|desc)")
VALUE: Final = "value"
"""Under this name a payload that is no object is read."""

Kind = str | tuple[str, "Kind"] | dict[str, "Kind"]
"""A type as the file has it: a scalar's name, ("list", item), or an object's fields."""


class BadTopicSchema(PipelineError):
    """The topic schema file cannot be used; the message names the file, the schema and the key."""

    exit_code = 2


@dataclass(frozen=True)
class TopicSchema:
    """One `[[schema]]` of the topic schema file. `payload` is the type of payloads that are no objects, None where they
    are. `lenient`: whole numbers may be written with a fraction of zero, or as texts. `rescue`: what the schema does
    not name of an object is kept. `form`: how payloads become JSON, None where they are; `file`: what says so, beside
    the topic schema file."""

    name: str
    topics: tuple[str, ...]
    fields: Mapping[str, Kind]
    event_time: str | None
    required: tuple[str, ...]
    payload: Kind | None = None
    lenient: bool = False
    rescue: bool = False
    form: PayloadFormat | None = None
    file: str = ""

    @property
    def decoded(self) -> bool:
        """Return whether payloads become a column; otherwise they are kept as they are."""
        return bool(self.fields) or self.payload is not None

    @property
    def json(self) -> StructType:
        """Return what Spark reads: the object of the payload, or one with the payload as its only field."""
        fields = self.fields if self.payload is None else {VALUE: self.payload}
        return json_type(fields, self.lenient)

    @property
    def column(self) -> DataType:
        """Return the type of the column of `clean`: every kind of time is a timestamp there."""
        if self.payload is not None:
            return _column_kind(self.payload)
        rescued = [StructField(RESCUED, StringType())] if self.rescue else []
        return StructType([*column_type(self.fields), *rescued])


def load_topic_schemas(file: Path) -> tuple[TopicSchema, ...]:
    """Return the schemas in the order of the file. Raises BadTopicSchema."""
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadTopicSchema(f"cannot read topic schema file {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadTopicSchema(f"topic schema file {file} is not TOML: {error}") from None
    except RecursionError:
        raise BadTopicSchema(f"topic schema file {file} is nested too deeply to be read") from None
    try:
        return parse_topic_schemas(tables, file.parent)
    except BadTopicSchema as error:
        raise BadTopicSchema(f"topic schema file {file}: {error}") from None


def files_of(file: Path) -> list[Path]:
    """Return the files beside a topic schema file that say how payloads are decoded. Raises BadTopicSchema."""
    return [file.parent / name for name in sorted({one.file for one in load_topic_schemas(file) if one.file})]


def parse_topic_schemas(tables: Mapping[str, Any], folder: Path = Path()) -> tuple[TopicSchema, ...]:
    """Return the schemas of topics in `tables`. `folder`: where the files lie that a schema names. Raises
    BadTopicSchema."""
    entries = tables.get("schema")
    if set(tables) != {"schema"} or not isinstance(entries, list):
        raise BadTopicSchema("there must be [[schema]] tables, and nothing else at the top")
    schemas = tuple(_schema(n, entry, folder) for n, entry in enumerate(entries, start=1))
    names = [schema.name for schema in schemas]
    for name in names:
        if names.count(name) > 1:
            raise BadTopicSchema(f"schema {name} is there twice")
    return schemas


def _schema(number: int, entry: Any, folder: Path) -> TopicSchema:
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadTopicSchema(
            f"schema {number}: name={name!r}: a lower case letter, then letters, digits and '_', at most 64"
        )
    _check_keys(name, entry)
    form, file = _format(name, entry, folder)
    fields = _fields(name, entry, form)
    payload = _payload(name, entry)
    # Protobuf's JSON has 64 bit numbers as texts.
    lenient = _flag(name, "lenient", entry) or (form is not None and form.name != AVRO)
    rescue = _flag(name, "rescue", entry)
    if rescue and not fields:
        raise BadTopicSchema(f"schema {name}: rescue: is for payloads that are objects, with fields")
    event_time = entry.get("event_time")
    if event_time is not None and fields.get(str(event_time)) not in TIMESTAMPS:
        raise BadTopicSchema(
            f"schema {name}: event_time={event_time!r}: must be a field of type {', '.join(TIMESTAMPS)}"
        )
    required = _texts(name, "required", entry.get("required", []))
    unknown = [field for field in required if field not in fields]
    if unknown:
        raise BadTopicSchema(f"schema {name}: required: no field {unknown[0]!r}")
    topics = _filters(name, entry.get("topics"))
    return TopicSchema(name, topics, fields, event_time, required, payload, lenient, rescue, form, file)


def _check_keys(name: str, entry: Mapping[str, Any]) -> None:
    for key in entry:
        if key not in _KEYS:
            raise BadTopicSchema(f"schema {name}: unknown key {key}; there are {', '.join(_KEYS)}")


def _format(name: str, entry: Mapping[str, Any], folder: Path) -> tuple[PayloadFormat | None, str]:
    """Return how payloads of a schema become JSON, and the file that says so."""
    given = [key for key in (AVRO, PROTOBUF, SPARKPLUG) if entry.get(key, False) is not False]
    if "message" in entry and PROTOBUF not in given:
        raise BadTopicSchema(f"schema {name}: message: is for payloads of {PROTOBUF}")
    if not given:
        return None, ""
    if len(given) > 1 or "payload" in entry:
        raise BadTopicSchema(f"schema {name}: {given[0]}: one of avro, protobuf, sparkplug, payload will do")
    if given == [SPARKPLUG]:
        _flag(name, SPARKPLUG, entry)
        return sparkplug_format(), ""
    file, message = entry[given[0]], entry.get("message", "")
    if not isinstance(file, str) or not _FORMAT_FILE.fullmatch(file) or not isinstance(message, str):
        raise BadTopicSchema(
            f"schema {name}: {given[0]}={file!r}: a file beside this one is needed, NAME.avsc or NAME.desc"
        )
    try:
        form = PayloadFormat(given[0], (folder / file).read_bytes(), message)
        form.check()
    except OSError as error:
        raise BadTopicSchema(f"schema {name}: cannot read {folder / file}: {error.strerror}") from None
    except BadFormat as error:
        raise BadTopicSchema(f"schema {name}: {folder / file}: {error}") from None
    return form, file


def _fields(name: str, entry: Mapping[str, Any], form: PayloadFormat | None) -> dict[str, Kind]:
    if form is not None and form.name == SPARKPLUG:
        if "fields" in entry:
            raise BadTopicSchema(f"schema {name}: fields: those of Sparkplug B are known")
        return _object(name, "fields", SPARKPLUG_FIELDS, 0)
    if "fields" in entry:
        return _object(name, "fields", entry["fields"], 0)
    if form is not None:
        raise BadTopicSchema(f"schema {name}: fields: name those of the {form.name} payload that are wanted")
    return {}


def _flag(name: str, key: str, entry: Mapping[str, Any]) -> bool:
    value = entry.get(key, False)
    if not isinstance(value, bool):
        raise BadTopicSchema(f"schema {name}: {key}={value!r}: must be true or false")
    return value


def _payload(name: str, entry: Mapping[str, Any]) -> Kind | None:
    if "payload" not in entry:
        return None
    if "fields" in entry or isinstance(entry["payload"], dict):
        raise BadTopicSchema(
            f"schema {name}: payload: is for payloads that are no objects; those have fields"
        )
    return _kind(name, "payload", entry["payload"], 0)


def _texts(name: str, key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadTopicSchema(f"schema {name}: {key}={value!r}: must be a list of texts")
    return tuple(value)


def _filters(name: str, value: Any) -> tuple[str, ...]:
    filters = _texts(name, "topics", value)
    if not filters:
        raise BadTopicSchema(f"schema {name}: topics: at least one topic filter is needed")
    for topic_filter in filters:
        levels = topic_filter.split("/")
        wild = [level for level in levels if ("+" in level or "#" in level) and level not in ("+", "#")]
        if not topic_filter or wild or "#" in levels[:-1] or "\0" in topic_filter:
            raise BadTopicSchema(f"schema {name}: topics: {topic_filter!r} is no MQTT topic filter")
    return filters


def _object(name: str, path: str, value: Any, depth: int) -> dict[str, Kind]:
    if not isinstance(value, dict) or not value:
        raise BadTopicSchema(f"schema {name}: {path}={value!r}: must be a table of field = type")
    if depth > DEPTH_MAX:
        raise BadTopicSchema(f"schema {name}: {path}: more than {DEPTH_MAX} levels deep")
    taken: set[str] = set()
    for field in value:
        if field.lower() in taken or not field or field in (BROKEN, RESCUED):
            raise BadTopicSchema(
                f"schema {name}: {path}.{field}: not a name, or it differs from another in case only"
            )
        taken.add(field.lower())
    return {field: _kind(name, f"{path}.{field}", kind, depth) for field, kind in value.items()}


def _kind(name: str, path: str, value: Any, depth: int) -> Kind:
    if isinstance(value, str) and value in SCALARS:
        return value
    if isinstance(value, dict):
        return _object(name, path, value, depth + 1)
    if isinstance(value, list) and len(value) == 1 and depth < DEPTH_MAX:
        return ("list", _kind(name, f"{path}[]", value[0], depth + 1))
    raise BadTopicSchema(
        f"schema {name}: {path}={value!r}: no such type; there are {', '.join(SCALARS)}, [type] and tables"
    )


RESCUED: Final = "_rescued"
"""Name of the field of a column with the JSON of what the schema does not name."""
BROKEN: Final = "_broken"
"""Name of the field in which Spark leaves a payload that it could not read."""


def json_type(fields: Mapping[str, Kind], lenient: bool = False) -> StructType:
    """Return what Spark reads from the payload: the fields as JSON has them, and a place for what cannot be read."""
    return StructType([*_json_object(fields, lenient), StructField(BROKEN, StringType())])


def _json_object(fields: Mapping[str, Kind], lenient: bool) -> StructType:
    return StructType([StructField(field, _json_kind(kind, lenient)) for field, kind in fields.items()])


def _json_kind(kind: Kind, lenient: bool) -> DataType:
    if isinstance(kind, str):
        whole = lenient and kind in WHOLE
        return VariantType() if whole else _READ_AS.get(kind, SCALARS[kind])
    return _json_object(kind, lenient) if isinstance(kind, dict) else ArrayType(_json_kind(kind[1], lenient))


def column_type(fields: Mapping[str, Kind]) -> StructType:
    """Return the type of the column of `clean`: every kind of time is a timestamp there."""
    return StructType([StructField(field, _column_kind(kind)) for field, kind in fields.items()])


def _column_kind(kind: Kind) -> DataType:
    if isinstance(kind, str):
        return TimestampType() if kind in TIMESTAMPS else SCALARS[kind]
    return column_type(kind) if isinstance(kind, dict) else ArrayType(_column_kind(kind[1]))


def has_grown(there: DataType, wanted: DataType) -> bool:
    """Return whether a column of the type `there` can take values of `wanted`: the same, or objects with more fields."""
    if isinstance(there, StructType) and isinstance(wanted, StructType):
        types = {field.name: field.dataType for field in wanted}
        return all(field.name in types and has_grown(field.dataType, types[field.name]) for field in there)
    if isinstance(there, ArrayType) and isinstance(wanted, ArrayType):
        return has_grown(there.elementType, wanted.elementType)
    return there == wanted


def filter_pattern(topic_filter: str) -> str:
    """Return the regular expression for the topics that an MQTT filter matches (section 4.7 of the specification), which
    Java and Python take alike: what ends a line for either is a character like others in a topic."""
    levels = topic_filter.split("/")
    many = levels[-1] == "#"
    parts = ["[^/]*" if level == "+" else re.escape(level) for level in (levels[:-1] if many else levels)]
    hidden = "" if topic_filter[0] not in "+#" else r"(?!\$)"  # [MQTT-4.7.2-1]
    whole = f"{'/'.join(parts)}{'(/.*)?' if many else ''}" if parts else ".*"
    return f"(?s:^{hidden}{whole}(?!.))"
