"""The records of the journal, byte by byte.

A batch body is `count` records back to back; record i of a batch has the offset `base_offset + i`. Integers are little
endian. Every record opens with `u32 length` (of what follows it) and `u8 kind`. Three schemas (decision 5):

kind 1, MESSAGE, a 40-byte header and five byte strings, the last one filling the record::

     0 u32 length             8 u64 timestamp_us   receive time, Unix microseconds
     4 u8  kind = 1          16 u64 incarnation    of the publisher's session; 0 = the broker itself
     5 u8  flags             24 u32 message_expiry_s, 0xFFFFFFFF = none
     6 u16 packet_id         28 u8  tenant_len     29 u8 longest      30 u16 client_id_len
                             32 u16 topic_len      34 u32 properties_len  38 u16 reserved (0)
    40 tenant, client id, topic (UTF-8), properties, payload

  flags: bits 0-1 QoS, bit 2 retain, bit 3 DUP, bit 4 published with MQTT 5, bit 5 will message,
  bit 6 of an idempotent producer (`producers`), bit 7 published as a frame: `packet_id` is then the lower half of its
  sequence number, and the u16 at 38 the upper one. Of other messages bit 0 of it says that another journal had the
  message first, whose state this one began with: who wants each message once passes it over. `longest` is 1 where
  0xFFFFFFFF is the interval itself, the longest that MQTT has, and 0 elsewhere: a headrace of before reads both as none.
  Properties are in MQTT 5 wire encoding without their length, with Topic Alias and Message Expiry Interval taken out.

kind 2, EVENT: sessions, subscriptions, retained messages, wills. A 16-byte header, then a MessagePack map (`event`)::

     0 u32 length   4 u8 kind = 2   5 u8 subkind   6 u16 reserved   8 u64 timestamp_us

kind 3, PROGRESS: what became of messages. The same 16-byte header, then packed u64; by subkind
  1 acked (incarnation, serial)*            2 received, PUBREC seen (incarnation, serial)*
  3 released, PUBREL seen (incarnation, packet id)*    4 sent_limit (incarnation, limit)*
  5 dropped (incarnation, first serial, count, reason)*
  6 drawn from a shared group (group, serial, incarnation, packet id | QoS << 16)*
  7 finished in a shared group (group, serial)*    8 received, PUBREC seen, in a shared group (group, serial)*
  9 references that wait for a session, 10 for a shared group: one page, laid out in `backlog`
 11 packet ids that were given (incarnation, serial, packet id)*
 12 stored: a store has what a session waits for, without a gap, in the stream of a generation (incarnation, generation,
    first serial, last serial)*
 13 let go: the journal need not keep what a session waits for, up to a serial number (incarnation, serial)*
 14 placed: the store that a session's queue lies in, by the digest of its name (incarnation, digest)*; without it that of
    its type

kind 4, QUEUE: devices of frames, and their topic queues (`queue_record`).

kind 5, COPY: a message of another shard's journal, laid out as kind 1; at 6 stands the shard that it is from instead of a
packet id, at 16 its offset in that shard's journal instead of an incarnation. Bits 3, 6 and 7 of the flags are 0. It is
routed here and never further; who wants each message once reads kind 1 alone.

kind 6, STREAM: positions of the streams between shards (`stream_record`).

kind 7, GIVEN: a retained message of another shard that one session of this shard was given, laid out as kind 5: it moves
no position and is routed to nobody. A RETAINED_QUEUED event behind it names its offset.

A new kind or subkind raises the journal's format version; a field is never given another meaning. Vectors of every
released form are in `tests/vectors`.
"""

from __future__ import annotations

import struct
from array import array
from typing import Final

from librt.strings import BytesWriter, read_i64_le, write_i32_le, write_i64_le
from mypy_extensions import i64, mypyc_attr

from headrace.errors import CorruptRecord

