"""What the home of shared subscriptions and the shard of a member say to each other about them.

M, the member's shard, says it on the wire on which it follows H, the home, and H on the same wire:

    M -> H   Meet, if it has members there
    H -> M   Welcome, if it was said or H has members of M; then Enrolled, Asked, Drawn, Settled
    M -> H   Enrol ..., Enlisted, then Enrol, Present, Absent, Granted, Finished

What a session is subscribed to at H is told whole once on each wire, in as many Enrols as that takes; then each says what
has changed since the one before.
Each of them has the other's epoch in its journal before it says anything else: neither ever again listens to an owner
that was replaced, after a crash neither. A member is its incarnation in M, and each connection of its client a number
that is used once; *granted* counts from the beginning of that connection. A draw is named by group, serial and the packet
id of the member's stand-in at H, which is another one each time that the entry is drawn.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from headrace.core.records.event import SubscriptionRow
from headrace.core.records.message import Message, decode_record
from headrace.core.records.record import KIND_MESSAGE
from headrace.core.shards.peer import Aside, Frame, checked, text
from headrace.errors import CorruptRecord

WELCOME: Final = 48
ENROLLED: Final = 49
DRAWN: Final = 50
SETTLED: Final = 51
ENROL: Final = 52
ENLISTED: Final = 53
PRESENT: Final = 54
ABSENT: Final = 55
GRANTED: Final = 56
FINISHED: Final = 57
ASKED: Final = 58
MEET: Final = 59

# What an Enrol says of the session itself.
LIVES: Final = 0
ENDED: Final = 1
HAS_NOTHING: Final = 2  # it lives, is no member here, and was never sent what was drawn for it
CONTINUES: Final = 3  # it lives, and the next Enrol has more of what it is subscribed to
CHANGED: Final = 4  # it lives, and has subscribed to these, or left them, since the Enrol before

# What became of a draw.
DONE: Final = 0  # acknowledged, refused or dropped: finished
UNSENT: Final = 1  # given back: the client was never sent it, and has no room for it now
NOT_ALLOWED: Final = 2  # given back: the client may not read its topic

_LEFT: Final = 8  # beside the QoS of a row: the session is no member there any more
_ONE: Final = struct.Struct("<BQ")
_TWO: Final = struct.Struct("<BQQ")
_THREE: Final = struct.Struct("<BQQQ")
_ENROL: Final = struct.Struct("<BQQBB")
_ROW: Final = struct.Struct("<BIH")
_PRESENT: Final = struct.Struct("<BQQQBI")
_DRAWN: Final = struct.Struct("<BQQQQHBH")
_FINISHED: Final = struct.Struct("<BQQQQQHB")


class Meet(Aside):
    """M has members of groups at H. Empty."""

    def encode(self) -> bytes:
        return bytes([MEET])


class Welcome(Aside):
    """H has noted M's epoch, and this is its own: u64."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def encode(self) -> bytes:
        return _ONE.pack(WELCOME, self.epoch)


class Enrolled(Aside):
    """What Enrol said under this number is durable at H, and messages are looked for everywhere: u64."""

    def __init__(self, number: int) -> None:
        self.number = number

    def encode(self) -> bytes:
        return _ONE.pack(ENROLLED, self.number)


class Settled(Aside):
    """H has in its journal that this draw at QoS 2 is finished: u64 group, u64 serial."""

    def __init__(self, group: int, serial: int) -> None:
        self.group = group
        self.serial = serial

    def encode(self) -> bytes:
        return _TWO.pack(SETTLED, self.group, self.serial)


