"""A journal's segment as one tenant may see it: the same bytes in the same places, without what others wrote.

Records that are not messages of the tenant are of kind 0 (`KIND_NONE`) and zeros behind their length; the batch has a
checksum that fits. So offsets, positions and indexes stay true, and the reader of a whole journal reads this one, too.
What shows of others is how many records they wrote, when, and how long these are.

Every record is looked at, so it costs more than bytes that are passed on: one such answer is made at a time, which the
caller sees to, on a thread that gives way to the loop between batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from time import sleep
from typing import Final
from zlib import crc32

from headrace.core.records.record import KIND_MESSAGE, MESSAGE_HEADER_SIZE
from headrace.journal.errors import CorruptBatch
from headrace.journal.finished import FinishedSegment
from headrace.journal.index import OffsetIndex
from headrace.journal.segment import (
    BATCH_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
    batch_range_at,
    batch_size_at,
    kept_at,
    unpack_batch,
)
from headrace.journal.walk import NO_BATCH, TORN

RANGE_BYTES_MAX: Final = 256 << 10
_START: Final = Struct("<4sI")
_LENGTH: Final = Struct("<I")
_KIND_AT: Final = 4
_TENANT_LENGTH_AT: Final = 28


class TenantView:
    """Makes the bytes of segments for tenants. Runs on a thread, on one at a time."""

    def __init__(self) -> None:
        self._made: tuple[tuple[str, int, str], bytes] = (
            ("", 0, ""),
            b"",
        )  # the last batch: large ones are asked for in parts

    def read(self, segment: FinishedSegment, index: bytes, first: int, length: int, tenant: str) -> bytes:
        """Return `length` bytes from `first` on, which lie below what may be seen of the segment. Raises
        CorruptBatch."""
        end = first + min(length, RANGE_BYTES_MAX)
        parts = [
            data[max(0, first - position) : end - position]
            for position, data in self._pieces(segment, index, first, end, tenant)
        ]
        return b"".join(parts)

    def _pieces(
        self, segment: FinishedSegment, index: bytes, first: int, end: int, tenant: str
    ) -> Iterator[tuple[int, bytes]]:
        """Yield position and bytes of what overlaps [first, end): the header, batches, what is behind the last
        batch."""
        if first < SEGMENT_HEADER_SIZE:
            yield 0, segment.read(0, SEGMENT_HEADER_SIZE)
        position = _near(segment, index, first)
        while position < end:
            size = batch_size_at(segment.read(position, BATCH_HEADER_SIZE), 0)
            if not size:
                if segment.footer is None or position != segment.footer.position:
                    raise CorruptBatch(segment.key, position, segment.base_offset, NO_BATCH)
                yield position, segment.read(position, end - position)
                return
            if position + size > segment.size:
                raise CorruptBatch(segment.key, position, segment.base_offset, TORN)
            if position + size > first:
                yield position, self._batch(segment, position, size, tenant)
                sleep(0)  # the loop may want to run
            position += size

    def _batch(self, segment: FinishedSegment, position: int, size: int, tenant: str) -> bytes:
        name = (segment.key, position, tenant)
        if self._made[0] != name:
            data = segment.read(position, size)
            if unpack_batch(data, 0, segment.seed) is None:
                raise CorruptBatch(segment.key, position, batch_range_at(data, 0)[0], "bad checksum")
            self._made = name, without_others(data, segment.seed, tenant.encode())
        return self._made[1]


def _near(segment: FinishedSegment, index: bytes, first: int) -> int:
    """Return the position of a batch at or before `first`: by the index, where it names a batch that is there."""
    found = OffsetIndex.unpack(index, segment.seed)
    places = [(at, offset) for offset, at in zip(found.offsets, found.positions, strict=True) if at <= first]
    position, offset = max(places, default=(SEGMENT_HEADER_SIZE, segment.base_offset))
    header = segment.read(position, BATCH_HEADER_SIZE)
    if batch_size_at(header, 0) and batch_range_at(header, 0)[0] == offset:
        return position
    return SEGMENT_HEADER_SIZE


def without_others(batch: bytes, seed: int, tenant: bytes) -> bytes:
    """Return a whole batch as a tenant may see it: the records of others are zeros."""
    data = bytearray(batch)
    kept = kept_at(batch, 0)
    at = BATCH_HEADER_SIZE + (0 if kept < 0 else 4 + 4 * kept)
    while at < len(data):
        (length,) = _LENGTH.unpack_from(batch, at)
        end = at + 4 + length
        if not _is_of(batch, at, tenant):
            data[at + _KIND_AT : end] = bytes(length)
        at = end
    checksum = crc32(data[8:], seed)
    _START.pack_into(data, 0, batch[:4], checksum)
    return bytes(data)


def _is_of(data: bytes, at: int, tenant: bytes) -> bool:
    if data[at + _KIND_AT] != KIND_MESSAGE or data[at + _TENANT_LENGTH_AT] != len(tenant):
        return False
    start = at + MESSAGE_HEADER_SIZE
    return data[start : start + len(tenant)] == tenant
