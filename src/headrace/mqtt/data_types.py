"""The data types of section 1.5: integers, variable byte integers, UTF-8 strings, binary data.

Readers take (buffer, position, end) and return the value; the caller moves its position by the size it knows.
`end` is the end of the packet, or of the property area, and nothing is ever read beyond it: a value that does
not fit is a Malformed Packet.
"""

from __future__ import annotations

import re
from typing import Final

from librt.strings import read_i16_be, read_i64_le
from mypy_extensions import i64

from headrace.errors import MalformedPacket, OddName

VARINT_MAX: Final = 268_435_455
SHOWN_BYTES_MAX: Final = 200  # of a topic in a line of a log
# Section 1.5.4 lets a receiver refuse control characters and code points that Unicode defines as non-
# characters. Names (client id, user name, topics) are refused with them, since they end in logs and paths;
# free text is not.
_NOT_IN_NAMES: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff"
    + "".join(chr(plane << 16 | 0xFFFE) + chr(plane << 16 | 0xFFFF) for plane in range(1, 17))
    + "]"
)
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


def read_u16(buf: bytes, pos: i64, end: i64) -> i64:
    if pos + 2 > end:
        raise MalformedPacket("packet ends inside a two byte integer")
    return i64(read_i16_be(buf, pos)) & 0xFFFF


def read_u32(buf: bytes, pos: i64, end: i64) -> i64:
    if pos + 4 > end:
        raise MalformedPacket("packet ends inside a four byte integer")
    return read_u16(buf, pos, end) << 16 | read_u16(buf, pos + 2, end)


def read_varint(buf: bytes, pos: i64, end: i64) -> i64:
    """Return the value of the variable byte integer at `pos`; its size is `varint_size(value)`, for only the shortest
    is taken."""
    value: i64 = 0
    shift: i64 = 0
    while shift < 28:
        if pos >= end:
            raise MalformedPacket("packet ends inside a variable byte integer")
        byte: i64 = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift > 0:
                raise MalformedPacket("variable byte integer longer than needed")  # [MQTT-1.5.5-1]
            return value
        shift += 7
    raise MalformedPacket("variable byte integer of more than four bytes")


def varint_size(value: i64) -> i64:
    """Return the number of bytes of the shortest encoding."""
    if value < 128:
        return 1
    if value < 16_384:
        return 2
    return 3 if value < 2_097_152 else 4


def varint(value: int) -> bytes:
    """Return the shortest encoding of `value`."""
    if value < 128:
        return bytes((value,))
    if value < 16_384:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 2_097_152:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if value > VARINT_MAX:
        raise ValueError(f"{value} does not fit into a variable byte integer")
    return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21))


def read_binary(buf: bytes, pos: i64, end: i64) -> bytes:
    """Read binary data with a two byte length; it takes 2 + len(result) bytes."""
    start: i64 = pos + 2
    stop: i64 = start + read_u16(buf, pos, end)
    if stop > end:
        raise MalformedPacket("packet ends inside a string or binary value")
    return buf[start:stop]


def stands_at(buf: bytes, pos: i64, wanted: bytes) -> bool:
    """Return whether `wanted` stands at `pos` in `buf`, which is long enough. In place and by words, of which the last
    overlaps the one before: to cut it out and compare is 250 instructions, this 40."""
    at: i64 = 0
    size: i64 = len(wanted)
    last: i64 = size - 8
    if last < 0:
        return _stands_by_byte(buf, pos, wanted)
    while at < last:
        if read_i64_le(buf, pos + at) != read_i64_le(wanted, at):
            return False
        at += 8
    return read_i64_le(buf, pos + last) == read_i64_le(wanted, last)


def _stands_by_byte(buf: bytes, pos: i64, wanted: bytes) -> bool:
    size: i64 = len(wanted)
    at: i64 = 0
    while at < size:
        if buf[pos + at] != wanted[at]:
            return False
        at += 1
    return True


def decode_text(raw: bytes) -> str:
    """Return a UTF-8 string of the wire: well formed, without surrogates and U+0000."""
    try:
        text = raw.decode()  # [MQTT-1.5.4-1]; U+FEFF is kept as it is [MQTT-1.5.4-3]
    except UnicodeDecodeError:
        raise MalformedPacket("ill-formed UTF-8") from None
    if "\0" in text:
        raise MalformedPacket("U+0000 in a string")  # [MQTT-1.5.4-2]
    return text


def decode_name(raw: bytes) -> str:
    """Return a UTF-8 string that names something: additionally without control characters and non-characters."""
    text = decode_text(raw)
    if _NOT_IN_NAMES.search(text) is not None:
        raise OddName("control character or non-character in a name")
    return text


def shown_name(raw: bytes) -> str:
    """Return the bytes of a topic as a log may hold them, whatever they are: quoted, in ASCII, cut if they are long."""
    text = ascii(raw[:SHOWN_BYTES_MAX].decode("utf-8", "backslashreplace"))
    return text if len(raw) <= SHOWN_BYTES_MAX else f"{text}... ({len(raw)} bytes)"


def name_is_clean(text: str) -> bool:
    """Return whether `text` may name a client, a user or a topic."""
    return _NOT_IN_NAMES.search(text) is None and _SURROGATE.search(text) is None


def skip_text(buf: bytes, pos: i64, end: i64) -> i64:
    """Check the UTF-8 string at `pos` and return the position behind it."""
    raw = read_binary(buf, pos, end)
    size: i64 = len(raw)
    if size > 0:
        decode_text(raw)
    return pos + 2 + size


def u16(value: int) -> bytes:
    return value.to_bytes(2, "big")


def u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def binary(raw: bytes) -> bytes:
    """Return binary data with its two byte length in front."""
    size = len(raw)
    if size > 65_535:
        raise ValueError(f"{size} bytes do not fit into a string or binary value")
    return size.to_bytes(2, "big") + raw


def text(value: str) -> bytes:
    return binary(value.encode())
