"""Columns decoded from journal batches equal what the records say, however batches are cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from librt.strings import BytesWriter

from harness import Harness
from headrace.core.records.message import Carried, FrameMessage
from headrace.core.state.compacted import records
from headrace.errors import CorruptRecord
from headrace.journal.bootstrap_file import write_bootstrap
from headrace.journal.segment import Batch
from headrace.storage.embedded.bootstrap import bootstrap
from headrace_spark.records import chunk as module
from headrace_spark.records.decode import decode
from headrace_spark.records.message_columns import client_message_id
from headrace_spark.records.schema import arrow_schema, select
from headrace_spark.source.local import LocalJournal
from headrace_spark.source.selection import Selection
from spark.journals import MIDNIGHT_US, Made, message, mixed

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


def carried(made: Made) -> Made:
    """Add to what a journal holds what it may have begun with: messages that another one has; in any place here."""
    for place in (0, len(made.records) // 2, len(made.records)):
        made.records[place:place] = [Carried(message(n, retain=True, topic=f"kept/{n}")) for n in range(3)]
    return made


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 40), max_size=8), seed=st.integers(0, 50))
def test_what_a_fresh_broker_began_with_is_in_the_journal_of_before(sizes: list[int], seed: int) -> None:
    made = carried(mixed(60, seed))
    expected = made.rows(UUID)
    assert rows(made.batches(sizes)) == expected
    by_topic = Selection(topic_prefix="plant/")
    schema = arrow_schema(select(""))
    decoded = decode(made.batches(sizes), UUID, 0, 1 << 40, schema, selection=by_topic)
    found = pa.Table.from_batches(decoded, schema)
    assert found.to_pylist() == [row for row in expected if row["topic"].startswith("plant/")]


def test_frames_whose_sequence_is_long_are_no_such_messages() -> None:
    made = Made()
    for sequence in (1, 0x1_0000, 0x1_0001, 0xFFFF_FFFF):
        made.add(FrameMessage(MIDNIGHT_US, sequence, "t", b"tdoor", 1, b"lock", -1, b"x"))
    assert [row["protocol"] for row in rows(made.batches([4]))] == ["frame"] * 4


def test_a_lake_that_has_the_old_journal_gets_nothing_twice(tmp_path: Path) -> None:
    """What is retained is an event of the fresh journal, from which another one may begin, and no message of it."""
    harness = Harness()
    client = harness.client("meter", version=5)
    client.subscribe("a/+", 1)
    for number in range(4):
        client.publish(f"a/{number % 3}", b"%d" % number, 1, retain=True)
    body = [Made.encoded(record) for record in records(harness.broker.fold, MIDNIGHT_US)]
    data_dir = tmp_path
    for generation in range(2):
        snapshot = write_bootstrap(tmp_path / f"b{generation}", UUID, 1, 50, enumerate(body))
        data_dir = tmp_path / f"d{generation}"
        bootstrap(snapshot, data_dir, lambda _line: None)
        journal = LocalJournal(data_dir)
        batches = list(journal.scan(0, journal.high_watermark()))
        assert rows(batches) == []
        schema = arrow_schema(select("kind,topic,payload,record", "events"))
        decoded = decode(batches, UUID, 0, 1 << 40, schema, "events")
        events = pa.Table.from_batches(decoded, schema).to_pylist()
        kept = {row["topic"]: row["payload"] for row in events if row["kind"] == "retained_set"}
        assert kept == {"a/0": b"3", "a/1": b"1", "a/2": b"2"}
        body = [row["record"] for row in events if row["record"] is not None]


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