class Enrol(Aside):
    """What one session of M is subscribed to at H: u64 number, u64 incarnation, u8 how it is, u8 length of the tenant and
    the tenant, then rows: u8 QoS and 4 for Retain As Published, u32 identifier, u16 length and the filter. A row of
    `left` is one with 8 for its QoS."""

    def __init__(
        self,
        number: int,
        incarnation: int,
        life: int,
        tenant: str,
        rows: list[SubscriptionRow],
        left: list[str] | None = None,
    ) -> None:
        self.number = number
        self.incarnation = incarnation
        self.life = life
        self.tenant = tenant
        self.rows = rows
        self.left: list[str] = [] if left is None else left

    def encode(self) -> bytes:
        tenant = self.tenant.encode("utf-8")
        out = [_ENROL.pack(ENROL, self.number, self.incarnation, self.life, len(tenant)), tenant]
        for row in self.rows:
            name = row.filter.encode("utf-8")
            options = row.qos | (4 if row.retain_as_published else 0)
            out += [_ROW.pack(options, row.subscription_id, len(name)), name]
        for topic_filter in self.left:
            name = topic_filter.encode("utf-8")
            out += [_ROW.pack(_LEFT, 0, len(name)), name]
        return b"".join(out)


class Asked(Aside):
    """M has not told of a session that H knows: what has become of it? u64 incarnation."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation

    def encode(self) -> bytes:
        return _ONE.pack(ASKED, self.incarnation)


class Enlisted(Aside):
    """M has told of all its sessions that have to do with groups at H; H asks about the others. Empty."""

    def encode(self) -> bytes:
        return bytes([ENLISTED])


class Present(Aside):
    """The client of a session is connected: u64 incarnation, u64 connection, u64 granted, u8 version, u32 Maximum Packet
    Size."""

    def __init__(
        self, incarnation: int, connection: int, granted: int, version: int, max_packet_size: int
    ) -> None:
        self.incarnation = incarnation
        self.connection = connection
        self.granted = granted
        self.version = version
        self.max_packet_size = max_packet_size

    def encode(self) -> bytes:
        return _PRESENT.pack(
            PRESENT, self.incarnation, self.connection, self.granted, self.version, self.max_packet_size
        )


class Absent(Aside):
    """The client is connected no more: u64 incarnation, u64 connection."""

    def __init__(self, incarnation: int, connection: int) -> None:
        self.incarnation = incarnation
        self.connection = connection

    def encode(self) -> bytes:
        return _TWO.pack(ABSENT, self.incarnation, self.connection)


class Granted(Aside):
    """So many entries may be lent on this connection in all: u64 incarnation, u64 connection, u64 granted."""

    def __init__(self, incarnation: int, connection: int, granted: int) -> None:
        self.incarnation = incarnation
        self.connection = connection
        self.granted = granted

    def encode(self) -> bytes:
        return _THREE.pack(GRANTED, self.incarnation, self.connection, self.granted)


class Finished(Aside):
    """What became of a draw: u64 incarnation, u64 connection, u64 granted, u64 group, u64 serial, u16 packet id, u8 an
    outcome, and 4 for QoS 2."""

    def __init__(
        self,
        incarnation: int,
        connection: int,
        granted: int,
        group: int,
        serial: int,
        draw: int,
        outcome: int,
        qos: int,
    ) -> None:
        self.incarnation = incarnation
        self.connection = connection
        self.granted = granted
        self.group = group
        self.serial = serial
        self.draw = draw
        self.outcome = outcome
        self.qos = qos

    def encode(self) -> bytes:
        outcome = self.outcome | (4 if self.qos == 2 else 0)
        numbers = (self.incarnation, self.connection, self.granted, self.group, self.serial)
        return _FINISHED.pack(FINISHED, *numbers, self.draw, outcome)


class Drawn(Aside):
    """An entry for a member: u64 incarnation, u64 connection, u64 group, u64 serial, u16 packet id, u8 first byte of its
    PUBLISH, u16 length and the encoded Subscription Identifiers, then a MESSAGE record. At QoS 0 it is of no group. On
    connection 0, which there never is, it asks whether the session has it, and the message is empty."""

    def __init__(
        self,
        incarnation: int,
        connection: int,
        group: int,
        serial: int,
        draw: int,
        first: int,
        ids: bytes,
        message: Message,
    ) -> None:
        self.incarnation = incarnation
        self.connection = connection
        self.group = group
        self.serial = serial
        self.draw = draw
        self.first = first
        self.ids = ids
        self.message = message

    def encode(self) -> bytes:
        out = BytesWriter()
        numbers = (self.incarnation, self.connection, self.group, self.serial)
        out.write(_DRAWN.pack(DRAWN, *numbers, self.draw, self.first, len(self.ids)))
        out.write(self.ids)
        self.message.encode_into(out)
        return out.getvalue()


# From bytes. Each raises CorruptRecord, ValueError, struct.error.


def _decode_empty(data: bytes) -> Frame:
    if len(data) > 1:
        raise CorruptRecord(f"{len(data) - 1} bytes behind a frame of kind {data[0]}")
    return Meet() if data[0] == MEET else Enlisted()


def _decode_one(data: bytes) -> Frame:
    kind, number = _ONE.unpack(data)
    checked(number)
    if kind == ENROLLED:
        return Enrolled(number)
    return Asked(number) if kind == ASKED else Welcome(number)


def _decode_two(data: bytes) -> Frame:
    kind, first, second = _TWO.unpack(data)
    checked(max(first, second))
    return Absent(first, second) if kind == ABSENT else Settled(first, second)


def _decode_granted(data: bytes) -> Frame:
    _, inc, connection, granted = _THREE.unpack(data)
    checked(max(inc, connection, granted))
    return Granted(inc, connection, granted)


def _decode_present(data: bytes) -> Frame:
    _, inc, connection, granted, version, size = _PRESENT.unpack(data)
    checked(max(inc, connection, granted))
    return Present(inc, connection, granted, version, size)


def _decode_finished(data: bytes) -> Frame:
    _, inc, connection, granted, group, serial, draw, outcome = _FINISHED.unpack(data)
    checked(max(inc, connection, granted, group, serial))
    qos = 2 if outcome & 4 else 1
    return Finished(inc, connection, granted, group, serial, draw, outcome & 3, qos)


def _decode_enrol(data: bytes) -> Frame:
    _, number, incarnation, life, tenant_len = _ENROL.unpack_from(data)
    checked(max(number, incarnation))
    at = _ENROL.size + tenant_len
    tenant = text(data, _ENROL.size, tenant_len)
    rows: list[SubscriptionRow] = []
    left: list[str] = []
    while at < len(data):
        options, identifier, length = _ROW.unpack_from(data, at)
        name = text(data, at + _ROW.size, length)
        at += _ROW.size + length
        if options == _LEFT:
            left.append(name)
        else:
            rows.append(SubscriptionRow(name, options & 3, False, options & 4 != 0, 2, identifier))
    return Enrol(number, incarnation, life, tenant, rows, left)


def _decode_drawn(data: bytes) -> Frame:
    _, inc, connection, group, serial, draw, first, ids_len = _DRAWN.unpack_from(data)
    checked(max(inc, connection, group, serial))
    at: i64 = _DRAWN.size
    begin: i64 = at + ids_len
    record, end = decode_record(data, begin)
    if end != len(data) or not isinstance(record, Message) or record.kind != KIND_MESSAGE:
        raise CorruptRecord(f"a frame of kind {DRAWN} with a record of kind {record.kind}")
    return Drawn(inc, connection, group, serial, draw, first, data[at:begin], record)


DECODERS: Final[dict[int, Callable[[bytes], Frame]]] = {
    WELCOME: _decode_one,
    ENROLLED: _decode_one,
    DRAWN: _decode_drawn,
    SETTLED: _decode_two,
    ENROL: _decode_enrol,
    ENLISTED: _decode_empty,
    PRESENT: _decode_present,
    ABSENT: _decode_two,
    GRANTED: _decode_granted,
    FINISHED: _decode_finished,
    ASKED: _decode_one,
    MEET: _decode_empty,
}
