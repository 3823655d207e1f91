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
from collections.abc import Callable
from typing import Final

from librt.strings import BytesWriter

from headrace.core.records.message import Copy, decode_record
from headrace.core.records.record import KIND_COPY
from headrace.core.shards.peer import Frame, checked, text
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

_NUMBER: Final = struct.Struct("<BQ")
_COUNT: Final = struct.Struct("<H")
_POSITION: Final = struct.Struct("<IQ")
_ROW: Final = struct.Struct("<BH")
_INDEX: Final = struct.Struct("<I")


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

    def encode(self) -> bytes:
        tenant = self.tenant.encode("utf-8")
        head = _NUMBER.pack(ASKED, self.number) + bytes([self.part]) + _positions(self.positions)
        return head + bytes([len(tenant)]) + tenant + b"".join([_row(qos, name) for qos, name in self.rows])


class More(RetainedFrame):
    """B wants the next page."""

    def __init__(self, number: int, positions: list[tuple[int, int]]) -> None:
        super().__init__(number)
        self.positions = positions

    def encode(self) -> bytes:
        return _NUMBER.pack(MORE, self.number) + _positions(self.positions)


class Forgotten(RetainedFrame):
    """B wants no more of it."""

    def encode(self) -> bytes:
        return _NUMBER.pack(FORGOTTEN, self.number)


class Sought(Frame):
    """A has to know how far the other side has looked."""

    def encode(self) -> bytes:
        return bytes([SOUGHT])


class Answered(RetainedFrame):
    """A page: messages with the index of the filter that they match. `last`: nothing follows."""

    def __init__(self, number: int, last: bool, entries: list[tuple[int, Copy]]) -> None:
        super().__init__(number)
        self.last = last
        self.entries = entries

    def encode(self) -> bytes:
        out = BytesWriter()
        out.write(_NUMBER.pack(ANSWERED, self.number))
        out.append(1 if self.last else 0)
        for index, copy in self.entries:
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


# From bytes. Each raises CorruptRecord, ValueError, struct.error.


def _decode_sought(data: bytes) -> Frame:
    _end(data, 1)
    return Sought()


def _decode_forgotten(data: bytes) -> Frame:
    _, number = _NUMBER.unpack(data)
    return Forgotten(checked(number))


def _decode_more(data: bytes) -> Frame:
    _, number = _NUMBER.unpack_from(data)
    positions, at = _decode_positions(data, _NUMBER.size)
    _end(data, at)
    return More(checked(number), positions)


def _end(data: bytes, at: int) -> None:
    if at != len(data):
        raise CorruptRecord(f"a frame of kind {data[0]} of {len(data)} bytes, not of {at}")


def _decode_positions(data: bytes, at: int) -> tuple[list[tuple[int, int]], int]:
    """Return the positions at `at`, and where they end."""
    (count,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    positions: list[tuple[int, int]] = []
    for _ in range(count):
        shard, offset = _POSITION.unpack_from(data, at)
        positions.append((shard, checked(offset)))
        at += _POSITION.size
    return positions, at


def _decode_asked(data: bytes) -> Frame:
    _, number = _NUMBER.unpack_from(data)
    at = _NUMBER.size
    part = _byte(data, at)
    positions, at = _decode_positions(data, at + 1)
    tenant_len = _byte(data, at)
    tenant = text(data, at + 1, tenant_len)
    at += 1 + tenant_len
    rows: list[tuple[int, str]] = []
    while at < len(data):
        qos, length = _ROW.unpack_from(data, at)
        at += _ROW.size
        rows.append((qos, text(data, at, length)))
        at += length
    if part > LIVE or any(qos > 2 for qos, _ in rows):
        raise CorruptRecord(f"part {part} of retained messages, or a QoS above 2")
    return Asked(checked(number), part, positions, tenant, rows)


def _byte(data: bytes, at: int) -> int:
    if at >= len(data):
        raise CorruptRecord(f"a frame of kind {data[0]} that ends after {len(data)} bytes")
    return data[at]


def _decode_answered(data: bytes) -> Frame:
    _, number = _NUMBER.unpack_from(data)
    at = _NUMBER.size
    last = _byte(data, at) != 0
    at += 1
    entries: list[tuple[int, Copy]] = []
    while at < len(data):
        (index,) = _INDEX.unpack_from(data, at)
        record, at = decode_record(data, at + _INDEX.size)
        if not isinstance(record, Copy) or record.kind != KIND_COPY or not record.retain:
            raise CorruptRecord(f"an answer with a record of kind {record.kind}")
        checked(record.timestamp_us)
        checked(record.source_offset)
        entries.append((index, record))
    return Answered(checked(number), last, entries)


DECODERS: Final[dict[int, Callable[[bytes], Frame]]] = {
    ASKED: _decode_asked,
    MORE: _decode_more,
    FORGOTTEN: _decode_forgotten,
    SOUGHT: _decode_sought,
    ANSWERED: _decode_answered,
}
