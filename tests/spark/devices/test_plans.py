"""A checkpoint that was lost or is older is moved to where the outbox is; what does not belong together is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace_spark.base.errors import LakeConflict
from headrace_spark.devices.plans import Plans
from headrace_spark.lake.checkpoint import Checkpoint


class Bench:
    """A table of commands, of which batch N takes version N."""

    def __init__(self, lake: Path) -> None:
        self.lake = lake
        self.checkpoint = Checkpoint(lake / "checkpoint")
        self.plans = Plans(lake / "outbox", "commands", self.checkpoint, lake / "commands")

    def plan(self, batch: int) -> None:
        write_deltalake(self.lake / "commands", pa.table({"payload": ["x"]}), mode="append")
        for folder in ("offsets", "commits"):
            (self.checkpoint.path / folder).mkdir(parents=True, exist_ok=True)
        (self.checkpoint.path / "metadata").write_text('{"id": "query-1"}')
        end = {"reservoirId": "t", "reservoirVersion": batch + 1, "index": -1, "isStartingVersion": False}
        (self.checkpoint.path / "offsets" / str(batch)).write_text(f'v1\n{{"conf":{{}}}}\n{json.dumps(end)}')
        self.plans.add(batch)

    def finish(self, batch: int) -> None:
        (self.checkpoint.path / "commits" / str(batch)).write_text("v1\n{}")

    def do(self, batches: int) -> None:
        for batch in range(batches):
            self.plan(batch)
            self.finish(batch)

    def files(self) -> dict[str, str]:
        found = (path for path in self.checkpoint.path.rglob("*") if path.is_file())
        return {str(path.relative_to(self.checkpoint.path)): path.read_text() for path in found}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_what_belongs_together_is_left_as_it_is(bench: Bench) -> None:
    bench.plans.resume(None)
    bench.do(3)
    before = bench.files()
    bench.plans.resume(2)
    bench.plan(3)
    bench.plans.resume(2)  # begun and not kept
    assert bench.files() == before | {"offsets/3": bench.files()["offsets/3"]}


@pytest.mark.parametrize("left", [0, 1, 2])
def test_an_older_checkpoint_goes_on_behind_the_last_batch_that_was_kept(bench: Bench, left: int) -> None:
    bench.do(4)
    end = bench.checkpoint.end(3)
    for batch in range(left, 4):
        (bench.checkpoint.path / "offsets" / str(batch)).unlink()
        (bench.checkpoint.path / "commits" / str(batch)).unlink()
    if left == 0:
        shutil.rmtree(bench.checkpoint.path)
    assert bench.plans.query == "query-1"
    bench.plans.resume(3)
    assert (bench.checkpoint.query_id, bench.checkpoint.end(3)) == ("query-1", end)
    assert (bench.checkpoint.last_planned, bench.checkpoint.last_batch) == (3, 2)  # Spark repeats batch 3


def test_other_rows_under_the_number_of_a_kept_batch_give_way_to_it(bench: Bench) -> None:
    bench.do(2)
    end = bench.checkpoint.end(1)
    (bench.checkpoint.path / "commits" / "1").unlink()
    offsets = bench.checkpoint.path / "offsets" / "1"
    offsets.write_text(offsets.read_text().replace('"reservoirVersion": 2', '"reservoirVersion": 9'))
    bench.plans.resume(1)
    assert bench.checkpoint.end(1) == end


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        ("outbox behind", "it was restored from an older copy"),
        ("outbox empty", "the outbox has none of its rows"),
        ("other query", "belongs to another query"),
        ("older table", "commands was replaced, or restored from an older copy"),
        ("torn plans", "cannot be read"),
    ],
)
def test_what_does_not_belong_together_is_refused(bench: Bench, harm: str, problem: str) -> None:
    bench.do(1)
    shutil.copytree(bench.lake / "commands", bench.lake / "older")
    bench.do(4)
    kept = {"outbox behind": 2, "outbox empty": None}.get(harm, 3)
    if harm == "other query":
        (bench.checkpoint.path / "metadata").write_text('{"id": "query-2"}')
    elif harm == "older table":
        shutil.rmtree(bench.lake / "commands")
        (bench.lake / "older").rename(bench.lake / "commands")
    elif harm == "torn plans":
        (bench.lake / "outbox" / "_plans" / "commands.json").write_text('{"query"')
    with pytest.raises(LakeConflict, match=f"{problem}.*another pipeline.publish.name"):
        bench.plans.resume(kept)


def test_a_table_that_is_put_back_between_two_batches_is_noticed_by_the_next(bench: Bench) -> None:
    """It gets other rows under versions that were read: these would never leave."""
    bench.do(1)
    shutil.copytree(bench.lake / "commands", bench.lake / "older")
    bench.do(4)
    shutil.rmtree(bench.lake / "commands")
    (bench.lake / "older").rename(bench.lake / "commands")
    for _ in range(4):
        write_deltalake(bench.lake / "commands", pa.table({"payload": ["y"]}), mode="append")
    with pytest.raises(LakeConflict, match="commands was replaced, or restored from an older copy"):
        bench.plan(4)


def test_a_log_that_no_longer_has_what_is_still_to_be_read_is_named(bench: Bench) -> None:
    bench.do(2)
    bench.plan(2)
    write_deltalake(bench.lake / "commands", pa.table({"payload": ["y"]}), mode="append")
    bench.plans.resume(1)
    DeltaTable(bench.lake / "commands").create_checkpoint()
    for commit in sorted((bench.lake / "commands" / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()
    with pytest.raises(
        LakeConflict, match=r"the log of .*/commands no longer has version 2, .*another pipeline"
    ):
        bench.plans.resume(1)


def test_rows_that_a_restore_brings_back_do_not_leave_again(bench: Bench) -> None:
    bench.do(3)
    DeltaTable(bench.lake / "commands").restore(1)
    bench.plan(3)  # it takes rows out, which a stream passes over
    DeltaTable(bench.lake / "commands").delete()
    DeltaTable(bench.lake / "commands").restore(4)
    with pytest.raises(LakeConflict, match=r"brought rows back into table .*/commands with version 6"):
        bench.plan(6)


def test_an_outbox_of_an_older_headrace_tells_by_numbers(bench: Bench) -> None:
    bench.do(3)
    shutil.rmtree(bench.lake / "outbox")
    bench.plans.resume(2)
    with pytest.raises(LakeConflict, match="has its rows up to batch 3, the checkpoint knows of batch 2"):
        bench.plans.resume(3)
