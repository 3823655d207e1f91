"""The parse loop both sides share: a byte stream in, one call for each whole frame out.

However the stream is cut: several frames in one piece, a frame in many. A length is compared with its bounds as soon as
its four bytes are there, before anything is stored for it.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from headrace.errors import MalformedPacket, PacketTooLarge, ProtocolError
from headrace.frames.bodies import Body
from headrace.frames.frame import FRAME_BYTES_MIN, HEADER_BYTES, VERSION_1, VERSION_2, checksum
from headrace.stream import CLOSED, PARTIAL, ByteStream

_LENGTH_KNOWN: Final = 5  # bytes of a frame from which on its length is known


class FrameStream(ByteStream):
    """Base of `ServerFrames` and `ClientFrames`. `version` is that of the first frame, which all others must have;
    `sn` the serial number of the last one."""

    def __init__(self, frame_bytes_max: int) -> None:
        super().__init__()
        self.frame_bytes_max: i64 = frame_bytes_max
        self.sn = b""

    def _parse(self, data: bytes) -> None:
        pos: i64 = 0
        size: i64 = len(data)
        self._left = self.packets_at_once
        while pos < size:
            self._admit(data[pos])
            if size - pos < _LENGTH_KNOWN:
                self._keep(data, pos, _LENGTH_KNOWN - (size - pos))
                return
            end = pos + self._length(data, pos)
            if end > size:
                self._keep(data, pos, end - size)
                return
            self._whole(data, pos, end)
            if self.state == CLOSED:
                if self.leaving:
                    self.unparsed = data[pos:]
                return
            pos = end
            self._left -= 1
            if self._held or self._left <= 0:
                self._interrupt(data, pos)
                return

    def _admit(self, version: i64) -> None:
        if version != VERSION_1 and version != VERSION_2:
            raise ProtocolError(0x84, f"frames of version {version}")
        if self.version != 0 and version != self.version:
            raise ProtocolError(0x84, f"a frame of version {version} behind those of version {self.version}")

    def _length(self, data: bytes, pos: i64) -> i64:
        b1: i64 = data[pos + 1]
        b2: i64 = data[pos + 2]
        b3: i64 = data[pos + 3]
        b4: i64 = data[pos + 4]
        length: i64 = b1 << 24 | b2 << 16 | b3 << 8 | b4
        if length < FRAME_BYTES_MIN:
            raise MalformedPacket(f"a frame of {length} bytes")
        if length > self.frame_bytes_max:
            raise PacketTooLarge(length, self.frame_bytes_max)
        return length

    def _keep(self, data: bytes, pos: i64, missing: i64) -> None:
        if pos == 0:
            self.outcome = PARTIAL
        self._rest = bytearray(data[pos:])
        self._missing = missing

    def _whole(self, data: bytes, pos: i64, end: i64) -> None:
        """Take the frame from `pos` to `end`: its checksum, its SN, its body."""
        version: i64 = data[pos]
        sent: i64 = data[end - 1]
        if checksum(version, data, pos, end - 1) != sent:
            raise MalformedPacket("wrong checksum")
        high: i64 = data[pos + 5]
        low: i64 = data[pos + 6]
        at: i64 = pos + HEADER_BYTES
        size: i64 = 1
        if version == VERSION_2:
            size = data[at]
            at += 1
        if size == 0:
            raise ProtocolError(0x85, "an empty SN")
        if at + size > end - 1:
            raise MalformedPacket("the SN runs past the end of the frame")
        self.version = version
        self.sn = data[at : at + size]
        self._frame(high << 8 | low, Body(data, at + size, end - 1))

    def _frame(self, opcode: i64, body: Body) -> None:
        """Handle a frame. May raise ProtocolError."""
        raise NotImplementedError
