"""What shards say to each other (`peer`), byte by byte.

One frame is a kind and its fields; whoever carries it says where it ends. Integers are little endian, names UTF-8::

     1 Hello      u32 shard, u64 epoch, u64 attempt
     2 Announced  (filter)*            a filter: u8 tenant_len, u16 filter_len, tenant, filter
     3 Follow     u64 offset, u64 granted, u64 offset and u64 time of a start
     4 Wanted     u64 number, filter   5 Unwanted  filter
     6 Granted    u64                  7 Durable   u64      8 Looked  u64      9 Confirmed  u64
    10 Copied     a COPY record        11 Passed   a MESSAGE record at QoS 0 (`record`)
    12 Started    u64 offset, u64 time
    13 Copied     a COPY record of what a device has published: its topic has a queue from there on
    14 Kept                           15 Filled    u64, 1 or 0
    16 Copied     as 13, of the device of a user: u16 user_len, user, a COPY record
    32 to 36      what is asked and answered about retained messages (`retained_frames`)
    48 to 59      what is said about shared subscriptions (`group_frames`)
    64 to 73      what is said about topic queues (`queue_frames`)

A frame that is none of these, or whose fields do not fill it, is refused: the connection is of no use any more.
"""

from __future__ import annotations

import struct
from typing import Final

from librt.strings import BytesWriter

from headrace.core.records.message import Copy, Message, decode_record
from headrace.core.records.record import KIND_COPY, KIND_MESSAGE
from headrace.core.shards.group_frames import FIRST_KIND, LAST_KIND, GroupFrame, decode_group_frame
from headrace.core.shards.peer import (
    Announced,
    Confirmed,
    Copied,
    Durable,
    Filled,
    Follow,
    Frame,
    Granted,
    Hello,
    Kept,
    Looked,
    Passed,
    Started,
    Unwanted,
    Wanted,
)
from headrace.core.shards.queue_frames import (
    FIRST_QUEUE_KIND,
    LAST_QUEUE_KIND,
    QueueFrame,
    decode_queue_frame,
)
from headrace.core.shards.retained_frames import (
    RetainedFrame,
    decode_retained,
    encode_retained,
    is_about_retained,
)
from headrace.errors import CorruptRecord

HELLO: Final = 1
ANNOUNCED: Final = 2
FOLLOW: Final = 3
WANTED: Final = 4
UNWANTED: Final = 5
GRANTED: Final = 6
DURABLE: Final = 7
LOOKED: Final = 8
CONFIRMED: Final = 9
COPIED: Final = 10
PASSED: Final = 11
STARTED: Final = 12
BEGUN: Final = 13
KEPT: Final = 14
FILLED: Final = 15
BEGUN_BY: Final = 16

_HELLO: Final = struct.Struct("<IQQ")
_PAIR: Final = struct.Struct("<QQ")
_FOLLOW: Final = struct.Struct("<QQQQ")
_NUMBER: Final = struct.Struct("<Q")
_FILTER: Final = struct.Struct("<BH")
_USER: Final = struct.Struct("<H")
_NUMBER_MAX: Final = (1 << 63) - 1


def encode(frame: Frame) -> bytes:
    """Return the bytes of a frame."""
    if isinstance(frame, Copied):
        return _copied(frame)
    if isinstance(frame, Passed):
        return _record(PASSED, frame.message)
    if isinstance(frame, Hello):
        return _kind(HELLO) + _HELLO.pack(frame.shard, frame.epoch, frame.attempt)
    if isinstance(frame, Announced):
        return _kind(ANNOUNCED) + b"".join([_filter(tenant, name) for tenant, name in frame.filters])
    if isinstance(frame, Follow):
        return _kind(FOLLOW) + _FOLLOW.pack(frame.offset, frame.granted, *frame.start)
    if isinstance(frame, Wanted):
        return _kind(WANTED) + _NUMBER.pack(frame.number) + _filter(frame.tenant, frame.topic_filter)
    if isinstance(frame, Unwanted):
        return _kind(UNWANTED) + _filter(frame.tenant, frame.topic_filter)
    if isinstance(frame, RetainedFrame):
        return encode_retained(frame)
    if isinstance(frame, GroupFrame):
        return _kind(frame.kind()) + frame.fields()
    if isinstance(frame, Started):
        return _kind(STARTED) + _PAIR.pack(frame.offset, frame.timestamp_us)
    if isinstance(frame, QueueFrame):
        return frame.encode()
    return _encode_number(frame)


def _encode_number(frame: Frame) -> bytes:
    if isinstance(frame, Granted):
        return _kind(GRANTED) + _NUMBER.pack(frame.granted)
    if isinstance(frame, Durable):
        return _kind(DURABLE) + _NUMBER.pack(frame.offset)
    if isinstance(frame, Looked):
        return _kind(LOOKED) + _NUMBER.pack(frame.offset)
    if isinstance(frame, Confirmed):
        return _kind(CONFIRMED) + _NUMBER.pack(frame.number)
    if isinstance(frame, Filled):
        return _kind(FILLED) + _NUMBER.pack(int(frame.full))
    if isinstance(frame, Kept):
        return _kind(KEPT)
    raise TypeError(f"{type(frame).__name__} is no frame of a stream")


