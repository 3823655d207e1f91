"""QUEUE records: devices that speak frames, and their topic queues.

A 16-byte header (`record`), then by subkind a MessagePack map with string keys, of which unknown ones are ignored, or
packed u64::

     0 u32 length   4 u8 kind = 4   5 u8 subkind   6 u16 reserved   8 u64 timestamp_us

  1 device owned, a map: t tenant, c client id, u the user whom the device belongs to
  2 queue opened, a map: t tenant, topic, u the user and c the client id of who has begun it; its offset << 16 | 0xFFFF
    is the queue's number
  3 queue closed: queue, (reason, for what some cluster had not finished where this record takes effect)
  4 cluster made, a map: t tenant, topic, name, u and c as above, at the serial number of its first message (0: the
    oldest one, -1: the next one); its offset is the cluster's number
  5 acknowledged: cluster, serial*        6 sent_limit: cluster, limit
  7 trimmed: queue, serial of the oldest message that is kept, (reason, messages that some cluster had not finished)*
  8 dropped: cluster, serial, reason
  9 cluster ended: cluster, (reason, as in 3, where somebody has removed it; else nobody has used it)
 10 queue unused: queue, which ends if it is empty and has no cluster where this record takes effect
 11 queue removed: queue, which ends unless a cluster has something to finish where this record takes effect; 3 says that
    it has, to readers that keep no messages
References of a queue are in pages as those of a shared group (`backlog`).
"""

from __future__ import annotations

from array import array
from typing import Final

import msgspec
from librt.strings import BytesWriter
from mypy_extensions import i64

from headrace.core.records.record import (
    KIND_QUEUE,
    SHORT_HEADER,
    SHORT_HEADER_SIZE,
    Record,
    short_record_into,
)
from headrace.errors import CorruptRecord

DEVICE_OWNED: Final = 1
QUEUE_OPENED: Final = 2
QUEUE_CLOSED: Final = 3
CLUSTER_MADE: Final = 4
CLUSTER_ACKED: Final = 5
CLUSTER_LIMIT: Final = 6
QUEUE_TRIMMED: Final = 7
CLUSTER_DROPPED: Final = 8
CLUSTER_ENDED: Final = 9
QUEUE_UNUSED: Final = 10
QUEUE_REMOVED: Final = 11
QUEUE_NUMBER_SHIFT: Final = 16

_encode_map: Final = msgspec.msgpack.Encoder()
_decode_map: Final = msgspec.msgpack.Decoder()


class QueueRecord(Record):
    """A QUEUE record; `packed` is what stands behind the header."""

    def __init__(self, subkind: int, timestamp_us: int, packed: bytes) -> None:
        super().__init__(KIND_QUEUE, timestamp_us)
        self.subkind = subkind
        self.packed = packed

    def fields(self) -> dict[str, object]:
        """Return the map that the record holds. Raises CorruptRecord."""
        found = _decode_map.decode(self.packed)
        if not isinstance(found, dict):
            raise CorruptRecord(f"queue record {self.subkind} is not a map")
        return found

    def numbers(self) -> array[int]:
        """Return the numbers that the record holds. Raises CorruptRecord."""
        if len(self.packed) % 8:
            raise CorruptRecord(f"queue record {self.subkind} of {len(self.packed)} bytes")
        values = array("Q")
        values.frombytes(self.packed)
        return values

    def encode_into(self, out: BytesWriter) -> None:
        short_record_into(out, KIND_QUEUE, self.subkind, self.timestamp_us, self.packed)


def queue_record(subkind: int, timestamp_us: int, fields: dict[str, object]) -> QueueRecord:
    """Return a record that holds a map."""
    return QueueRecord(subkind, timestamp_us, _encode_map.encode(fields))


def number_record(subkind: int, timestamp_us: int, numbers: list[int]) -> QueueRecord:
    """Return a record that holds numbers."""
    return QueueRecord(subkind, timestamp_us, array("Q", numbers).tobytes())


def queue_number(offset: int) -> int:
    """Return the number of a queue that was opened at an offset: no shared group has it."""
    return offset << QUEUE_NUMBER_SHIFT | 0xFFFF


def decode_queue_record(body: bytes, pos: i64, end: i64) -> QueueRecord:
    """Return the QUEUE record at `pos`."""
    _, _, subkind, _, timestamp_us = SHORT_HEADER.unpack_from(body, pos)
    return QueueRecord(subkind, timestamp_us, body[pos + SHORT_HEADER_SIZE : end])
