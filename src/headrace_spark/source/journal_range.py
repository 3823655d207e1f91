"""Ranges of one journal, worked on one after the other by a job that keeps its position in the tables it writes.

A stream of Spark reads one schema; a job that needs messages, events and progress of the same records reads
ranges of offsets instead. Every table that it writes takes the range's end as the version of Delta's transaction
`<job>-<uuid>-<epoch>`. The table that is written last says how far the job is; a table that is ahead of it says
where the range ended that was cut off, and the range is done again with the same bounds, skipping what is there. A
table that is behind the last one, or ahead of it by another range than the rest, was restored from an older copy.
Tables that are merged into have no end of their own: the last one notes how far their logs were. Of several journals each
has its own ranges; they are worked on in turn, and no table depends on the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace_spark.base.errors import LakeConflict
from headrace_spark.lake.applications import require_own_epochs
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.source.journal import reaches, readable_from
from headrace_spark.source.log_reader import DividedFrom, LogReader
from headrace_spark.source.ranges import end_within, split
from headrace_spark.source.reading import JournalPartition


@dataclass(frozen=True)
class Place:
    """The number of the shard whose journal this is, of so many."""

    shard: int
    shards: int


ALONE: Final = Place(0, 1)


@dataclass(frozen=True)
class JournalRange:
    """The offsets from `start` up to `end` of one journal."""

    journal: LogReader
    app_id: str
    start: int
    end: int
    is_behind_hole: bool = False
    """Whether records before `start` are gone that no range had."""
    before: DividedFrom | None = None
    """The journal whose last range this one follows, as the first one of its own."""

    def partitions(self, tasks: int) -> list[JournalPartition]:
        """Return at most so many parts, for `headrace_spark.source.reading.all_chunks`."""
        journal = self.journal
        return [
            JournalPartition(journal.location_from(start), journal.uuid, journal.epoch, start, end)
            for start, end in split(self.start, self.end, tasks)
        ]


class Ranges:
    """Knows where a job stands in one journal, and what comes next."""

    def __init__(
        self,
        job: str,
        journal: LogReader,
        last: LakeTable,
        others: Sequence[LakeTable],
        merged: Sequence[LakeTable] = (),
        place: Place = ALONE,
        before: DividedFrom | None = None,
    ) -> None:
        """Begin with a journal. `last` says where the job stands, `others` end where it does, and in `merged` rows are
        put into the place of others. `before`: the journal of which this one is a part, if the job has counted it to its
        end."""
        self.place = place
        self.before = before
        self._job = job
        self.journal = journal
        self._last = last
        self._others = others
        self._merged = merged

    @property
    def _divided_at(self) -> int:
        return -1 if self.before is None else self.before.end_offset

    def app_id(self, epoch: int | str) -> str:
        return f"{self._job}-{self.journal.uuid}-{epoch}"

    def position(self) -> int | None:
        """Return the offset below which every record is done; None before the first range. Raises LakeConflict."""
        journal = self.journal
        for epoch in self._last.epochs_told(self.app_id(""), journal.epoch):
            done = self._last.last_version(self.app_id(epoch))
            if done is None:
                continue
            if not reaches(journal, done, epoch):
                raise LakeConflict(
                    f"table {self._last.path} counts records up to offset {done}, epoch {epoch}, which journal "
                    f"{journal.uuid} (epoch {journal.epoch}) no longer has: it was cut back since. Use another lake"
                )
            return done
        return None

    def notes(self) -> dict[str, int]:
        """Return transactions for the next commit of the last table, which say how far the merged ones are."""
        found: dict[str, int] = {}
        for table in self._merged:
            if (log := table.log()) is not None:
                found |= {
                    self._note(table): log.version(),
                    self._note(table, log.metadata().id): log.version(),
                }
        return found

    def _note(self, table: LakeTable, table_id: object = "") -> str:
        return f"{self._job}-{table.definition.name}-{table_id}"

    def require_together(self, consumed: int | None) -> None:
        """Require that the tables of the job are of one time. `consumed`: up to where its consumer has the journal.

        Raises LakeConflict.
        """
        self._require_own()
        position = self.position()
        ends = self._require_together(position)
        first = self.journal.complete_offset()
        is_begun = consumed == first and all(end > first for end in ends.values())
        if position is None and ends and first > 0 and not is_begun:
            raise self._conflict(f"table {self._last.path} has nothing of this journal, which others count")

    def _require_own(self) -> None:
        """Require that no table counts anything in an epoch that this journal has not come to. Raises LakeConflict."""
        for table in (self._last, *self._others):
            if (log := table.log()) is not None:
                require_own_epochs(log, table.path, self.app_id(""), self.journal.uuid, self.journal.epoch)

    def _conflict(self, problem: str) -> LakeConflict:
        return LakeConflict(
            f"{problem}: one of them was replaced, removed, or restored from an older copy. Restore all tables of job "
            f"{self._job} as they were at one time, or remove all of them to count what the journal still has"
        )

    def _require_together(self, position: int | None) -> dict[LakeTable, int]:
        """Check that every table ends where the last one does, or where the range ended that was cut off, and return
        where those end that count anything. Raises LakeConflict."""
        ends = {table: self._end_of(table) for table in self._others}
        ahead = {end for end in ends.values() if end is not None and end > (position or 0)}
        behind = [table for table, end in ends.items() if position is not None and (end or 0) < position]
        if behind or len(ahead) > 1:
            said = ", ".join(f"{table.path} up to offset {end or 0}" for table, end in ends.items())
            raise self._conflict(f"table {self._last.path} counts up to offset {position or 0}, {said}")
        self._require_merged()
        return {table: end for table, end in ends.items() if end is not None}

    def _require_merged(self) -> None:
        """Check that the merged tables are those that the last one was written with. Raises LakeConflict."""
        last = self._last.log()
        if last is None:
            return
        for table in self._merged:
            noted, log = last.transaction_version(self._note(table)), table.log()
            if noted is None or log is None:
                continue  # an older headrace noted nothing
            known = last.transaction_version(self._note(table, log.metadata().id))
            if known is None or log.version() < known:
                raise self._conflict(
                    f"table {table.path} is not the one that {self._last.path} was written with"
                )

    def _end_of(self, table: LakeTable) -> int | None:
        """Return the end in the newest epoch in which it counts anything."""
        for epoch in table.epochs_told(self.app_id(""), self.journal.epoch):
            if (end := table.last_version(self.app_id(epoch))) is not None:
                return end
        return None

    def next(self, records_max: int, bytes_max: int, fail_on_data_loss: bool) -> JournalRange | None:
        """Return the next range, None if there is nothing new. Raises DataLoss, LakeConflict."""
        journal = self.journal
        position = self.position()
        ends = self._require_together(position)
        start = (
            journal.complete_offset()
            if position is None
            else readable_from(
                journal, position, fail_on_data_loss, f"pipeline.{self._job}.fail_on_data_loss=false"
            )
        )
        app_id = self.app_id(journal.epoch)
        begun = [
            done
            for table, end in ends.items()
            if end > start and (done := table.last_version(app_id)) is not None and done > start
        ]
        end = max(begun) if begun else min(journal.high_watermark(), start + records_max)
        if end <= start:
            return None
        if not begun:
            end = end_within(journal.segments(), start, end, bytes_max)
        before = self.before if position is None and start == self._divided_at else None
        return JournalRange(journal, app_id, start, end, position is not None and start > position, before)
