"""What shards say to each other about retained messages, beside their streams (`peer`), byte by byte.

B asks A on the wire on which it follows A, one page at a time. A number names what B asks, as long as the wire lasts::

    32 Asked     u64 number, u8 part, positions, u8 tenant_len, tenant, (u8 QoS, u16 filter_len, filter)*
    33 More      u64 number, positions                                    the next page of it
    34 Forgotten u64 number                                               no more of it
    35 Sought                                                             say how far you have looked (`Looked`)
    36 Answered  u64 number, u8 last, (u32 index of the filter, COPY record)*

An answer without messages that is not the last one: the rest waits for a shard that is away, ask later.
positions are u16 count, (u32 shard, u64 offset)*: of the journals of all shards but A, how far A has to have taken them
before it answers. Integers are little endian, names UTF-8. A frame that is none of these is refused.
"""

from __future__ import annotations

import struct
from typing import Final

from librt.strings import BytesWriter

from headrace.core.records.message import Copy, decode_record
from headrace.core.records.record import KIND_COPY
from headrace.core.shards.peer import Frame
from headrace.errors import CorruptRecord

ASKED: Final = 32
MORE: Final = 33
FORGOTTEN: Final = 34
SOUGHT: Final = 35
ANSWERED: Final = 36

# What of the messages is asked for, by the QoS at which a subscription gets them.
ALL: Final = 0
STORED: Final = 1  # QoS 1 and 2
LIVE: Final = 2  # QoS 0

_NUMBER: Final = struct.Struct("<Q")
_COUNT: Final = struct.Struct("<H")
_POSITION: Final = struct.Struct("<IQ")
_ROW: Final = struct.Struct("<BH")
_INDEX: Final = struct.Struct("<I")
_NUMBER_MAX: Final = (1 << 63) - 1


class RetainedFrame(Frame):
    """A frame about retained messages."""

    def __init__(self, number: int) -> None:
        self.number = number


class Asked(RetainedFrame):
    """B wants a page of what A retains for these filters, each with the QoS of its subscription."""

    def __init__(
        self,
        number: int,
        part: int,
        positions: list[tuple[int, int]],
        tenant: str,
        rows: list[tuple[int, str]],
    ) -> None:
        super().__init__(number)
        self.part = part
        self.positions = positions
        self.tenant = tenant
        self.rows = rows


class More(RetainedFrame):
    """B wants the next page."""

    def __init__(self, number: int, positions: list[tuple[int, int]]) -> None:
        super().__init__(number)
        self.positions = positions


class Forgotten(RetainedFrame):
    """B wants no more of it."""


class Sought(RetainedFrame):
    """A has to know how far the other side has looked; of number 0."""


class Answered(RetainedFrame):
    """A page: messages with the index of the filter that they match. `last`: nothing follows."""

    def __init__(self, number: int, last: bool, entries: list[tuple[int, Copy]]) -> None:
        super().__init__(number)
        self.last = last
        self.entries = entries


def encode_retained(frame: RetainedFrame) -> bytes:
    """Return the bytes of a frame."""
    number = _NUMBER.pack(frame.number)
    if isinstance(frame, Answered):
        return _encode_answered(frame, number)
    if isinstance(frame, Asked):
        tenant = frame.tenant.encode("utf-8")
        head = bytes([ASKED]) + number + bytes([frame.part]) + _positions(frame.positions)
        return head + bytes([len(tenant)]) + tenant + b"".join([_row(qos, name) for qos, name in frame.rows])
    if isinstance(frame, More):
        return bytes([MORE]) + number + _positions(frame.positions)
    if isinstance(frame, Forgotten):
        return bytes([FORGOTTEN]) + number
    return bytes([SOUGHT])


def _encode_answered(frame: Answered, number: bytes) -> bytes:
    out = BytesWriter()
    out.append(ANSWERED)
    out.write(number)
    out.append(1 if frame.last else 0)
    for index, copy in frame.entries:
        out.write(_INDEX.pack(index))
        copy.encode_into(out)
    return out.getvalue()