def _kind(kind: int) -> bytes:
    return bytes([kind])


def _filter(tenant: str, topic_filter: str) -> bytes:
    name, path = tenant.encode("utf-8"), topic_filter.encode("utf-8")
    return _FILTER.pack(len(name), len(path)) + name + path


def _copied(frame: Copied) -> bytes:
    if not frame.user:
        return _record(BEGUN if frame.begins else COPIED, frame.copy)
    user = frame.user.encode("utf-8")
    return _kind(BEGUN_BY) + _USER.pack(len(user)) + user + _record(BEGUN, frame.copy)[1:]


def _record(kind: int, message: Message) -> bytes:
    out = BytesWriter()
    out.append(kind)
    message.encode_into(out)
    return out.getvalue()


def decode(data: bytes) -> Frame:
    """Return the frame of these bytes. Raises CorruptRecord."""
    kind = data[0] if len(data) else 0
    try:
        if kind == COPIED or kind in (PASSED, BEGUN):
            return _decode_message(data, kind)
        if kind == BEGUN_BY:
            return _decode_begun_by(data)
        if FIRST_KIND <= kind <= LAST_KIND:
            return decode_group_frame(data)
        if FIRST_QUEUE_KIND <= kind <= LAST_QUEUE_KIND:
            return decode_queue_frame(data)
        if is_about_retained(kind):
            return decode_retained(data)
        if kind == HELLO:
            shard, epoch, attempt = _HELLO.unpack(data[1:])
            return Hello(shard, _checked(epoch), _checked(attempt))
        if kind == FOLLOW:
            offset, granted, start, start_us = _FOLLOW.unpack(data[1:])
            return Follow(_checked(offset), _checked(granted), (_checked(start), _checked(start_us)))
        if kind == STARTED:
            offset, timestamp_us = _PAIR.unpack(data[1:])
            return Started(_checked(offset), _checked(timestamp_us))
        if kind in (ANNOUNCED, WANTED, UNWANTED):
            return _decode_filters(data, kind)
        return _decode_number(data, kind)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise CorruptRecord(f"a frame of kind {kind} and {len(data)} bytes: {error}") from error


def _checked(number: int) -> int:
    """Return the number. Raises ValueError for what no offset is: it was written as one without a sign."""
    if not 0 <= number <= _NUMBER_MAX:
        raise ValueError(f"{number} is no offset")
    return number


def _decode_message(data: bytes, kind: int) -> Frame:
    record, end = decode_record(data, 1)
    if end != len(data):
        raise CorruptRecord(f"{len(data) - end} bytes behind a record")
    if isinstance(record, Message) and (record.timestamp_us < 0 or record.incarnation < 0):
        raise ValueError("a time or an offset below 0")
    if kind != PASSED and isinstance(record, Copy) and _is_copied(record):
        return Copied(record, kind == BEGUN)
    if kind == PASSED and isinstance(record, Message) and record.kind == KIND_MESSAGE and record.qos == 0:
        return Passed(record)
    raise CorruptRecord(f"a frame of kind {kind} with a record of kind {record.kind}")


def _decode_begun_by(data: bytes) -> Frame:
    (size,) = _USER.unpack(data[1:3])
    found = _decode_message(bytes([BEGUN]) + data[3 + size :], BEGUN)
    if size and isinstance(found, Copied):
        return Copied(found.copy, True, data[3 : 3 + size].decode("utf-8"))
    raise CorruptRecord("a message that begins a queue, of no user")


def _is_copied(copy: Copy) -> bool:
    """Return whether a message is one that is copied: at QoS 0 what is retained alone."""
    if copy.kind != KIND_COPY:
        return False
    return copy.qos in (1, 2) or (copy.qos == 0 and copy.retain)


def _decode_filters(data: bytes, kind: int) -> Frame:
    at = 1
    number = 0
    if kind == WANTED:
        number = _checked(_NUMBER.unpack_from(data, at)[0])
        at += _NUMBER.size
    filters: list[tuple[str, str]] = []
    while at < len(data):
        name_len, path_len = _FILTER.unpack_from(data, at)
        at += _FILTER.size
        end = at + name_len + path_len
        if end > len(data):
            raise CorruptRecord(f"a filter runs past its frame by {end - len(data)} bytes")
        filters.append((data[at : at + name_len].decode("utf-8"), data[at + name_len : end].decode("utf-8")))
        at = end
    if kind == ANNOUNCED:
        return Announced(filters)
    [(tenant, topic_filter)] = filters
    return Unwanted(tenant, topic_filter) if kind == UNWANTED else Wanted(number, tenant, topic_filter)


def _decode_number(data: bytes, kind: int) -> Frame:
    if kind == KEPT and len(data) == 1:
        return Kept()
    number = _checked(_NUMBER.unpack(data[1:])[0])
    if kind == GRANTED:
        return Granted(number)
    if kind == DURABLE:
        return Durable(number)
    if kind == LOOKED:
        return Looked(number)
    if kind == CONFIRMED:
        return Confirmed(number)
    if kind == FILLED and number <= 1:
        return Filled(number == 1)
    raise CorruptRecord(f"a frame of unknown kind {kind}")
