"""What `headrace pipeline status` shows: read from the journal, here or at a running broker, and from the
Delta logs, of a lake in a folder without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import time

from headrace.journal.consumers import ConsumerPosition
from headrace_spark.base.lake_url import Location
from headrace_spark.lake.job_status import JobStatus, Places, describe_jobs, job_statuses
from headrace_spark.lake.lake_of import AnyLake
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.messages import TableState
from headrace_spark.lake.tables import DEAD_LETTERS
from headrace_spark.source.journal import consumers_of
from headrace_spark.source.lag import lag_of, records_left
from headrace_spark.source.log_reader import LogReader


@dataclass(frozen=True)
class JournalStatus:
    data_dir: str
    uuid: str
    epoch: int
    start_offset: int
    high_watermark: int


@dataclass(frozen=True)
class ConsumerStatus:
    name: str
    journal_uuid: str
    offset: int
    lag: int
    updated_us: int
    lag_bytes: int
    """About right."""
    lag_s: float
    """The age of the oldest record that it has not processed."""


@dataclass(frozen=True)
class TableStatus:
    path: str
    version: int
    rows: int
    offset: int
    """All messages of the journal below it are in the table; 0 if none is. Of several journals the sum."""
    lag: int
    """Records from there to the high watermark that can be read, those included that are no messages."""


@dataclass(frozen=True)
class DeadLettersStatus:
    path: str
    rows: int
    reasons: dict[str, int]
    """Rows by reason, most first."""


@dataclass(frozen=True)
class PipelineStatus:
    journal: JournalStatus
    """The only one, or that of the first shard."""
    journals: list[JournalStatus]
    consumers: list[ConsumerStatus]
    table: TableStatus | None
    dead_letters: DeadLettersStatus | None
    """None if nothing was ever put aside."""
    jobs: list[JobStatus]
    """Those that have begun to write into the lake."""


def pipeline_status(
    journals: Sequence[LogReader], lake: AnyLake | None, tables: Sequence[Location] = ()
) -> PipelineStatus:
    """Return how far the jobs of a pipeline are. `tables`: outside of the lake, which `publish` may read. Raises
    JournalUnreachable, JournalError, LakeConflict."""
    now_s = time()
    found = [
        JournalStatus(
            journal.location, journal.uuid, journal.epoch, journal.start_offset(), journal.high_watermark()
        )
        for journal in journals
    ]
    consumers = [_consumer(journal, each, now_s) for journal in journals for each in consumers_of(journal)]
    return PipelineStatus(
        found[0],
        found,
        consumers,
        None if lake is None else _table(lake, journals),
        None if lake is None else _dead_letters(lake.table_of(DEAD_LETTERS)),
        [] if lake is None else job_statuses(Places(lake, journals, tables, now_s)),
    )


def _consumer(journal: LogReader, found: ConsumerPosition, now_s: float) -> ConsumerStatus:
    lag = lag_of(journal, found.offset, now_s)
    return ConsumerStatus(
        found.name, journal.uuid, found.offset, lag.messages, found.updated_us, lag.bytes, lag.seconds
    )


def _table(lake: AnyLake, journals: Sequence[LogReader]) -> TableStatus | None:
    state = lake.table.state()
    if state is None:
        return None
    offsets = [_end_of(lake, state, journal) for journal in journals]
    lags = [records_left(journal, offset) for journal, offset in zip(journals, offsets, strict=True)]
    return TableStatus(str(lake.messages), state.version, state.rows, sum(offsets), sum(lags))


def _end_of(lake: AnyLake, state: TableState, journal: LogReader) -> int:
    """Return how far the table has a journal: by its rows, and by what batches have said, which is further where records
    that are no messages came last."""
    ends = (state.end(journal.uuid), lake.table.archived(journal.uuid, journal.epoch))
    return max((end.offset for end in ends if end is not None), default=0)


def _dead_letters(table: LakeTable) -> DeadLettersStatus | None:
    if table.log() is None:
        return None
    found = table.tables.scan(table.path, ["reason"])["reason"].value_counts().to_pylist()
    ordered = sorted(found, key=lambda each: (-each["counts"], each["values"]))
    reasons = {each["values"]: each["counts"] for each in ordered}
    return DeadLettersStatus(str(table.path), sum(reasons.values()), reasons)


def describe(status: PipelineStatus) -> str:
    """Return a line for each journal, one for each consumer, for the table, for each job, for what could not be
    published."""
    lines = [
        f"journal   {j.data_dir}  uuid {j.uuid}  epoch {j.epoch}  "
        f"offsets {j.start_offset:,} to {j.high_watermark:,}"
        for j in status.journals
    ]
    are_several = len(status.journals) > 1
    lines += [
        f"consumer  {c.name}{f'  journal {c.journal_uuid}' if are_several else ''}  offset {c.offset:,}  "
        f"lag {c.lag:,}  {c.lag_bytes:,} bytes  {c.lag_s:,.0f} s"
        for c in status.consumers
    ]
    if status.table is not None:
        table = status.table
        lines.append(
            f"table     {table.path}  version {table.version}  rows {table.rows:,}  "
            f"up to offset {table.offset:,}  lag {table.lag:,}"
        )
    lines += describe_jobs(status.jobs)
    if status.dead_letters is not None:
        aside = status.dead_letters
        why = ", ".join(f"{rows:,} {reason!r}" for reason, rows in aside.reasons.items())
        lines.append(f"put aside {aside.path}  rows {aside.rows:,}: {why}")
    return "\n".join(lines)
