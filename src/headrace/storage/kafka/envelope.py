"""The bytes of one Kafka record in the partition that is a shard's journal, level 1. Everything is little endian.

A record's value is an envelope of 40 bytes and what it holds:

     0   4  magic D7 "HRK"
     4   4  crc32, seeded with crc32(uuid of the journal): a record of another topic does not pass. It covers bytes 8-39,
            and of all but BATCH and PART what follows too; batches have a checksum of their own
     8   1  format level, 1
     9   1  kind, below
    10   2  zero
    12   4  number: of a PART, from 0 on; else 0
    16   8  epoch of the owner that wrote it: the Kafka offset of its OWNED, signed; -1 in an OWNED itself
    24  16  and 128 random bits, which no two OWNED share
    40      what it holds

kind 1, OWNED: a worker owns the shard from here on, if the owner that it names is the owner until here (`log_fold`):

     0   8  epoch of the owner before: its Kafka offset, -1 if there was none
     8  16  and its random bits
    24      the name of the worker, UTF-8

kind 2, BATCH: a batch as a segment file holds it (`headrace.journal.segment`), header and body.

kind 3, PART: a piece of a batch that is too large for one record. The batch is there with its last piece:

     0   8  base offset of the batch
     8   4  size of the batch in bytes, with its header
    12      the piece

kind 4, MARK: where a reader may begin:

     0   8  offset of the record that comes next
     8   8  offset up to which the newest whole snapshot has all records
    16   8  Kafka offset of that snapshot's manifest, in the partition of snapshots; -1 if there is none

kind 5, FLOOR: what lies before this is needed by nobody:

     0   8  offset of the record that comes next
     8   8  offset of the oldest record that is needed
    16   8  Kafka offset of the MARK to which the partition is deleted

Kinds 6 and 7 are those of the partition of snapshots (`chains`).

OWNED, MARK and FLOOR take no record offset. The first 40 bytes, and the first 24 of what an OWNED holds, stay as they are
at every level, so that whose a record is can be told of any; a level raises what a reader must know, and a reader refuses
a log whose owner writes a higher one.
Released bytes are in `tests/vectors/kafka`.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

LEVEL: Final = 1
OWNED: Final = 1
BATCH: Final = 2
PART: Final = 3
MARK: Final = 4
FLOOR: Final = 5
PIECE: Final = 6
MANIFEST: Final = 7

MAGIC: Final = b"\xd7HRK"
BITS: Final = 16  # bytes of an epoch that are random
_HEADER: Final = Struct("<4sIBBHIq16s")
_REST: Final = Struct("<BBHIq16s")
_OWNED: Final = Struct("<q16s")
_PART: Final = Struct("<QI")
_PLACES: Final = Struct("<QQq")
HEADER_SIZE: Final = _HEADER.size
PART_HEADER_SIZE: Final = _PART.size
_COVERED_FROM: Final = 8
_CHECKS_ITSELF: Final = (BATCH, PART)


class Epoch(NamedTuple):
    """An owner of a shard, as all compare it: the Kafka offset of the OWNED, which orders owners, and 128 random bits, by
    which two of them are never taken for one another. To everybody else it is opaque."""

    offset: int
    bits: bytes


NO_OWNER: Final = Epoch(-1, bytes(BITS))


@dataclass(frozen=True, slots=True)
class Envelope:
    """One record that passed the check of its envelope. `epoch` is that of the owner that wrote it; of an OWNED its bits
    alone count, since no one knows an offset before the append."""

    level: int
    kind: int
    number: int
    epoch: Epoch
    content: bytes


@dataclass(frozen=True, slots=True)
class Owned:
    """What an OWNED holds: which worker owns from here on, and after whom."""

    previous: Epoch
    worker: str


@dataclass(frozen=True, slots=True)
class Mark:
    """What a MARK holds. `manifest` is the Kafka offset of the newest whole snapshot's, -1 where there is none, and
    `snapshot` the record offset up to which that one has everything."""

    next_offset: int
    snapshot: int
    manifest: int


@dataclass(frozen=True, slots=True)
class Floor:
    """What a FLOOR holds. `floor` is the offset of the oldest record that is needed, `mark` the Kafka offset of a MARK at
    or below it that was confirmed: the partition may be deleted up to there."""

    next_offset: int
    floor: int
    mark: int


@dataclass(frozen=True, slots=True)
class Part:
    """What a PART holds: a piece of the batch of `size` bytes that begins at record offset `base_offset`."""

    base_offset: int
    size: int
    piece: bytes


def uuid_of(topic_id: str, partition: int) -> bytes:
    """Return the 16 bytes by which a journal's records are told apart from those of others: every node knows them."""
    return blake2b(f"{topic_id}/{partition}".encode(), digest_size=16).digest()


