"""The records of a few journal batches side by side: where each begins, of what kind it is, which offset it has.

Walking over the lengths is the one thing that is done record by record. Runs on Spark's Python workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.errors import CorruptRecord
from headrace.journal.segment import Batch

# Large enough that the cost per chunk vanishes, small enough that a task holds a few megabytes.
CHUNK_BYTES_MAX: Final = 8 << 20
CHUNK_RECORDS_MAX: Final = 20_000

Integers = npt.NDArray[np.int64]

_LENGTH: Final = Struct("<I")
_KIND_AT: Final = 4


class Chunk:
    """The records with start <= offset < end of batches that follow each other."""

    def __init__(self, batches: Sequence[Batch], uuid: str, start: int, end: int) -> None:
        self.uuid = uuid
        self.body = batches[0].body if len(batches) == 1 else b"".join([batch.body for batch in batches])
        self.bytes = np.frombuffer(self.body, np.uint8)
        at = _record_positions(self.body)
        offsets = np.concatenate([np.arange(b.base_offset, b.base_offset + b.count) for b in batches])
        if len(at) != len(offsets):
            raise CorruptRecord(
                f"offset {batches[0].base_offset}: {len(at)} records where headers say {len(offsets)}"
            )
        wanted = (offsets >= start) & (offsets < end)
        self.at: Integers = at[wanted]
        self.offsets: Integers = offsets[wanted]
        self.epochs: Integers = np.repeat([b.epoch for b in batches], [b.count for b in batches])[wanted]
        self.kinds: npt.NDArray[np.uint8] = self.bytes[self.at + _KIND_AT]


def chunks(batches: Iterable[Batch], uuid: str, start: int, end: int) -> Iterator[Chunk]:
    """Small batches grouped, so that the work per chunk pays."""
    group: list[Batch] = []
    size = records = 0
    for batch in batches:
        if group and (size + len(batch.body) > CHUNK_BYTES_MAX or records + batch.count > CHUNK_RECORDS_MAX):
            yield Chunk(group, uuid, start, end)
            group, size, records = [], 0, 0
        group.append(batch)
        size += len(batch.body)
        records += batch.count
    if group:
        yield Chunk(group, uuid, start, end)


def _record_positions(body: bytes) -> Integers:
    size, unpack = len(body), _LENGTH.unpack_from
    positions = []
    pos = 0
    while pos < size:
        positions.append(pos)
        pos += 4 + unpack(body, pos)[0]
    if pos != size:
        raise CorruptRecord(f"the record at byte {positions[-1]} runs past its batch")
    return np.array(positions, np.int64)
