"""Chunks of batches: grouped by size, cut to a range of offsets."""

from __future__ import annotations

import pytest

from headrace_spark.records import chunk as module
from headrace_spark.records.chunk import Chunk, chunks
from spark.journals import mixed


def test_kinds_and_offsets_stand_side_by_side() -> None:
    made = mixed(40, 2)
    found = Chunk.of(made.batches([7, 9], 3, 100), "uuid", 105, 130)
    assert found.offsets.tolist() == list(range(105, 130))
    assert found.kinds.tolist() == [record.kind for record in made.records[5:30]]
    assert set(found.epochs.tolist()) == {3}


def test_a_chunk_is_bounded_by_records_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = mixed(40, 2).batches([10] * 4)
    assert len(list(chunks(batches, "uuid", 0, 40))) == 1
    monkeypatch.setattr(module, "CHUNK_RECORDS_MAX", 20)
    assert [len(found.at) for found in chunks(batches, "uuid", 0, 40)] == [20, 20]
    monkeypatch.setattr(module, "CHUNK_BYTES_MAX", 1)
    assert [len(found.at) for found in chunks(batches, "uuid", 0, 40)] == [10] * 4
