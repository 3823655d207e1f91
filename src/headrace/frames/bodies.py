"""The bodies of frames, byte by byte: what clients ask and what the server answers.

A string is its length in bytes as u16 and UTF-8; "rest" goes to the end of the body.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i16_be, read_i32_be
from mypy_extensions import i64, mypyc_attr, u8

from headrace.errors import MalformedPacket
from headrace.frames.frame import ID_BYTES, text_into, u16_into, u32_into

PULLED_BYTES_MIN: Final = 30  # of a pulled message: id, flags, SN, time, length


class Pulled:
    """A message that a consumer pulls: `time_ms` is when the broker received it, Unix milliseconds."""

    def __init__(self, message_id: bytes, flags: int, sn: bytes, time_ms: int, payload: bytes) -> None:
        self.message_id = message_id
        self.flags = flags
        self.sn = sn
        self.time_ms = time_ms
        self.payload = payload


@mypyc_attr(acyclic=True)
class Body:
    """Reads a body from its begin to its end. Whatever runs past the end raises MalformedPacket."""

    def __init__(self, data: bytes, pos: i64, end: i64) -> None:
        self._data = data
        self._pos: i64 = pos
        self._end: i64 = end

    def number(self, size: i64) -> i64:
        """Read an unsigned number of so many bytes; of 8, the highest bit is not used."""
        pos = self._take(size)
        if size == 4:
            return i64(read_i32_be(self._data, pos)) & 0xFFFFFFFF
        if size == 2:
            return i64(read_i16_be(self._data, pos)) & 0xFFFF
        found: i64 = 0
        for at in range(pos, pos + size):
            byte: i64 = self._data[at]
            found = found << 8 | byte
        return found

    def raw(self, size: i64) -> bytes:
        """Read so many bytes as they are."""
        pos = self._take(size)
        return self._data[pos : pos + size]

    def text(self, known: bytes = b"") -> bytes:
        """Read a string, as its bytes. Raises MalformedPacket if they are no UTF-8. `known` is a string that was looked
        at before: where it is the same, it is returned, whose hash is known, too."""
        found = self.raw(self.number(2))
        if found == known:
            return known
        try:
            found.decode("utf-8")
        except UnicodeDecodeError:
            raise MalformedPacket("a string that is no UTF-8") from None
        return found

    def rest(self) -> bytes:
        return self.raw(self._end - self._pos)

    def left(self) -> i64:
        """Return how many bytes are left up to the end."""
        return self._end - self._pos

    def finish(self) -> None:
        """Raise MalformedPacket if something is left over."""
        if self._pos != self._end:
            raise MalformedPacket(f"{self._end - self._pos} bytes left over at the end of the frame")

    def _take(self, size: i64) -> i64:
        pos = self._pos
        if size > self._end - pos:
            raise MalformedPacket("a field runs past the end of the frame")
        self._pos = pos + size
        return pos


# What clients ask


def hello_body(user: str, password: bytes) -> bytes:
    out = BytesWriter()
    text_into(out, user.encode("utf-8"))
    text_into(out, password)
    return out.getvalue()


def publish_body(seq: i64, topic: bytes, payload: bytes) -> bytes:
    out = BytesWriter()
    u32_into(out, seq)
    text_into(out, topic)
    out.write(payload)
    return out.getvalue()


def cluster_body(topic: bytes, cluster: bytes) -> bytes:
    """Return the body of JOIN and LEAVE, topic and cluster, with which others begin, too."""
    out = BytesWriter()
    text_into(out, topic)
    text_into(out, cluster)
    return out.getvalue()


def pull_body(topic: bytes, cluster: bytes, most: i64, wait_ms: i64) -> bytes:
    out = BytesWriter()
    out.write(cluster_body(topic, cluster))
    u16_into(out, most)
    u16_into(out, wait_ms)
    return out.getvalue()


def ack_body(topic: bytes, cluster: bytes, ids: list[bytes]) -> bytes:
    out = BytesWriter()
    out.write(cluster_body(topic, cluster))
    u16_into(out, len(ids))
    for message_id in ids:
        out.write(message_id)
    return out.getvalue()


def read_ids(body: Body) -> list[bytes]:
    """Return the ids of an ACK. Their number is compared with the bytes that are there before any id is read."""
    count = body.number(2)
    if count * ID_BYTES != body.left():
        raise MalformedPacket(f"{count} message ids in {body.left()} bytes")
    return [body.raw(ID_BYTES) for _ in range(count)]


# What the server says


def code_body(code: i64) -> bytes:
    out = BytesWriter()
    out.append(u8(code))
    return out.getvalue()


def published_body(seq: i64, code: i64, message_id: bytes) -> bytes:
    out = BytesWriter()
    u32_into(out, seq)
    out.append(u8(code))
    out.write(message_id)
    return out.getvalue()


def notify_body(topic: bytes, cluster: bytes, available: i64) -> bytes:
    out = BytesWriter()
    out.write(cluster_body(topic, cluster))
    u32_into(out, min(available, 0xFFFFFFFF))
    return out.getvalue()


def pulled_body(messages: list[Pulled]) -> bytes:
    out = BytesWriter()
    u16_into(out, len(messages))
    for message in messages:
        out.write(message.message_id)
        out.append(u8(message.flags))
        text_into(out, message.sn)
        out.write(message.time_ms.to_bytes(8, "big"))
        u32_into(out, len(message.payload))
        out.write(message.payload)
    return out.getvalue()


def read_pulled(body: Body) -> list[Pulled]:
    """Return the messages of a response to PULL."""
    count = body.number(2)
    if count * PULLED_BYTES_MIN > body.left():
        raise MalformedPacket(f"{count} messages in {body.left()} bytes")
    found = []
    for _ in range(count):
        message_id = body.raw(ID_BYTES)
        flags = body.number(1)
        sn = body.text()
        time_ms = body.number(8)
        payload = body.raw(body.number(4))
        found.append(Pulled(message_id, int(flags), sn, int(time_ms), payload))
    return found


def error_body(code: i64, reason: str) -> bytes:
    out = BytesWriter()
    out.append(u8(code))
    text_into(out, reason.encode("utf-8"))
    return out.getvalue()
