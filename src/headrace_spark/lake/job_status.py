"""How far behind each job of a lake is, running or not: by tables, checkpoints and what it reads. Of a lake in a folder
it is told without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc

from headrace.journal.errors import JournalError
from headrace_spark.base.errors import PipelineError
from headrace_spark.base.figures import Lag
from headrace_spark.base.lake_url import Location
from headrace_spark.devices.plans import noted_of
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.lake_of import AnyLake
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.location import lake_location
from headrace_spark.lake.table_backlog import TableBacklog
from headrace_spark.lake.table_plan import TablePlan
from headrace_spark.lake.table_position import TablePosition
from headrace_spark.lake.tables import CLEAN, METRICS_STATE, QUARANTINE
from headrace_spark.lake.url_lake import UrlLake
from headrace_spark.source.journal_range import Ranges
from headrace_spark.source.lag import lag_of_all
from headrace_spark.source.log_reader import LogReader

_PUBLISH: Final = "publish"
_REPLAY: Final = "replay"


@dataclass(frozen=True)
class JobStatus:
    """Says what a job has not done yet: records of the journal, or rows of the table that it reads."""

    job: str
    """With its name, if there may be several: `publish-alarms`."""
    offset: int | None
    """Everything of the journal below it is done; None where the job reads a table."""
    lag: int | None
    """None: it cannot be told, and `problem` says why; otherwise `problem` is what it does not count."""
    lag_bytes: int | None
    lag_s: float | None
    """The age of the oldest; None where nothing is due, as with a replay."""
    problem: str = ""


@dataclass(frozen=True)
class Places:
    """Says where jobs read and write. `tables`: more that `publish` may read, beside those in the lake."""

    lake: AnyLake
    journals: Sequence[LogReader]
    tables: Sequence[Location]
    now_s: float


def job_statuses(places: Places) -> list[JobStatus]:
    """Return the jobs that have ever begun, each with its lag or with what is wrong."""
    looks: list[tuple[str, Callable[[Places], JobStatus | None]]] = [
        ("archive", _archive),
        ("metrics", _metrics),
        ("compact-events", _compact_events),
        ("clean", _clean),
        ("mend", _mend),
    ]
    looks += [(name, _publish(name)) for name in _published(places.lake)]
    looks += [(name, _replay(name)) for name in _noted(places.lake, _REPLAY)]
    found = []
    for job, look in looks:
        try:
            status = look(places)
        except (PipelineError, JournalError) as error:
            status = JobStatus(job, None, None, None, None, str(error))
        if status is not None:
            found.append(status)
    return found


def describe_jobs(jobs: Iterable[JobStatus]) -> Iterator[str]:
    """Yield a line for each job."""
    for job in jobs:
        if job.lag is None:
            yield f"job       {job.job}  {job.problem}"
            continue
        where = "" if job.offset is None else f"  offset {job.offset:,}"
        size = "" if job.lag_bytes is None else f"  {job.lag_bytes:,} bytes"
        age = "" if job.lag_s is None else f"  {job.lag_s:,.0f} s"
        problem = f"  {job.problem}" if job.problem else ""
        yield f"job       {job.job}{where}  lag {job.lag:,}{size}{age}{problem}"


def _of_journals(job: str, places: Places, offset_in: Callable[[LogReader], int | None]) -> JobStatus | None:
    """Return how far a job is that reads journals: sums, and the age of the oldest; None if it has begun with none."""
    found = {journal.uuid: offset_in(journal) for journal in places.journals}
    if all(offset is None for offset in found.values()):
        return None
    positions = [
        (journal, journal.complete_offset() if (offset := found[journal.uuid]) is None else offset)
        for journal in places.journals
    ]
    lag = lag_of_all(positions, places.now_s)
    return JobStatus(job, sum(offset for _, offset in positions), lag.messages, lag.bytes, lag.seconds)


def _of_table(job: str, lag: Lag) -> JobStatus:
    return JobStatus(job, None, lag.messages, lag.bytes, lag.seconds)


def _archive(places: Places) -> JobStatus | None:
    table = places.lake.table

    def end(journal: LogReader) -> int | None:
        said = table.archived(journal.uuid, journal.epoch)
        state = None if said is not None else table.state()
        found = said if state is None else state.end(journal.uuid)
        return None if found is None else found.offset

    return _of_journals("archive", places, end)


def _metrics(places: Places) -> JobStatus | None:
    state = places.lake.table_of(METRICS_STATE)
    return _of_journals("metrics", places, lambda journal: Ranges("metrics", journal, state, ()).position())


def _compact_events(places: Places) -> JobStatus | None:
    table, tables = places.lake.root / "event_snapshot", places.lake.tables
    if tables.open(table) is None:
        return None
    rows = tables.scan(table, ["kind", "journal_uuid", "journal_offset"])
    marks = rows.filter(pc.field("kind") == "checkpoint").to_pylist()
    ends = {mark["journal_uuid"]: mark["journal_offset"] for mark in marks}
    return _of_journals("compact-events", places, lambda journal: ends.get(journal.uuid))


def _clean(places: Places) -> JobStatus | None:
    lake = places.lake
    if lake.tables.open(lake.messages) is None:
        return None
    if isinstance(lake, Lake):
        checkpoint = lake.checkpoint("clean", "messages")
        if not checkpoint.path.is_dir():
            return None
        passed = checkpoint.passed()
        position = None if passed is None else TablePosition.from_dict(passed)
    else:
        clean = lake.table_of(CLEAN)
        if clean.log() is None:
            return None
        position = _done_of(TablePlan(lake, "clean", clean.path, lake.messages), clean)
    return _of_table("clean", TableBacklog(lake.messages, lake.tables).lag(position, places.now_s))


def _done_of(plan: TablePlan, clean: LakeTable) -> TablePosition | None:
    """Return the place below which everything is in `clean`."""
    newest = plan.newest()
    if newest is None:
        return None
    done = clean.last_version(f"clean-{plan.query_id}")
    return newest.end if done is not None and done >= newest.end.number else newest.begin


def _mend(places: Places) -> JobStatus | None:
    table = places.lake.table_of(QUARANTINE)
    if table.log() is None:
        return None
    return _of_table("mend", TableBacklog(table.path, table.tables).lag(None, places.now_s))


def _publish(name: str) -> Callable[[Places], JobStatus | None]:
    def look(places: Places) -> JobStatus | None:
        lake = places.lake
        if not isinstance(lake, Lake):
            return _published_by_url(name, lake, places.now_s)
        passed = lake.checkpoint(_PUBLISH, name.removeprefix(f"{_PUBLISH}-")).passed()
        if passed is None:
            return None
        position = TablePosition.from_dict(passed)
        table = _table_of(position.table_id, places)
        if table is None:
            problem = f"the table {position.table_id} that it reads is not in the lake, nor named by the configuration"
            return JobStatus(name, None, None, None, None, problem)
        return _of_appends(name, TableBacklog(table), position, places.now_s)

    return look


def _published_by_url(name: str, lake: UrlLake, now_s: float) -> JobStatus | None:
    """Return what the file beside the outbox leads to: it names the table that was read."""
    noted = noted_of(lake.notes, name.removeprefix(f"{_PUBLISH}-"))
    if noted is None:
        return None
    source = lake_location(noted["source"])
    newest = TablePlan(lake, name, lake.root / "outbox", source).newest()
    is_done = newest is not None and noted["done"] and noted["end"] == newest.end.number
    position = None if newest is None else newest.end if is_done else newest.begin
    return _of_appends(name, TableBacklog(source, lake.tables), position, now_s)


def _of_appends(name: str, backlog: TableBacklog, position: TablePosition | None, now_s: float) -> JobStatus:
    status, changed = _of_table(name, backlog.lag(position, now_s)), backlog.changed(position)
    if changed is None:
        return status
    version, operation = changed
    return replace(status, problem=f"without version {version}, which is no append ({operation})")


def _table_of(table_id: str, places: Places) -> Location | None:
    root = places.lake.root
    folders = [entry.parent for entry in sorted(root.glob("*/_delta_log"))] if isinstance(root, Path) else []
    for table in (*places.tables, *folders):
        with suppress(PipelineError):  # of another table, which is not asked about
            log = places.lake.tables.open(table)
            if log is not None and str(log.metadata().id) == table_id:
                return table
    return None


def _replay(name: str) -> Callable[[Places], JobStatus | None]:
    def look(places: Places) -> JobStatus | None:
        notes, file = places.lake.notes, f"{name}.json"
        try:
            noted: dict[str, Any] = json.loads(notes.read(file) or b"")
            left = left_to_replay(
                noted["parts"], noted["identity"]["offsets_per_slice"], noted["slices_done"]
            )
        except (OSError, ValueError, KeyError, TypeError):
            return JobStatus(name, None, None, None, None, f"{notes.at(file)} is not whole")
        return JobStatus(name, None, *left, None)

    return look


def left_to_replay(
    parts: Sequence[dict[str, Any]], offsets_per_slice: int, slices_done: int
) -> tuple[int, int]:
    """Return about how many rows and bytes the slices that are not done have: within a part they count as equally
    long."""
    rows = size = 0
    for part in parts:
        slices = -(-(part["last"] + 1 - part["first"]) // offsets_per_slice)
        left = max(0, slices - slices_done)
        slices_done = max(0, slices_done - slices)
        rows += part["rows"] * left // slices
        size += (part["bytes"] or 0) * left // slices
    return rows, size


def _published(lake: AnyLake) -> list[str]:
    """Return the queries of `publish` that have begun."""
    if isinstance(lake, Lake):
        return sorted(path.name for path in lake.checkpoints.glob(f"{_PUBLISH}-*") if path.is_dir())
    return _noted(lake, _PUBLISH)


def _noted(lake: AnyLake, job: str) -> list[str]:
    names = (Path(name) for name in lake.notes.names())
    return [name.stem for name in names if name.suffix == ".json" and name.stem.startswith(f"{job}-")]
