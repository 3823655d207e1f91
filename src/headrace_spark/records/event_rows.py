"""Rows of `events`: EVENT records, and the MESSAGE records that set or clear a retained message.

Events are rare beside messages, so they are decoded one by one into rows; what each kind of row has is said in
`headrace_spark.records.schema`. Runs on Spark's Python workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.core.records.record import (
    BROKER_STARTED,
    FLAG_QOS,
    FLAG_RETAIN,
    KIND_EVENT,
    KIND_MESSAGE,
    MESSAGE_HEADER,
    MESSAGE_HEADER_SIZE,
    NO_EXPIRY_U32,
    RETAINED_EXPIRED,
    RETAINED_QUEUED,
    SESSION_CLOSED,
    SESSION_ENDED,
    SESSION_OPENED,
    SESSION_RESUMED,
    SUBSCRIBED,
    UNSUBSCRIBED,
    WILL_CANCELLED,
    WILL_FIRED,
    Event,
    decode_short,
    record_end,
)
from headrace.errors import CorruptRecord
from headrace_spark.records.chunk import Chunk

ROWS_MAX: Final = 10_000
_FLAGS_AT: Final = 5
_SESSION_TYPES: Final = {0: "DEVICE", 1: "APPLICATION"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Row = dict[str, Any]


def record_batches(chunk: Chunk, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a chunk."""
    retained = (chunk.kinds == KIND_MESSAGE) & ((chunk.bytes[chunk.at + _FLAGS_AT] & FLAG_RETAIN) != 0)
    rows: list[Row] = []
    for i in np.flatnonzero(retained | (chunk.kinds == KIND_EVENT)).tolist():
        rows += _rows_at(chunk, i)
        if len(rows) >= ROWS_MAX:
            yield pa.RecordBatch.from_pylist(rows, schema)
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema)


def _rows_at(chunk: Chunk, i: int) -> list[Row]:
    at, offset = int(chunk.at[i]), int(chunk.offsets[i])
    end = record_end(chunk.body, at)
    if chunk.kinds[i] == KIND_MESSAGE:
        timestamp_us, rows = _retained(chunk.body, at, end)
    else:
        event = decode_short(chunk.body, at, end)
        if not isinstance(event, Event) or event.subkind not in _KINDS:
            raise CorruptRecord(f"offset {offset}: an event of unknown kind")
        timestamp_us = event.timestamp_us
        kind, items = _KINDS[event.subkind]
        rows = [{"kind": kind} | _session(event, offset) | item for item in items(event)]
    if not rows:
        return []
    rows[0]["record"] = chunk.body[at:end]
    moment = _EPOCH + timedelta(microseconds=timestamp_us)
    common: Row = {
        "event_timestamp": moment,
        "date": moment.date(),
        "journal_uuid": chunk.uuid,
        "journal_epoch": int(chunk.epochs[i]),
        "journal_offset": offset,
    }
    return [common | row | {"item": item} for item, row in enumerate(rows)]


def _retained(body: bytes, at: int, end: int) -> tuple[int, list[Row]]:
    """When it was set or cleared, and the row. Raises CorruptRecord."""
    header = MESSAGE_HEADER.unpack_from(body, at)
    flags, timestamp_us, incarnation, expiry_s = header[2], header[4], header[5], header[6]
    bounds = list(accumulate((header[7], *header[9:12]), initial=at + MESSAGE_HEADER_SIZE))
    if bounds[-1] > end:
        raise CorruptRecord("the fields of a retained message run past its record")
    tenant, client_id, topic, properties = (body[first:last] for first, last in pairwise(bounds))
    payload = body[bounds[-1] : end]
    row: Row = {
        "kind": "retained_set" if payload else "retained_cleared",
        "tenant": tenant.decode(),
        "client_id": client_id.decode(),
        "incarnation": incarnation,
        "topic": topic.decode(),
        "qos": flags & FLAG_QOS,
        "message_expiry_s": None if expiry_s == NO_EXPIRY_U32 else expiry_s,
    }
    return timestamp_us, [row | {"payload": payload, "properties": properties} if payload else row]


