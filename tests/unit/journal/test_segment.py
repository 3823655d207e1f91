"""The bytes of a segment: round trips, refusals, and the released vectors."""

from __future__ import annotations

from struct import pack
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.journal.errors import CorruptFile, UnsupportedFormat
from headrace.journal.segment import (
    BATCH_HEADER_SIZE,
    FOOTER_SIZE,
    SEGMENT_HEADER_SIZE,
    Footer,
    SegmentHeader,
    base_offset_of,
    batch_range_at,
    batch_size_at,
    file_name,
    pack_batch_header,
    seed_of,
    unpack_batch,
)

UUID = bytes(range(16))
SEED = seed_of(UUID)
BODY = b"two records"
BATCH = pack_batch_header(SEED, BODY, 100, 2, 3, 90, 1_000, 2_000) + BODY
U64 = st.integers(0, (1 << 64) - 1)


def test_sizes_are_those_of_the_docstring() -> None:
    assert (SEGMENT_HEADER_SIZE, BATCH_HEADER_SIZE, FOOTER_SIZE) == (64, 56, 64)


def test_a_batch_comes_back() -> None:
    batch = unpack_batch(BATCH, 0, SEED)
    assert batch is not None
    assert (batch.base_offset, batch.count, batch.end_offset, batch.body) == (100, 2, 102, BODY)
    assert (batch.epoch, batch.durable_offset) == (3, 90)
    assert (batch.first_timestamp_us, batch.max_timestamp_us) == (1_000, 2_000)
    assert batch.size == len(BATCH)


@given(
    base=U64, durable=U64, times=st.tuples(U64, U64), count=st.integers(1, (1 << 32) - 1), body=st.binary()
)
def test_any_batch_comes_back(
    base: int, durable: int, times: tuple[int, int], count: int, body: bytes
) -> None:
    data = b"before" + pack_batch_header(SEED, body, base, count, 1, durable, *times) + body + b"after"
    batch = unpack_batch(data, 6, SEED)
    assert batch is not None
    assert (batch.base_offset, batch.count, batch.durable_offset, batch.body) == (base, count, durable, body)
    assert (batch.first_timestamp_us, batch.max_timestamp_us) == times
    assert batch_size_at(data, 6) == BATCH_HEADER_SIZE + len(body)
    assert batch_range_at(data, 6) == (base, base + count)


@pytest.mark.parametrize("bit", range(len(BATCH) * 8))
def test_any_flipped_bit_is_noticed(bit: int) -> None:
    data = bytearray(BATCH)
    data[bit // 8] ^= 1 << bit % 8
    assert unpack_batch(bytes(data), 0, SEED) is None


@pytest.mark.parametrize("length", range(len(BATCH)))
def test_a_part_of_a_batch_is_no_batch(length: int) -> None:
    assert unpack_batch(BATCH[:length], 0, SEED) is None


def test_a_batch_of_another_journal_does_not_pass() -> None:
    assert unpack_batch(BATCH, 0, seed_of(bytes(16))) is None


def test_no_batch_begins_in_zeros() -> None:
    assert batch_size_at(bytes(100), 0) == 0


def test_the_segment_header_comes_back() -> None:
    header = SegmentHeader.unpack(SegmentHeader(UUID, 7, 1234, 99).pack(), "file")
    assert (header.uuid, header.epoch, header.base_offset, header.created_us) == (UUID, 7, 1234, 99)


def test_a_damaged_segment_header_is_refused() -> None:
    data = bytearray(SegmentHeader(UUID, 7, 1234, 99).pack())
    data[40] ^= 1
    with pytest.raises(CorruptFile, match="header is damaged"):
        SegmentHeader.unpack(bytes(data), "file")
    with pytest.raises(CorruptFile, match="not a journal segment"):
        SegmentHeader.unpack(b"\0" * 64, "file")


def test_a_newer_version_is_refused_by_name() -> None:
    rest = pack("<HHI16sQQ16x", 2, 0, 1, UUID, 0, 0)
    with pytest.raises(UnsupportedFormat, match="version 2"):
        SegmentHeader.unpack(pack("<4sI56s", b"HRSG", crc32(rest), rest), "file")


def test_the_footer_comes_back_or_is_none() -> None:
    data = Footer(5, 200, 4096, 10, 20).pack(SEED)
    footer = Footer.unpack(data, SEED)
    assert footer is not None
    assert (footer.batches, footer.end_offset, footer.position) == (5, 200, 4096)
    assert (footer.min_timestamp_us, footer.max_timestamp_us) == (10, 20)
    assert Footer.unpack(data, SEED ^ 1) is None
    assert Footer.unpack(data[:-1], SEED) is None
    assert Footer.unpack(bytes(64), SEED) is None


def test_file_names() -> None:
    assert file_name(42) == "00000000000000000042.log"
    assert base_offset_of(file_name(42)) == 42
    for name in ("42.log", "00000000000000000042.index", "0000000000000000004x.log", "00000000000000000042"):
        assert base_offset_of(name) is None


def test_the_format_is_what_the_docstring_says() -> None:
    """Field by field, without the packers."""
    fields = [
        (4, b"\xd7HRB"),
        (4, None),
        (4, len(BODY)),
        (1, 1),
        (1, 0),
        (2, 0),
        (8, 100),
        (4, 2),
        (4, 3),
        (8, 90),
    ]
    at = 0
    for size, expected in [*fields, (8, 1_000), (8, 2_000)]:
        part = BATCH[at : at + size]
        if isinstance(expected, bytes):
            assert part == expected
        elif expected is not None:
            assert int.from_bytes(part, "little") == expected
        at += size
    assert at == BATCH_HEADER_SIZE
    assert int.from_bytes(BATCH[4:8], "little") == crc32(BATCH[8:], crc32(UUID))
