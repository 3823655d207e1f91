"""Whether the checkpoint of the job `clean`, its three tables and `messages` belong together, and what a batch repeats.

What is done belongs to a part of `messages`, never to the number of a batch: the end of a batch (`TablePosition.number`)
is the version of Delta's transaction `clean-<query id>` of every table that it writes. The table `clean`, which gets one
for every batch, notes beside it how far the other two tables and `messages` were. So each of them is recognised when
somebody has put an older copy, or another table, in its place.

A checkpoint may be lost, or restored from an older copy: its next batches have rows that the tables hold already, and
those are left out by their place in the journal. So are rows that Delta's RESTORE has brought back into `messages`, and
those that another query has written: of a checkpoint that was lost, or where the lake was moved to, a folder or a URL.

Behind a URL there is no checkpoint to lose: `clean` has the plan of each batch (`headrace_spark.lake.table_plan`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from headrace_spark.base.errors import LakeConflict
from headrace_spark.base.lake_url import Location
from headrace_spark.lake.checkpoint import Checkpoint
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.restored import WRITTEN, brought_back, lost_by_restore
from headrace_spark.lake.table_plan import TablePlan
from headrace_spark.lake.table_position import (
    TablePosition,
    commit_of,
    is_cleaned_up,
    is_there,
    version_behind,
)

_AGAIN: Final = "again"
_OTHERS: Final = "others"
REMEDY: Final = (
    "Remove the checkpoint, and the job goes through `messages` once more and leaves out what its tables have"
)


class Together(Protocol):
    """Says what a batch of the job `clean` may be, of the lake that it is in."""

    is_planned: bool
    """Whether `clean` has the plan of a batch before its rows: then these are written last."""

    @property
    def app_id(self) -> str:
        """Return the application of Delta's transactions by which the tables take a batch once."""

    @property
    def is_unfinished(self) -> bool:
        """Return whether a batch was begun and is not done."""

    def require(self) -> None:
        """Check that the query can go on. Raises LakeConflict, ForeignOffset if it cannot."""

    def start(self) -> Checkpoint:
        """Return the checkpoint of the query, before it starts. Raises LakeConflict."""

    def plan(self, batch: int) -> None:
        """Note that a batch begins. Raises TableMoved."""

    def end(self, batch: int) -> TablePosition:
        """Return the place in `messages` behind a batch."""

    def repeats(self, batch: int) -> bool:
        """Return whether rows of the batch may be in the tables."""

    def note(self, batch: int) -> str:
        """Return what is remembered with the rows of a batch."""

    def position(self) -> TablePosition | None:
        """Return the place below which everything is done; None before the first batch. Raises LakeConflict."""


