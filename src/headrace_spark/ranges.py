"""Offsets as they stand in Spark's checkpoint, and ranges of offsets: how far a micro-batch goes, how tasks share it.

Pure arithmetic; nothing here reads a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Protocol

from headrace_spark.errors import ForeignOffset

# Below this a second task costs more (a process to feed, a file in the table) than it wins.
TASK_RECORDS_MIN: Final = 50_000


@dataclass(frozen=True)
class JournalOffset:
    """A position in one journal: every record below `offset` has been read. Offsets leave with uuid and epoch."""

    uuid: str
    epoch: int
    offset: int

    def as_dict(self, **about: int) -> dict[str, Any]:
        """For Spark, which compares offsets as JSON text: where nothing moved, hand back what Spark gave."""
        return {"uuid": self.uuid, "epoch": self.epoch, "offset": self.offset, **about}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> JournalOffset:
        try:
            return cls(str(given["uuid"]), int(given["epoch"]), int(given["offset"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ForeignOffset(
                f"the checkpoint holds {given!r}, which is no offset of a headrace journal"
            ) from error

    @classmethod
    def from_json(cls, text: str) -> JournalOffset:
        """As Spark's progress reports it."""
        return cls.from_dict(json.loads(text))


class SegmentRange(Protocol):
    """What `JournalReader.segments()` tells of a segment, as far as it is needed here."""

    base_offset: int
    end_offset: int
    bytes: int


def bytes_between(segments: Iterable[SegmentRange], start: int, end: int) -> int:
    """Estimated bytes of the records in [start, end): within a segment, records count as equally long."""
    total = 0
    for segment in segments:
        records = segment.end_offset - segment.base_offset
        shared = min(end, segment.end_offset) - max(start, segment.base_offset)
        if records > 0 and shared > 0:
            total += segment.bytes * shared // records
    return total


def end_within(segments: Iterable[SegmentRange], start: int, end: int, bytes_max: int) -> int:
    """The largest offset up to `end` so that [start, offset) has about `bytes_max` bytes; always at least one record."""
    left = bytes_max
    for segment in segments:
        records = segment.end_offset - segment.base_offset
        first, last = max(start, segment.base_offset), min(end, segment.end_offset)
        if records <= 0 or last <= first:
            continue
        size = segment.bytes * (last - first) // records
        if size > left:
            return max(first + left * records // segment.bytes, start + 1)
        left -= size
    return end


def split(start: int, end: int, parts_max: int, records_min: int = TASK_RECORDS_MIN) -> list[tuple[int, int]]:
    """[start, end) in at most `parts_max` nearly equal ranges, none below `records_min` if there are several."""
    records = end - start
    if records <= 0:
        return []
    parts = max(1, min(parts_max, records // records_min))
    bounds = [start + records * part // parts for part in range(parts + 1)]
    return list(pairwise(bounds))
