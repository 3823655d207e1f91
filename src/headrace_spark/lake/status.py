"""What `headrace pipeline status` shows: read from the journal's files and the Delta log, in a fraction of a second."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.journal.consumers import ConsumerPosition
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.tables import DEAD_LETTERS
from headrace_spark.source.journal import open_journal


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
    offset: int
    lag: int
    updated_us: int


@dataclass(frozen=True)
class TableStatus:
    path: str
    version: int
    rows: int
    offset: int
    """All messages of this journal below it are in the table; 0 if none is."""
    lag: int
    """Records from there to the high watermark. Records that are no messages never reach the table."""


@dataclass(frozen=True)
class DeadLettersStatus:
    path: str
    rows: int
    reasons: dict[str, int]
    """Rows by reason, most first."""


@dataclass(frozen=True)
class PipelineStatus:
    journal: JournalStatus
    consumers: list[ConsumerStatus]
    table: TableStatus | None
    dead_letters: DeadLettersStatus | None
    """None if nothing was ever put aside."""


def pipeline_status(data_dir: Path, lake: Path | None) -> PipelineStatus:
    """Raises JournalMissing, JournalError, LakeConflict."""
    journal = open_journal(data_dir)
    end = journal.high_watermark()
    return PipelineStatus(
        JournalStatus(str(data_dir), journal.uuid, journal.epoch, journal.start_offset(), end),
        [
            ConsumerStatus(c.name, c.offset, max(0, end - c.offset), c.updated_us)
            for c in ConsumerPosition.list(data_dir)
        ],
        None if lake is None else _table(Lake(lake), journal.uuid, end),
        None if lake is None else _dead_letters(lake),
    )


def _table(lake: Lake, uuid: str, high_watermark: int) -> TableStatus | None:
    state = lake.state()
    if state is None:
        return None
    end = state.end(uuid)
    offset = 0 if end is None else end.offset
    return TableStatus(str(lake.messages), state.version, state.rows, offset, max(0, high_watermark - offset))


def _dead_letters(lake: Path) -> DeadLettersStatus | None:
    table = LakeTable(lake, DEAD_LETTERS)
    log = table.log()
    if log is None:
        return None
    found = log.to_pyarrow_table(columns=["reason"])["reason"].value_counts().to_pylist()
    ordered = sorted(found, key=lambda each: (-each["counts"], each["values"]))
    reasons = {each["values"]: each["counts"] for each in ordered}
    return DeadLettersStatus(str(table.path), sum(reasons.values()), reasons)


def describe(status: PipelineStatus) -> str:
    """A line for the journal, one for each consumer, one for the table, one for what could not be published."""
    journal = status.journal
    held = f"offsets {journal.start_offset:,} to {journal.high_watermark:,}"
    lines = [f"journal   {journal.data_dir}  uuid {journal.uuid}  epoch {journal.epoch}  {held}"]
    lines += [f"consumer  {c.name}  offset {c.offset:,}  lag {c.lag:,}" for c in status.consumers]
    if status.table is not None:
        table = status.table
        lines.append(
            f"table     {table.path}  version {table.version}  rows {table.rows:,}  "
            f"up to offset {table.offset:,}  lag {table.lag:,}"
        )
    if status.dead_letters is not None:
        aside = status.dead_letters
        why = ", ".join(f"{rows:,} {reason!r}" for reason, rows in aside.reasons.items())
        lines.append(f"put aside {aside.path}  rows {aside.rows:,}: {why}")
    return "\n".join(lines)
