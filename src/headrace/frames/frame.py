"""The frame: layout, checksums, opcodes. Integers are big endian::

    version u8 | length u32, of the whole frame | opcode u16 | SN | body | checksum u8

Version 1 is the published one: the SN is one byte, the checksum the XOR of all bytes before it. In version 2 the SN is a
length u8 and so many bytes, and the checksum is CRC-8 (polynomial 0x07, initial value 0, not reflected). A response has
the opcode of its request with the highest bit set. Nothing is given another meaning in a version that was released: what
changes gets a new version number.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i16_be, write_i32_be
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
    """The checksum of the bytes from `start` up to `end`, as this version has it."""
    found: i64 = 0
    if version == VERSION_1:
        for at in range(start, end):
            byte: i64 = data[at]
            found ^= byte
        return found
    for at in range(start, end):
        left: i64 = data[at]
        found = _CRC[found ^ left]
    return found


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
    """One frame. Raises ValueError for an SN that this version has no room for."""
    size: i64 = len(sn)
    if (version == VERSION_1 and size != 1) or size > 0xFF or size == 0:
        raise ValueError(f"an SN of {size} bytes in version {version}")
    length: i64 = FRAME_BYTES_MIN - 1 + size + len(body)
    if version == VERSION_2:
        length += 1
    out = BytesWriter()
    out.append(u8(version))
    u32_into(out, length)
    u16_into(out, opcode)
    if version == VERSION_2:
        out.append(u8(size))
    out.write(sn)
    out.write(body)
    covered = out.getvalue()
    out.append(u8(checksum(version, covered, 0, len(covered))))
    return out.getvalue()
