"""Columns decoded from journal batches equal what the records say, however batches are cut."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from librt.strings import BytesWriter

from headrace.errors import CorruptRecord
from headrace.journal.segment import Batch
from headrace_spark.records import chunk as module
from headrace_spark.records.decode import decode
from headrace_spark.records.message_columns import client_message_id
from headrace_spark.records.schema import arrow_schema, select
from spark.journals import message, mixed

UUID = "6f9619ff-8b86-d011-b42d-00c04fc964ff"


def rows(batches: list[Batch], start: int = 0, end: int = 1 << 40, columns: str = "") -> list[dict[str, Any]]:
    schema = arrow_schema(select(columns))
    decoded = list(decode(batches, UUID, start, end, schema))
    for batch in decoded:
        batch.validate(full=True)
    table: list[dict[str, Any]] = pa.Table.from_batches(decoded, schema).to_pylist()
    return table


def test_every_column_of_every_kind_of_message() -> None:
    made = mixed(500)
    assert rows(made.batches([500])) == made.rows(UUID)


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 40), max_size=8), seed=st.integers(0, 50))
def test_the_cut_into_batches_changes_nothing(sizes: list[int], seed: int) -> None:
    made = mixed(90, seed)
    assert rows(made.batches(sizes)) == made.rows(UUID)


@settings(deadline=None)
@given(start=st.integers(0, 70), length=st.integers(0, 70))
def test_only_the_range_that_was_asked_for(start: int, length: int) -> None:
    made = mixed(60, 3)
    expected = [row for row in made.rows(UUID) if start <= row["journal_offset"] < start + length]
    assert rows(made.batches([7, 11]), start, start + length) == expected


def test_chunks_are_bounded_and_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_RECORDS_MAX", 10)
    made = mixed(100, 5)
    assert rows(made.batches([4] * 25)) == made.rows(UUID)


def test_epochs_and_offsets_come_from_each_batch() -> None:
    made = mixed(30, 7)
    old, new = made.batches([30], epoch=1, base_offset=5), made.batches([30], epoch=2, base_offset=35)
    assert rows(old + new) == made.rows(UUID, 1, 5) + made.rows(UUID, 2, 35)


def test_named_columns_only_in_their_order() -> None:
    made = mixed(50, 9)
    found = rows(made.batches([50]), columns="journal_offset, topic")
    assert found == [{"journal_offset": r["journal_offset"], "topic": r["topic"]} for r in made.rows(UUID)]
    assert list(found[0]) == ["journal_offset", "topic"]


def test_batches_without_messages_give_no_rows() -> None:
    made = mixed(200, 11)
    made.records = [record for record in made.records if record.kind != 1]
    assert rows(made.batches([3, 3])) == []
    assert rows([]) == []


def test_message_ids_cannot_be_taken_for_one_another() -> None:
    assert client_message_id("t", "a/b", "c") == "client:t/a%2Fb/c"
    assert client_message_id("t", "a", "b/c") == "client:t/a/b/c"
    assert client_message_id("t", "a%2Fb", "c") == "client:t/a%252Fb/c"


def encoded(length: int | None = None, topic_length: int | None = None) -> bytes:
    """One message, with lengths put wrong."""
    out = BytesWriter()
    message().encode_into(out)
    body = bytearray(out.getvalue())
    if length is not None:
        body[0:4] = length.to_bytes(4, "little")
    if topic_length is not None:
        body[32:34] = topic_length.to_bytes(2, "little")
    return bytes(body)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (encoded(length=0xFFFF), "runs past its batch"),
        (encoded(topic_length=0xFFFF), "run past its record"),
        (encoded(length=10)[:14], "shorter than its header"),
    ],
    ids=["record beyond the batch", "fields beyond the record", "record shorter than its header"],
)
def test_lengths_that_do_not_add_up_are_refused(body: bytes, problem: str) -> None:
    with pytest.raises(CorruptRecord, match=problem):
        rows([Batch(0, 1, 0, 0, body)])


def test_a_count_that_disagrees_with_the_body_is_refused() -> None:
    with pytest.raises(CorruptRecord, match="3 records where headers say 4"):
        rows([Batch(0, 4, 0, 0, mixed(3).body(0, 3))])
