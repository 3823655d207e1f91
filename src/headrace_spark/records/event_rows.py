"""Rows of `events`: EVENT records, the MESSAGE records that set or clear a retained message, and of the QUEUE records
those that say whose devices are and which queues and clusters there are.

Events are rare beside messages, so they are decoded one by one into rows; what each kind of row has is said in
`headrace_spark.records.schema`. Runs on Spark's Python workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.core.records.event import (
    BROKER_STARTED,
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
    ClientConnected,
    Event,
    RetainedExpired,
    RetainedListing,
    SessionClosed,
    SessionEnded,
    SessionEvent,
    SessionOpened,
    Subscribed,
    Unsubscribed,
    decode_event,
)
from headrace.core.records.queue_record import (
    CLUSTER_MADE,
    DEVICE_OWNED,
    QUEUE_CLOSED,
    QUEUE_NUMBER_SHIFT,
    QUEUE_OPENED,
    decode_queue_record,
)
from headrace.core.records.record import (
    FLAG_QOS,
    FLAG_RETAIN,
    KIND_EVENT,
    KIND_MESSAGE,
    KIND_QUEUE,
    MESSAGE_HEADER,
    MESSAGE_HEADER_SIZE,
    NO_EXPIRY_U32,
    record_end,
)
from headrace.errors import CorruptRecord
from headrace.mqtt.packets import Will
from headrace_spark.records.chunk import Chunk

ROWS_MAX: Final = 10_000
_FLAGS_AT: Final = 5
_SESSION_TYPES: Final = {0: "DEVICE", 1: "APPLICATION"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Row = dict[str, Any]


def record_batches(chunk: Chunk, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a chunk."""
    second = chunk.bytes[chunk.at + _FLAGS_AT]  # flags of a message, subkind of others
    wanted = (chunk.kinds == KIND_MESSAGE) & ((second & FLAG_RETAIN) != 0)
    wanted |= (chunk.kinds == KIND_QUEUE) & np.isin(second, list(_QUEUE_KINDS))
    rows: list[Row] = []
    for i in np.flatnonzero(wanted | (chunk.kinds == KIND_EVENT)).tolist():
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
    elif chunk.kinds[i] == KIND_QUEUE:
        timestamp_us, rows = _of_queue(chunk.body, at, end)
    else:
        event = decode_event(chunk.body, at, end)
        if event.subkind not in _KINDS:
            raise CorruptRecord(f"offset {offset}: an event of unknown kind")
        event.offset = offset
        timestamp_us = event.timestamp_us
        kind, items = _KINDS[event.subkind]
        rows = [{"kind": kind} | _subject(event) | item for item in items(event)]
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


def _of_queue(body: bytes, at: int, end: int) -> tuple[int, list[Row]]:
    """Return the time of a QUEUE record, and its row. Raises CorruptRecord."""
    record = decode_queue_record(body, at, end)
    row: Row = {"kind": _QUEUE_KINDS[record.subkind]}
    if record.subkind == QUEUE_CLOSED:
        return record.timestamp_us, [row | {"message_offset": record.numbers()[0] >> QUEUE_NUMBER_SHIFT}]
    fields = record.fields()
    row["tenant"] = fields["t"]
    if record.subkind == DEVICE_OWNED:
        row |= {"client_id": fields["c"], "owner": fields["u"]}
    else:
        row["topic"] = _text(fields["topic"])
    if record.subkind == CLUSTER_MADE:
        row["cluster"] = _text(fields["name"])
    return record.timestamp_us, [row]


def _text(value: object) -> str:
    """Return a value that is a text. Raises CorruptRecord."""
    if not isinstance(value, bytes):
        raise CorruptRecord("a name of a queue record is no bytes")
    return value.decode("utf-8")


def _retained(body: bytes, at: int, end: int) -> tuple[int, list[Row]]:
    """Return the time at which a retained message was set or cleared, and the row. Raises CorruptRecord."""
    header = MESSAGE_HEADER.unpack_from(body, at)
    flags, timestamp_us, incarnation, expiry_s, longest = (
        header[2],
        header[4],
        header[5],
        header[6],
        header[8],
    )
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
        "message_expiry_s": None if expiry_s == NO_EXPIRY_U32 and not longest else expiry_s,
    }
    return timestamp_us, [row | {"payload": payload, "properties": properties} if payload else row]


def _subject(event: Event) -> Row:
    """Return the tenant and the session that an event is about."""
    if isinstance(event, SessionEvent):
        return {
            "tenant": event.tenant,
            "client_id": event.client_id,
            "incarnation": event.incarnation,
        }
    return {"tenant": event.tenant} if isinstance(event, RetainedExpired) else {}


def _plain(_event: Event) -> list[Row]:
    return [{}]


def _connected(event: ClientConnected) -> list[Row]:
    row: Row = {
        "session_expiry_s": event.expiry_s,
        "protocol_version": event.version,
        "sent_limit": event.sent_limit,
    }
    if isinstance(event, SessionOpened):
        row["session_type"] = _SESSION_TYPES.get(event.session_type)
    rows = [row] if event.will is None else [row, _will(event.will)]
    return rows if event.user is None else [*rows, {"kind": "owner_set", "owner": event.user}]


def _will(will: Will) -> Row:
    return {
        "kind": "will_set",
        "topic": will.topic,
        "payload": will.payload,
        "qos": will.qos,
        "retain": will.retain,
        "properties": will.properties,
        "will_delay_s": will.delay_s,
        "message_expiry_s": None if will.message_expiry_s < 0 else will.message_expiry_s,
    }


def _closed(event: SessionClosed) -> list[Row]:
    return [
        {
            "session_expiry_s": event.expiry_s,
            "sent_limit": event.sent_limit,
            "will_set": event.will_set,
            "reason": event.reason,
            "reason_code": event.reason_code,
        }
    ]


def _ended(event: SessionEnded) -> list[Row]:
    return [{"reason": event.reason, "reason_code": event.reason_code, "dropped": event.dropped}]


def _subscribed(event: Subscribed) -> list[Row]:
    rows: list[Row] = [
        {
            "topic_filter": row.filter,
            "qos": row.qos,
            "no_local": row.no_local,
            "retain_as_published": row.retain_as_published,
            "retain_handling": row.retain_handling,
            "subscription_id": row.subscription_id or None,
        }
        for row in event.subscriptions
    ]
    return rows + [{"kind": "retained_queued"} | row for row in _queued(event)]


def _unsubscribed(event: Unsubscribed) -> list[Row]:
    return [{"topic_filter": topic_filter} for topic_filter in event.filters]


def _queued(event: RetainedListing) -> list[Row]:
    listed = event.retained
    payloads: Sequence[int | None] = event.payloads or [None] * (len(listed) // 3)
    return [
        {
            "message_offset": listed[3 * at],
            "qos": listed[3 * at + 1],
            "subscription_id": listed[3 * at + 2] or None,
            "payload_bytes": payload_bytes,
        }
        for at, payload_bytes in enumerate(payloads)
    ]


def _expired(event: RetainedExpired) -> list[Row]:
    return [{"topic": event.topic, "message_offset": event.message_offset}]


_QUEUE_KINDS: Final = {
    DEVICE_OWNED: "device_owned",
    QUEUE_OPENED: "queue_opened",
    QUEUE_CLOSED: "queue_closed",
    CLUSTER_MADE: "cluster_made",
}
_KINDS: Final[dict[int, tuple[str, Callable[[Any], list[Row]]]]] = {
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
