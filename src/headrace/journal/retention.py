"""Which segments may go: whole ones, oldest first, never the last.

A segment goes when the log is over its size or the segment over its age, unless somebody still needs it:

- the broker itself, from its floor on (newest snapshot, oldest reference of a session): always respected;
- a registered consumer, from its position on: respected within limits of its own, and warned of before they
  are reached (decision 19).

On a full disk what nobody needs goes before it is over any limit. Age is not the time of day's word for it (`ages`).
Deciding is pure; `SegmentedLog.apply_retention` does what is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.journal.catalog import Segment
from headrace.journal.consumers import ConsumerPosition

WARN_AT_PERCENT = 80
IS_FULL = "the disk is full, and nobody needs it"
Age = Callable[[Segment], int]


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """The limits of retention. `consumer_*`: how much, and how old, the log may be because of a registered consumer."""

    bytes_max: int
    age_s_max: int
    consumer_bytes_max: int
    consumer_age_s_max: int


@dataclass(frozen=True, slots=True)
class Drop:
    segment: Segment
    reason: str

    def __str__(self) -> str:
        segment = self.segment
        offsets = f"offsets {segment.base_offset} up to {segment.end_offset}"
        return f"dropped {segment.path.name} ({offsets}, {segment.size} bytes): {self.reason}"


def plan(
    segments: Sequence[Segment],
    limits: RetentionLimits,
    floor: int,
    consumers: Sequence[ConsumerPosition],
    age: Age,
    is_full: bool = False,
) -> list[Drop]:
    """Return what to delete, oldest first. `consumers` are those of this journal; `age` is in seconds.

    `is_full`: the disk is, so what nobody needs goes too, whatever the limits: those drops say IS_FULL."""
    drops: list[Drop] = []
    total = sum(segment.size for segment in segments)
    for segment in segments[:-1]:
        reason = _over(total, age(segment), limits.bytes_max, limits.age_s_max)
        if not reason and is_full:
            reason = IS_FULL
        if not reason or segment.end_offset > floor:
            break
        holders = _holders(segment, consumers)
        if holders:
            beyond = _over(total, age(segment), limits.consumer_bytes_max, limits.consumer_age_s_max)
            if not beyond:
                break
            reason = f"{beyond}; lost by {_losses(holders, segment)}"
        drops.append(Drop(segment, reason))
        total -= segment.size
    return drops


def compactable(
    segments: Sequence[Segment],
    limits: RetentionLimits,
    replayed_from: int,
    consumers: Sequence[ConsumerPosition],
    age: Age,
    is_full: bool = False,
) -> list[Segment]:
    """Return segments over the limits that stay for references of sessions alone: nobody reads them front to back any
    more, but consumers that are beyond their own limit and lose what is in them, as by `plan`.

    `replayed_from`: where a start would begin to replay, with the older of the kept snapshots."""
    found = []
    total = sum(segment.size for segment in segments)
    for segment in segments[:-1]:
        if segment.end_offset > replayed_from:
            break
        if _holders(segment, consumers) and not _over(
            total, age(segment), limits.consumer_bytes_max, limits.consumer_age_s_max
        ):
            break
        if is_full or _over(total, age(segment), limits.bytes_max, limits.age_s_max):
            found.append(segment)
        total -= segment.size
    return found


def lost_by(segment: Segment, consumers: Sequence[ConsumerPosition]) -> str:
    """Return who has not read the segment, and how many records of it; "" if nobody is left who has not."""
    return _losses(_holders(segment, consumers), segment)


def lagging(
    segments: Sequence[Segment],
    limits: RetentionLimits,
    consumers: Sequence[ConsumerPosition],
    age: Age,
) -> dict[str, str]:
    """Return consumers that have used up most of their limit: name -> warning."""
    warnings = {}
    for consumer in consumers:
        behind = [segment for segment in segments if segment.end_offset > consumer.offset]
        if not behind:
            continue
        size = sum(segment.size for segment in behind)
        age_s = age(behind[0])
        used = max(
            100 * size // max(limits.consumer_bytes_max, 1), 100 * age_s // max(limits.consumer_age_s_max, 1)
        )
        if used >= WARN_AT_PERCENT:
            warnings[consumer.name] = (
                f"consumer {consumer.name!r} at offset {consumer.offset} has used {used} % of its limit: "
                f"{size} bytes, {age_s} s; beyond its limit its records are dropped"
            )
    return warnings


class LagWarnings:
    """Says each warning about a consumer's lag once, until the consumer has caught up."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._said: set[str] = set()

    def update(self, warnings: dict[str, str]) -> None:
        for name in warnings.keys() - self._said:
            self._report(warnings[name])
        self._said = set(warnings)


def _over(size: int, age_s: int, bytes_max: int, age_s_max: int) -> str:
    if size > bytes_max:
        return f"the journal has {size} bytes, more than {bytes_max}"
    if age_s > age_s_max:
        return f"its newest record is {age_s} s old, more than {age_s_max}"
    return ""


def _holders(segment: Segment, consumers: Sequence[ConsumerPosition]) -> list[ConsumerPosition]:
    return [consumer for consumer in consumers if consumer.offset < segment.end_offset]


def _losses(holders: Sequence[ConsumerPosition], segment: Segment) -> str:
    return ", ".join(
        f"{holder.name!r} ({segment.end_offset - max(holder.offset, segment.base_offset)} records)"
        for holder in holders
    )
