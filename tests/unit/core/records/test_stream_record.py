"""STREAM records and copies, byte by byte: bytes that were written once stay readable."""

from __future__ import annotations

import pytest
from librt.strings import BytesWriter

from harness import message
from headrace.core.records.message import Copy, copy_of, decode_batch
from headrace.core.records.record import FLAG_DUP, FLAG_FRAME, FLAG_PRODUCER, FLAG_RETAIN, FLAG_V5, Record
from headrace.core.records.stream_record import FOLLOWED, TAKEN, StreamRecord, stream_record
from headrace.errors import CorruptRecord

POSITIONS = "2c0000000601000000e025dafe5b0600020000000000000088130000000000000000010000000000ffffffffffffff3f"
COPY = (
    "35000000051500fe00e025dafe5b06002a00000001000000ffffffff0700060003000000"
    "0000000064656661756c74636c69656e74612f6278"
)


def encoded(record: Record) -> bytes:
    out = BytesWriter()
    record.encode_into(out)
    return out.getvalue()


def test_positions_stay_what_they_are() -> None:
    record = stream_record(TAKEN, 1_790_000_000_000_000, [(2, 5000), (65536, (1 << 62) - 1)])
    assert encoded(record).hex() == POSITIONS
    [found] = decode_batch(bytes.fromhex(POSITIONS), 5)
    assert isinstance(found, StreamRecord)
    assert (found.offset, found.subkind, found.timestamp_us) == (5, TAKEN, 1_790_000_000_000_000)
    assert found.positions() == [(2, 5000), (65536, (1 << 62) - 1)]


@pytest.mark.parametrize("size", [1, 8, 17])
def test_positions_are_pairs(size: int) -> None:
    with pytest.raises(CorruptRecord, match="stream record"):
        decode_batch(encoded(StreamRecord(FOLLOWED, 0, bytes(size))), 0)


def test_a_copy_says_where_it_is_from() -> None:
    published = message()
    published.flags |= FLAG_RETAIN
    copy = copy_of(published, 0xFE00, (1 << 32) + 42)
    assert encoded(copy).hex() == COPY
    [found] = decode_batch(bytes.fromhex(COPY), 9)
    assert isinstance(found, Copy)
    assert (found.source, found.source_offset, found.offset) == (0xFE00, (1 << 32) + 42, 9)
    assert (found.topic, found.payload, found.client_id, found.qos) == (b"a/b", b"x", "client", 1)
    assert found.retain
    assert encoded(found) == bytes.fromhex(COPY)


def test_what_a_publisher_and_its_broker_settled_is_left_out() -> None:
    published = message(qos=2)
    published.flags |= FLAG_DUP | FLAG_PRODUCER | FLAG_FRAME
    assert copy_of(published, 1, 7).flags == FLAG_V5 | 2


def test_a_cut_copy_is_refused() -> None:
    data = bytes.fromhex(COPY)
    for size in range(len(data)):
        with pytest.raises(CorruptRecord):
            decode_batch(data[:size] or b"\0", 0)
