"""The records of a few journal batches side by side: where each begins, of what kind it is, which offset it has.

Walking over the lengths is the one thing that is done record by record, compiled where headrace is. Runs on Spark's
Python workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headrace.core.records.record import record_positions
from headrace.errors import CorruptRecord
from headrace.journal.segment import Batch
from headrace.journal.selective import TimeRange

# Large enough that the cost per chunk vanishes, small enough that a task holds a few megabytes.
CHUNK_BYTES_MAX: Final = 8 << 20
CHUNK_RECORDS_MAX: Final = 20_000

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_KIND_AT: Final = 4
_TIMESTAMP_AT: Final = 8


@dataclass(frozen=True)
class Chunk:
    """Records of one journal: record i begins at `at[i]` of `body`."""

    uuid: str
    body: bytes
    at: Integers
    offsets: Integers
    epochs: Integers

    @classmethod
    def of(cls, batches: Sequence[Batch], uuid: str, start: int, end: int) -> Chunk:
        """Return the records with start <= offset < end of batches that follow each other. Raises CorruptRecord."""
        body = batches[0].body if len(batches) == 1 else b"".join([batch.body for batch in batches])
        at = np.frombuffer(record_positions(body), "<i8")
        offsets = np.concatenate([np.arange(b.base_offset, b.base_offset + b.count) for b in batches])
        if len(at) != len(offsets):
            raise CorruptRecord(
                f"offset {batches[0].base_offset}: {len(at)} records where headers say {len(offsets)}"
            )
        epochs = np.repeat([b.epoch for b in batches], [b.count for b in batches])
        return cls(uuid, body, at, offsets, epochs).only((offsets >= start) & (offsets < end))

    def only(self, wanted: Mask) -> Chunk:
        """Return the records that the mask names."""
        if wanted.all():
            return self
        return replace(self, at=self.at[wanted], offsets=self.offsets[wanted], epochs=self.epochs[wanted])

    @cached_property
    def bytes(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self.body, np.uint8)

    @cached_property
    def kinds(self) -> npt.NDArray[np.uint8]:
        return self.bytes[self.at + _KIND_AT]

    def windows(self, kind: str, shift: int) -> npt.NDArray[Any]:
        """Return the value of that kind `shift` bytes into each record; the caller has seen that the last one is whole.

        One gather over all positions of the body, which overlap, and cost nothing as they are.
        """
        size = np.dtype(kind).itemsize
        places = max(0, len(self.body) - shift - size + 1)
        return np.ndarray((places,), kind, self.body, shift, (1,))[self.at]

    @property
    def lengths(self) -> Integers:
        """Return the number of bytes of each record, its length word included."""
        return self.windows("<u4", 0).astype(np.int64) + 4

    @cached_property
    def timestamps_us(self) -> Integers:
        """Return the times of all kinds of records: they have it in the same place."""
        if len(self.at) and self.at[-1] + _TIMESTAMP_AT + 8 > len(self.body):
            raise CorruptRecord(f"the record at offset {self.offsets[-1]} is shorter than its header")
        return self.windows("<i8", _TIMESTAMP_AT)

    def between(self, times: TimeRange) -> Chunk:
        """Return the records of that time."""
        stamps = self.timestamps_us
        return self.only((stamps >= times.since_us) & (stamps < times.until_us))


def chunks(batches: Iterable[Batch], uuid: str, start: int, end: int) -> Iterator[Chunk]:
    """Yield small batches together, so that the work per chunk pays."""
    for group in grouped(batches):
        yield Chunk.of(group, uuid, start, end)


def grouped(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """Yield batches that follow each other, as many as make a chunk."""
    group: list[Batch] = []
    size = records = 0
    for batch in batches:
        if group and (size + len(batch.body) > CHUNK_BYTES_MAX or records + batch.count > CHUNK_RECORDS_MAX):
            yield group
            group, size, records = [], 0, 0
        group.append(batch)
        size += len(batch.body)
        records += batch.count
    if group:
        yield group