class Continuity:
    """Watches one lake: `clean` is the table that every batch writes, `others` are the ones that some batches do."""

    is_planned = False

    def __init__(
        self, checkpoint: Checkpoint, messages: Location, clean: LakeTable, others: Sequence[LakeTable]
    ) -> None:
        self._checkpoint = checkpoint
        self._messages = messages
        self._clean = clean
        self._others = others
        self._elsewhere = OtherWays(messages, clean)
        self._again = checkpoint.path.with_name(f"{checkpoint.path.name}-again")

    def require(self) -> None:
        """Check that the query can go on from its checkpoint. Raises LakeConflict, ForeignOffset if it cannot."""
        self._checkpoint.require_whole(REMEDY)
        passed = self._checkpoint.passed()
        if passed is None:
            return
        position = TablePosition.from_dict(passed)
        for table in (self._clean, *self._others):
            if table.log() is None:
                raise self._conflict(f"table {table.path} is gone")
            if (before := _lost(table)) is not None:
                raise self._conflict(f"{_restored(table)}. To have them back: {_undo(table, before)}")
        if not self._has(position):
            raise self._conflict(
                f"it has read up to version {position.read_version} of {self._messages}, but table {self._clean.path} "
                f"does not hold that: the table was replaced, or restored from an older copy"
            )
        self._require_as_noted(self._clean.last_note())
        if is_cleaned_up(self._clean.tables, self._messages, position):
            raise self._conflict(
                f"the log of {self._messages} no longer has version {position.version}, where more is to be read"
            )

    def _has(self, position: TablePosition) -> bool:
        """Return whether `clean` has the batches below the position. An older headrace said so by their numbers."""
        written = self._clean.last_version(self.app_id)
        if written is not None:
            return written >= position.number
        batch, done = self._clean.last_version(str(self._checkpoint.query_id)), self._checkpoint.last_batch
        return batch is not None and (done is None or batch >= done)

    def _require_as_noted(self, note: Mapping[str, Any]) -> None:
        for table in self._others:
            log = table.log()
            if log is not None and log.version() < note.get(table.definition.name, 0):
                raise self._conflict(f"table {table.path} was replaced, or restored from an older copy")
        source = note.get("messages")
        if source is not None and not is_there(
            self._clean.tables, self._messages, source["version"], source["commit"]
        ):
            raise self._conflict(
                f"table {self._messages} was replaced, or restored from an older copy: it has not the version "
                f"{source['version']} that was read"
            )

    def _conflict(self, problem: str) -> LakeConflict:
        return LakeConflict(f"checkpoint {self._checkpoint.path} cannot be gone on with: {problem}. {REMEDY}")

    @property
    def is_unfinished(self) -> bool:
        return self._checkpoint.unfinished

    def start(self) -> Checkpoint:
        self._checkpoint.make_ready()
        return self._checkpoint

    def plan(self, batch: int) -> None:
        """Check once more what was checked before the query began: the checkpoint has planned the batch."""
        self.require()

    def position(self) -> TablePosition | None:
        passed = self._checkpoint.passed()
        return None if passed is None else TablePosition.from_dict(passed)

    def begin(self) -> None:
        """Remember, before the query starts, whether its first look at `messages` finds rows that the tables have."""
        if self._checkpoint.last_planned is not None:
            return
        self._again.parent.mkdir(parents=True, exist_ok=True)
        if any(map(_is_written, (self._clean, *self._others))):
            self._again.touch()
        else:
            self._again.unlink(missing_ok=True)

    @property
    def app_id(self) -> str:
        return f"clean-{self._checkpoint.query_id}"

    def end(self, batch: int) -> TablePosition:
        return TablePosition.from_dict(self._checkpoint.end(batch))

    def repeats(self, batch: int) -> bool:
        """Return whether rows of the batch may be in the tables."""
        begin = None if batch == 0 else self.end(batch - 1)
        if self._again.exists() and (begin is None or begin.is_first_look):
            return True
        if self._elsewhere.may_have(self._checkpoint.query_id, begin, self.end(batch)):
            return True
        written = self._clean.last_version(self.app_id)
        if written is None:
            before = self._clean.last_version(str(self._checkpoint.query_id))
            return before is not None and before >= batch
        return begin is None or written > begin.number

    def note(self, batch: int) -> str:
        """Return what is remembered with the rows of a batch: who wrote them, and how far everything was before."""
        version = max(0, self.end(batch).read_version)
        source = {"version": version, "commit": commit_of(self._clean.tables, self._messages, version)}
        versions = {table.definition.name: _version(table) for table in self._others}
        query = self._checkpoint.query_id
        about = {"query": query, "batch": batch, "messages": source, _OTHERS: self._elsewhere.reached(query)}
        return json.dumps(about | versions)


