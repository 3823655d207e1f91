"""Options of the source `headrace`, parsed once and checked. Names as in Spark's Kafka source where it has one.

`OPTIONS` says what each is; `docs/reference/spark-source.md` shows it, and a test compares the two.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from headrace.mqtt.topics import SHARE_PREFIX, filter_error
from headrace_spark.base.errors import BadOption
from headrace_spark.records.schema import SCHEMAS
from headrace_spark.source.kafka_address import is_begun
from headrace_spark.source.ranges import TASK_RECORDS_MIN
from headrace_spark.source.selection import Selection, microseconds

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
# What stands for these in JSON.
KAFKA_EARLIEST: Final = -2
KAFKA_LATEST: Final = -1
NONE: Final = "none"
OPTIONS: Final = {
    "path": "data directory of a broker, `headrace://HOST:PORT` (`headraces://` over TLS) of a running one, or "
    "`kafka://HOST:PORT/NAME` of a cluster; several with commas between. Also the argument of `load`. Required",
    "schema": "`messages` (default), `events` or `progress`: which records, and their columns",
    "consumer": "name under which a stream registers with each journal, so that retention waits for it. Required for "
    "streams, without meaning in batch reads",
    "owner": "what the consumer's position is of, a word: a query that names another owner, or none, is refused. "
    "Default: nobody's",
    "columns": "columns of the schema, with commas between; default all. What is not named is not decoded",
    "tenant": "messages of these tenants only, with commas between",
    "topicFilter": "messages whose topic matches this MQTT topic filter only",
    "pushFilters": "`true`: skip what the filters of the query leave out, in a DataFrame that is loaded for one query "
    "alone; `false` (default): read all and filter then. Batch reads only",
    "startingOffsets": "`earliest` (default: from where the journal is complete), `latest`, an offset, or JSON with an "
    "offset for each journal uuid, where -2 is `earliest` and -1 `latest`. For streams: where a query without a "
    "checkpoint begins; `latest` is the consumer's position, if it is registered",
    "startingTimestamp": "the first record of that time or later instead: ISO 8601, UTC unless it says otherwise, or "
    "milliseconds since 1970",
    "endingOffsets": "`latest` (default: the high watermark), an offset, or JSON where -1 is `latest`; exclusive. Batch "
    "reads only",
    "endingTimestamp": "up to the first record of that time or later instead. Batch reads only",
    "maxOffsetsPerTrigger": "records a micro-batch takes at most, all journals together; a record of `messages` is at "
    "most one row. Default: no limit",
    "maxRowsPerTrigger": "the older name of `maxOffsetsPerTrigger`; one of them will do",
    "minOffsetsPerTrigger": "records a micro-batch waits for, unless `maxTriggerDelay` is over or the trigger is "
    "`availableNow`. Default: none",
    "maxTriggerDelay": "how long `minOffsetsPerTrigger` may hold up a micro-batch: `90s`, `500ms`, `2h`, or "
    "milliseconds. Default: `15m`",
    "maxBytesPerTrigger": "bytes of the journal a micro-batch takes at most, estimated from the segments. Default: no "
    "limit",
    "minPartitions": "tasks a read is cut into, about, however small it is",
    "partitions": "tasks that share a large read, none of them below 50 000 records, instead of `minPartitions`; "
    "default: the CPUs of this machine",
    "failOnDataLoss": "`true` (default): fail when retention or compaction has removed records still to be read; "
    "`false`: go on behind them",
    "token": "bearer token for `headrace://`; default: the environment variable HEADRACE_JOURNAL_TOKEN",
    "cache": "folder of topic indexes, which batch reads by topic make and use; `none` to do without. Default: "
    "`headrace/topics` in $XDG_CACHE_HOME or ~/.cache",
}
TOKEN_VARIABLE: Final = "HEADRACE_JOURNAL_TOKEN"  # noqa: S105  (the name of it)
TRIGGER_DELAY_S: Final = 15 * 60.0
_UNITS_S: Final = {"us": 1e-6, "ms": 1e-3, "": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_DURATION: Final = re.compile(r"(\d+)\s*([a-z]*)")
_CONSUMER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class SourceOptions:
    locations: tuple[str, ...]
    schema: str
    consumer: str | None
    owner: str
    columns: str
    selection: Selection
    push_filters: bool
    starting: Position
    ending: Position | None
    rows_per_trigger_max: int | None
    rows_per_trigger_min: int | None
    trigger_delay_s: float
    bytes_per_trigger_max: int | None
    partitions: int
    task_records_min: int
    """A task of a read that is cut has no fewer records."""
    fail_on_data_loss: bool
    token: str
    cache: Path | None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Read the options of the source. Raises BadOption. Names are case-insensitive, as everywhere in Spark."""
        values = {name.lower(): value for name, value in given.items()}
        _check_names(values)
        schema = _schema(values.get("schema", "messages"))
        most, least = _per_trigger(values)
        partitions, task_records_min = _tasks(values)
        return cls(
            locations=_locations(values.get("path", "")),
            schema=schema,
            consumer=None if "consumer" not in values else check_consumer(values["consumer"]),
            owner=values.get("owner", ""),
            columns=values.get("columns", ""),
            selection=_selection(values, schema),
            push_filters=_flag("pushFilters", values.get("pushfilters", "false")),
            starting=_position(values, "starting", (EARLIEST, LATEST)) or Position(EARLIEST),
            ending=_position(values, "ending", (LATEST,)),
            rows_per_trigger_max=most,
            rows_per_trigger_min=least,
            trigger_delay_s=_duration_s("maxTriggerDelay", values.get("maxtriggerdelay")),
            bytes_per_trigger_max=_count("maxBytesPerTrigger", values.get("maxbytespertrigger")),
            partitions=partitions,
            task_records_min=task_records_min,
            fail_on_data_loss=_flag("failOnDataLoss", values.get("failondataloss", "true")),
            token=values.get("token", os.environ.get(TOKEN_VARIABLE, "")),
            cache=_cache(values.get("cache", "")),
        )


