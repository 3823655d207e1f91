"""Whole batches behind damage, wherever they are: in time that is linear in the bytes, whatever these are.

What lies behind damage may be anything, also what a client put into a payload: the magic of a batch at every few bytes,
each with a length that reaches to the end of the file. So no candidate's body is read for itself. One pass finds the
headers that could be ones, a second one takes the checksum of the file up to where their bodies begin and end, and from
those follows the checksum of each body (`prefix_crc`). Only a batch that passes is read.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from itertools import chain
from struct import Struct
from zlib import crc32

from headrace.journal.disk import Disk
from headrace.journal.prefix_crc import PrefixCrcs
from headrace.journal.segment import BATCH_HEADER_SIZE, BATCH_MAGIC, SPARSE, Batch, unpack_batch

_CHUNK_BYTES = 1 << 20
_CANDIDATES_MAX = 1 << 20  # judged together: 100 MB of memory at the very most
# A header without its checksum, length and count: a version, the two zero bytes, and numbers that are not absurd (offsets
# below 2^48, epochs below 2^31, times before the year 4253).
_LIKELY = re.compile(
    re.escape(BATCH_MAGIC) + rb"(?=.{8}[^\0].\0\0.{6}\0\0.{7}[\0-\x7f].{6}\0\0.{7}\0.{7}\0)", re.DOTALL
)
_HEADER = Struct("<4xIIxB2xQI4xQ16x")
_COVERED_FROM = 8


class _Candidates:
    """The places in a file where a batch header may be, by the order of their positions."""

    def __init__(self, seed: int, size: int, next_offset: int) -> None:
        self._seed = seed
        self._size = size
        self._next_offset = next_offset
        self.positions = array("Q")
        self.ends = array("Q")
        self.wanted = array("L")  # the checksum that the header names
        self.covered = array("L")  # the checksum of the covered part of the header

    def consider(self, data: bytes, at: int, position: int) -> None:
        """Note what begins at `at`, if it is likely to be a batch. What could not have been written is none."""
        crc, length, flags, base, count, durable = _HEADER.unpack_from(data, at)
        end = position + BATCH_HEADER_SIZE + length
        if end > self._size or not count or (count > length and not flags & SPARSE):
            return
        if base < durable or base < self._next_offset:
            return
        self.positions.append(position)
        self.ends.append(end)
        self.wanted.append(crc)
        self.covered.append(crc32(data[at + _COVERED_FROM : at + BATCH_HEADER_SIZE], self._seed))

    def __len__(self) -> int:
        return len(self.positions)

    def whole(self, disk: Disk, fd: int) -> Iterator[tuple[int, int]]:
        """Yield (position, end) of the candidates whose checksum holds and that do not lie within another one."""
        if not self.positions:
            return
        starts = (position + BATCH_HEADER_SIZE for position in self.positions)
        crcs = PrefixCrcs(disk, fd, chain(starts, self.ends))
        reached = 0
        for place, position in enumerate(self.positions):
            end = self.ends[place]
            if position < reached:
                continue
            found = crcs.between(position + BATCH_HEADER_SIZE, end, self.covered[place])
            if found == self.wanted[place]:
                yield position, end
                reached = end


def find_batches(
    disk: Disk, fd: int, seed: int, position: int, next_offset: int = 0
) -> Iterator[tuple[int, Batch]]:
    """Yield whole batches anywhere at or after `position` with offsets from `next_offset` on, by their positions."""
    size = disk.size(fd)
    reached = position
    while position < size:
        candidates = _Candidates(seed, size, next_offset)
        position = _gather(disk, fd, position, candidates)
        for at, end in candidates.whole(disk, fd):
            if at < reached:
                continue
            batch = unpack_batch(disk.read_fully(fd, end - at, at), 0, seed)
            if batch is not None:
                yield at, batch
                reached = end


def _gather(disk: Disk, fd: int, position: int, candidates: _Candidates) -> int:
    """Look for headers from `position` on, until there are many; where to go on."""
    while len(candidates) < _CANDIDATES_MAX:
        data = disk.read_fully(fd, _CHUNK_BYTES, position)
        last = len(data) - BATCH_HEADER_SIZE
        if last < 0:
            return position + _CHUNK_BYTES
        for found in _LIKELY.finditer(data):
            candidates.consider(data, found.start(), position + found.start())
        position += last + 1
    return position
