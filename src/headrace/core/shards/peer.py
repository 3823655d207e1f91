"""What two shards say to each other about one stream, byte by byte, and the wire that they say it on.

B follows A. B opens the conversation on a wire of its own, on which what is said arrives in order until it breaks:

    B -> A   Hello, Announced ..., Follow, then Wanted, Unwanted, Granted, Durable, Filled
    A -> B   Started, then Copied, Looked, Passed, Kept; Confirmed

and behind Hello what `group_frames`, `queue_frames` and `retained_frames` tell of, in both directions.

Hello names the epoch of B's owner, which is higher with each owner, and the number of the attempt, higher with each wire
of that owner. A talks on the wire with the newest of both and cuts the others, so that nothing late is ever believed.

A frame is a kind and its fields (`peer_codec`); integers are little endian, names UTF-8::

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
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, Generic, TypeVar, cast

from librt.strings import BytesWriter
from mypy_extensions import i64, mypyc_attr

from headrace.core.records.message import Copy, Message, copy_of, decode_record
from headrace.core.records.record import KIND_COPY, KIND_MESSAGE
from headrace.errors import CorruptRecord

# What a copy or a message at QoS 0 counts as, beside its own bytes: 4 000 small ones are a window of 4 MiB, a few passes
# of the loop for whoever takes them.
OVERHEAD_BYTES: Final = 1024

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

_HELLO: Final = struct.Struct("<BIQQ")
_FOLLOW: Final = struct.Struct("<BQQQQ")
_STARTED: Final = struct.Struct("<BQQ")
_NUMBER: Final = struct.Struct("<BQ")
_FILTER: Final = struct.Struct("<BH")
_USER: Final = struct.Struct("<BH")
_NUMBER_MAX: Final = (1 << 63) - 1


class Frame:
    """One thing that a shard says to another."""

    def encode(self) -> bytes:
        """Return the bytes of the frame, its kind first."""
        raise NotImplementedError


class Aside(Frame):
    """A frame of no stream: it does not wait for what was said on the stream before it."""


F = TypeVar("F", bound=Frame)
C = TypeVar("C")


class Hearing(Generic[C]):
    """What is done with the frames of one direction, each by whoever it concerns; a frame that is not among them means
    nothing there. `C`: what stands for the wire that a frame has come on."""

    def __init__(self) -> None:
        self._doing: dict[type[Frame], Callable[[C, Frame], None]] = {}

    def on(self, kind: type[F], do: Callable[[C, F], None]) -> None:
        """Have `do` called with each frame of a kind."""
        self._doing[kind] = cast(Callable[[C, Frame], None], do)

    def hear(self, source: C, frame: Frame) -> None:
        """Do what is to be done with a frame. Raises what that does."""
        do = self._doing.get(type(frame))
        if do is not None:
            do(source, frame)


class Hello(Frame):
    """Shard `shard` wants to follow; nothing said on its wires of an older owner or attempt counts any more."""

    def __init__(self, shard: int, epoch: int, attempt: int) -> None:
        self.shard = shard
        self.epoch = epoch
        self.attempt = attempt

    def encode(self) -> bytes:
        return _HELLO.pack(HELLO, self.shard, self.epoch, self.attempt)


class Announced(Frame):
    """Some of the filters that B wants, with their tenants: all of them come before Follow."""

    def __init__(self, filters: list[tuple[str, str]]) -> None:
        self.filters = filters

    def encode(self) -> bytes:
        return bytes([ANNOUNCED]) + b"".join([_filter(tenant, name) for tenant, name in self.filters])


class Follow(Frame):
    """Send what is mine from this offset on, as much as `granted` bytes. What is below was given by the owner of A that
    `start` tells of, and by those before it: offset and time of the record that it began with."""

    def __init__(self, offset: i64, granted: i64, start: tuple[int, int] = (0, 0)) -> None:
        self.offset: i64 = offset
        self.granted: i64 = granted
        self.start = start

    def encode(self) -> bytes:
        return _FOLLOW.pack(FOLLOW, self.offset, self.granted, *self.start)


class Started(Frame):
    """What A says from here on is of the owner that began with the record of this offset and time, which is durable."""

    def __init__(self, offset: i64, timestamp_us: i64) -> None:
        self.offset: i64 = offset
        self.timestamp_us: i64 = timestamp_us

    def encode(self) -> bytes:
        return _STARTED.pack(STARTED, self.offset, self.timestamp_us)


class Wanted(Frame):
    """B wants one filter more; to be confirmed by its number."""

    def __init__(self, number: int, tenant: str, topic_filter: str) -> None:
        self.number = number
        self.tenant = tenant
        self.topic_filter = topic_filter

    def encode(self) -> bytes:
        return _NUMBER.pack(WANTED, self.number) + _filter(self.tenant, self.topic_filter)


class Unwanted(Frame):
    """B has wanted a filter for long enough."""

    def __init__(self, tenant: str, topic_filter: str) -> None:
        self.tenant = tenant
        self.topic_filter = topic_filter

    def encode(self) -> bytes:
        return bytes([UNWANTED]) + _filter(self.tenant, self.topic_filter)


class Granted(Frame):
    """So many bytes may be sent, counted from the beginning of the wire."""

    def __init__(self, granted: i64) -> None:
        self.granted: i64 = granted

    def encode(self) -> bytes:
        return _NUMBER.pack(GRANTED, self.granted)


class Filled(Frame):
    """The disk that B writes to is full, or has space."""

    def __init__(self, full: bool) -> None:
        self.full = full

    def encode(self) -> bytes:
        return _NUMBER.pack(FILLED, int(self.full))


class Durable(Frame):
    """Everything of A below this offset that is B's is durable there: A need not keep it for B."""

    def __init__(self, offset: i64) -> None:
        self.offset: i64 = offset

    def encode(self) -> bytes:
        return _NUMBER.pack(DURABLE, self.offset)


