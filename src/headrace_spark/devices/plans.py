"""How far a query has kept its rows in the outbox: remembered with the outbox, not with Spark's checkpoint.

    <outbox>/_plans/<name>.json    {"query": <id>, "plans": [[batch, offset behind it, commit of the source, settings]]}

The plan of a batch is written before its rows are kept; it counts once the outbox has the transaction (query, batch).
A checkpoint that was lost, or restored from an older copy, would plan other rows under numbers that the outbox and the
broker have seen, and these rows would never leave. So it is moved forward to the newest batch that counts, which Spark
then repeats: the rows that were kept are sent, and the broker leaves out those that it has.

Behind a URL the outbox has the plans in its log (`headrace_spark.lake.table_plan`), and a small file beside it says how
far rows have left, so that an outbox which was restored from an older copy is recognised: its numbers are used up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from headrace_spark.base.errors import LakeConflict
from headrace_spark.base.lake_url import Location
from headrace_spark.lake.changes import require_appended
from headrace_spark.lake.checkpoint import Checkpoint
from headrace_spark.lake.durable import sync_path
from headrace_spark.lake.file_order import FileOrder
from headrace_spark.lake.notes import NoteFiles
from headrace_spark.lake.restored import brought_back
from headrace_spark.lake.table_log import Folders, Tables
from headrace_spark.lake.table_plan import TablePlan
from headrace_spark.lake.table_position import TablePosition, commit_of, is_cleaned_up, is_there

FOLDER: Final = "_plans"
_EARLIER: Final = 2
"""The newest may not count yet, and Spark needs the one before the newest that does."""


@dataclass(frozen=True)
class Plan:
    """What was planned for one batch. `end`: the offset behind the batch, as Spark wrote it; `commit` of the source's
    version that it has read."""

    batch: int
    end: dict[str, Any]
    commit: str | None
    settings: str

    @property
    def position(self) -> TablePosition:
        return TablePosition.from_dict(self.end)


class AnyPlans(Protocol):
    """Plans of one query, wherever its outbox is."""

    def add(self, batch: int) -> None:
        """Add a plan, before the rows of a batch are kept."""

    def files(self, batch: int) -> Sequence[str]:
        """Return the names of the files of the table that a planned batch may read, in the order of their commits."""

    def kept(self, batch: int) -> None:
        """Note that the rows of a batch are kept, before any of them leaves."""

    def done(self, batch: int) -> None:
        """Note that the rows of a batch have left."""

    def start(self, kept: int | None) -> Checkpoint:
        """Return the checkpoint with which the query starts. `kept`: the last batch of `query` in the outbox. Raises
        LakeConflict, ForeignOffset."""

    def position(self) -> TablePosition | None:
        """Return the place below which everything is done; None before the first batch."""

    @property
    def query(self) -> str | None:
        """Return the query whose rows the outbox has under this name."""


class TablePlans:
    """Knows the plans of one query whose outbox is behind a URL. `name`: of the job, for its file; `of_folder`: where
    `Plans` would have kept theirs, had the lake been a folder before."""

    def __init__(
        self,
        plan: TablePlan,
        outbox: object,
        source: Location,
        name: str,
        notes: NoteFiles,
        of_folder: NoteFiles,
        tables: Tables,
        skip_changes: bool = False,
    ) -> None:
        self._plan = plan
        self._skip_changes = skip_changes
        self._outbox = outbox
        self._source = source
        self._name = name
        self._file = _file_of(name)
        self._notes = notes
        self._of_folder = of_folder
        self._tables = tables
        self._order = FileOrder(tables, source)
        self.query = plan.query_id

    def add(self, batch: int) -> None:
        newest = self._plan.newest()  # and the table is still the one that was read
        end = TablePosition.from_dict(self._plan.checkpoint.end(batch))
        begin = None if newest is None else newest.end if newest.batch < batch else newest.begin
        _require_new(self._tables, self._source, begin, end, self._skip_changes)
        self._plan.add(batch)

    def files(self, batch: int) -> Sequence[str]:
        return _files(self._order, self._plan.checkpoint, batch)

    def kept(self, batch: int) -> None:
        self._note(batch, False)

    def done(self, batch: int) -> None:
        self._note(batch, True)

    def start(self, kept: int | None) -> Checkpoint:
        newest, noted = self._plan.newest(), noted_of(self._notes, self._name)
        known = (-1, 0) if newest is None else (newest.batch, newest.end.number)
        if newest is None and noted is None and f"{self._name}.json" in self._of_folder.names():
            raise _moved(self._of_folder.at(f"{self._name}.json"), self._outbox)
        if noted is not None and (
            noted["query"] != self.query or (noted["batch"], noted["end"]) > known or kept is None
        ):
            raise LakeConflict(
                f"{self._notes.at(self._file)} and outbox {self._outbox} do not belong together: rows have left up to "
                f"batch {noted['batch']}, the outbox knows of batch {known[0]}: it was replaced, or restored from an "
                "older copy. Restore both as they were at one time; or give another pipeline.publish.name, and every row "
                "is published again"
            )
        return self._plan.restore(is_finished=self._is_done())

    def position(self) -> TablePosition | None:
        newest = self._plan.newest()
        return None if newest is None else newest.end if self._is_done() else newest.begin

    def _is_done(self) -> bool:
        newest, noted = self._plan.newest(), noted_of(self._notes, self._name)
        if newest is None or noted is None:
            return False
        said = self._line(newest.batch, newest.end, True)
        return all(
            noted.get(key) == said[key] for key in said if key != "source"
        )  # the lake may have been moved

    def _note(self, batch: int, is_done: bool) -> None:
        end = TablePosition.from_dict(self._plan.checkpoint.end(batch))
        self._notes.write(self._file, json.dumps(self._line(batch, end, is_done)).encode())

    def _line(self, batch: int, end: TablePosition, is_done: bool) -> dict[str, Any]:
        about = {"query": self.query, "source": str(self._source)}
        return {**about, "batch": batch, "end": end.number, "done": is_done}


def _files(order: FileOrder, checkpoint: Checkpoint, batch: int) -> Sequence[str]:
    begin = TablePosition.from_dict(checkpoint.end(batch - 1)) if batch else None
    return order.between(begin, TablePosition.from_dict(checkpoint.end(batch)))


def noted_of(notes: NoteFiles, name: str) -> dict[str, Any] | None:
    """Return what the query of that name has noted: `query`, `source`, `batch`, `end`, `done`. Raises LakeConflict."""
    found = notes.read(_file_of(name))
    try:
        return None if found is None else dict(json.loads(found))
    except ValueError:
        raise LakeConflict(
            f"{notes.at(_file_of(name))} is empty or cut off, as a driver leaves it that was killed while it wrote on a "
            "store that does not put files in place at once. Remove it, unless the outbox was restored from an older copy"
        ) from None


def _file_of(name: str) -> str:
    return f"publish-{name}.json"


def _moved(file: object, outbox: object) -> LakeConflict:
    """Return the error for a lake that was a folder before, or behind a URL: its rows have left under other numbers."""
    return LakeConflict(
        f"{file} says that rows have left before outbox {outbox} was moved between a folder and a URL: where they "
        "ended is not known here. Go on where it was; or give another pipeline.publish.name, and every row is published "
        "again"
    )


def _require_new(
    tables: Tables, source: Location, begin: TablePosition | None, end: TablePosition, skip_changes: bool
) -> None:
    """Raise LakeConflict if RESTORE has brought rows back between two places: they have left when they came first; or,
    unless these are skipped, if a version between them puts rows in the place of others, which would never leave."""
    if end.is_first_look:
        return  # it reads what is there at one version
    since = end.version if begin is None else begin.version
    if (version := brought_back(tables, source, since, end.read_version)) is not None:
        raise LakeConflict(
            f"Delta's RESTORE has brought rows back into table {source} with version {version}, and those that have left "
            "would leave again. Append the rows that are to leave to another table, and publish that under another "
            "pipeline.publish.name"
        )
    if begin is not None and not skip_changes:
        require_appended(tables, source, begin.read_version + 1, end.read_version)


class Plans:
    """Knows the plans of one query over the Delta table `source`."""

    def __init__(
        self, outbox: Path, name: str, checkpoint: Checkpoint, source: Path, skip_changes: bool = False
    ) -> None:
        self._outbox = outbox
        self._skip_changes = skip_changes
        self._path = outbox / FOLDER / f"{name}.json"
        self._behind_a_url = outbox.parent / "_checkpoints" / _file_of(name)
        self._checkpoint = checkpoint
        self._source = source
        self._order = FileOrder(Folders(), source)

    def add(self, batch: int) -> None:
        """Add a plan, before the rows of a batch are kept. Raises OSError, LakeConflict."""
        end = self._checkpoint.end(batch)
        position = TablePosition.from_dict(end)
        version = max(0, position.read_version)
        _, plans = self._read()
        plans = [plan for plan in plans if plan.batch < batch][-_EARLIER:]
        if plans:
            self._require_read(plans[-1])
        begin = plans[-1].position if plans else None
        _require_new(Folders(), self._source, begin, position, self._skip_changes)
        plans.append(
            Plan(batch, end, commit_of(Folders(), self._source, version), self._checkpoint.settings_of(batch))
        )
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        listed = [astuple(plan) for plan in plans]
        new.write_text(json.dumps({"query": self._checkpoint.query_id, "plans": listed}))
        sync_path(new)
        new.replace(self._path)

    def files(self, batch: int) -> Sequence[str]:
        return _files(self._order, self._checkpoint, batch)

    def kept(self, batch: int) -> None:
        """Do nothing: the outbox says so."""

    def done(self, batch: int) -> None:
        """Do nothing: the checkpoint says so."""

    def start(self, kept: int | None) -> Checkpoint:
        self.resume(kept)
        self._checkpoint.make_ready()
        return self._checkpoint

    def position(self) -> TablePosition | None:
        passed = self._checkpoint.passed()
        return None if passed is None else TablePosition.from_dict(passed)

    def resume(self, kept: int | None) -> None:
        """Resume before the query starts. `kept`: the last batch of `self.query` in the outbox.

        Raises LakeConflict, ForeignOffset.
        """
        checkpoint = self._checkpoint
        checkpoint.require_whole("Remove it, and the job goes on behind the rows that the outbox has")
        noted, plans = self._read()
        counted = [plan for plan in plans if kept is not None and plan.batch <= kept]
        if noted is None:
            if self._behind_a_url.exists():
                raise _moved(self._behind_a_url, self._outbox)
            self._require_planned(kept)
        elif checkpoint.query_id not in (None, noted):
            raise self._conflict("it belongs to another query than the rows in the outbox")
        elif counted:
            self._go_on_behind(noted, counted)
        elif checkpoint.passed() is not None:
            raise self._conflict(
                "the outbox has none of its rows: it was replaced, or restored from an older copy"
            )

    @property
    def query(self) -> str | None:
        """Return the query whose rows the outbox has under this name; that of the checkpoint where nothing is noted."""
        return self._read()[0] or self._checkpoint.query_id

    def _require_planned(self, kept: int | None) -> None:
        """Check an outbox of an older headrace, of which only numbers tell."""
        planned = self._checkpoint.last_planned
        if kept is not None and (planned is None or kept > planned):
            raise self._conflict(
                f"the outbox has its rows up to batch {kept}, the checkpoint knows of batch {planned}: it was restored "
                "from an older copy"
            )

    def _go_on_behind(self, query: str, plans: Sequence[Plan]) -> None:
        last = plans[-1]
        self._require_read(last)
        passed, planned = self._checkpoint.passed(), self._checkpoint.last_planned
        if passed is not None and TablePosition.from_dict(passed).number > last.position.number:
            raise self._conflict(
                f"it has read up to version {TablePosition.from_dict(passed).read_version} of {self._source}, the outbox "
                f"has rows up to version {last.position.read_version}: it was restored from an older copy"
            )
        is_behind = planned is None or planned < last.batch
        if is_behind or (planned == last.batch and self._checkpoint.end(planned) != last.end):
            self._checkpoint.move(query, {plan.batch: plan.end for plan in plans}, last.settings)

    def _require_read(self, plan: Plan) -> None:
        """Check that the source has what was read up to a plan: rows of versions that were read before in another table
        would never leave. Raises LakeConflict."""
        if not is_there(Folders(), self._source, max(0, plan.position.read_version), plan.commit):
            raise self._conflict(
                f"table {self._source} was replaced, or restored from an older copy: it has not the version "
                f"{plan.position.read_version} that was read"
            )
        if is_cleaned_up(Folders(), self._source, plan.position):
            raise self._conflict(
                f"the log of {self._source} no longer has version {plan.position.version}, where more is to be "
                "read"
            )

    def _conflict(self, problem: str) -> LakeConflict:
        return LakeConflict(
            f"checkpoint {self._checkpoint.path} and outbox {self._outbox} do not belong together: {problem}. Restore "
            "both as they were at one time; or give another pipeline.publish.name, and every row of "
            f"{self._source} is published again"
        )

    def _read(self) -> tuple[str | None, Sequence[Plan]]:
        try:
            noted = json.loads(self._path.read_text())
            return str(noted["query"]), [Plan(*plan) for plan in noted["plans"]]
        except FileNotFoundError:
            return None, []
        except (ValueError, KeyError, TypeError):
            raise self._conflict(f"{self._path} cannot be read") from None
