"""The tables that jobs make from `messages`, events and progress: columns, partitions, and what a row is.

Columns may be added; a column never changes its meaning. Every column is nullable as far as Spark is
concerned; the comments say which ones may be null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace_spark.lake.table_files import FileLayout
from headrace_spark.records.message_columns import DAY_US
from headrace_spark.records.schema import MESSAGES, arrow_schema


@dataclass(frozen=True)
class TableDefinition:
    """What `headrace_spark.lake.lake_table` makes a Delta table from, and the reference its page."""

    name: str
    about: str
    columns: StructType
    partitioned_by: tuple[str, ...]
    statistics: tuple[str, ...]
    """Columns that people filter by; Delta keeps their least and greatest value for each file."""
    grows: bool = False
    """Whether its job gives it columns beyond these; what others add is theirs."""
    added: frozenset[str] = frozenset()
    """Columns that tables of an older headrace have not."""

    @property
    def layout(self) -> FileLayout:
        """Return how files look that Spark does not write."""
        return FileLayout(self.partitioned_by, self.statistics, ())

    def rows(self, journal_uuid: str, **columns: pa.Array) -> pa.RecordBatch:
        """Return rows of one journal; columns that are not given are null."""
        schema = arrow_schema(self.columns)
        count = len(next(iter(columns.values())))
        columns["journal_uuid"] = pa.repeat(journal_uuid, count)
        arrays = [
            columns[each.name].cast(each.type) if each.name in columns else pa.nulls(count, each.type)
            for each in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def as_times(times_us: npt.NDArray[np.int64], is_null: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return times from microseconds since 1970."""
    return pa.array(times_us, mask=is_null).cast(pa.timestamp("us", "UTC"))