KIND_NONE: Final = 0
KIND_MESSAGE: Final = 1
KIND_EVENT: Final = 2
KIND_PROGRESS: Final = 3
KIND_QUEUE: Final = 4
KIND_COPY: Final = 5
KIND_STREAM: Final = 6
KIND_GIVEN: Final = 7

# PROGRESS subkinds
ACKED: Final = 1
RECEIVED: Final = 2
RELEASED: Final = 3
SENT_LIMIT: Final = 4
DROPPED: Final = 5
SHARED_DRAWN: Final = 6
SHARED_FINISHED: Final = 7
SHARED_RECEIVED: Final = 8
BACKLOG_PAGE: Final = 9
SHARED_BACKLOG_PAGE: Final = 10
BOUND: Final = 11
STORED: Final = 12
LET_GO: Final = 13
PLACED: Final = 14
PROGRESS_SUBKINDS: Final = 15  # all but the pages are packed together, one record of each a batch

PROGRESS_WIDTH: Final = {
    ACKED: 2,
    RECEIVED: 2,
    RELEASED: 2,
    SENT_LIMIT: 2,
    DROPPED: 4,
    SHARED_DRAWN: 4,
    SHARED_FINISHED: 2,
    SHARED_RECEIVED: 2,
    BOUND: 3,
    STORED: 4,
    LET_GO: 2,
    PLACED: 2,
}

# Packet ids towards subscribers: those that follow from serial numbers, and above them those that records give.
DIRECT_IDS: Final = 49_151
UPPER_ID_FIRST: Final = DIRECT_IDS + 1
UPPER_ID_LAST: Final = 0xFFFE  # the last one is left to what a bridge says of itself
UPPER_IDS: Final = UPPER_ID_LAST - DIRECT_IDS

# Why a message was dropped: counted per session, per tenant and in /metrics, under these names.
DROP_LIMIT: Final = 1
DROP_EXPIRED: Final = 2
DROP_BYTES_LIMIT: Final = 3
DROP_SESSION_ENDED: Final = 4
DROP_REFUSED: Final = 5
DROP_TOO_LARGE: Final = 6
DROP_PERMISSION: Final = 7
DROP_QOS0_AWAY: Final = 8
DROP_QOS0_SLOW: Final = 9
DROP_UNREADABLE: Final = 10
DROP_NOT_ACCEPTED: Final = 11
DROP_RETAINED_LIMIT: Final = 12
DROP_TENANT_BYTES_LIMIT: Final = 13
DROP_REMOVED: Final = 14
DROP_STORE_FORGOT: Final = 15
DROP_REASONS: Final = {
    DROP_LIMIT: "backlog_limit",
    DROP_EXPIRED: "expired",
    DROP_BYTES_LIMIT: "backlog_bytes_limit",
    DROP_SESSION_ENDED: "session_ended",
    DROP_REFUSED: "refused_by_client",
    DROP_TOO_LARGE: "too_large_for_client",
    DROP_PERMISSION: "permission_withdrawn",
    DROP_QOS0_AWAY: "qos0_client_away",
    DROP_QOS0_SLOW: "qos0_client_slow",
    DROP_UNREADABLE: "unreadable",
    DROP_NOT_ACCEPTED: "not_accepted",
    DROP_RETAINED_LIMIT: "retained_limit",
    DROP_TENANT_BYTES_LIMIT: "tenant_backlog_bytes_limit",
    DROP_REMOVED: "removed",
    DROP_STORE_FORGOT: "store_forgot",
}

# QoS 0 to who is not there is tried once, as it should be: no event tells of it.
NORMAL_DROPS: Final = (DROP_QOS0_AWAY, DROP_QOS0_SLOW)

