"""What belongs together of the job `clean` is found without Spark: by transactions, notes and files of a checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from headrace_spark.base.errors import LakeConflict
from headrace_spark.clean.continuity import Continuity
from headrace_spark.lake.checkpoint import Checkpoint
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.tables import CLEAN, QUARANTINE, REPEATS
from headrace_spark.records.schema import arrow_schema
from spark.lakes import NOW, fill


class Bench:
    """A lake in which batch N has read version N + 1 of `messages`; all write `clean`, every other `quarantine`."""

    def __init__(self, lake: Path) -> None:
        self.lake = lake
        self.checkpoint = Checkpoint(lake / "_checkpoints" / "clean-messages")
        self.clean, self.quarantine, self.repeats = (
            LakeTable(lake, table) for table in (CLEAN, QUARANTINE, REPEATS)
        )
        self.messages = LakeTable(lake / "source", CLEAN)  # any table will do
        for table in (self.clean, self.quarantine, self.repeats, self.messages):
            table.create()
        self.together = Continuity(
            self.checkpoint, self.messages.path, self.clean, (self.quarantine, self.repeats)
        )

    def plan(self, batch: int) -> None:
        for folder in ("offsets", "commits"):
            (self.checkpoint.path / folder).mkdir(parents=True, exist_ok=True)
        (self.checkpoint.path / "metadata").write_text('{"id": "query-1"}')
        end = {"reservoirId": "t", "reservoirVersion": batch + 2, "index": -1, "isStartingVersion": False}
        (self.checkpoint.path / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(end)}")

    def finish(self, batch: int) -> None:
        (self.checkpoint.path / "commits" / str(batch)).write_text("v1\n{}")

    def do(self, batch: int) -> None:
        nothing(self.messages)
        self.plan(batch)
        note = {"userMetadata": self.together.note(batch)}
        mark = (self.together.app_id, self.together.end(batch).number)
        nothing(self.clean, mark, note)
        if batch % 2:
            nothing(self.quarantine, mark, {})
        self.finish(batch)


def nothing(
    table: LakeTable, mark: tuple[str, int] | None = None, note: dict[str, Any] | None = None
) -> None:
    """A commit without rows."""
    log = DeltaTable(table.folder)
    marks = None if mark is None else [Transaction(*mark)]
    write_deltalake(
        log,
        log.to_pyarrow_table(),
        mode="append",
        commit_properties=CommitProperties(custom_metadata=note or {}, app_transactions=marks),
    )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_what_belongs_together_goes_on_and_repeats_what_was_not_marked(bench: Bench) -> None:
    bench.together.require()
    for batch in range(4):
        bench.do(batch)
        bench.together.require()
    bench.plan(4)
    assert [bench.together.repeats(batch) for batch in range(5)] == [True] * 4 + [False]
    (bench.checkpoint.path / "commits" / "3").unlink()
    bench.together.require()


@pytest.mark.parametrize("table", ["clean", "quarantine", "source/clean"])
def test_an_older_copy_and_a_missing_table_are_named(bench: Bench, tmp_path: Path, table: str) -> None:
    bench.do(0)
    bench.do(1)
    shutil.copytree(tmp_path / table, tmp_path / "older")
    bench.do(2)
    bench.do(3)
    bench.do(4)
    shutil.rmtree(tmp_path / table)
    if "source" not in table:
        with pytest.raises(LakeConflict, match=f"/{table} is gone.*Remove the checkpoint"):
            bench.together.require()
    (tmp_path / "older").rename(tmp_path / table)
    with pytest.raises(LakeConflict, match=f"/{table}.*restored from an older copy.*Remove the checkpoint"):
        bench.together.require()


@pytest.mark.parametrize("table", ["clean", "quarantine"])
def test_rows_that_a_restore_took_out_are_missed_until_it_is_taken_back(bench: Bench, table: str) -> None:
    bench.do(0)
    bench.do(1)
    definition = {"clean": CLEAN, "quarantine": QUARANTINE}[table]
    version = DeltaTable(bench.lake / table).version()
    fill(bench.lake, definition, {"date": NOW.date()})
    DeltaTable(bench.lake / table).restore(version)
    with pytest.raises(LakeConflict, match=rf"RESTORE has taken rows out of table .*/{table}\. To have them"):
        bench.together.require()
    DeltaTable(bench.lake / table).restore(version + 1)
    bench.together.require()


def test_a_log_that_no_longer_has_what_is_still_to_be_read_is_named(bench: Bench) -> None:
    """The job was away for longer than Delta keeps the log."""
    for batch in range(2):
        bench.do(batch)
    for _ in range(2):
        nothing(bench.messages)
    bench.together.require()
    DeltaTable(bench.messages.folder).create_checkpoint()
    for commit in sorted((bench.messages.folder / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()
    with pytest.raises(LakeConflict, match=r"the log of .* no longer has version 3, .*Remove the checkpoint"):
        bench.together.require()


def test_a_first_look_repeats_what_the_tables_had_before_it(bench: Bench) -> None:
    bench.together.begin()
    bench.do(0)
    assert not bench.checkpoint.path.with_name("clean-messages-again").exists()
    shutil.rmtree(bench.checkpoint.path)
    bench.together.begin()
    bench.plan(0)
    assert bench.together.repeats(0)


def test_a_first_look_repeats_what_tables_were_made_of(bench: Bench) -> None:
    """Somebody has written the rows of another lake into a new table: they are in its first version."""
    shutil.rmtree(bench.clean.folder)
    write_deltalake(
        bench.clean.folder,
        arrow_schema(CLEAN.columns).empty_table(),
        partition_by=list(CLEAN.partitioned_by),
        mode="append",
    )
    bench.together.begin()
    bench.plan(0)
    assert not bench.together.repeats(0)
    shutil.rmtree(bench.clean.folder)
    shutil.rmtree(bench.checkpoint.path)
    rows = pa.Table.from_pylist([{"date": NOW.date(), "journal_offset": 1}], arrow_schema(CLEAN.columns))
    write_deltalake(bench.clean.folder, rows, partition_by=list(CLEAN.partitioned_by))
    bench.together.begin()
    bench.plan(0)
    assert bench.together.repeats(0)


def test_batches_of_an_older_headrace_are_known_by_their_numbers(bench: Bench) -> None:
    for batch in range(3):
        bench.plan(batch)
        nothing(bench.clean, ("query-1", batch))
        bench.finish(batch)
    bench.together.require()
    bench.plan(3)
    assert [bench.together.repeats(batch) for batch in (2, 3)] == [True, False]
    bench.finish(3)
    with pytest.raises(LakeConflict, match="does not hold that"):
        bench.together.require()