def as_dates(times_us: npt.NDArray[np.int64]) -> pa.Array:
    """Return the days of times, UTC."""
    return pa.array((times_us // DAY_US).astype(np.int32)).cast(pa.date32())


def column(name: str, kind: DataType, comment: str) -> StructField:
    return StructField(name, kind, nullable=True, metadata={"comment": comment})


def _of_messages(*names: str) -> list[StructField]:
    return [MESSAGES[name] for name in names]


_ORIGIN: Final = _of_messages(
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
_DATE: Final = _of_messages("date")
_STATISTICS: Final = ("topic", "client_id", "publish_timestamp", "message_id", "journal_offset")
_DAILY: Final = ("tenant", "date")

CLEAN: Final = TableDefinition(
    "clean",
    "Messages without repeats, decoded. Beside these columns there is one for each `[[schema]]` with fields: a "
    "struct of them, null in the rows of other schemas.",
    StructType(
        [
            *_ORIGIN,
            column("schema", StringType(), "name of the topic schema"),
            column(
                "event_timestamp",
                TimestampType(),
                "when it happened, as the payload says; publish_timestamp if its schema names no field for it",
            ),
            column(
                "late", BooleanType(), "event_timestamp is more than `late_after_s` before publish_timestamp"
            ),
            column("payload", BinaryType(), "of schemas without fields; null where it is decoded"),
            *_DATE,
        ]
    ),
    _DAILY,
    (*_STATISTICS, "event_timestamp"),
    grows=True,
)
QUARANTINE: Final = TableDefinition(
    "quarantine",
    "Messages that no schema can decode, with the reason.",
    StructType(
        [
            *_ORIGIN,
            column("schema", StringType(), "name of the topic schema; null if the topic has none"),
            column(
                "reason",
                StringType(),
                "no_schema, too_large, not_utf8, not_json, not_avro, not_protobuf, wrong_type or missing:<field>",
            ),
            column(
                "payload",
                BinaryType(),
                "as published; null if too_large: it is in `messages`, at the same place",
            ),
            *_DATE,
        ]
    ),
    _DAILY,
    _STATISTICS,
)
REPEATS: Final = TableDefinition(
    "repeats",
    "Messages whose `message_id` is in `clean` or `quarantine` already. Their payloads are in `messages`.",
    StructType([*_ORIGIN, *_DATE]),
    _DAILY,
    _STATISTICS,
)

_JOURNAL: Final = _of_messages("journal_uuid")
_WINDOW: Final = column("window_start", TimestampType(), "start of the window, UTC")
_WINDOW_S: Final = column(
    "window_s", LongType(), "length of the window in seconds; null in rows of a headrace that did not note it"
)
_UP_TO: Final = column(
    "up_to_offset", LongType(), "end of the range of the journal that this part was counted in"
)
_DAY: Final = column("date", DateType(), "day of window_start, UTC")
_TENANT: Final = column("tenant", StringType(), "tenant")

TRAFFIC: Final = TableDefinition(
    "traffic",
    "What was published, by window, tenant, topic prefix, publisher and protocol. Rows are parts: a window that was "
    "counted in several goes has several rows for one publisher; their sum is the figure, and late messages only add "
    "parts. Messages a second: the sum divided by window_s. Publishers: the distinct client_id.",
    StructType(
        [
            _WINDOW,
            _TENANT,
            column("topic_prefix", StringType(), "the first `topic_levels` levels of the topic"),
            column("client_id", StringType(), "publisher"),
            MESSAGES["protocol"],
            column("messages", LongType(), "PUBLISH packets that were journaled, repeats included"),
            column("payload_bytes", LongType(), "bytes of their payloads"),
            *_JOURNAL,
            _UP_TO,
            _WINDOW_S,
            _DAY,
        ]
    ),
    _DAILY,
    ("window_start", "topic_prefix", "client_id"),
    added=frozenset({"protocol", "window_s"}),
)
USAGE: Final = TableDefinition(
    "usage",
    "What each tenant has used, by hour, for quotas and bills. Rows are parts: their sum is the figure.",
    StructType(
        [
            column("hour_start", TimestampType(), "start of the hour, UTC"),
            _TENANT,
            column("messages_in", LongType(), "PUBLISH packets that were journaled, repeats included"),
            column("bytes_in", LongType(), "bytes of their payloads"),
            column(
                "messages_out",
                LongType(),
                "deliveries at QoS 1 and 2 that were acknowledged, or not recorded",
            ),
            column("bytes_out", LongType(), "bytes of their payloads, as far as the messages are known"),
            column("messages_dropped", LongType(), "deliveries that were dropped"),
            column("connections", LongType(), "connections that ended; the others are in table connections"),
            column("connected_s", DoubleType(), "how long these were connected, seconds"),
            *_JOURNAL,
            _UP_TO,
            column("date", DateType(), "day of hour_start, UTC"),
        ]
    ),
    _DAILY,
    ("hour_start",),
)
DEVICES: Final = TableDefinition(
    "devices",
    "The last message of every client on every topic: one row each.",
    StructType(
        [
            *_of_messages("tenant", "client_id", "topic"),
            *_of_messages("publish_timestamp", "payload", "journal_uuid", "journal_epoch", "journal_offset"),
        ]
    ),
    ("tenant",),
    ("client_id", "topic", "publish_timestamp"),
)
CONNECTIONS: Final = TableDefinition(
    "connections",
    "One row for each connection of a session. Online time of a client: the sum of its connections.",
    StructType(
        [
            _TENANT,
            column("client_id", StringType(), "client"),
            column("incarnation", LongType(), "offset of the record that opened the session"),
            *_JOURNAL,
            column(
                "connected_offset", LongType(), "offset of the record that says so; with journal_uuid the key"
            ),
            column("connected_timestamp", TimestampType(), "when it connected"),
            column("disconnected_timestamp", TimestampType(), "when it was gone; null: it is online"),
            column(
                "end",
                StringType(),
                "closed, ended, resumed (taken over) or broker_started; null: it is online",
            ),
            column("date", DateType(), "day of connected_timestamp, UTC"),
        ]
    ),
    _DAILY,
    ("client_id", "connected_timestamp"),
)
DELIVERIES: Final = TableDefinition(
    "deliveries",
    "What became of queued messages, by window in which it was settled, tenant, subscriber and outcome. Rows are parts, "
    "as in `traffic`. Accuracy: the share of `acked` in all but `not_recorded`. Percentiles of latency: from the counts "
    "below each latency_ms.",
    StructType(
        [
            _WINDOW,
            _TENANT,
            column("client_id", StringType(), "subscriber, or `$share/<name>/<filter>` of a group"),
            column(
                "outcome",
                StringType(),
                "acked, or the reason why it was dropped; of a group: acked or not_drawn; of a session that ends with "
                "its connection: not_recorded",
            ),
            column(
                "latency_ms",
                DoubleType(),
                "publish to acknowledgement was at most this, and more than a sixth less; null where it is not known",
            ),
            column("messages", LongType(), "deliveries"),
            column("payload_bytes", LongType(), "bytes of their payloads; 0 where the message is not known"),
            *_JOURNAL,
            _UP_TO,
            _WINDOW_S,
            _DAY,
        ]
    ),
    _DAILY,
    ("window_start", "client_id", "outcome"),
    added=frozenset({"window_s"}),
)
BACKLOG: Final = TableDefinition(
    "backlog",
    "What waits for each session at the end of the journal as it was last read: replaced each time.",
    StructType(
        [
            _TENANT,
            column("client_id", StringType(), "subscriber, or `$share/<name>/<filter>` of a group"),
            column("messages", LongType(), "not acknowledged yet"),
            column("oldest_timestamp", TimestampType(), "when the oldest of them was published"),
            column("as_of_timestamp", TimestampType(), "newest record that was read"),
            *_JOURNAL,
        ]
    ),
    ("journal_uuid",),
    ("client_id",),
)
METRICS_STATE: Final = TableDefinition(
    "metrics_state",
    "What the job metrics remembers from one range of the journal to the next: sessions, subscriptions, and messages "
    "on their way. A range adds what it changed; now and then one writes all of it anew. For the job itself.",
    StructType(
        [
            column(
                "kind",
                StringType(),
                "session, subscription, entry or draw (an entry of a group that a member has had)",
            ),
            *_JOURNAL,
            column("incarnation", LongType(), "session; below zero: group of a shared subscription"),
            _TENANT,
            column("client_id", StringType(), "of the session"),
            column(
                "next_serial",
                LongType(),
                "session: number of its next message; below zero: minus that, and it ends with its connection",
            ),
            column("connected_offset", LongType(), "session: of its connection; null: offline"),
            column("connected_timestamp", TimestampType(), "session: since when"),
            column("topic_filter", StringType(), "subscription"),
            column("no_local", BooleanType(), "subscription"),
            column("serial", LongType(), "entry"),
            column("publish_timestamp", TimestampType(), "entry"),
            column("payload_bytes", LongType(), "entry"),
            column(
                "up_to_offset",
                LongType(),
                "end of the range of the journal that wrote the row: of several about one thing the newest counts",
            ),
            column("gone", BooleanType(), "what the row is about is no longer there"),
        ]
    ),
    ("journal_uuid",),
    ("kind", "incarnation"),
    added=frozenset({"up_to_offset", "gone"}),
)
DEAD_LETTERS: Final = TableDefinition(
    "dead_letters",
    "Rows that the job publish could not send, with the reason; everything else of their batch is sent. Append them to "
    "the table of commands again when the reason is gone.",
    StructType(
        [
            column("reason", StringType(), "why the row is no message, or the broker's reason with its code"),
            *_of_messages(
                "topic", "payload", "qos", "retain", "message_expiry_s", "payload_format_indicator"
            ),
            *_of_messages("content_type", "response_topic", "correlation_data", "user_properties"),
            column("producer", StringType(), "producer-id under which it was to be sent"),
            column("sequence", LongType(), "its producer-sequence"),
            column("query", StringType(), "id of the streaming query"),
            column("batch", LongType(), "micro-batch of that query"),
            column("date", DateType(), "day on which it was put aside, UTC"),
        ]
    ),
    ("date",),
    ("reason", "topic"),
)
TABLES: Final = (
    CLEAN,
    QUARANTINE,
    REPEATS,
    TRAFFIC,
    DEVICES,
    CONNECTIONS,
    DELIVERIES,
    USAGE,
    BACKLOG,
    METRICS_STATE,
    DEAD_LETTERS,
)
"""All of them, in the order of the reference."""