class PlannedContinuity:
    """Watches one lake behind a URL."""

    is_planned = True

    def __init__(
        self, plan: TablePlan, messages: Location, clean: LakeTable, others: Sequence[LakeTable]
    ) -> None:
        self._plan = plan
        self._messages = messages
        self._clean = clean
        self._others = others
        self._elsewhere = OtherWays(messages, clean)
        self._again = plan.newest() is None and any(map(_is_written, (clean, *others)))

    @property
    def app_id(self) -> str:
        return f"clean-{self._plan.query_id}"

    @property
    def is_unfinished(self) -> bool:
        newest = self._plan.newest()
        return newest is not None and (self._clean.last_version(self.app_id) or -1) < newest.end.number

    def require(self) -> None:
        if self._plan.newest() is None:
            return
        for table in (self._clean, *self._others):
            if (before := _lost(table)) is not None:
                raise LakeConflict(
                    f"{_restored(table)}, which would be missing for ever. To have them back: {_undo(table, before)}. Or "
                    "use another lake"
                )
        for table in self._others:
            if _version(table) < (self._plan.noted(table.definition.name) or 0):
                raise LakeConflict(
                    f"table {table.path} was replaced, or restored from an older copy than table {self._clean.path}. "
                    "Restore both as they were at one time, or use another lake"
                )

    def start(self) -> Checkpoint:
        return self._plan.restore(is_finished=not self.is_unfinished)

    def position(self) -> TablePosition | None:
        newest = self._plan.newest()
        return None if newest is None else newest.begin if self.is_unfinished else newest.end

    def plan(self, batch: int) -> None:
        self.require()
        versions = {table.definition.name: _version(table) for table in self._others}
        again = self._again or bool(self._plan.noted(_AGAIN))
        self._plan.add(batch, {**versions, _AGAIN: int(again)})

    def end(self, batch: int) -> TablePosition:
        return TablePosition.from_dict(self._plan.checkpoint.end(batch))

    def repeats(self, batch: int) -> bool:
        begin = self._plan.begin
        if (begin is None or begin.is_first_look) and self._plan.noted(_AGAIN):
            return True
        if self._elsewhere.may_have(self._plan.query_id, begin, self.end(batch)):
            return True
        below = -1 if begin is None else begin.number
        return any((table.last_version(self.app_id) or -1) > below for table in (self._clean, *self._others))

    def note(self, batch: int) -> str:
        query = self._plan.query_id
        return json.dumps({"query": query, "batch": batch, _OTHERS: self._elsewhere.reached(query)})


class OtherWays:
    """Knows which rows of `messages` may be in the tables by another way than the batches of the query at hand."""

    def __init__(self, messages: Location, clean: LakeTable) -> None:
        self._messages = messages
        self._clean = clean
        self._reached: int | None = None

    def may_have(self, query: str | None, begin: TablePosition | None, end: TablePosition) -> bool:
        """Return whether rows between two places may have been written by another query, or were brought back into
        `messages` by RESTORE."""
        if begin is not None and begin.number < self.reached(query):
            return True
        if end.is_first_look:
            return False  # it reads what is there at one version
        since = end.version if begin is None else begin.version
        return brought_back(self._clean.tables, self._messages, since, end.read_version) is not None

    def reached(self, query: str | None) -> int:
        """Return a number of a position below which other queries have written: as `clean` says before this query writes
        there; 0 if there are none."""
        if self._reached is None:
            note = self._clean.last_note()
            other = note.get("query")
            end = None if other in (None, query) else self._clean.last_version(f"clean-{other}")
            self._reached = max(int(note.get(_OTHERS, 0)), 0 if end is None else version_behind(end))
        return self._reached


def _version(table: LakeTable) -> int:
    log = table.log()
    return 0 if log is None else log.version()


def _is_written(table: LakeTable) -> bool:
    """Return whether a table may have rows: one that somebody has made of another one has them from the start."""
    if _version(table):
        return True
    first = table.tables.commit(table.path, 0) or b""
    return any("add" in json.loads(line) for line in first.splitlines())


def _lost(table: LakeTable) -> int | None:
    return lost_by_restore(table.tables, table.path, WRITTEN)


def _restored(table: LakeTable) -> str:
    return f"Delta's RESTORE has taken rows out of table {table.path}"


def _undo(table: LakeTable, version: int) -> str:
    return f"RESTORE TABLE delta.`{table.path}` TO VERSION AS OF {version}"