def _positions(positions: list[tuple[int, int]]) -> bytes:
    return _COUNT.pack(len(positions)) + b"".join(
        [_POSITION.pack(shard, offset) for shard, offset in positions]
    )


def _row(qos: int, topic_filter: str) -> bytes:
    name = topic_filter.encode("utf-8")
    return _ROW.pack(qos, len(name)) + name


def is_about_retained(kind: int) -> bool:
    """Return whether frames of this kind are among those of this file."""
    return ASKED <= kind <= ANSWERED


def decode_retained(data: bytes) -> RetainedFrame:
    """Return the frame of these bytes. Raises CorruptRecord, or what `struct` and UTF-8 raise."""
    kind = data[0]
    if kind == SOUGHT:
        if len(data) > 1:
            raise CorruptRecord(f"{len(data) - 1} bytes behind a frame of kind {kind}")
        return Sought(0)
    number = _checked(_NUMBER.unpack_from(data, 1)[0])
    if kind == ANSWERED:
        return _decode_answered(data, number)
    if kind == FORGOTTEN:
        _end(data, 1 + _NUMBER.size)
        return Forgotten(number)
    if kind == MORE:
        positions, at = _decode_positions(data, 1 + _NUMBER.size)
        _end(data, at)
        return More(number, positions)
    return _decode_asked(data, number)


def _end(data: bytes, at: int) -> None:
    if at != len(data):
        raise CorruptRecord(f"a frame of kind {data[0]} of {len(data)} bytes, not of {at}")


def _checked(number: int) -> int:
    if not 0 <= number <= _NUMBER_MAX:
        raise CorruptRecord(f"{number} is no offset, number or time")
    return number


def _decode_positions(data: bytes, at: int) -> tuple[list[tuple[int, int]], int]:
    """Return the positions at `at`, and where they end."""
    (count,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    positions: list[tuple[int, int]] = []
    for _ in range(count):
        shard, offset = _POSITION.unpack_from(data, at)
        positions.append((shard, _checked(offset)))
        at += _POSITION.size
    return positions, at


def _text(data: bytes, at: int, length: int) -> str:
    if at + length > len(data):
        raise CorruptRecord(f"a name runs past its frame by {at + length - len(data)} bytes")
    return data[at : at + length].decode("utf-8")


def _decode_asked(data: bytes, number: int) -> Asked:
    at = 1 + _NUMBER.size
    part = _byte(data, at)
    positions, at = _decode_positions(data, at + 1)
    tenant_len = _byte(data, at)
    tenant = _text(data, at + 1, tenant_len)
    at += 1 + tenant_len
    rows: list[tuple[int, str]] = []
    while at < len(data):
        qos, length = _ROW.unpack_from(data, at)
        at += _ROW.size
        rows.append((qos, _text(data, at, length)))
        at += length
    if part > LIVE or any(qos > 2 for qos, _ in rows):
        raise CorruptRecord(f"part {part} of retained messages, or a QoS above 2")
    return Asked(number, part, positions, tenant, rows)


def _byte(data: bytes, at: int) -> int:
    if at >= len(data):
        raise CorruptRecord(f"a frame of kind {data[0]} that ends after {len(data)} bytes")
    return data[at]


def _decode_answered(data: bytes, number: int) -> Answered:
    at = 1 + _NUMBER.size
    last = _byte(data, at) != 0
    at += 1
    entries: list[tuple[int, Copy]] = []
    while at < len(data):
        (index,) = _INDEX.unpack_from(data, at)
        record, at = decode_record(data, at + _INDEX.size)
        if not isinstance(record, Copy) or record.kind != KIND_COPY or not record.retain:
            raise CorruptRecord(f"an answer with a record of kind {record.kind}")
        _checked(record.timestamp_us)
        _checked(record.source_offset)
        entries.append((index, record))
    return Answered(number, last, entries)
