"""What the pipeline needs of a log: each shard of a broker has one, and a query or a job reads several side by side.

A log is known by its uuid; its epoch rises when it is cut back, so an offset means something with both alone. How far a
query is in several logs is an offset for each (`headrace_spark.source.ranges.StreamOffset`). Between two logs there is no
order: a row is named by uuid, epoch and offset, and what one client published is in one log, in its order.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from headrace.journal.consumers import ConsumerPosition
from headrace.journal.finished import FinishedSegment
from headrace.journal.reader import SegmentInfo
from headrace.journal.segment import Batch
from headrace.journal.selective import TimeRange


class Consumers(Protocol):
    """The registered consumers of one log, for which its retention waits."""

    def register(self, name: str, uuid: str, epoch: int, offset: int, owner: str = "") -> None:
        """Make retention wait for `name` at `offset` or below. Raises LakeConflict if it belongs to another owner."""

    def commit(self, name: str, uuid: str, epoch: int, offset: int, owner: str = "") -> None:
        """Note that everything below `offset` is processed. Raises LakeConflict if it belongs to another owner."""

    def read(self, name: str) -> ConsumerPosition | None: ...

    def list(self) -> builtins.list[ConsumerPosition]: ...


@dataclass(frozen=True)
class DividedFrom:
    """The log that `reshard` has divided into several: from `end_offset` on, which it never came to, these go on."""

    uuid: str
    epoch: int
    """That of its last record; -1 where it is not known."""
    end_offset: int


class LogReader(Protocol):
    """Reads the published part of one log. Every method may raise JournalError or JournalUnreachable."""

    @property
    def location(self) -> str:
        """Return where this very log is, as option `path` of the source takes it."""

    def location_from(self, start: int) -> str:
        """Return the same with what a task need not find out again that reads from the offset `start` on."""

    @property
    def token(self) -> str:
        """Return what lets in there; "" where nothing is asked."""

    @property
    def tenant(self) -> str:
        """Return whose messages alone are shown; "": everybody's."""

    @property
    def consumers(self) -> Consumers: ...

    @property
    def uuid(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    def high_watermark(self) -> int:
        """Return the offset below which every record is durable and may be read."""

    def start_offset(self) -> int:
        """Return the oldest offset that is still there."""

    def complete_offset(self) -> int:
        """Return from where on every record is there that was ever written."""

    def divided_from(self) -> DividedFrom | None:
        """Return the log of which this one is a part; None where it is none, or nobody can tell."""

    def check(self, uuid: str, epoch: int) -> None:
        """Check that an offset means what it meant under this uuid and epoch. Raises EpochMismatch."""

    def segments(self) -> list[SegmentInfo]:
        """Return the segments, oldest first, the last one up to the high watermark."""

    def scan(
        self,
        start: int,
        end: int | None = None,
        *,
        uuid: str | None = None,
        epoch: int | None = None,
        times: TimeRange | None = None,
    ) -> Iterator[Batch]:
        """Yield the batches that hold the offsets from `start` up to `end`. Raises OffsetOutOfRange, EpochMismatch."""

    def finished(self, base_offset: int) -> FinishedSegment:
        """Return the segment that begins there, open for an index of the reader's own. Raises FileNotFoundError."""
