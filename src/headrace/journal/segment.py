"""The bytes of a segment file, version 1. Everything is little endian.

`<data-dir>/journal/<base offset, 20 digits>.log` is

    segment header | batch | batch | ... | footer                        after a clean stop or a roll
    segment header | batch | batch | ... | zeros to the preallocated end  while written, or after a crash

Segment header, 64 bytes, written once and synced before the file gets its name:

     0   4  magic "HRSG"
     4   4  crc32 of bytes 8-63
     8   2  format version, 1
    10   2  flags, 0
    12   4  epoch of the journal when the segment was begun
    16  16  uuid of the journal
    32   8  base offset: the offset of the first record
    40   8  time of creation, microseconds since 1970
    48  16  zero

Batch, 56 bytes and then the body (records back to back, which the journal never looks into):

     0   4  magic D7 "HRB"
     4   4  crc32 of bytes 8-55 and the body, seeded with crc32(uuid): a batch of another journal, or one that
     a
            client put into its payload, does not pass
     8   4  body length in bytes
    12   1  batch version, 1; 2 if a flag is set
    13   1  flags: bit 0, sparse; the other bits are 0 (they are for compression of the body)
    14   2  zero
    16   8  base offset
    24   4  count of records; record i has offset base + i
    28   4  epoch of the journal when the batch was written
    32   8  durable offset: every record below it was known to be on disk when this batch was written
    (decision 20)
    40   8  timestamp of the first record, microseconds since 1970
    48   8  largest timestamp in the batch

A sparse batch is what compaction writes: some of its records are left out, and the others keep their offsets.
Its count is that of all offsets it covers. Its body is

     0   4  k, the number of records that are there
     4  4k  their places among the count, ascending
  4+4k      the records, each with its length in front (the only thing the journal knows about records)

Reading fills the gaps with void records (PROGRESS about nothing, 16 bytes, `void_records`), so that whoever is
handed a `Batch` sees `count` records back to back as ever.

Footer, 64 bytes, the last of the file. Written when a segment is finished, before a sync; so all above it is
durable:

     0   4  magic D7 "HRF"
     4   4  crc32 of bytes 8-63, seeded with crc32(uuid)
     8   4  count of batches
    12   1  version, 1
    13   3  zero
    16   8  end offset: that of the record after the last one
    24   8  position of the footer
    32   8  smallest first timestamp (0 if the segment is empty)
    40   8  largest timestamp
    48  16  zero

Batches follow each other without a gap, in bytes and in offsets. The first four zero bytes, or the end of the
file, where a magic is expected are the end of what was written. A reader refuses a version above its own;
flags and zero bytes that get a meaning raise the version, and every released version stays readable.
"""

from __future__ import annotations

from struct import Struct, pack, unpack_from
from zlib import crc32

from headrace.journal.errors import CorruptFile, UnsupportedFormat

VERSION = 1
SPARSE_VERSION = 2  # of a batch
SPARSE = 1
SEGMENT_MAGIC = b"HRSG"
BATCH_MAGIC = b"\xd7HRB"
FOOTER_MAGIC = b"\xd7HRF"
END_MAGIC = b"\0\0\0\0"
SUFFIX = ".log"

_SEGMENT = Struct("<4sI56s")
_SEGMENT_REST = Struct("<HHI16sQQ16x")
_BATCH = Struct("<4sIIBBHQIIQQQ")
_BATCH_START = Struct("<4sI")
_BATCH_REST = Struct("<IBBHQIIQQQ")
_FOOTER = Struct("<4sI56s")
_VOID = Struct("<IBBHQ")
_FOOTER_REST = Struct("<IB3xQQQQ16x")
SEGMENT_HEADER_SIZE = _SEGMENT.size
BATCH_HEADER_SIZE = _BATCH.size
FOOTER_SIZE = _FOOTER.size
_COVERED_FROM = _BATCH_START.size  # the checksum of a batch covers all from here