MESSAGE_HEADER: Final = struct.Struct("<IBBHQQIBBHHIH")
SHORT_HEADER: Final = struct.Struct("<IBBHQ")
MESSAGE_HEADER_SIZE: Final = 40
SHORT_HEADER_SIZE: Final = 16
NO_EXPIRY_U32: Final = 0xFFFFFFFF
CARRIED_AT: Final = 38
CARRIED: Final = 1  # in the byte there
LONGEST_EXPIRY: Final = 1 << 40  # in the word of the expiry: the byte `longest`

FLAG_QOS: Final = 0x03
FLAG_RETAIN: Final = 0x04
FLAG_DUP: Final = 0x08
FLAG_V5: Final = 0x10
FLAG_WILL: Final = 0x20
FLAG_PRODUCER: Final = 0x40
FLAG_FRAME: Final = 0x80


@mypyc_attr(acyclic=True)
class Record:
    """The base of all records: what the journal holds one of per offset. `offset` is -1 until `GroupCommit` has
    appended it."""

    def __init__(self, kind: int, timestamp_us: int) -> None:
        self.kind = kind
        self.timestamp_us = timestamp_us
        self.offset: i64 = -1

    def encode_into(self, out: BytesWriter) -> None:
        raise NotImplementedError


class Progress(Record):
    """A PROGRESS record: what became of messages. `packed` is u64 in groups of `PROGRESS_WIDTH[subkind]`."""

    def __init__(self, subkind: int, timestamp_us: int, packed: bytes) -> None:
        super().__init__(KIND_PROGRESS, timestamp_us)
        self.subkind = subkind
        self.packed = packed

    def values(self) -> array[int]:
        values = array("Q")
        values.frombytes(self.packed)
        return values

    def encode_into(self, out: BytesWriter) -> None:
        short_record_into(out, KIND_PROGRESS, self.subkind, self.timestamp_us, self.packed)


def short_record_into(out: BytesWriter, kind: int, subkind: int, timestamp_us: int, rest: bytes) -> None:
    """Append an EVENT or PROGRESS record: its header and `rest`."""
    write_i32_le(out, len(rest) + SHORT_HEADER_SIZE - 4)
    out.append(kind)
    out.append(subkind)
    out.append(0)
    out.append(0)
    write_i64_le(out, timestamp_us)
    out.write(rest)


def record_end(body: bytes, pos: i64) -> i64:
    """Return the position after the record at `pos`. Raises `CorruptRecord` if it would lie outside the body."""
    size: i64 = len(body)
    if pos + 5 > size:
        raise CorruptRecord(f"record header cut off at byte {pos}")
    b0: i64 = body[pos]
    b1: i64 = body[pos + 1]
    b2: i64 = body[pos + 2]
    b3: i64 = body[pos + 3]
    end: i64 = pos + 4 + (b0 | b1 << 8 | b2 << 16 | b3 << 24)
    if end > size:
        raise CorruptRecord(f"record at byte {pos} runs past its batch")
    return end


def record_positions(body: bytes) -> bytes:
    """Return where each record of a batch body begins, as packed little-endian i64. Raises `CorruptRecord` if the
    last one would run past the body."""
    out = BytesWriter()
    size: i64 = len(body)
    pos: i64 = 0
    last: i64 = 0
    while pos + 8 <= size:
        write_i64_le(out, pos)
        last = pos
        pos += 4 + (read_i64_le(body, pos) & 0xFFFFFFFF)
    if pos != size:
        raise CorruptRecord(f"the record at byte {last if pos > size else pos} runs past its batch")
    return out.getvalue()


def decode_progress(body: bytes, pos: i64, end: i64) -> Progress:
    """Return the PROGRESS record at `pos`. Raises CorruptRecord."""
    _, _, subkind, _, timestamp_us = SHORT_HEADER.unpack_from(body, pos)
    packed = body[pos + SHORT_HEADER_SIZE : end]
    if len(packed) % (8 * PROGRESS_WIDTH.get(subkind, 1)):
        raise CorruptRecord(f"progress {subkind} of {len(packed)} bytes")
    return Progress(subkind, timestamp_us, packed)
