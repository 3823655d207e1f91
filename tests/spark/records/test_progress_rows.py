"""Rows of `progress` for every kind of entry."""

from __future__ import annotations

from array import array
from typing import Any

import pyarrow as pa
import pytest

from headrace.core.records.record import (
    ACKED,
    BACKLOG_PAGE,
    BOUND,
    DROP_EXPIRED,
    DROPPED,
    LET_GO,
    PLACED,
    RECEIVED,
    RELEASED,
    SENT_LIMIT,
    SHARED_DRAWN,
    SHARED_FINISHED,
    SHARED_RECEIVED,
    STORED,
    Progress,
    Record,
)
from headrace.errors import CorruptRecord
from headrace.journal.segment import Batch, void_records
from headrace_spark.records.decode import decode
from headrace_spark.records.schema import arrow_schema, select
from spark.journals import MIDNIGHT_US, Made, message

UUID = "6f9619ff-8b86-d011-b42d-00c04fc964ff"


def rows(batches: list[Batch], columns: str = "") -> list[dict[str, Any]]:
    schema = arrow_schema(select(columns, "progress"))
    found = list(decode(batches, UUID, 0, 1 << 40, schema, "progress"))
    for batch in found:
        batch.validate(full=True)
    table: list[dict[str, Any]] = pa.Table.from_batches(found, schema).to_pylist()
    return table


def made(*records: Record) -> list[Batch]:
    made = Made()
    made.records = list(records)
    return made.batches([2], 4, 70)


def progress(subkind: int, *values: int, timestamp_us: int = MIDNIGHT_US) -> Progress:
    return Progress(subkind, timestamp_us, array("Q", values).tobytes())


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            progress(ACKED, 9, 1, 10, 5),
            [
                {"kind": "acked", "incarnation": 9, "serial": 1, "count": 1},
                {"kind": "acked", "incarnation": 10, "serial": 5, "count": 1},
            ],
        ),
        (progress(RECEIVED, 9, 2), [{"kind": "received", "incarnation": 9, "serial": 2, "count": 1}]),
        (
            progress(RELEASED, 9, 65_535),
            [{"kind": "released", "incarnation": 9, "packet_id": 65_535, "count": 1}],
        ),
        (progress(SENT_LIMIT, 9, 64), [{"kind": "sent_limit", "incarnation": 9, "serial": 64, "count": 1}]),
        (
            progress(DROPPED, 9, 3, 4, DROP_EXPIRED),
            [{"kind": "dropped", "incarnation": 9, "serial": 3, "count": 4, "reason": "expired"}],
        ),
        (
            progress(SHARED_DRAWN, 1 << 40, 7, 9, 2 << 16 | 49_152),
            [
                {
                    "kind": "shared_drawn",
                    "group_id": 1 << 40,
                    "serial": 7,
                    "incarnation": 9,
                    "packet_id": 49_152,
                    "qos": 2,
                    "count": 1,
                }
            ],
        ),
        (
            progress(BOUND, 9, 3, 65_000),
            [{"kind": "bound", "incarnation": 9, "serial": 3, "packet_id": 65_000, "count": 1}],
        ),
        (
            progress(SHARED_FINISHED, 11, 7),
            [{"kind": "shared_finished", "group_id": 11, "serial": 7, "count": 1}],
        ),
        (
            progress(SHARED_RECEIVED, 11, 7),
            [{"kind": "shared_received", "group_id": 11, "serial": 7, "count": 1}],
        ),
        (progress(STORED, 9, 1, 1, 500), []),
        (progress(LET_GO, 9, 500), []),
        (progress(PLACED, 9, 1 << 60), []),
    ],
)
def test_every_kind(record: Progress, expected: list[dict[str, Any]]) -> None:
    columns = "kind,incarnation,group_id,serial,count,reason,packet_id,qos"
    found = rows(made(record), columns)
    assert [{name: value for name, value in row.items() if value is not None} for row in found] == expected


def test_an_entry_says_when_and_where_it_was_noted() -> None:
    late = progress(ACKED, 9, 2, 9, 3, timestamp_us=MIDNIGHT_US + 1)
    found = rows(made(message(), progress(ACKED, 9, 1), late))
    assert [(row["journal_offset"], row["item"]) for row in found] == [(71, 0), (72, 0), (72, 1)]
    assert [row["progress_timestamp"].microsecond for row in found] == [0, 1, 1]
    assert {(row["journal_uuid"], row["journal_epoch"], str(row["date"])) for row in found} == {
        (UUID, 4, "2025-10-10")
    }


def test_records_that_compaction_left_out_are_no_rows() -> None:
    assert rows([Batch(0, 3, 0, 0, void_records(3, 5))]) == []


def test_pages_of_backlogs_are_no_rows() -> None:
    page = progress(BACKLOG_PAGE, 9, 1, 1, 5 << 20, 256)
    assert [row["serial"] for row in rows(made(page, progress(ACKED, 9, 7)))] == [7]


def test_numbers_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(CorruptRecord, match="progress of 8 bytes"):
        rows(made(progress(ACKED, 9)))
    with pytest.raises(CorruptRecord, match="unknown kind 99"):
        rows(made(Progress(99, 1, b"")))