class SegmentHeader:
    __slots__ = ("base_offset", "created_us", "epoch", "uuid")

    def __init__(self, uuid: bytes, epoch: int, base_offset: int, created_us: int) -> None:
        self.uuid = uuid
        self.epoch = epoch
        self.base_offset = base_offset
        self.created_us = created_us

    def pack(self) -> bytes:
        rest = _SEGMENT_REST.pack(VERSION, 0, self.epoch, self.uuid, self.base_offset, self.created_us)
        return _SEGMENT.pack(SEGMENT_MAGIC, crc32(rest), rest)

    @staticmethod
    def unpack(data: bytes, path: str) -> SegmentHeader:
        """Return the footer, None if these bytes are no footer of this journal."""
        if len(data) < SEGMENT_HEADER_SIZE or data[:4] != SEGMENT_MAGIC:
            raise CorruptFile(f"{path}: not a journal segment")
        _, crc, rest = _SEGMENT.unpack_from(data)
        if crc32(rest) != crc:
            raise CorruptFile(f"{path}: the segment header is damaged")
        version, _, epoch, uuid, base_offset, created_us = _SEGMENT_REST.unpack(rest)
        if version > VERSION:
            raise UnsupportedFormat(f"{path}: segment version {version}, this headrace reads up to {VERSION}")
        return SegmentHeader(uuid, epoch, base_offset, created_us)


class Batch:
    """What one append wrote: `count` records, in `body`, with offsets from `base_offset`."""

    __slots__ = (
        "base_offset",
        "body",
        "count",
        "durable_offset",
        "epoch",
        "first_timestamp_us",
        "max_timestamp_us",
        "stored_bytes",
    )

    def __init__(
        self,
        base_offset: int,
        count: int,
        first_timestamp_us: int,
        max_timestamp_us: int,
        body: bytes,
        epoch: int = 0,
        durable_offset: int = 0,
    ) -> None:
        self.base_offset = base_offset
        self.count = count
        self.first_timestamp_us = first_timestamp_us
        self.max_timestamp_us = max_timestamp_us
        self.body = body
        self.epoch = epoch
        self.durable_offset = durable_offset
        self.stored_bytes = len(body)  # in the file; less than the body if the batch is sparse

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.count

    @property
    def size(self) -> int:
        """Return the size in bytes in the file."""
        return BATCH_HEADER_SIZE + self.stored_bytes


class Footer:
    __slots__ = ("batches", "end_offset", "max_timestamp_us", "min_timestamp_us", "position")

    def __init__(
        self, batches: int, end_offset: int, position: int, min_timestamp_us: int, max_timestamp_us: int
    ) -> None:
        self.batches = batches
        self.end_offset = end_offset
        self.position = position
        self.min_timestamp_us = min_timestamp_us
        self.max_timestamp_us = max_timestamp_us

    def pack(self, seed: int) -> bytes:
        rest = _FOOTER_REST.pack(
            self.batches,
            VERSION,
            self.end_offset,
            self.position,
            self.min_timestamp_us,
            self.max_timestamp_us,
        )
        return _FOOTER.pack(FOOTER_MAGIC, crc32(rest, seed), rest)

    @staticmethod
    def unpack(data: bytes, seed: int) -> Footer | None:
        """Return the footer, None if these bytes are no footer of this journal."""
        if len(data) < FOOTER_SIZE or data[:4] != FOOTER_MAGIC:
            return None
        _, crc, rest = _FOOTER.unpack_from(data)
        if crc32(rest, seed) != crc:
            return None
        batches, version, end_offset, position, min_us, max_us = _FOOTER_REST.unpack(rest)
        if version > VERSION:
            raise UnsupportedFormat(f"footer version {version}, this headrace reads up to {VERSION}")
        return Footer(batches, end_offset, position, min_us, max_us)


def seed_of(uuid: bytes) -> int:
    """Return where the checksums of this journal's batches and footers start."""
    return crc32(uuid)


def pack_batch_header(
    seed: int,
    body: bytes,
    base_offset: int,
    count: int,
    epoch: int,
    durable_offset: int,
    first_timestamp_us: int,
    max_timestamp_us: int,
    flags: int = 0,
) -> bytes:
    """Pack the header of one batch: called once a batch."""
    rest = _BATCH_REST.pack(
        len(body),
        SPARSE_VERSION if flags else VERSION,
        flags,
        0,
        base_offset,
        count,
        epoch,
        durable_offset,
        first_timestamp_us,
        max_timestamp_us,
    )
    return _BATCH_START.pack(BATCH_MAGIC, crc32(body, crc32(rest, seed))) + rest


