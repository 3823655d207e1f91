"""Finding a batch in a segment: pairs of (base offset, position), in memory, and thinned out in a file.

`<base offset>.index` is a sequence of 16 byte entries, little endian, one for about every
`index_interval_bytes`:

    0  8  base offset of a batch
    8  4  its position in the segment file
   12  4  crc32 of bytes 0-11, seeded with crc32(uuid of the journal)

It is never synced and never trusted: an entry only says where to start walking, and whoever uses one checks
that the batch it names is there. It is rebuilt from the segment when it is missing or wrong.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from struct import Struct
from zlib import crc32

SUFFIX = ".index"
_PAIR = Struct("<QI")
_ENTRY = Struct("<12sI")


class OffsetIndex:
    """The index of a segment: ascending pairs of base offset and position. Written by one thread while another looks
    up: positions are appended first, and an `array` append is one step under the interpreter lock."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets: array[int] = array("Q")
        self.positions: array[int] = array("Q")

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, offset: int, position: int) -> None:
        """Add an entry; for want of memory it is left out: its batch is found from the one before. Raises MemoryError
        if there is none."""
        try:
            self.positions.append(position)
            self.offsets.append(offset)
        except MemoryError:
            del self.positions[len(self.offsets) :]
            if not self.offsets:
                raise

    def span(self, offset: int, end: int) -> tuple[int, int, int]:
        """Return (base offset, position, end position) of the stretch that holds `offset`; `end` ends the last one.

        Raises IndexError if the offset lies before the first entry.
        """
        i = bisect_right(self.offsets, offset) - 1
        if i < 0:
            raise IndexError(offset)
        following = i + 1
        return (
            self.offsets[i],
            self.positions[i],
            self.positions[following] if following < len(self.offsets) else end,
        )

    def thinned(self, interval_bytes: int) -> OffsetIndex:
        """Return the index with one entry for about every `interval_bytes`."""
        thin = OffsetIndex()
        wanted = 0
        for offset, position in zip(self.offsets, self.positions, strict=True):
            if position >= wanted:
                thin.add(offset, position)
                wanted = position + interval_bytes
        return thin

    def serves(self, base_offset: int, position: int, end_offset: int, size: int, gap_max: int) -> bool:
        """Return whether the index begins with the segment, stays within it and does not end long before it."""
        if not self.offsets:
            return base_offset == end_offset
        begins = self.offsets[0] == base_offset and self.positions[0] == position
        return begins and self.offsets[-1] < end_offset and 0 < size - self.positions[-1] <= gap_max

    def pack(self, seed: int) -> bytes:
        return b"".join(
            pack_entry(offset, position, seed)
            for offset, position in zip(self.offsets, self.positions, strict=True)
        )

    @staticmethod
    def unpack(data: bytes, seed: int) -> OffsetIndex:
        """Return the entries up to the first one that is damaged or does not ascend."""
        index = OffsetIndex()
        last_offset = last_position = -1
        for pair, crc in _ENTRY.iter_unpack(data[: len(data) - len(data) % _ENTRY.size]):
            offset, position = _PAIR.unpack(pair)
            if crc32(pair, seed) != crc or offset <= last_offset or position <= last_position:
                break
            index.add(offset, position)
            last_offset, last_position = offset, position
        return index


def pack_entry(offset: int, position: int, seed: int) -> bytes:
    pair = _PAIR.pack(offset, position)
    return _ENTRY.pack(pair, crc32(pair, seed))
