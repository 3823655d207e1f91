"""The bytes of a record in a shard's partition: round trips, refusals, and the released vectors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.journal.segment import pack_batch_header, seed_of
from headrace.storage.kafka.envelope import (
    BATCH,
    HEADER_SIZE,
    LEVEL,
    NO_OWNER,
    Epoch,
    Floor,
    Mark,
    Part,
    floor_of,
    mark_of,
    owned_of,
    pack,
    pack_floor,
    pack_mark,
    pack_owned,
    pack_part,
    part_of,
    unpack,
)

VECTORS = Path(__file__).parents[3] / "vectors" / "kafka" / "level1.json"
UUID = bytes(range(16))
SEED = seed_of(UUID)
EPOCH = Epoch(7, bytes(range(100, 116)))
BODY = b"two records"
BATCH_BYTES = pack_batch_header(SEED, BODY, 40, 2, 3, 38, 1_790_000_000_000_000, 1_790_000_000_000_009) + BODY
EVERY = {
    "owned": pack_owned(SEED, EPOCH.bits, NO_OWNER, "n0/0"),
    "batch": pack(SEED, BATCH, EPOCH, BATCH_BYTES),
    "part": pack_part(SEED, EPOCH, 1, Part(40, len(BATCH_BYTES), BATCH_BYTES[30:])),
    "mark": pack_mark(SEED, EPOCH, Mark(42, 30, 12)),
    "floor": pack_floor(SEED, EPOCH, Floor(42, 20, 5)),
}


def test_what_was_released_is_read_and_written_as_it_was() -> None:
    released = {name: bytes.fromhex(text) for name, text in json.loads(VECTORS.read_text()).items()}
    assert released == EVERY


def test_an_owned_names_who_owned_before() -> None:
    found = unpack(SEED, pack_owned(SEED, EPOCH.bits, Epoch(3, bytes(16)), "n0/0"))
    assert found is not None
    assert found.epoch == Epoch(-1, EPOCH.bits)
    owned = owned_of(found.content)
    assert owned is not None
    assert (owned.previous, owned.worker) == (Epoch(3, bytes(16)), "n0/0")


def test_places_come_back() -> None:
    found = {name: unpack(SEED, value) for name, value in EVERY.items()}
    assert all(one is not None and one.level == LEVEL for one in found.values())
    contents = {name: one.content for name, one in found.items() if one is not None}
    assert mark_of(contents["mark"]) == Mark(42, 30, 12)
    assert floor_of(contents["floor"]) == Floor(42, 20, 5)
    assert part_of(contents["part"]) == Part(40, len(BATCH_BYTES), BATCH_BYTES[30:])
    assert contents["batch"] == BATCH_BYTES


@pytest.mark.parametrize("name", EVERY)
def test_a_record_of_another_journal_does_not_pass(name: str) -> None:
    assert unpack(seed_of(bytes(16)), EVERY[name]) is None


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("size", [0, 3, HEADER_SIZE - 1])
def test_what_is_cut_off_does_not_pass(name: str, size: int) -> None:
    assert unpack(SEED, EVERY[name][:size]) is None


@pytest.mark.parametrize("name", ["owned", "mark", "floor"])
def test_a_changed_byte_anywhere_does_not_pass(name: str) -> None:
    for at in range(len(EVERY[name])):
        changed = bytearray(EVERY[name])
        changed[at] ^= 1
        assert unpack(SEED, bytes(changed)) is None


@given(st.binary(max_size=120))
def test_other_bytes_are_no_record(value: bytes) -> None:
    assert unpack(SEED, value) is None


@given(st.binary(max_size=60))
def test_contents_of_any_size_are_taken_or_refused(content: bytes) -> None:
    for of in (owned_of, part_of, mark_of, floor_of):
        of(content)
