"""Whether the checkpoint of the job `clean`, its three tables and `messages` belong together, and what a batch repeats.

What is done belongs to a part of `messages`, never to the number of a batch: the end of a batch (`TablePosition.number`)
is the version of Delta's transaction `clean-<query id>` of every table that it writes. The table `clean`, which gets one
for every batch, notes beside it how far the other two tables and `messages` were. So each of them is recognised when
somebody has put an older copy, or another table, in its place.

A checkpoint may be lost, or restored from an older copy: its next batches have rows that the tables hold already, and
those are left out by their place in the journal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from headrace_spark.base.errors import LakeConflict
from headrace_spark.lake.checkpoint import Checkpoint
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.table_position import TablePosition, commit_of, is_there

REMEDY: Final = (
    "Remove the checkpoint, and the job goes through `messages` once more and leaves out what its tables have"
)


class Continuity:
    """Watches one lake: `clean` is the table that every batch writes, `others` are the ones that some batches do."""

    def __init__(
        self, checkpoint: Checkpoint, messages: Path, clean: LakeTable, others: Sequence[LakeTable]
    ) -> None:
        self._checkpoint = checkpoint
        self._messages = messages
        self._clean = clean
        self._others = others
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
        if not self._has(position):
            raise self._conflict(
                f"it has read up to version {position.read_version} of {self._messages}, but table {self._clean.path} "
                f"does not hold that: the table was replaced, or restored from an older copy"
            )
        self._require_as_noted(self._clean.last_note())

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
        if source is not None and not is_there(self._messages, source["version"], source["commit"]):
            raise self._conflict(
                f"table {self._messages} was replaced, or restored from an older copy: it has not the version "
                f"{source['version']} that was read"
            )

    def _conflict(self, problem: str) -> LakeConflict:
        return LakeConflict(f"checkpoint {self._checkpoint.path} cannot be gone on with: {problem}. {REMEDY}")

    def begin(self) -> None:
        """Remember, before the query starts, whether its first look at `messages` finds rows that the tables have."""
        if self._checkpoint.last_planned is not None:
            return
        self._again.parent.mkdir(parents=True, exist_ok=True)
        if any(
            (log := table.log()) is not None and log.version() > 0 for table in (self._clean, *self._others)
        ):
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
        if self._again.exists() and (batch == 0 or self.end(batch - 1).is_first_look):
            return True
        written = self._clean.last_version(self.app_id)
        if written is None:
            before = self._clean.last_version(str(self._checkpoint.query_id))
            return before is not None and before >= batch
        return batch == 0 or written > self.end(batch - 1).number

    def note(self, batch: int) -> str:
        """Return what is remembered with the rows of a batch: who wrote them, and how far everything was before."""
        version = max(0, self.end(batch).read_version)
        source = {"version": version, "commit": commit_of(self._messages, version)}
        versions = {table.definition.name: _version(table) for table in self._others}
        return json.dumps({"query": self._checkpoint.query_id, "batch": batch, "messages": source} | versions)


def _version(table: LakeTable) -> int:
    log = table.log()
    return 0 if log is None else log.version()
