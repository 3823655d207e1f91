"""Which segments may go: whole ones, oldest first, never the last.

A segment goes when the log is over its size or the segment over its age, unless somebody still needs it:

- the broker itself, from its floor on (newest snapshot, oldest reference of a session): always respected;
- a registered consumer, from its position on: respected within limits of its own, and warned of before they
  are reached (decision 19).

Deciding is pure; `SegmentedLog.apply_retention` does what is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.journal.catalog import Segment
from headrace.journal.consumers import ConsumerPosition

WARN_AT_PERCENT = 80


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """`consumer_*`: how much, and how old, the log may be because of a registered consumer."""

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
    now_us: int,
) -> list[Drop]:
    """What to delete, oldest first. `consumers` are those of this journal."""
    drops: list[Drop] = []
    total = sum(segment.size for segment in segments)
    for segment in segments[:-1]:
        reason = _over(total, _age_s(segment, now_us), limits.bytes_max, limits.age_s_max)
        if not reason or segment.end_offset > floor:
            break
        holders = [consumer for consumer in consumers if consumer.offset < segment.end_offset]
        if holders:
            beyond = _over(
                total, _age_s(segment, now_us), limits.consumer_bytes_max, limits.consumer_age_s_max
            )
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
    now_us: int,
) -> list[Segment]:
    """Segments over the limits that stay for references of sessions alone: nobody reads them front to back any more.

    `replayed_from`: where a start would begin to replay, with the older of the kept snapshots."""
    found = []
    total = sum(segment.size for segment in segments)
    needed_from = min([replayed_from, *(consumer.offset for consumer in consumers)])
    for segment in segments[:-1]:
        if segment.end_offset > needed_from:
            break
        if _over(total, _age_s(segment, now_us), limits.bytes_max, limits.age_s_max):
            found.append(segment)
        total -= segment.size
    return found


def lagging(
    segments: Sequence[Segment],
    limits: RetentionLimits,
    consumers: Sequence[ConsumerPosition],
    now_us: int,
) -> dict[str, str]:
    """Consumers that have used up most of their limit: name -> warning."""
    warnings = {}
    for consumer in consumers:
        behind = [segment for segment in segments if segment.end_offset > consumer.offset]
        if not behind:
            continue
        size = sum(segment.size for segment in behind)
        age_s = _age_s(behind[0], now_us)
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
    """Says each warning once, until the consumer has caught up."""

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


def _age_s(segment: Segment, now_us: int) -> int:
    """Of its newest record. 0 if it has none, or if the clock went back."""
    return max(0, now_us - segment.max_timestamp_us) // 1_000_000 if segment.batches else 0


def _losses(holders: Sequence[ConsumerPosition], segment: Segment) -> str:
    return ", ".join(
        f"{holder.name!r} ({segment.end_offset - max(holder.offset, segment.base_offset)} records)"
        for holder in holders
    )
