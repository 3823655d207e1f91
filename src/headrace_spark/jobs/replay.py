"""The job `replay`: a part of the archive again, into a table or to devices, once.

What is replayed is fixed at the first start under a name: the version of the table `messages`, the part of it, the
slices that it comes to and the target are written to `<lake>/_checkpoints/replay-<name>.json`. Starting it again goes on
where it stopped: whole slices of the journal that are done are left out, and of the slice in between the broker
(idempotent producers; the sequence is the journal's offset) or Delta (the slice is a transaction) keeps out what it has.

Replayed messages are kept apart from live ones: by a topic prefix, `replay/` unless another one is chosen, and by the
user properties behind the publisher's own: `replay` (the name) and `replay-of` (the message id in the archive). What was
itself replayed, and so has both, is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import reduce
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, Final
from uuid import uuid4

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.mqtt.topics import valid_filter, valid_topic
from headrace_spark.base.broker_address import BrokerAddress, read_password
from headrace_spark.base.errors import BadOption, LakeConflict, QueryFailed, first_line
from headrace_spark.base.lake_url import LakeUrl, Location
from headrace_spark.base.progress import Progress, Report
from headrace_spark.base.settings import RunSettings
from headrace_spark.clean.topic_schemas import filter_pattern
from headrace_spark.devices.outbox import send
from headrace_spark.devices.outgoing import COLUMNS, PRODUCER, SEQUENCE
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.lake_of import AnyLake, lake_of
from headrace_spark.lake.location import table_location
from headrace_spark.lake.table_position import commit_of, is_there
from headrace_spark.lake.tables import TABLES
from headrace_spark.records.schema import MESSAGES
from headrace_spark.source.options import check_consumer

JOB: Final = "replay"
SLOTS: Final = 16
"""Producers a journal: rows of one topic share one. Fixed, or a repeat would not be recognised."""
PROPERTY: Final = "replay"
ORIGINAL: Final = "replay-of"
_IDS: Final = ("client:", "journal:")
"""How message ids begin (`messages.message_id`): what a replay puts into ORIGINAL."""
_ANEW: Final = "remove the file: all of it is replayed again then"
_OFFSET: Final = "journal_offset"
_PASSING: Final = re.compile(
    r"\b(now|current_timestamp|current_date|current_time|localtimestamp|rand|randn|random|uuid|shuffle|"
    r"monotonically_increasing_id)\("
)


@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings):
    """`[pipeline.replay]`: what, where to, and how fast."""

    name: str
    since: str
    until: str
    topic: str
    where: str
    table: str
    prefix: str
    client: str
    url: str
    username: str
    password_file: str
    ca_file: str
    connections: int
    rate: float
    offsets_per_slice: int
    patience_s: float
    dry_run: bool

    @property
    def address(self) -> BrokerAddress:
        return BrokerAddress(
            self.url, self.username or None, read_password(self.password_file), self.ca_file or None
        )

    @property
    def target(self) -> Location:
        """Return the table that rows are added to."""
        return _resolved(table_location(self.lake, self.table))

    @property
    def topic_prefix(self) -> str:
        """Return the prefix of the topics: one client's messages have a prefix of their own, to which it subscribes:
        `replay/to/<client id>/`."""
        return f"{self.prefix}to/{self.client}/" if self.client else self.prefix


def check(settings: Settings) -> None:
    """Check that the job can run. Raises BadOption, LakeConflict."""
    check_consumer(settings.name)
    settings.address.check()
    for key in ("since", "until"):
        _time(key, getattr(settings, key))
    if settings.topic and not valid_filter(settings.topic):
        raise BadOption("pipeline.replay.topic", settings.topic, "not a topic filter")
    if not settings.table and not valid_topic(f"{settings.topic_prefix}x".encode()):
        raise BadOption("pipeline.replay.prefix", settings.topic_prefix, "not the beginning of a topic")
    if settings.table and is_within(settings.target, own_tables(settings.lake)):
        problem = (
            "the jobs of headrace write that table: its rows would be counted, cleaned or sent as new ones"
        )
        raise BadOption("pipeline.replay.table", settings.table, problem)
    if not isinstance(settings.lake, LakeUrl):
        require_archive(Lake(settings.lake))


def require_archive(lake: AnyLake) -> None:
    """Raise LakeConflict unless there is something to replay."""
    if lake.table.log() is None:
        raise LakeConflict(f"there is no table {lake.messages}: run the job archive first")


def own_tables(lake: Location) -> set[Location]:
    """Return the places in a lake that jobs write."""
    names = {"messages", "outbox", "event_snapshot", "bootstrap", "_checkpoints"}
    names |= {table.name for table in TABLES}
    return {_resolved(table_location(lake, name)) for name in names}


def is_within(place: Location, tables: Collection[Location]) -> bool:
    """Return whether a place is one of these tables or within one: a vacuum of that removes what its log does not
    name."""
    above = (
        place.parents
        if isinstance(place, Path)
        else [LakeUrl(str(place)[:at]) for at in _slashes(str(place))]
    )
    return any(each in tables for each in (place, *above))


def _slashes(url: str) -> list[int]:
    return [at for at, character in enumerate(url) if character == "/"]


def _resolved(place: Location) -> Location:
    return place.resolve() if isinstance(place, Path) else place


def run(spark: SparkSession, settings: Settings, stop: Event, report: Report) -> Progress:
    """Run the job. Raises PipelineError. With `dry_run` only what would be replayed is printed, as JSON."""
    try:
        lake = lake_of(spark, settings.lake)
        require_archive(lake)
        with nullcontext() if settings.dry_run else lake.holding(f"{JOB}-{settings.name}"):
            return _run(spark, settings, lake, stop, report)
    except Exception as error:
        if type(error).__module__.startswith(("pyspark", "py4j")):
            raise QueryFailed.from_spark(error) from None
        raise


def _run(spark: SparkSession, settings: Settings, lake: AnyLake, stop: Event, report: Report) -> Progress:
    began = monotonic()
    notes = Notes.of(settings, lake)
    notes.require_kept(settings)
    rows = chosen_once(notes.archive(spark), settings)
    parts = notes.parts or journals(rows)
    total = sum(part.rows for part in parts)
    if settings.dry_run:
        print(json.dumps({"rows": total, "version": notes.version, "journals": [asdict(p) for p in parts]}))
        return Progress(0, 0, total, monotonic() - began)
    notes.parts = parts
    notes.save()
    done = 0
    for number, part, start, end in slices(parts, settings.offsets_per_slice):
        one = rows.where((F.col("journal_uuid") == part.uuid) & (F.col("journal_epoch") == part.epoch)).where(
            (F.col(_OFFSET) >= start) & (F.col(_OFFSET) < end)
        )
        at = monotonic()
        if number >= notes.slices_done:
            if stop.is_set():
                break
            lake.require_held()
            _replay(one, settings, notes.id, number, part)
            notes.done(number + 1, settings)
        done += one.count()
        now = monotonic()
        report(Progress(done, end, total - done, now - began, (now - at,)))
    return Progress(done, done, total - done, monotonic() - began)


def _replay(rows: DataFrame, settings: Settings, run_id: str, number: int, part: Journal) -> None:
    if not settings.table:
        slot = F.pmod(F.hash("topic"), F.lit(SLOTS))
        producer = F.concat(F.lit(f"{JOB}-{run_id}-{part.uuid}-{part.epoch}/"), slot)
        numbered = rows.withColumns({PRODUCER: producer, SEQUENCE: F.col(_OFFSET), "slot": slot})
        outgoing = marked(numbered, settings).select(*COLUMNS, PRODUCER, SEQUENCE, "slot")
        send(outgoing, settings.address, settings.connections, settings.patience_s, settings.rate)
        return
    ours = rows.select(*(name for name in MESSAGES.names if name in rows.columns))
    writer = ours.write.format("delta").mode("append").option("txnAppId", f"{JOB}-{run_id}")
    writer.option("txnVersion", number).save(str(settings.target))


def marked(rows: DataFrame, settings: Settings) -> DataFrame:
    """Return rows under the prefix, with the properties that keep them apart, and as they were published otherwise."""
    pair = "struct<name:string,value:string>"
    own = F.array(
        F.struct(F.lit(PROPERTY).alias("name"), F.lit(settings.name).alias("value")).cast(pair),
        F.struct(F.lit(ORIGINAL).alias("name"), F.col("message_id").alias("value")).cast(pair),
    )
    return rows.withColumns(
        {
            "topic": F.concat(F.lit(settings.topic_prefix), F.col("topic")),
            "qos": F.greatest(F.col("qos"), F.lit(1)).cast("byte"),
            "retain": F.lit(False),
            "message_expiry_s": F.lit(None).cast("long"),  # it was counted from the first time
            "user_properties": F.concat(F.col("user_properties"), own),
        }
    )


# What is replayed


def is_replayed() -> Column:
    """Return whether a message was sent by a replay: it has both marks. One of them alone is a publisher's own property,
    whatever he means by it."""
    is_named = F.exists("user_properties", lambda pair: pair["name"] == PROPERTY)
    return is_named & F.exists("user_properties", _names_a_message)


def _names_a_message(pair: Column) -> Column:
    value = pair["value"]
    return (pair["name"] == ORIGINAL) & (value.startswith(_IDS[0]) | value.startswith(_IDS[1]))


def chosen(table: DataFrame, settings: Settings) -> DataFrame:
    """Return the part of the archive that the settings name."""
    conditions = [~is_replayed()]
    if settings.since:
        conditions.append(F.col("publish_timestamp") >= F.lit(_time("since", settings.since)))
    if settings.until:
        conditions.append(F.col("publish_timestamp") < F.lit(_time("until", settings.until)))
    if settings.topic:
        conditions += matching(settings.topic)
    if settings.where:
        conditions.append(F.expr(settings.where))
    return table.where(reduce(lambda left, right: left & right, conditions))


def chosen_once(table: DataFrame, settings: Settings) -> DataFrame:
    """Return `chosen`, the same at every start. Raises BadOption."""
    try:
        rows = chosen(table, settings)
        require_lasting(rows, settings.where)
    except (AnalysisException, ParseException) as error:
        raise BadOption("pipeline.replay.where", settings.where, first_line(error)) from None
    return rows


def require_lasting(rows: DataFrame, where: str) -> None:
    """Check that what is chosen is the same at every start, or a slice that was cut off would miss rows. Raises
    BadOption."""
    plan = rows._jdf.queryExecution().analyzed().toString()
    found = _PASSING.search(plan)
    if where and found is not None:
        problem = (
            f"{found[1]}() is another one at every start, and a replay may need several: give a fixed value"
        )
        raise BadOption("pipeline.replay.where", where, problem)


def matching(topic_filter: str) -> list[Column]:
    """Return an MQTT topic filter as conditions; the literal beginning is one of its own, by which Delta skips
    files."""
    levels = topic_filter.split("/")
    literal = levels[: _first_wildcard(levels)]
    if len(literal) == len(levels):
        return [F.col("topic") == topic_filter]
    conditions = [F.col("topic").rlike(filter_pattern(topic_filter))]
    if literal:
        conditions.append(F.col("topic").startswith("/".join(literal)))
    return conditions


def _first_wildcard(levels: list[str]) -> int:
    return next((at for at, level in enumerate(levels) if level in ("+", "#")), len(levels))


@dataclass(frozen=True)
class Journal:
    """One epoch of one journal within what is replayed."""

    uuid: str
    epoch: int
    rows: int
    bytes: int
    first: int
    last: int
    since: str
    until: str


def journals(rows: DataFrame) -> list[Journal]:
    found = (
        rows.groupBy("journal_uuid", "journal_epoch")
        .agg(
            F.count("*"),
            F.sum(F.length("payload")),
            F.min(_OFFSET),
            F.max(_OFFSET),
            F.min("publish_timestamp").cast("string"),
            F.max("publish_timestamp").cast("string"),
        )
        .orderBy("journal_uuid", "journal_epoch")
    )
    return [Journal(*row) for row in found.collect()]


def slices(parts: list[Journal], offsets: int) -> Iterator[tuple[int, Journal, int, int]]:
    """Yield number, journal, first offset and the one behind, in an order that never changes."""
    number = 0
    for part in parts:
        for start in range(part.first, part.last + 1, offsets):
            yield number, part, start, min(start + offsets, part.last + 1)
            number += 1


class Notes:
    """What is remembered of a replay under its name; who removes the file begins another replay, with another `id`."""

    def __init__(
        self,
        lake: AnyLake,
        name: str,
        run_id: str,
        identity: dict[str, Any],
        version: int,
        slices_done: int,
        parts: list[Journal],
        messages: str,
        commit: str | None,
        kept: int,
    ) -> None:
        self._lake = lake
        self._name = name
        self.id = run_id
        self.identity = identity
        self.version = version
        self.slices_done = slices_done
        self.parts = parts
        """What the slices are cut from; none before the first start, and in notes of an older headrace."""
        self.messages = messages
        """The id of the table that is replayed."""
        self.commit = commit
        """What tells its version from another one of that number; None: it is not known."""
        self.kept = kept
        """The last slice that the target table has, if it is a table; -1: none."""

    @classmethod
    def of(cls, settings: Settings, lake: AnyLake) -> Notes:
        """Return the slices of an earlier start, or new ones.

        Raises BadOption if the name stands for another replay, LakeConflict if what was noted cannot be gone on with.
        """
        name = f"{JOB}-{settings.name}.json"
        path = lake.notes.at(name)
        keys = ("since", "until", "topic", "where", "table", "prefix", "client", "offsets_per_slice")
        identity = {key: getattr(settings, key) for key in keys}
        log = lake.table.log()
        assert log is not None  # `run` has seen it
        version, messages = log.version(), str(log.metadata().id)
        if (written := lake.notes.read(name)) is not None:
            noted = _read(path, written)
            if noted["identity"] != identity:
                problem = (
                    f"stands for another replay, {noted['identity']}: choose another name, or remove {path}"
                )
                raise BadOption("pipeline.replay.name", settings.name, problem)
            commit = noted.get("commit") or commit_of(lake.tables, lake.messages, noted["version"])
            is_same = is_there(lake.tables, lake.messages, noted["version"], commit)
            if noted.get("messages", messages) != messages or not is_same:
                raise LakeConflict(
                    f"{path} was noted for version {noted['version']} of another table than {lake.messages}: one of them "
                    f"was replaced, or restored from an older copy. Restore both as they were at one time, or {_ANEW}"
                )
            parts = [Journal(**part) for part in noted.get("parts", [])]
            about = noted["version"], noted["slices_done"], parts, messages, commit, noted.get("kept", -1)
            return cls(lake, name, noted["id"], identity, *about)
        commit = commit_of(lake.tables, lake.messages, version)
        return cls(lake, name, uuid4().hex, identity, version, 0, [], messages, commit, -1)

    def archive(self, spark: SparkSession) -> DataFrame:
        """Return the table as it was when the replay began. Raises LakeConflict if its log no longer says that."""
        try:
            return (
                spark.read.format("delta").option("versionAsOf", self.version).load(str(self._lake.messages))
            )
        except AnalysisException as error:
            raise LakeConflict(
                f"{self._lake.notes.at(self._name)} was noted for version {self.version} of {self._lake.messages}, which "
                f"cannot be read any more ({first_line(error)}): {_ANEW}"
            ) from None

    def require_kept(self, settings: Settings) -> None:
        """Raise LakeConflict unless the target table has the slices that were added to it."""
        if self.kept > self._kept_by(settings):
            path = self._lake.notes.at(self._name)
            raise LakeConflict(
                f"{path} says that table {settings.table} has the slices up to {self.kept}, and it has not: it was "
                f"removed, replaced, or restored from an older copy. Restore it, or {_ANEW}"
            )

    def _kept_by(self, settings: Settings) -> int:
        if not settings.table:
            return -1
        log = self._lake.tables.open(settings.target)
        kept = None if log is None else log.transaction_version(f"{JOB}-{self.id}")
        return -1 if kept is None else kept

    def done(self, slices: int, settings: Settings) -> None:
        self.slices_done = slices
        self.kept = self._kept_by(settings)
        self.save()

    def save(self) -> None:
        noted = {"id": self.id, "identity": self.identity, "version": self.version, "messages": self.messages}
        noted["commit"] = self.commit
        done = {"slices_done": self.slices_done, "kept": self.kept, "parts": list(map(asdict, self.parts))}
        self._lake.notes.write(self._name, json.dumps(noted | done).encode())


def _read(path: Location, written: bytes) -> dict[str, Any]:
    """Return what a replay has noted in a file. Raises LakeConflict."""
    try:
        noted: dict[str, Any] = json.loads(written)
        if {"id", "identity", "version", "slices_done"} <= noted.keys():
            return noted
    except (ValueError, AttributeError):
        pass
    raise LakeConflict(f"{path} is empty, cut off or something else. Restore it, or {_ANEW}")


def _time(key: str, value: str) -> datetime | None:
    """Return the time of a text in ISO 8601 with an offset from UTC. Raises BadOption."""
    if not value:
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise BadOption(f"pipeline.replay.{key}", value, "a time like 2026-11-21T22:00:00+00:00 is needed")
    return found
