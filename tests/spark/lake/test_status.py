"""Status comes from files alone: the journal's, and the log of the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.records.event import BROKER_STARTED, Event
from headrace_spark.base.errors import JournalMissing
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.status import describe, pipeline_status
from headrace_spark.source.journal import open_journal, open_journals, register
from spark.conftest import Writer
from spark.journals import Made, mixed
from spark.lake.test_lake import append


def test_the_journal_and_its_consumers(journal: Writer) -> None:
    journal.write(mixed(300))
    register(open_journal(journal.data_dir), "archive", 120)
    status = pipeline_status(open_journals(journal.data_dir), None)
    assert (status.journal.uuid, status.journal.epoch) == (journal.uuid, journal.epoch)
    assert (status.journal.start_offset, status.journal.high_watermark) == (0, 300)
    assert [(c.name, c.offset, c.lag) for c in status.consumers] == [("archive", 120, 180)]
    assert status.table is None
    assert describe(status).splitlines()[1].startswith("consumer  archive  offset 120  lag 180  ")
    assert status.consumers[0].lag_bytes > 0
    assert status.consumers[0].lag_s > 0


def test_the_table(journal: Writer, tmp_path: Path) -> None:
    made, lake = mixed(300), Lake(tmp_path / "lake")
    journal.write(made)
    assert pipeline_status(open_journals(journal.data_dir), lake).table is None
    rows = append(lake, made, 0, 1, uuid=journal.uuid)
    status = pipeline_status(open_journals(journal.data_dir), lake)
    assert status.table is not None
    assert (status.table.rows, status.table.version) == (rows, 0)
    assert (status.table.offset, status.table.lag) == (rows_end(journal), 300 - rows_end(journal))
    assert f"rows {rows}  up to offset {rows_end(journal)}" in describe(status)


def test_a_table_that_has_all_messages_is_not_behind(journal: Writer, tmp_path: Path) -> None:
    """Whatever records come last: sessions that begin and end are in no row."""
    made, lake = mixed(300), Lake(tmp_path / "lake")
    made.add(Event(BROKER_STARTED, 1, {"version": "1"}))
    journal.write(made)
    append(lake, made, 0, journal.epoch, uuid=journal.uuid, archived=5)
    table = pipeline_status(open_journals(journal.data_dir), lake).table
    assert table is not None
    assert (table.offset, table.lag) == (rows_end(journal), 301 - rows_end(journal))
    append(lake, Made(), 301, journal.epoch, uuid=journal.uuid, archived=301)
    table = pipeline_status(open_journals(journal.data_dir), lake).table
    assert table is not None
    assert (table.offset, table.lag) == (301, 0)


def test_a_table_of_another_journal_counts_for_nothing(journal: Writer, tmp_path: Path) -> None:
    journal.write(mixed(10))
    append(Lake(tmp_path / "lake"), mixed(20), 0, 1)
    table = pipeline_status(open_journals(journal.data_dir), Lake(tmp_path / "lake")).table
    assert table is not None
    assert (table.offset, table.lag) == (0, 10)


def test_no_journal(tmp_path: Path) -> None:
    with pytest.raises(JournalMissing):
        pipeline_status(open_journals(tmp_path), None)


def rows_end(journal: Writer) -> int:
    return int(journal.rows()[-1]["journal_offset"]) + 1