def _session(event: Event, offset: int) -> Row:
    """Return whose event it is. The record that opens a session is its incarnation."""
    fields = event.fields
    opened = event.subkind == SESSION_OPENED
    return {
        "tenant": fields.get("t"),
        "client_id": fields.get("c"),
        "incarnation": offset if opened else fields.get("inc"),
    }


def _plain(_event: Event) -> list[Row]:
    return [{}]


def _connected(event: Event) -> list[Row]:
    fields = event.fields
    row: Row = {
        "session_expiry_s": event.number("ex"),
        "protocol_version": event.number("v"),
        "sent_limit": event.number("lim"),
    }
    if event.subkind == SESSION_OPENED:
        row["session_type"] = _SESSION_TYPES.get(event.number("ty"))
    will = fields.get("w")
    rows = [row, _will(will)] if isinstance(will, list) else [row]
    owner = fields.get("u")
    return [*rows, {"kind": "owner_set", "owner": owner}] if isinstance(owner, str) else rows


def _will(will: list[Any]) -> Row:
    topic, payload, qos, retain, properties, delay_s, expiry_s = will[:7]
    return {
        "kind": "will_set",
        "topic": topic,
        "payload": payload,
        "qos": qos,
        "retain": retain,
        "properties": properties,
        "will_delay_s": delay_s,
        "message_expiry_s": None if expiry_s < 0 else expiry_s,
    }


def _closed(event: Event) -> list[Row]:
    return [
        {
            "session_expiry_s": event.number("ex"),
            "sent_limit": event.number("lim"),
            "will_set": bool(event.number("will")),
            "reason": event.fields.get("reason"),
            "reason_code": event.fields.get("code"),
        }
    ]


def _ended(event: Event) -> list[Row]:
    fields = event.fields
    return [
        {"reason": fields.get("reason"), "reason_code": fields.get("code"), "dropped": fields.get("dropped")}
    ]


def _subscribed(event: Event) -> list[Row]:
    listed: Any = event.fields.get("subs", [])
    rows: list[Row] = [
        {
            "topic_filter": topic_filter,
            "qos": qos,
            "no_local": bool(no_local),
            "retain_as_published": bool(as_published),
            "retain_handling": handling,
            "subscription_id": identifier or None,
        }
        for topic_filter, qos, no_local, as_published, handling, identifier in listed
    ]
    return rows + [{"kind": "retained_queued"} | row for row in _queued(event)]


def _unsubscribed(event: Event) -> list[Row]:
    listed: Any = event.fields.get("f", [])
    return [{"topic_filter": topic_filter} for topic_filter in listed]


def _queued(event: Event) -> list[Row]:
    listed = event.numbers("ret")
    return [
        {"message_offset": listed[at], "qos": listed[at + 1], "subscription_id": listed[at + 2] or None}
        for at in range(0, len(listed), 3)
    ]


def _expired(event: Event) -> list[Row]:
    return [{"topic": event.text("topic"), "message_offset": event.number("off")}]


_KINDS: Final[dict[int, tuple[str, Callable[[Event], list[Row]]]]] = {
    BROKER_STARTED: ("broker_started", _plain),
    SESSION_OPENED: ("session_opened", _connected),
    SESSION_RESUMED: ("session_resumed", _connected),
    SESSION_CLOSED: ("session_closed", _closed),
    SESSION_ENDED: ("session_ended", _ended),
    SUBSCRIBED: ("subscribed", _subscribed),
    UNSUBSCRIBED: ("unsubscribed", _unsubscribed),
    WILL_FIRED: ("will_fired", _plain),
    WILL_CANCELLED: ("will_cancelled", _plain),
    RETAINED_EXPIRED: ("retained_expired", _expired),
    RETAINED_QUEUED: ("retained_queued", _queued),
}
