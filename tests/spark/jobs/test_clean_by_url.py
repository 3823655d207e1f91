"""The jobs `clean` and `mend` on a lake behind a URL: `file:` through the same calls as a bucket, where a driver has
nothing but the tables."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from threading import Event
from time import time
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from headrace_spark.base.errors import LakeConflict, QueryFailed, TableMoved
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.base.progress import Progress
from headrace_spark.jobs import clean, mend
from headrace_spark.lake.delta_commit import Step, append_marks
from headrace_spark.lake.hadoop_files import HadoopFiles
from headrace_spark.lake.job_status import Places, job_statuses
from headrace_spark.lake.lake_of import lake_of
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.table_plan import TablePlan
from headrace_spark.lake.tables import CLEAN, QUARANTINE
from spark.jobs import test_clean
from spark.jobs.test_clean import SCHEMAS, Cut, everything, made

pytestmark = pytest.mark.spark


class Bench(test_clean.Bench):
    """A lake in a folder that the jobs know by its URL."""

    def settings(self, **changes: Any) -> clean.Settings:
        return replace(super().settings(**changes), lake=LakeUrl(f"file:{self.lake}"))

    def forget(self) -> None:
        """Let Spark know nothing of the tables, as another process."""
        jvm: Any = self.spark._jvm
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path / "lake")


@pytest.mark.deep
def test_rows_are_where_they_belong_and_another_driver_goes_on(bench: Bench) -> None:
    bench.add(made(range(60)))
    assert bench.clean() == 60
    bench.add(made(range(60, 90), range(30)))
    bench.add(made(range(90, 120), range(15, 45)))
    shutil.rmtree(bench.lake / "_checkpoints")  # a machine that has nothing of the one before
    assert bench.clean(bytes_per_trigger_max=1) == 60
    good = [n for n in range(120) if n % 3 and n % 5 and not 90 <= n < 105]
    assert bench.offsets("clean") == good
    assert bench.offsets("repeats") == list(range(90, 105))
    assert bench.offsets("quarantine") == [n for n in range(120) if n not in good and not 90 <= n < 105]
    assert bench.clean() == 0
    bench.add(made(range(120, 125)))
    found = job_statuses(Places(lake_of(bench.spark, bench.settings().lake), [], [], time()))
    assert {job.job: job.lag for job in found} == {"clean": 5, "mend": len(bench.offsets("quarantine"))}
    assert not list((bench.lake / "_checkpoints").glob("clean-messages/*"))


@pytest.mark.parametrize(
    ("written", "is_behind"),
    [
        pytest.param(0, False, marks=pytest.mark.deep),
        (1, True),
        pytest.param(2, True, marks=pytest.mark.deep),
    ],
)
def test_a_driver_that_is_killed_at_a_table_is_gone_on_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, written: int, is_behind: bool
) -> None:
    """Between two of the tables, and in front of or behind the commit: what the next one finds is the plan."""
    bench.add(made(range(30), range(30)))
    bench.clean()
    bench.add(made(range(30, 60), range(15, 45)))
    append, left = LakeTable.append, [written]

    def cut(table: LakeTable, *about: Any) -> None:
        if not left[0] and not is_behind:
            raise Cut
        append(table, *about)
        if not left[0]:
            raise Cut
        left[0] -= 1

    with monkeypatch.context() as patched:
        patched.setattr(LakeTable, "append", cut)
        with pytest.raises((Cut, QueryFailed)):
            bench.clean()
    bench.forget()
    bench.add(made(range(60, 70)))  # which a batch that is planned anew would have too
    bench.clean()
    everything(bench, 70)
    assert bench.offsets("repeats") == list(range(30, 45))


@pytest.mark.deep
def test_an_older_copy_of_the_lake_gets_what_it_lacks(bench: Bench, tmp_path: Path) -> None:
    bench.add(made(range(30)))
    bench.clean()
    shutil.copytree(bench.lake / "clean", tmp_path / "older")
    bench.add(made(range(30, 60)))
    bench.clean()
    bench.add(made(range(60, 90)))
    bench.clean()
    shutil.rmtree(bench.lake / "clean")
    (tmp_path / "older").rename(bench.lake / "clean")
    bench.forget()
    bench.clean()
    everything(bench, 90)


@pytest.mark.deep
@pytest.mark.parametrize("places", [(0, 1, 0, 1), (1, 0, 1, 0)])
def test_a_lake_that_is_moved_between_a_folder_and_a_url_repeats_nothing(
    bench: Bench, places: tuple[int, ...]
) -> None:
    """Each keeps elsewhere where it is, and what the other one has left there is older by then."""
    for number, is_url in enumerate(places):
        bench.add(made(range(30 * number, 30 * number + 30)))
        bench.forget()
        if is_url:
            bench.clean()
        else:
            clean.run(bench.spark, test_clean.Bench.settings(bench), Event(), lambda _: None)
        everything(bench, bench.written)


@pytest.mark.deep
def test_rows_that_a_restore_brings_back_are_not_cleaned_again(bench: Bench) -> None:
    for first in (0, 30):
        bench.add(made(range(first, first + 30)))
        bench.clean()
    DeltaTable(bench.lake / "messages").restore(0)
    DeltaTable(bench.lake / "messages").restore(1)
    bench.forget()
    bench.clean()
    everything(bench, 60)


@pytest.mark.deep
def test_a_restore_while_the_job_runs_is_noticed_by_the_next_batch(bench: Bench) -> None:
    bench.add(made(range(30)))
    bench.clean()
    bench.add(made(range(30, 60)))
    once = Event()

    def done(progress: Progress) -> None:
        if progress.rows == 30 and not once.is_set():
            once.set()
            table = DeltaTable(bench.lake / "clean")
            table.restore(table.version() - 2)  # the newest one plans a batch
            bench.add(made(range(60, 90)))

    with pytest.raises((LakeConflict, QueryFailed), match=r"RESTORE has taken rows out of table .*/clean"):
        clean.run(bench.spark, bench.settings(follow=True, trigger_s=0.1), Event(), done)


@pytest.mark.deep
def test_rows_that_a_restore_took_out_are_missed_and_those_of_a_table_made_anew_are_not_written_again(
    bench: Bench, tmp_path: Path
) -> None:
    bench.add(made(range(30)))
    bench.clean()
    version = DeltaTable(bench.lake / "clean").version()
    bench.add(made(range(30, 60)))
    bench.clean()
    DeltaTable(bench.lake / "clean").restore(version)
    bench.forget()
    with pytest.raises(LakeConflict, match=r"RESTORE has taken rows out of table .*/clean, which would be"):
        bench.clean()
    DeltaTable(bench.lake / "clean").restore(DeltaTable(bench.lake / "clean").version() - 1)
    for definition in (CLEAN, QUARANTINE):
        rows = bench.spark.read.format("delta").load(str(bench.lake / definition.name))
        anew = rows.write.format("delta").partitionBy(*definition.partitioned_by)
        anew.save(str(tmp_path / definition.name))
        shutil.rmtree(bench.lake / definition.name)
        (tmp_path / definition.name).rename(bench.lake / definition.name)
    bench.forget()
    bench.add(made(range(60, 90)))
    bench.clean()
    everything(bench, 90)


@pytest.mark.deep
@pytest.mark.parametrize("table", ["messages", "quarantine"])
def test_an_older_copy_of_what_the_table_goes_by_is_named(bench: Bench, tmp_path: Path, table: str) -> None:
    bench.add(made(range(30)))
    bench.clean()
    shutil.copytree(bench.lake / table, tmp_path / "older")
    for first in (30, 60):
        bench.add(made(range(first, first + 30)))
        bench.clean()
    shutil.rmtree(bench.lake / table)
    (tmp_path / "older").rename(bench.lake / table)
    bench.forget()
    with pytest.raises(LakeConflict, match=f"/{table} was replaced, or restored .* than table .*/clean"):
        bench.clean()


def test_a_batch_that_another_driver_has_planned_meanwhile_writes_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still behind its look for longer than its lease, and the other one plans less than all."""
    bench.add(made(range(30)))
    add = TablePlan.add

    def late(plan: TablePlan, batch: int, *notes: Any) -> None:
        append_marks(bench.spark, bench.lake / "clean", Step(f"{plan.query_id}/end", 7, None), {})
        add(plan, batch, *notes)

    with monkeypatch.context() as patched:
        patched.setattr(TablePlan, "add", late)
        with pytest.raises((TableMoved, QueryFailed), match="another process writes it"):
            bench.clean()
    assert [bench.offsets(table) for table in ("clean", "quarantine", "repeats")] == [[], [], []]


