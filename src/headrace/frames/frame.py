"""The frame: layout, checksums, opcodes. Integers are big endian::

    version u8 | length u32, of the whole frame | opcode u16 | SN | body | checksum u8

Version 1 is the published one: the SN is one byte, the checksum the XOR of all bytes before it. In version 2 the SN is a
length u8 and so many bytes, and the checksum is CRC-8 (polynomial 0x07, initial value 0, not reflected). A response has
the opcode of its request with the highest bit set. Nothing is given another meaning in a version that was released: what
changes gets a new version number.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i64_be, write_i16_be, write_i32_be
from mypy_extensions import i16, i32, i64, u8

VERSION_1: Final = 1
VERSION_2: Final = 2

HELLO: Final = 0x0001
PUBLISH: Final = 0x0002
JOIN: Final = 0x0003
LEAVE: Final = 0x0004
NOTIFY: Final = 0x0005
PULL: Final = 0x0006
ACK: Final = 0x0007
PING: Final = 0x0008
RESPONSE: Final = 0x8000
ERROR: Final = 0x80FF

NAMES: Final = {
    HELLO: "HELLO",
    PUBLISH: "PUBLISH",
    JOIN: "JOIN",
    LEAVE: "LEAVE",
    NOTIFY: "NOTIFY",
    PULL: "PULL",
    ACK: "ACK",
    PING: "PING",
    ERROR: "ERROR",
}

HEADER_BYTES: Final = 7  # in front of the SN
FRAME_BYTES_MIN: Final = 9  # header, the shortest SN, checksum
ID_BYTES: Final = 16
NO_ID: Final = bytes(16)  # of a message that was refused
REDELIVERED: Final = 1  # flag of a pulled message


def _crc_table() -> bytes:
    table = bytearray()
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc << 1) ^ 0x07 if crc & 0x80 else crc << 1
            crc &= 0xFF
        table.append(crc)
    return bytes(table)


_CRC: Final = _crc_table()


def checksum(version: i64, data: bytes, start: i64, end: i64) -> i64:
    """Return the checksum of the bytes from `start` up to `end`, as this version has it."""
    return _xor(data, start, end) if version == VERSION_1 else _crc8(data, start, end)


def _xor(data: bytes, start: i64, end: i64) -> i64:
    found: i64 = 0
    for at in range(start, end):
        byte: i64 = data[at]
        found ^= byte
    return found


def _crc8(data: bytes, start: i64, end: i64) -> i64:
    """Return the CRC-8, computed eight bytes at a time. The bytes are a polynomial over GF(2); `rest` is less than x^40
    and congruent to those before `at`. Modulo x^8 + x^2 + x + 1, and so modulo its squares, x^16 is x^4 + x^2 + 1, x^32
    is x^8 + x^4 + 1 and x^64 is x^16 + x^8 + 1: to take a word in, or to get rid of high bits, takes a few shifts."""
    rest: i64 = 0
    at: i64 = start
    while end - at & 7:
        byte: i64 = data[at]
        rest = rest << 8 | byte
        at += 1
    rest = _below_40(rest)
    while at < end:
        rest = _below_40(rest << 16 ^ rest << 8 ^ rest ^ read_i64_be(data, at))
        at += 8
    high: i64 = rest >> 16
    rest = rest & 0xFFFF ^ high ^ high << 2 ^ high << 4  # 28 bits
    high = rest >> 16
    rest = rest & 0xFFFF ^ high ^ high << 2 ^ high << 4  # 16 bits
    first: i64 = _CRC[rest >> 8]
    last: i64 = _CRC[first ^ rest & 0xFF]
    return last


def _below_40(bits: i64) -> i64:
    """Return 40 bits that are congruent to these 64."""
    high: i64 = bits >> 32 & 0xFFFFFFFF
    return bits & 0xFFFFFFFF ^ high ^ high << 4 ^ high << 8


def u16_into(out: BytesWriter, value: i64) -> None:
    write_i16_be(out, i16(value - 0x10000 if value > 0x7FFF else value))


def u32_into(out: BytesWriter, value: i64) -> None:
    write_i32_be(out, i32(value - 0x100000000 if value > 0x7FFFFFFF else value))


def text_into(out: BytesWriter, text: bytes) -> None:
    """Append a string: its length in bytes as u16, then UTF-8. Raises ValueError if it is too long."""
    if len(text) > 0xFFFF:
        raise ValueError(f"a string of {len(text)} bytes")
    u16_into(out, len(text))
    out.write(text)


def encode_frame(version: i64, opcode: i64, sn: bytes, body: bytes) -> bytes:
    """Return one frame. Raises ValueError for an SN that this version has no room for."""
    out = BytesWriter()
    frame_into(out, version, opcode, sn, body)
    return out.getvalue()


def frame_into(out: BytesWriter, version: i64, opcode: i64, sn: bytes, body: bytes) -> None:
    """Append one frame. Raises ValueError, and appends nothing, for an SN that this version has no room for."""
    size: i64 = len(sn)
    if (version == VERSION_1 and size != 1) or size > 0xFF or size == 0:
        raise ValueError(f"an SN of {size} bytes in version {version}")
    length: i64 = FRAME_BYTES_MIN - 1 + size + len(body)
    if version == VERSION_2:
        length += 1
    frame = BytesWriter()
    frame.append(u8(version))
    u32_into(frame, length)
    u16_into(frame, opcode)
    if version == VERSION_2:
        frame.append(u8(size))
    frame.write(sn)
    frame.write(body)
    covered = frame.getvalue()
    out.write(covered)
    out.append(u8(checksum(version, covered, 0, len(covered))))
