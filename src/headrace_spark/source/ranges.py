"""Offsets as they stand in Spark's checkpoint, and ranges of offsets: how far a micro-batch goes, how tasks share it.

Pure arithmetic; nothing here reads a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Protocol

from headrace.journal.selective import TimeRange
from headrace_spark.base.errors import ForeignOffset

# Below this a second task costs more (a process to feed, a file in the table) than it wins.
TASK_RECORDS_MIN: Final = 50_000


@dataclass(frozen=True)
class JournalOffset:
    """A position in one journal: every record below `offset` has been read. Offsets leave with uuid and epoch.

    `time_us`: of the record before `offset`, where it is known: a journal that has another one there is an older copy
    that was put back and has grown since. An older headrace neither writes nor looks at it.
    """

    uuid: str
    epoch: int
    offset: int
    time_us: int | None = field(default=None, compare=False)

    def as_dict(self, **about: int) -> dict[str, Any]:
        """Return the offset for Spark, which compares offsets as JSON text: where nothing moved, hand back what Spark
        gave."""
        timed = {} if self.time_us is None else {"time_us": self.time_us}
        return {"uuid": self.uuid, "epoch": self.epoch, "offset": self.offset, **timed, **about}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> JournalOffset:
        try:
            time_us = given.get("time_us")
            return cls(
                str(given["uuid"]),
                int(given["epoch"]),
                int(given["offset"]),
                None if time_us is None else int(time_us),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ForeignOffset(
                f"the checkpoint holds {given!r}, which is no offset of a headrace journal"
            ) from error

    @classmethod
    def from_json(cls, text: str) -> JournalOffset:
        """Read an offset as Spark's progress reports it."""
        return cls.from_dict(json.loads(text))


@dataclass(frozen=True)
class StreamOffset:
    """What a checkpoint holds: a position in each journal of the query, by uuid.

    One journal stands as it is; several as {"journals": [...]}. `begun` says where a journal began that joined the
    query later, so that a repeated batch begins with it in the same place.
    """

    positions: Mapping[str, JournalOffset]
    begun: Mapping[str, int] = field(default_factory=dict)

    def as_dict(self, **about: int) -> dict[str, Any]:
        entries = [
            position.as_dict(**({"begun": self.begun[uuid]} if uuid in self.begun else {}))
            for uuid, position in self.positions.items()
        ]
        if len(entries) == 1:
            return {**entries[0], **about}
        return {"journals": entries, **about}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> StreamOffset:
        entries = given.get("journals", [given])
        positions = [JournalOffset.from_dict(entry) for entry in entries]
        begun = {str(entry["uuid"]): int(entry["begun"]) for entry in entries if "begun" in entry}
        return cls({position.uuid: position for position in positions}, begun)


def shares(wanted: Sequence[int], limit: int) -> list[int]:
    """Return `limit` shared out in proportion to what each one wants; whoever wants anything gets at least 1."""
    total = sum(wanted)
    return [min(want, max(1, limit * want // total)) if want else 0 for want in wanted]


class SegmentRange(Protocol):
    """What `JournalReader.segments()` tells of a segment, as far as it is needed here."""

    base_offset: int
    end_offset: int
    bytes: int
    min_ts: int
    max_ts: int


def bytes_between(segments: Iterable[SegmentRange], start: int, end: int) -> int:
    """Return the estimated bytes of the records in [start, end): within a segment, records count as equally long."""
    total = 0
    for segment in segments:
        records = segment.end_offset - segment.base_offset
        shared = min(end, segment.end_offset) - max(start, segment.base_offset)
        if records > 0 and shared > 0:
            total += segment.bytes * shared // records
    return total


def end_within(segments: Iterable[SegmentRange], start: int, end: int, bytes_max: int) -> int:
    """Return the largest offset up to `end` so that [start, offset) has about `bytes_max` bytes; always at least one
    record."""
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


def overlapping(
    segments: Iterable[SegmentRange], start: int, end: int, times: TimeRange
) -> list[tuple[int, int]]:
    """Return the parts of [start, end) in segments that may have records of that time; neighbours are joined."""
    runs: list[tuple[int, int]] = []
    for segment in segments:
        first, last = max(start, segment.base_offset), min(end, segment.end_offset)
        if first >= last or not times.overlaps(segment.min_ts, segment.max_ts):
            continue
        if runs and runs[-1][1] == first:
            first = runs.pop()[0]
        runs.append((first, last))
    return runs


def split_at(bases: Iterable[int], start: int, end: int, parts_max: int) -> list[tuple[int, int]]:
    """Return [start, end) in at most `parts_max` ranges that meet where segments begin, as equal as that allows."""
    inner = [base for base in bases if start < base < end]
    even = [start + (end - start) * part // parts_max for part in range(1, parts_max)]
    cuts = sorted({min(inner, key=lambda base: abs(base - cut)) for cut in even}) if inner else []
    return list(pairwise([start, *cuts, end]))


def split(start: int, end: int, parts_max: int, records_min: int = TASK_RECORDS_MIN) -> list[tuple[int, int]]:
    """Return [start, end) in at most `parts_max` nearly equal ranges, none below `records_min` if there are several."""
    records = end - start
    if records <= 0:
        return []
    parts = max(1, min(parts_max, records // records_min))
    bounds = [start + records * part // parts for part in range(parts + 1)]
    return list(pairwise(bounds))