def test_a_driver_whose_lease_was_taken_stops(bench: Bench) -> None:
    bench.add(made(range(30)))
    url = LakeUrl(f"file:{bench.lake}") / "_checkpoints" / "clean.lease"

    def take_over(_: object) -> None:
        HadoopFiles(bench.spark).write(url, json.dumps({"holder": "another"}))

    with pytest.raises(LakeConflict, match="another process is running job clean"):
        clean.run(bench.spark, bench.settings(follow=True, trigger_s=0.1), Event(), take_over)


@pytest.mark.deep
def test_topic_schemas_may_change_between_batches_and_not_within_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.add(made(range(30)))
    bench.clean()
    bench.file.write_text(
        SCHEMAS + '[[schema]]\nname = "other"\ntopics = ["nowhere"]\nfields = { device = "string" }\n'
    )
    bench.add(made(range(30, 60)))

    def cut(_table: LakeTable, _rows: DataFrame, *_about: Any) -> None:
        raise Cut

    with monkeypatch.context() as patched:
        patched.setattr(LakeTable, "append", cut)
        with pytest.raises((Cut, QueryFailed)):
            bench.clean()
    bench.file.write_text(SCHEMAS)
    with pytest.raises(LakeConflict, match=r"run the job once with file:.*topic-schemas\.toml"):
        bench.clean()
    (bench.lake.parent / "schemas.toml").write_bytes(
        (bench.lake / "_checkpoints" / "clean-messages-topic-schemas.toml").read_bytes()
    )
    bench.clean()
    mend.run(bench.spark, bench.settings(), Event(), lambda _: None)
    assert bench.offsets("clean") == [n for n in range(60) if n % 3]
    assert bench.offsets("quarantine") == [n for n in range(60) if n % 3 == 0]
    assert DeltaTable(bench.lake / "clean").to_pyarrow_table().num_rows == 40
