"""The CRC-32 of any stretch of a file after a single pass over it.

A CRC is linear: with P(n) that of the first n bytes, crc32(bytes i up to j, h) = (h ^ P(i)) * x^(8 (j - i)) ^ P(j), where
the product is that of polynomials over GF(2) modulo the one of CRC-32, bits reflected as zlib has them. So each stretch
costs two products and not its length (zlib's `crc32_combine`, which Python does not offer).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from zlib import crc32

from headrace.journal.disk import Disk

_POLYNOMIAL = 0xEDB8_8320
_ONE = 1 << 31
_LOW = 1 << 16
_CHUNK_BYTES = 1 << 20


def product(a: int, b: int) -> int:
    """Return the product of two polynomials."""
    found = 0
    bit = _ONE
    while a:
        if a & bit:
            found ^= b
            a ^= bit
        bit >>= 1
        b = b >> 1 ^ _POLYNOMIAL if b & 1 else b >> 1
    return found


class _Powers:
    """The powers x^(8 n) for n below 2^32, by two tables: of the lower 16 bits of n, and of the upper ones as far as
    needed."""

    def __init__(self) -> None:
        self._low = array("L", [_ONE])
        self._high = array("L", [_ONE])

    def __call__(self, length: int) -> int:
        if len(self._low) == 1:
            self._fill()
        upper = length >> 16
        while upper >= len(self._high):
            self._high.append(product(self._high[-1], self._high[1]))
        low = self._low[length & (_LOW - 1)]
        return product(self._high[upper], low) if upper else low

    def _fill(self) -> None:
        power = _ONE
        for _ in range(_LOW):
            for _ in range(8):
                power = power >> 1 ^ _POLYNOMIAL if power & 1 else power >> 1
            self._low.append(power)
        self._high.append(self._low.pop())


_power = _Powers()


class PrefixCrcs:
    """The values of P at some positions of a file; the first n bytes are those from the first of them on."""

    def __init__(self, disk: Disk, fd: int, positions: Iterable[int]) -> None:
        """Read from the first position up to the last, once."""
        self._positions = array("Q", sorted(set(positions)))
        self._crcs = array("L")
        crc, at, data, data_at = 0, 0, b"", 0
        for position in self._positions:
            at = at or position
            while at < position:
                if at - data_at >= len(data):
                    data, data_at = disk.read_fully(fd, _CHUNK_BYTES, at), at
                    if not data:
                        return  # the file is shorter than it was
                piece = memoryview(data)[at - data_at : position - data_at]
                crc = crc32(piece, crc)
                at += len(piece)
            self._crcs.append(crc)

    def between(self, start: int, end: int, before: int) -> int:
        """Return the CRC of the bytes from `start` up to `end`, both of the positions, behind what has the CRC
        `before`; -1 if the file no longer reaches so far."""
        first, last = bisect_left(self._positions, start), bisect_left(self._positions, end)
        if last >= len(self._crcs):
            return -1
        return product(_power(end - start), before ^ self._crcs[first]) ^ self._crcs[last]
