"""What the home of a topic queue or of an SN and the shard of a connection say to each other, byte by byte.

M, the shard of the connection, says it on the wire on which it follows H, the home, and H on the same wire::

    64 Requested  u64 connection, u8 verb, u16 most, u16 wait_ms, u8 tenant_len, u16 sn_len, u16 topic_len,
                  u16 cluster_len, u16 user_len, u16 client_len, tenant, SN, topic, cluster, user, client id, ids of 16
                  bytes; user and client id are those of JOIN, else empty
    65 Departed   u64 connection              the connection has ended
    66 Arrived    u64 bytes                   so much of what was poured has come, counted from the beginning of the wire
    67 Answered   u64 connection, u8 verb, u8 code
    68 Poured     u64 connection, (16 bytes id, u8 redelivered, MESSAGE record)*       the answer to PULL
    69 Notified   u64 connection, u64 available, u16 sn_len, u16 topic_len, u16 cluster_len, SN, topic, cluster
    70 Refused    u64 connection, u8 code, reason                                      the connection is to end

and about devices, of whose SNs H is the home (`claims`)::

    71 Claimed    u64 number, u8 named, u8 tenant_len, u16 client_len, tenant, client id, user     named: there is a user
    72 Decided    u64 number, u8 code
    73 Told       u8 tenant_len, u16 client_len, tenant, client id, user      what a shard had written of an SN by itself

A connection has a number that M uses once. Answers come in the order of the requests of their verb. Integers are little
endian, names UTF-8. A frame that is none of these is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from headrace.core.ports.voice import Draught
from headrace.core.records.message import Message, decode_record
from headrace.core.records.record import FLAG_QOS, FLAG_V5, KIND_MESSAGE
from headrace.core.shards.peer import Aside, Frame, checked
from headrace.errors import CorruptRecord

REQUESTED: Final = 64
DEPARTED: Final = 65
ARRIVED: Final = 66
ANSWERED: Final = 67
POURED: Final = 68
NOTIFIED: Final = 69
REFUSED: Final = 70
CLAIMED: Final = 71
DECIDED: Final = 72
TOLD: Final = 73

# What a consumer asks for.
JOINS: Final = 1
LEAVES: Final = 2
PULLS: Final = 3
ACKS: Final = 4

ID_BYTES: Final = 16
_KEPT_FLAGS: Final = FLAG_QOS | FLAG_V5
_OVERHEAD_BYTES: Final = 200  # that a message counts as, beside topic and payload
_NUMBER: Final = struct.Struct("<Q")
_REQUESTED: Final = struct.Struct("<QBHHBHHHHH")
_ANSWERED: Final = struct.Struct("<QBB")
_NOTIFIED: Final = struct.Struct("<QQHHH")
_REFUSED: Final = struct.Struct("<QB")
_CLAIMED: Final = struct.Struct("<QBBH")
_TOLD: Final = struct.Struct("<BH")


class QueueFrame(Aside):
    """One thing that is said about topic queues; `connection` is the number of the connection that it is about."""

    def __init__(self, connection: int) -> None:
        self.connection = connection


class Requested(QueueFrame):
    """A consumer asks for something. `most` and `wait_ms` are those of a PULL, `ids` those of an ACK."""

    def __init__(
        self,
        connection: int,
        verb: int,
        tenant: str,
        sn: bytes,
        topic: bytes,
        cluster: bytes,
        most: int = 0,
        wait_ms: int = 0,
        ids: list[bytes] | None = None,
        user: str = "",
        device: str = "",
    ) -> None:
        super().__init__(connection)
        self.user = user
        self.device = device
        self.verb = verb
        self.tenant = tenant
        self.sn = sn
        self.topic = topic
        self.cluster = cluster
        self.most = most
        self.wait_ms = wait_ms
        self.ids: list[bytes] = [] if ids is None else ids

    def encode(self) -> bytes:
        tenant = self.tenant.encode("utf-8")
        names = [
            tenant,
            self.sn,
            self.topic,
            self.cluster,
            self.user.encode("utf-8"),
            self.device.encode("utf-8"),
        ]
        lengths = [len(name) for name in names]
        head = _REQUESTED.pack(self.connection, self.verb, self.most, self.wait_ms, *lengths)
        return b"".join([bytes([REQUESTED]), head, *names, *self.ids])


class Departed(QueueFrame):
    """A connection has ended: what its consumers hold goes to others."""

    def encode(self) -> bytes:
        return bytes([DEPARTED]) + _NUMBER.pack(self.connection)


class Arrived(QueueFrame):
    """So many bytes of messages have come, counted from the beginning of the wire. It is about no connection."""

    def __init__(self, taken: int) -> None:
        super().__init__(0)
        self.taken = taken

    def encode(self) -> bytes:
        return bytes([ARRIVED]) + _NUMBER.pack(self.taken)


class Answered(QueueFrame):
    """The reason code that answers JOIN, LEAVE or ACK."""

    def __init__(self, connection: int, verb: int, code: int) -> None:
        super().__init__(connection)
        self.verb = verb
        self.code = code

    def encode(self) -> bytes:
        return bytes([ANSWERED]) + _ANSWERED.pack(self.connection, self.verb, self.code)


class Poured(QueueFrame):
    """The messages that answer a PULL."""

    def __init__(self, connection: int, messages: list[Draught]) -> None:
        super().__init__(connection)
        self.messages = messages

    def encode(self) -> bytes:
        out = BytesWriter()
        out.append(POURED)
        out.write(_NUMBER.pack(self.connection))
        for one in self.messages:
            out.write(one.message_id)
            out.append(1 if one.redelivered else 0)
            message = one.message
            message.of_nobody(message.topic, int(message.flags & _KEPT_FLAGS)).encode_into(out)
        return out.getvalue()


class Notified(QueueFrame):
    """So many messages wait for a cluster."""

    def __init__(self, connection: int, sn: bytes, topic: bytes, cluster: bytes, available: int) -> None:
        super().__init__(connection)
        self.sn = sn
        self.topic = topic
        self.cluster = cluster
        self.available = available

    def encode(self) -> bytes:
        lengths = (len(self.sn), len(self.topic), len(self.cluster))
        head = _NOTIFIED.pack(self.connection, self.available, *lengths)
        return b"".join([bytes([NOTIFIED]), head, self.sn, self.topic, self.cluster])


class Refused(QueueFrame):
    """The connection asked for what ends it."""

    def __init__(self, connection: int, code: int, reason: str) -> None:
        super().__init__(connection)
        self.code = code
        self.reason = reason

    def encode(self) -> bytes:
        return bytes([REFUSED]) + _REFUSED.pack(self.connection, self.code) + self.reason.encode("utf-8")


class Claimed(QueueFrame):
    """A device wants to speak on a connection of this user, None for nobody in particular. `connection` is the number of
    the question."""

    def __init__(self, number: int, tenant: str, client_id: str, user: str | None) -> None:
        super().__init__(number)
        self.tenant = tenant
        self.client_id = client_id
        self.user = user

    def encode(self) -> bytes:
        tenant, client_id = self.tenant.encode("utf-8"), self.client_id.encode("utf-8")
        head = _CLAIMED.pack(self.connection, self.user is not None, len(tenant), len(client_id))
        return b"".join([bytes([CLAIMED]), head, tenant, client_id, (self.user or "").encode("utf-8")])


class Decided(QueueFrame):
    """The reason code that answers the question of this number: 0 where the device may speak for its user."""

    def __init__(self, number: int, code: int) -> None:
        super().__init__(number)
        self.code = code

    def encode(self) -> bytes:
        return bytes([DECIDED]) + _REFUSED.pack(self.connection, self.code)


class Told(QueueFrame):
    """A shard that is not the home of an SN has written down before whose it is. It is about no connection."""

    def __init__(self, tenant: str, client_id: str, user: str) -> None:
        super().__init__(0)
        self.tenant = tenant
        self.client_id = client_id
        self.user = user

    def encode(self) -> bytes:
        tenant, client_id = self.tenant.encode("utf-8"), self.client_id.encode("utf-8")
        head = bytes([TOLD]) + _TOLD.pack(len(tenant), len(client_id))
        return b"".join([head, tenant, client_id, self.user.encode("utf-8")])


# From bytes. Each raises CorruptRecord, ValueError, struct.error.


def _decode_number(data: bytes) -> Frame:
    number = checked(_NUMBER.unpack(data[1:])[0])
    return Arrived(number) if data[0] == ARRIVED else Departed(number)


def _decode_answered(data: bytes) -> Frame:
    connection, verb, code = _ANSWERED.unpack(data[1:])
    return Answered(checked(connection), _verb(verb), code)


def _decode_refused(data: bytes) -> Frame:
    connection, code = _REFUSED.unpack_from(data, 1)
    return Refused(checked(connection), code, data[1 + _REFUSED.size :].decode("utf-8"))


def _verb(verb: int) -> int:
    if not JOINS <= verb <= ACKS:
        raise ValueError(f"a request of kind {verb}")
    return verb


def _parts(data: bytes, at: int, lengths: list[int]) -> tuple[list[bytes], int]:
    """Return strings of these lengths, and where the last one ends. Raises CorruptRecord."""
    found: list[bytes] = []
    for length in lengths:
        found.append(data[at : at + length])
        at += length
    if at > len(data):
        raise CorruptRecord(f"names run past their frame by {at - len(data)} bytes")
    return found, at


def _decode_decided(data: bytes) -> Frame:
    number, code = _REFUSED.unpack(data[1:])
    return Decided(checked(number), code)


def _decode_told(data: bytes) -> Frame:
    parts, at = _parts(data, 1 + _TOLD.size, list(_TOLD.unpack_from(data, 1)))
    return Told(parts[0].decode("utf-8"), parts[1].decode("utf-8"), data[at:].decode("utf-8"))


def _decode_claimed(data: bytes) -> Frame:
    number, named, *lengths = _CLAIMED.unpack_from(data, 1)
    parts, at = _parts(data, 1 + _CLAIMED.size, lengths)
    if named > 1 or (len(data) > at and not named):
        raise CorruptRecord(f"a user of {len(data) - at} bytes in a claim of {named}")
    user = data[at:].decode("utf-8") if named else None
    return Claimed(checked(number), parts[0].decode("utf-8"), parts[1].decode("utf-8"), user)


def _decode_requested(data: bytes) -> Frame:
    connection, verb, most, wait_ms, *lengths = _REQUESTED.unpack_from(data, 1)
    parts, at = _parts(data, 1 + _REQUESTED.size, lengths)
    if (len(data) - at) % ID_BYTES or (len(data) > at and verb != ACKS):
        raise CorruptRecord(f"{len(data) - at} bytes of ids behind a request of kind {verb}")
    ids = [data[start : start + ID_BYTES] for start in range(at, len(data), ID_BYTES)]
    tenant = parts[0].decode("utf-8")
    number = checked(connection)
    user, device = parts[4].decode("utf-8"), parts[5].decode("utf-8")
    names = (parts[1], parts[2], parts[3])
    return Requested(number, _verb(verb), tenant, *names, most, wait_ms, ids, user, device)


def _decode_notified(data: bytes) -> Frame:
    connection, available, *lengths = _NOTIFIED.unpack_from(data, 1)
    parts, at = _parts(data, 1 + _NOTIFIED.size, lengths)
    if at != len(data):
        raise CorruptRecord(f"{len(data) - at} bytes behind the names of a frame")
    return Notified(checked(connection), parts[0], parts[1], parts[2], checked(available))


def _decode_poured(data: bytes) -> Frame:
    connection = checked(_NUMBER.unpack_from(data, 1)[0])
    at: i64 = 1 + _NUMBER.size
    messages: list[Draught] = []
    while at < len(data):
        begin: i64 = at + ID_BYTES + 1
        record, end = decode_record(data, begin)
        flag = data[begin - 1]
        if flag > 1 or not isinstance(record, Message) or record.kind != KIND_MESSAGE:
            raise CorruptRecord(f"a frame of kind {POURED} with a record of kind {record.kind}")
        messages.append(Draught(data[at : at + ID_BYTES], flag == 1, record))
        at = end
    return Poured(connection, messages)


DECODERS: Final[dict[int, Callable[[bytes], Frame]]] = {
    REQUESTED: _decode_requested,
    DEPARTED: _decode_number,
    ARRIVED: _decode_number,
    ANSWERED: _decode_answered,
    POURED: _decode_poured,
    NOTIFIED: _decode_notified,
    REFUSED: _decode_refused,
    CLAIMED: _decode_claimed,
    DECIDED: _decode_decided,
    TOLD: _decode_told,
}


def weight_of_all(messages: list[Draught]) -> i64:
    """Return the bytes that the answer to a PULL counts as on its wire."""
    weight: i64 = 0
    for one in messages:
        weight += len(one.message.payload) + len(one.message.topic) + _OVERHEAD_BYTES
    return weight