@dataclass(frozen=True)
class Position:
    """Says where to begin or end in each journal: a word, an offset, an offset by uuid, or a time."""

    word: str = ""
    offset: int | None = None
    by_uuid: Mapping[str, int] | None = None
    at_us: int | None = None


def check_consumer(name: str) -> str:
    """Check the name of a consumer, which becomes a file name: letters, digits, dot, dash and underscore. Raises
    BadOption."""
    if _CONSUMER.fullmatch(name) is None:
        raise BadOption(
            "consumer", name, "letters, digits, '.', '_' and '-' only, at most 100, not a sign first"
        )
    return name


def _check_names(values: Mapping[str, str]) -> None:
    if "provider" in values:  # what a catalog says of a table
        raise BadOption(
            "path",
            values.get("location", ""),
            "Spark tells a Python source nothing of a table in its catalog: "
            "CREATE TEMPORARY VIEW ... USING headrace OPTIONS (path '...') makes a view instead",
        )
    known = {name.lower() for name in OPTIONS}
    for name in values:
        if name not in known:
            raise BadOption(name, values[name], f"no such option; there are {', '.join(OPTIONS)}")


def _schema(name: str) -> str:
    if name.lower() not in SCHEMAS:
        raise BadOption("schema", name, f"there are {', '.join(SCHEMAS)}")
    return name.lower()


def _locations(path: str) -> tuple[str, ...]:
    found: list[str] = []
    for part in (part.strip() for part in path.split(",")):
        if found and is_begun(found[-1]):  # the brokers of a Kafka have commas between them, too
            found[-1] += f",{part}"
        elif part:
            found.append(part.removeprefix("file://"))
    if not found:
        raise BadOption("path", path, "the data directory of a broker is needed: .load('<data-dir>')")
    return tuple(found)


