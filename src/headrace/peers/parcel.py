"""What goes with a connection to the worker where its client is at home: where it came in, who it is, what it has sent.

Integers are little endian::

     0 8 bytes magic   8 u16 format   10 u8 flags   11 u8 reserved
    12 u16 bytes of the listener's URL, u16 of the source, u16 of the certificate's name, u16 reserved
    20 u32 bytes that the client has sent
    24 u64 when its CONNECT came, in milliseconds of the monotonic clock, which all processes of a machine have in common;
           0: it speaks frames
    32 the listener's URL, the source, the name and what was sent, one after the other, text in UTF-8

Flag 1: there is a name, or none was wanted; without it the client's certificate has none. On a socket for descriptors a
parcel goes in datagrams of DATAGRAM_BYTES, the first with the descriptor; for a relay, the head opens a channel. Another
format is refused: all workers of a node are of one headrace. Pure: no I/O.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from headrace.errors import HeadraceError

FORMAT: Final = 2  # 1: without the time of CONNECT
MAGIC: Final = b"HRHAND\r\n"
DATAGRAM_BYTES: Final = 32 << 10
# A CONNECT of the largest size, and what was read behind it: a share of a pass, and a read of the loop's transports.
SENT_BYTES_MAX: Final = 1 << 20
TEXT_BYTES_MAX: Final = 4 << 10  # of each of the three
_NAMED: Final = 1
_HEAD: Final = struct.Struct("<8sHBBHHHHIQ")


class BadParcel(HeadraceError):
    """What came is no parcel of this format, or longer than one may be."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A connection on its way. `listener` is the URL of the listener that accepted it, `source` the address of the
    client, `name` that of its certificate as the listener takes it (`Link.certificate_name`), `sent` the bytes that
    nobody has parsed: CONNECT and what follows it. `came_ms`: when that came, in milliseconds of the monotonic clock."""

    listener: str
    source: str
    name: str | None
    sent: bytes
    came_ms: int = 0

    def encode(self) -> bytes:
        """Return the whole parcel. Raises BadParcel if something is too long."""
        texts = [text.encode() for text in (self.listener, self.source, self.name or "")]
        if max(map(len, texts)) > TEXT_BYTES_MAX or len(self.sent) > SENT_BYTES_MAX:
            raise BadParcel(
                f"{len(self.sent)} bytes that a client sent at once, {SENT_BYTES_MAX} can be passed"
            )
        flags = 0 if self.name is None else _NAMED
        head = _HEAD.pack(MAGIC, FORMAT, flags, 0, *map(len, texts), 0, len(self.sent), self.came_ms)
        return b"".join((head, *texts, self.sent))

    def datagrams(self) -> list[bytes]:
        """Return the parcel cut for the socket. Raises BadParcel."""
        whole = self.encode()
        return [whole[at : at + DATAGRAM_BYTES] for at in range(0, len(whole), DATAGRAM_BYTES)]


class Assembly:
    """One parcel that is put together again from its datagrams."""

    def __init__(self, first: bytes) -> None:
        """Begin with the first one. Raises BadParcel: its length is known, and within bounds, from here on."""
        self._lengths, self._named, self._came_ms = _read_head(first)
        self._missing = _HEAD.size + sum(self._lengths)
        self._parts: list[bytes] = []
        self.add(first)

    @property
    def whole(self) -> bool:
        return self._missing == 0

    def add(self, part: bytes) -> None:
        """Take the next datagram. Raises BadParcel if that is more than belongs to the parcel."""
        self._missing -= len(part)
        if self._missing < 0 or not part:
            raise BadParcel(f"{-self._missing} bytes behind the end of a parcel")
        self._parts.append(part)

    def parcel(self) -> Parcel:
        """Return what was sent, once it is whole. Raises BadParcel."""
        data = b"".join(self._parts)
        at, found = _HEAD.size, []
        for length in self._lengths:
            found.append(data[at : at + length])
            at += length
        try:
            listener, source, name = (text.decode() for text in found[:3])
        except UnicodeDecodeError as error:
            raise BadParcel(str(error)) from None
        return Parcel(listener, source, name if self._named else None, found[3], self._came_ms)


def _read_head(first: bytes) -> tuple[tuple[int, ...], bool, int]:
    """Return the four lengths, whether there is a name, and when CONNECT came. Raises BadParcel."""
    if len(first) < _HEAD.size or not first.startswith(MAGIC):
        raise BadParcel(f"{len(first)} bytes that begin no parcel")
    _, level, flags, _, listener, source, name, _, sent, came_ms = _HEAD.unpack_from(first)
    if level != FORMAT:
        raise BadParcel(f"a parcel of format {level}, this headrace has format {FORMAT}")
    if max(listener, source, name) > TEXT_BYTES_MAX or sent > SENT_BYTES_MAX:
        raise BadParcel(f"a parcel of {listener + source + name + sent} bytes")
    return (listener, source, name, sent), bool(flags & _NAMED), came_ms


def decode(data: bytes) -> Parcel:
    """Return the parcel that these bytes are. Raises BadParcel."""
    assembly = Assembly(data)
    if not assembly.whole:
        raise BadParcel("a parcel that is cut off")
    return assembly.parcel()