def batch_size_at(data: bytes, at: int) -> int:
    """Return the size in bytes of the batch whose header begins at `at`, by its own word; 0 if no batch header begins
    there."""
    if data[at : at + 4] != BATCH_MAGIC or len(data) < at + BATCH_HEADER_SIZE:
        return 0
    return BATCH_HEADER_SIZE + int.from_bytes(data[at + 8 : at + 12], "little")


def batch_range_at(data: bytes, at: int) -> tuple[int, int]:
    """Return (base offset, end offset) by the header's own word; the checksum is not looked at."""
    base_offset = int.from_bytes(data[at + 16 : at + 24], "little")
    return base_offset, base_offset + int.from_bytes(data[at + 24 : at + 28], "little")


def batch_times_at(data: bytes, at: int) -> tuple[int, int]:
    """Return (time of the first record, largest time) by the header's own word."""
    first_us = int.from_bytes(data[at + 40 : at + 48], "little")
    return first_us, int.from_bytes(data[at + 48 : at + 56], "little")


def kept_at(data: bytes, at: int) -> int:
    """Return how many records are there of the sparse batch whose header begins at `at`, by its own word; -1 if it is
    not sparse or ends before that."""
    if len(data) < at + BATCH_HEADER_SIZE + 4 or not data[at + 13] & SPARSE:
        return -1
    return int.from_bytes(data[at + BATCH_HEADER_SIZE : at + BATCH_HEADER_SIZE + 4], "little")


def unpack_batch(data: bytes, at: int, seed: int) -> Batch | None:
    """Return the batch that begins at `at` and lies wholly in `data`; None if it fails its checks."""
    end = at + BATCH_HEADER_SIZE
    if end > len(data):
        return None
    magic, crc, length, version, flags, _, base, count, epoch, durable, first_us, max_us = _BATCH.unpack_from(
        data, at
    )
    if magic != BATCH_MAGIC or end + length > len(data) or not count:
        return None
    body = data[end : end + length]
    if crc32(body, crc32(data[at + _COVERED_FROM : end], seed)) != crc:
        return None
    if version > SPARSE_VERSION:
        raise UnsupportedFormat(f"batch version {version}, this headrace reads up to {SPARSE_VERSION}")
    batch = Batch(base, count, first_us, max_us, body, epoch, durable)
    if flags & SPARSE:
        batch.body = _filled(body, count, first_us)
    return batch


def split_records(body: bytes) -> list[bytes]:
    """Return the records of a body, with their lengths in front."""
    records = []
    at = 0
    while at < len(body):
        end = at + 4 + int.from_bytes(body[at : at + 4], "little")
        records.append(body[at:end])
        at = end
    return records


def void_records(count: int, timestamp_us: int) -> bytes:
    """Return records that say nothing, in the place of ones that are gone: PROGRESS (kind 3) of subkind 1 without
    values, as `core/records/record.py` documents it."""
    return _VOID.pack(_VOID.size - 4, 3, 1, 0, timestamp_us) * count


def sparse_body(kept: dict[int, bytes]) -> bytes:
    """Return the body of a sparse batch. `kept`: place in the batch, ascending -> record."""
    return pack(f"<I{len(kept)}I", len(kept), *kept) + b"".join(kept.values())


def _filled(stored: bytes, count: int, timestamp_us: int) -> bytes:
    (kept,) = unpack_from("<I", stored)
    places = unpack_from(f"<{kept}I", stored, 4)
    parts: list[bytes] = []
    following = 0
    for place, record in zip(places, split_records(stored[4 + 4 * kept :]), strict=True):
        parts += (void_records(place - following, timestamp_us), record)
        following = place + 1
    parts.append(void_records(count - following, timestamp_us))
    return b"".join(parts)


def file_name(base_offset: int, suffix: str = SUFFIX) -> str:
    return f"{base_offset:020d}{suffix}"


def base_offset_of(name: str, suffix: str = SUFFIX) -> int | None:
    """Return the base offset in a file name; None for a file of another kind."""
    stem = name.removesuffix(suffix)
    return int(stem) if len(stem) == 20 and stem.isdigit() and stem != name else None