class Kept(Frame):
    """A keeps much of its journal, for B too: B writes down how far it has come, and says so when that is durable."""

    def encode(self) -> bytes:
        return bytes([KEPT])


class Copied(Frame):
    """The next message of A's journal that is B's; everything before it was looked at. `begins`: a device has published
    it, so that its topic, which is at home in B, has a queue from there on. `user`: whose the device is, as
    `QueuePort.user_of` has it; "" of a message that begins nothing."""

    def __init__(self, copy: Copy, begins: bool = False, user: str = "") -> None:
        self.copy = copy
        self.begins = begins
        self.user = user

    def encode(self) -> bytes:
        out = BytesWriter()
        if self.user:
            user = self.user.encode("utf-8")
            out.write(_USER.pack(BEGUN_BY, len(user)))
            out.write(user)
        else:
            out.append(BEGUN if self.begins else COPIED)
        self.copy.encode_into(out)
        return out.getvalue()


class Looked(Frame):
    """A has looked at everything below this offset; what was B's has been sent."""

    def __init__(self, offset: i64) -> None:
        self.offset: i64 = offset

    def encode(self) -> bytes:
        return _NUMBER.pack(LOOKED, self.offset)


class Passed(Frame):
    """A message at QoS 0, in its place among the copies."""

    def __init__(self, message: Message) -> None:
        self.message = message

    def encode(self) -> bytes:
        out = BytesWriter()
        out.append(PASSED)
        self.message.encode_into(out)
        return out.getvalue()


class Confirmed(Frame):
    """A looks for what was wanted up to this number, from now on."""

    def __init__(self, number: int) -> None:
        self.number = number

    def encode(self) -> bytes:
        return _NUMBER.pack(CONFIRMED, self.number)


def _filter(tenant: str, topic_filter: str) -> bytes:
    name, path = tenant.encode("utf-8"), topic_filter.encode("utf-8")
    return _FILTER.pack(len(name), len(path)) + name + path


@mypyc_attr(allow_interpreted_subclasses=True)
class Wire:
    """One side of a conversation. Whoever carries it tells the shard what comes (`heard`) and that it broke (`broken`),
    neither of them from within `say` or `cut`. `far`: the shard at its other side, which the near one notes."""

    far: int = -1

    @property
    def full(self) -> bool:
        """Return whether so much waits to leave that what can be said later is. When that has changed, the worker has
        a tick."""
        return False

    def say(self, frame: Frame) -> None:
        """Say something on the wire, behind what was said before. Does nothing once the wire has broken, which it does
        when something cannot be said."""
        raise NotImplementedError

    def say_copied(self, message: Message, source: int) -> None:
        """Say `Copied` of a message that shard `source` has in its journal, as `say` does."""
        self.say(Copied(copy_of(message, source, message.offset)))

    def cut(self) -> None:
        """End the conversation. Nothing that comes on this wire later is looked at."""
        raise NotImplementedError


