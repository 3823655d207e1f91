"""STREAM records: how far the streams between shards have come.

A 16-byte header (`record`), then packed u64 by subkind::

     0 u32 length   4 u8 kind = 6   5 u8 subkind   6 u16 reserved   8 u64 timestamp_us

  1 taken (shard, offset)*: of that shard's journal, everything below the offset was taken that is for this one
  2 followed (shard, offset)*: that shard has taken, and made durable, everything of this journal below the offset
  3 owned (shard, epoch)*: the owner of that shard with this epoch was talked to: older ones are not believed any more
  4 lent (home, group, serial, packet id | QoS << 16, incarnation, 0)*: an entry of a group at home in that shard is the
    session's here, under this packet id; 5 received, PUBREC seen, 6 completed, PUBCOMP seen, 7 settled, its home knows
    that it is completed: (home, group, serial, 0)*
  8 returned (group, serial)*: an entry of a group here was drawn for a member elsewhere, who was never sent it
  9 started (shard, offset, timestamp_us, 0)*: what is taken of that shard from here on is of its owner whose record of
    start has this offset and this time in its journal
 10 anew (shard, taken, followed, gap)*: that shard was put back, and accepted: of its journal what was taken from the
    first offset on is another one's, and from the second one on of this journal it may have nothing. Who was heard of
    as its owner is forgotten. What its groups lent before goes under the offset `gap` of its journal, which nothing is
    at. The only record by which positions go back
A COPY says the first of its own shard and offset; `taken` stands for stretches that held nothing for this shard.
"""

from __future__ import annotations

from array import array
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from headrace.core.records.record import (
    KIND_STREAM,
    SHORT_HEADER,
    SHORT_HEADER_SIZE,
    Record,
    short_record_into,
)
from headrace.errors import CorruptRecord

TAKEN: Final = 1
FOLLOWED: Final = 2
OWNED: Final = 3
LENT: Final = 4
LENT_RECEIVED: Final = 5
LENT_COMPLETED: Final = 6
LENT_SETTLED: Final = 7
RETURNED: Final = 8
STARTED: Final = 9
ANEW: Final = 10
_PAIR_BYTES: Final = 16


class StreamRecord(Record):
    """A STREAM record; `packed` is what stands behind the header."""

    def __init__(self, subkind: int, timestamp_us: int, packed: bytes) -> None:
        super().__init__(KIND_STREAM, timestamp_us)
        self.subkind = subkind
        self.packed = packed

    def positions(self) -> list[tuple[int, int]]:
        """Return the pairs of a shard and an offset that the record holds."""
        numbers = array("Q", self.packed)
        return [(numbers[at], numbers[at + 1]) for at in range(0, len(numbers), 2)]

    def numbers(self) -> list[int]:
        """Return all the numbers that the record holds."""
        return array("Q", self.packed).tolist()

    def encode_into(self, out: BytesWriter) -> None:
        short_record_into(out, KIND_STREAM, self.subkind, self.timestamp_us, self.packed)


def stream_record_of(subkind: int, timestamp_us: int, numbers: list[int]) -> StreamRecord:
    """Return a record of these numbers, an even count of them."""
    return StreamRecord(subkind, timestamp_us, array("Q", numbers).tobytes())


def stream_record(subkind: int, timestamp_us: int, positions: list[tuple[int, int]]) -> StreamRecord:
    """Return a record of pairs of a shard and an offset."""
    numbers = array("Q", [number for pair in positions for number in pair])
    return StreamRecord(subkind, timestamp_us, numbers.tobytes())


def decode_stream_record(body: bytes, pos: i64, end: i64) -> StreamRecord:
    """Return the STREAM record at `pos`. Raises CorruptRecord."""
    if end - pos < SHORT_HEADER_SIZE or (end - pos - SHORT_HEADER_SIZE) % _PAIR_BYTES:
        raise CorruptRecord(f"a stream record of {end - pos} bytes")
    _, _, subkind, _, timestamp_us = SHORT_HEADER.unpack_from(body, pos)
    return StreamRecord(subkind, timestamp_us, body[pos + SHORT_HEADER_SIZE : end])