def pack(seed: int, kind: int, epoch: Epoch, content: bytes, number: int = 0) -> bytes:
    """Return the value of one record. `seed` is that of the journal (`headrace.journal.segment.seed_of`)."""
    rest = _REST.pack(LEVEL, kind, 0, number, epoch.offset, epoch.bits)
    crc = crc32(rest, seed)
    if kind not in _CHECKS_ITSELF:
        crc = crc32(content, crc)
    return MAGIC + crc.to_bytes(4, "little") + rest + content


def unpack(seed: int, value: bytes) -> Envelope | None:
    """Return the envelope of a record's value; None if the value is none of this journal."""
    if len(value) < HEADER_SIZE or value[:4] != MAGIC:
        return None
    _, crc, level, kind, _, number, offset, bits = _HEADER.unpack_from(value)
    content = value[HEADER_SIZE:]
    found = crc32(value[_COVERED_FROM:HEADER_SIZE], seed)
    if kind not in _CHECKS_ITSELF:
        found = crc32(content, found)
    if found != crc:
        return None
    return Envelope(level, kind, number, Epoch(offset, bits), content)


def pack_owned(seed: int, bits: bytes, previous: Epoch, worker: str) -> bytes:
    """Return an OWNED of `worker`, which counts if `previous` is the owner where it comes to stand."""
    content = _OWNED.pack(previous.offset, previous.bits) + worker.encode()
    return pack(seed, OWNED, Epoch(-1, bits), content)


def owned_of(content: bytes) -> Owned | None:
    """Return what an OWNED holds; None if it is too short."""
    if len(content) < _OWNED.size:
        return None
    offset, bits = _OWNED.unpack_from(content)
    return Owned(Epoch(offset, bits), content[_OWNED.size :].decode(errors="replace"))


def pack_part(seed: int, epoch: Epoch, number: int, part: Part) -> bytes:
    """Return a PART, the one of this number of its batch."""
    return pack(seed, PART, epoch, _PART.pack(part.base_offset, part.size) + part.piece, number)


def part_of(content: bytes) -> Part | None:
    """Return what a PART holds; None if it is too short."""
    if len(content) < _PART.size:
        return None
    base_offset, size = _PART.unpack_from(content)
    return Part(base_offset, size, content[_PART.size :])


def pack_mark(seed: int, epoch: Epoch, mark: Mark) -> bytes:
    """Return a MARK of the owner with this epoch."""
    return pack(seed, MARK, epoch, _PLACES.pack(mark.next_offset, mark.snapshot, mark.manifest))


def mark_of(content: bytes) -> Mark | None:
    """Return what a MARK holds; None if its size is another one."""
    return Mark(*_PLACES.unpack(content)) if len(content) == _PLACES.size else None


def pack_floor(seed: int, epoch: Epoch, floor: Floor) -> bytes:
    """Return a FLOOR of the owner with this epoch."""
    return pack(seed, FLOOR, epoch, _PLACES.pack(floor.next_offset, floor.floor, floor.mark))


def floor_of(content: bytes) -> Floor | None:
    """Return what a FLOOR holds; None if its size is another one."""
    return Floor(*_PLACES.unpack(content)) if len(content) == _PLACES.size else None