def weight_of(message: Message) -> i64:
    """Return the bytes that a message counts as on a stream."""
    return OVERHEAD_BYTES + message.size


# From bytes. Each raises CorruptRecord, ValueError, struct.error.


def decode_message(data: bytes) -> Frame:
    """Return the frame Copied, or Passed, of these bytes; one that names no user."""
    kind = data[0]
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


def _is_copied(copy: Copy) -> bool:
    """Return whether a message is one that is copied: at QoS 0 what is retained alone."""
    if copy.kind != KIND_COPY:
        return False
    return copy.qos in (1, 2) or (copy.qos == 0 and copy.retain)


def _decode_begun_by(data: bytes) -> Frame:
    _, size = _USER.unpack_from(data)
    at = _USER.size + size
    found = decode_message(bytes([BEGUN]) + data[at:])
    if size and isinstance(found, Copied):
        return Copied(found.copy, True, data[_USER.size : at].decode("utf-8"))
    raise CorruptRecord("a message that begins a queue, of no user")


def _decode_hello(data: bytes) -> Frame:
    _, shard, epoch, attempt = _HELLO.unpack(data)
    return Hello(shard, checked(epoch), checked(attempt))


def _decode_follow(data: bytes) -> Frame:
    _, offset, granted, start, start_us = _FOLLOW.unpack(data)
    return Follow(checked(offset), checked(granted), (checked(start), checked(start_us)))


def _decode_started(data: bytes) -> Frame:
    _, offset, timestamp_us = _STARTED.unpack(data)
    return Started(checked(offset), checked(timestamp_us))


def _decode_filters(data: bytes) -> Frame:
    kind, at, number = data[0], 1, 0
    if kind == WANTED:
        number, at = checked(_NUMBER.unpack_from(data)[1]), _NUMBER.size
    filters: list[tuple[str, str]] = []
    while at < len(data):
        name_len, path_len = _FILTER.unpack_from(data, at)
        at += _FILTER.size
        end = at + name_len
        filters.append((text(data, at, name_len), text(data, end, path_len)))
        at = end + path_len
    if kind == ANNOUNCED:
        return Announced(filters)
    [(tenant, topic_filter)] = filters
    return Unwanted(tenant, topic_filter) if kind == UNWANTED else Wanted(number, tenant, topic_filter)


def _decode_number(data: bytes) -> Frame:
    kind, number = _NUMBER.unpack(data)
    checked(number)
    if kind == GRANTED:
        return Granted(number)
    if kind == DURABLE:
        return Durable(number)
    if kind == LOOKED:
        return Looked(number)
    if kind == CONFIRMED:
        return Confirmed(number)
    if number <= 1:
        return Filled(number == 1)
    raise CorruptRecord(f"a disk that is {number}")


def _decode_kept(data: bytes) -> Frame:
    if len(data) > 1:
        raise CorruptRecord(f"{len(data) - 1} bytes behind a frame of kind {KEPT}")
    return Kept()


def text(data: bytes, at: int, length: int) -> str:
    """Return the name of so many bytes at `at`. Raises CorruptRecord where they run past the frame."""
    if at + length > len(data):
        raise CorruptRecord(f"a name runs past its frame by {at + length - len(data)} bytes")
    return data[at : at + length].decode("utf-8")


def checked(number: int) -> int:
    """Return the number. Raises ValueError for what no offset, number or time is: it was written as one without a
    sign."""
    if not 0 <= number <= _NUMBER_MAX:
        raise ValueError(f"{number} is no offset, number or time")
    return number


DECODERS: Final[dict[int, Callable[[bytes], Frame]]] = {
    HELLO: _decode_hello,
    ANNOUNCED: _decode_filters,
    FOLLOW: _decode_follow,
    WANTED: _decode_filters,
    UNWANTED: _decode_filters,
    GRANTED: _decode_number,
    DURABLE: _decode_number,
    LOOKED: _decode_number,
    CONFIRMED: _decode_number,
    COPIED: decode_message,
    PASSED: decode_message,
    STARTED: _decode_started,
    BEGUN: decode_message,
    KEPT: _decode_kept,
    FILLED: _decode_number,
    BEGUN_BY: _decode_begun_by,
}
