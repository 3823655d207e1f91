"""What devices leave in the journal, as the lake reads it: messages like all others, and nothing in the other tables."""

from __future__ import annotations

import hashlib

import pyarrow as pa
from librt.strings import BytesWriter

from headrace.core.records.message import FrameMessage
from headrace.core.records.message_id import JournalName
from headrace.core.records.queue_record import (
    CLUSTER_ACKED,
    CLUSTER_MADE,
    DEVICE_OWNED,
    QUEUE_CLOSED,
    QUEUE_OPENED,
    number_record,
    queue_number,
    queue_record,
)
from headrace.core.records.record import Record
from headrace.journal.segment import Batch
from headrace_spark.records.decode import decode
from headrace_spark.records.schema import arrow_schema, select

UUID = "6f9619ff-8b86-d011-b42d-00c04fc964ff"
EPOCH = 3
TOLD = ("kind", "tenant", "client_id", "owner", "topic", "cluster", "message_offset")


def batch() -> tuple[Batch, FrameMessage]:
    message = FrameMessage(
        1_700_000_000_000_000, 0xABCD1234, "default", b"defaultdoor-1", 7, b"locks", -1, b"open"
    )
    records: list[Record] = [
        queue_record(DEVICE_OWNED, 1, {"t": "default", "c": "door-1", "u": "hub"}),
        message,
        number_record(CLUSTER_ACKED, 1, [5, 1, 2]),
        queue_record(QUEUE_OPENED, 1, {"t": "default", "topic": b"locks"}),
        queue_record(CLUSTER_MADE, 1, {"t": "default", "topic": b"locks", "name": b"store", "at": 0}),
        number_record(QUEUE_CLOSED, 1, [queue_number(103)]),
    ]
    out = BytesWriter()
    for offset, record in enumerate(records):
        record.offset = 100 + offset
        record.encode_into(out)
    return Batch(100, len(records), 1, 2, out.getvalue(), EPOCH), message


def rows(table: str) -> list[dict[str, object]]:
    schema = arrow_schema(select("", table))
    found = list(decode([batch()[0]], UUID, 0, 1 << 40, schema, table))
    result: list[dict[str, object]] = pa.Table.from_batches(found, schema).to_pylist()
    return result


def test_a_message_of_a_device_is_a_row_whose_id_is_that_of_its_answer() -> None:
    [row] = rows("messages")
    assert (row["client_id"], row["topic"], row["qos"], row["payload"]) == ("door-1", "locks", 1, b"open")
    assert row["protocol"] == "frame"
    assert (row["journal_offset"], row["retain"], row["dup"], row["mqtt5"]) == (101, False, False, False)
    joined = hashlib.md5(str(row["message_id"]).encode(), usedforsecurity=False).digest()
    assert joined == JournalName(UUID, [(0, EPOCH)]).id_of(batch()[1])


def test_events_say_whose_a_device_is_and_which_queues_and_clusters_there_are() -> None:
    found = rows("events")
    told = [
        {name: value for name, value in row.items() if name in TOLD and value is not None} for row in found
    ]
    assert told == [
        {"kind": "device_owned", "tenant": "default", "client_id": "door-1", "owner": "hub"},
        {"kind": "queue_opened", "tenant": "default", "topic": "locks"},
        {"kind": "cluster_made", "tenant": "default", "topic": "locks", "cluster": "store"},
        {"kind": "queue_closed", "message_offset": 103},
    ]
    assert [row["journal_offset"] for row in found] == [100, 103, 104, 105]
    assert all(row["record"] for row in found)


def test_what_happens_to_messages_in_queues_is_in_no_other_table() -> None:
    assert rows("progress") == []