def _selection(values: Mapping[str, str], schema: str) -> Selection:
    for option in ("tenant", "topicFilter"):
        if option.lower() in values and schema != "messages":
            raise BadOption(option, values[option.lower()], "is for schema=messages; filter the rows instead")
    selection = Selection(topic_filter=values.get("topicfilter", ""))
    if "topicfilter" in values:
        problem = filter_error(selection.topic_filter)
        if problem or selection.topic_filter.startswith(SHARE_PREFIX):
            raise BadOption("topicFilter", selection.topic_filter, problem or "a shared subscription is none")
    if "tenant" not in values:
        return selection
    return selection.with_tenants([name.strip() for name in values["tenant"].split(",")])


def _position(values: Mapping[str, str], which: str, words: tuple[str, ...]) -> Position | None:
    offsets, timestamp = f"{which}Offsets", f"{which}Timestamp"
    if timestamp.lower() in values:
        if offsets.lower() in values:
            raise BadOption(
                timestamp, values[timestamp.lower()], f"{offsets} is given too; one of them will do"
            )
        return Position(at_us=_moment(timestamp, values[timestamp.lower()]))
    value = values.get(offsets.lower())
    if value is None:
        return None
    if value.lower() in words:
        return Position(value.lower())
    if value.isdecimal():
        return Position(offset=int(value))
    by_uuid = _by_uuid(value)
    smallest = KAFKA_EARLIEST if EARLIEST in words else KAFKA_LATEST
    if by_uuid is None or min(by_uuid.values(), default=0) < smallest:
        raise BadOption(
            offsets, value, f"{', '.join(words)}, an offset, or JSON of journal uuids and offsets"
        )
    return Position(by_uuid=by_uuid)


def _by_uuid(value: str) -> dict[str, int] | None:
    """Return offsets by journal; None if that is not what it says."""
    try:
        return {str(uuid): int(offset) for uuid, offset in json.loads(value).items()}
    except (ValueError, TypeError, AttributeError):
        return None


def _per_trigger(values: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return how many records a micro-batch takes at most, and how many it waits for."""
    most = _either(values, "maxOffsetsPerTrigger", "maxRowsPerTrigger")
    least = _count("minOffsetsPerTrigger", values.get("minoffsetspertrigger"))
    if most is not None and least is not None and least > most:
        raise BadOption("minOffsetsPerTrigger", least, f"more than a micro-batch may take, which is {most}")
    return most, least


def _tasks(values: Mapping[str, str]) -> tuple[int, int]:
    """Return how many tasks share a read, and how many records are worth one."""
    wanted = _either(values, "minPartitions", "partitions")
    return wanted or os.cpu_count() or 1, 1 if "minpartitions" in values else TASK_RECORDS_MIN


def _either(values: Mapping[str, str], name: str, other: str) -> int | None:
    if name.lower() in values and other.lower() in values:
        raise BadOption(name, values[name.lower()], f"{other} is given too; one of them will do")
    found = name if name.lower() in values else other
    return _count(found, values.get(found.lower()))


def _duration_s(option: str, value: str | None) -> float:
    """Return the seconds of a time as Spark's Kafka source takes it."""
    if value is None:
        return TRIGGER_DELAY_S
    found = _DURATION.fullmatch(value.strip().lower())
    if found is None or found[2] not in _UNITS_S:
        raise BadOption(option, value, "a time like 90s, 15m or 500ms, or milliseconds")
    return int(found[1]) * _UNITS_S[found[2]]


def _moment(option: str, value: str) -> int:
    """Return the microseconds since 1970 of a moment."""
    if value.isdecimal():
        return int(value) * 1000
    try:
        return microseconds(datetime.fromisoformat(value))
    except ValueError:
        raise BadOption(
            option, value, "a time like 2026-11-21T22:30:00Z, or milliseconds since 1970"
        ) from None


def _cache(value: str) -> Path | None:
    if value.lower() == NONE:
        return None
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(value) if value else home / "headrace" / "topics"


def _count(option: str, value: str | None) -> int | None:
    if value is None:
        return None
    if not value.isdecimal() or int(value) == 0:
        raise BadOption(option, value, "a number above 0")
    return int(value)


def _flag(option: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise BadOption(option, value, "true or false")
    return value.lower() == "true"
