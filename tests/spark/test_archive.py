"""The job `archive`: the table equals the journal, row for row, whatever is killed; read back without Spark."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from headrace.journal.consumers import ConsumerPosition
from headrace_spark.archive.folder import written_below
from headrace_spark.base.errors import JournalMissing, LakeConflict, QueryFailed
from headrace_spark.base.progress import Progress
from headrace_spark.jobs import archive
from headrace_spark.lake.lake import Lake
from headrace_spark.source.local import LocalJournal
from spark import quick_java
from spark.conftest import Writer, settings_of
from spark.journals import mixed
from spark.stops import stop_all, stop_while_planning

pytestmark = pytest.mark.spark

WAIT_S = 400


class Bench:
    """One journal, one lake, and the ways to archive."""

    def __init__(self, spark: SparkSession, journal: Writer, lake: Path) -> None:
        self.spark = spark
        self.journal = journal
        self.lake = lake

    def settings(self, **changes: Any) -> archive.Settings:
        settings: archive.Settings = settings_of("archive", self.journal.data_dir, self.lake, **changes)
        return settings

    def archive(self, **changes: Any) -> Progress:
        return archive.run(self.spark, self.settings(**changes), Event(), lambda _: None)

    def archive_around(self, harm: Callable[[], None]) -> Progress:
        """Follow the journal until 100 more records are archived that were written behind some harm to the lake."""
        stop = Event()
        done = iter((harm, stop.set))
        end = len(self.journal.made.records)

        def look(progress: Progress) -> None:
            nonlocal end
            if progress.offset >= end and not stop.is_set():
                next(done)()
                self.journal.write(mixed(100, end))
                end += 100

        settings = self.settings(follow=True, trigger_s=0.1, restarts_max=1)
        return archive.run(self.spark, settings, stop, look)

    def rows(self) -> list[dict[str, Any]]:
        table = DeltaTable(self.lake / "messages").to_pyarrow_table()
        rows: list[dict[str, Any]] = (
            table.select(list(self.journal.rows()[0])).sort_by("journal_offset").to_pylist()
        )
        return rows

    def has_version(self, version: int) -> bool:
        return (self.lake / "messages" / "_delta_log" / f"{version:020}.json").exists()

    def row_count(self) -> int:
        state = Lake(self.lake).table.state()
        return 0 if state is None else state.rows

    @contextmanager
    def process(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """`headrace pipeline archive` as a process of its own; killed at the end if it is still there."""
        command = [sys.executable]
        if arguments[:1] != ("-c",):
            command += ["-m", "headrace", "pipeline", "archive"]
        command += arguments
        command += [
            "--data-dir",
            str(self.journal.data_dir),
            "--lake",
            str(self.lake),
            "--master",
            "local[2]",
        ]
        process = subprocess.Popen(
            command,
            env=os.environ | quick_java.ENVIRONMENT,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            # Its Spark as well: that of a driver which was killed takes its time to notice.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def bench(spark: SparkSession, journal: Writer, tmp_path: Path) -> Bench:
    return Bench(spark, journal, tmp_path / "lake")


def wait_for(condition: Any, process: subprocess.Popen[str], interval_s: float = 0.02) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[1]
        time.sleep(interval_s)


def test_the_table_equals_the_journal_and_the_consumer_is_at_its_end(bench: Bench) -> None:
    bench.journal.write(mixed(1500, 1))
    progress = bench.archive(records_per_trigger_max=800)
    expected = bench.journal.rows()
    assert bench.rows() == expected
    assert (progress.rows, progress.offset, progress.lag) == (len(expected), 1500, 0)
    assert ConsumerPosition.read(bench.journal.data_dir, "archive").offset == 1500
    assert {path.name for path in (bench.lake / "messages").glob("tenant=*")} == {
        "tenant=tenant-0",
        "tenant=tenant-1",
    }


def test_a_stop_while_the_first_batch_was_planned_harms_nothing(bench: Bench) -> None:
    bench.journal.write(mixed(100, 1))
    stop_while_planning(bench.lake / "_checkpoints" / "archive-archive")
    assert bench.archive().rows == len(bench.journal.rows())
    assert bench.rows() == bench.journal.rows()


def test_another_run_adds_what_is_new_and_nothing_else(bench: Bench) -> None:
    bench.journal.write(mixed(300, 2))
    bench.archive()
    assert bench.archive().rows == 0
    bench.journal.write(mixed(200, 3))
    bench.archive()
    assert bench.rows() == bench.journal.rows()


def test_a_lost_checkpoint_is_made_up_for_by_the_table(bench: Bench) -> None:
    bench.journal.write(mixed(400, 4))
    bench.archive()
    shutil.rmtree(bench.lake / "_checkpoints")
    bench.journal.write(mixed(300, 5))
    bench.archive(consumer="other")
    assert bench.rows() == bench.journal.rows()


def test_a_replaced_table_is_not_continued(bench: Bench) -> None:
    bench.journal.write(mixed(100, 6))
    bench.archive()
    shutil.rmtree(bench.lake / "messages")
    with pytest.raises(LakeConflict, match="Remove the checkpoint too"):
        bench.archive()


def test_a_checkpoint_that_is_not_whole_is_not_continued(journal: Writer, tmp_path: Path) -> None:
    journal.write(mixed(10, 6))
    commits = tmp_path / "lake" / "_checkpoints" / "archive-archive" / "commits"
    commits.mkdir(parents=True)
    (commits / "0").touch()
    lake = Lake(tmp_path / "lake")
    with pytest.raises(LakeConflict, match=r"no file `metadata`: the checkpoint is not whole. Remove it"):
        written_below(LocalJournal(journal.data_dir), lake, lake.checkpoint("archive", "archive"))


def test_a_table_of_another_schema_is_refused_unharmed(bench: Bench) -> None:
    bench.journal.write(mixed(100, 7))
    bench.spark.range(3).write.format("delta").save(str(bench.lake / "messages"))
    with pytest.raises(LakeConflict, match="another schema"):
        bench.archive()
    assert DeltaTable(bench.lake / "messages").to_pyarrow_table().num_rows == 3


def test_two_archives_of_one_journal_into_one_lake_are_refused(bench: Bench) -> None:
    bench.journal.write(mixed(100, 8))
    with (
        Lake(bench.lake).archiving(bench.journal.uuid),
        pytest.raises(LakeConflict, match="another process is archiving"),
    ):
        bench.archive(consumer="second")


def test_another_journal_under_the_same_consumer_says_what_to_do(bench: Bench, tmp_path: Path) -> None:
    bench.journal.write(mixed(100, 9))
    bench.archive()
    bench.journal.data_dir.rename(tmp_path / "old")
    other = Writer(bench.journal.data_dir)
    other.write(mixed(50, 10))
    with pytest.raises(QueryFailed, match="a new checkpoint and consumer") as caught:
        bench.archive()
    assert caught.value.is_ours


def test_a_directory_without_a_journal_is_refused(bench: Bench) -> None:
    with pytest.raises(JournalMissing, match=r"data_dir: .* holds no journal"):
        bench.archive()


def test_a_killed_python_worker_costs_nothing(bench: Bench) -> None:
    bench.journal.write(mixed(2000, 11))
    killed: list[int] = []

    def kill_workers(progress: Progress) -> None:
        if progress.rows and len(killed) < 3:
            killed.extend(kill(workers()))

    archive.run(bench.spark, bench.settings(records_per_trigger_max=300), Event(), kill_workers)
    assert killed
    assert bench.rows() == bench.journal.rows()


def workers() -> list[psutil.Process]:
    """The Python workers that run tasks: the leaves below Spark's daemon."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "pyspark.daemon" in " ".join(process.cmdline()) and not process.children():
                found.append(process)
    return found


def kill(processes: list[psutil.Process]) -> list[int]:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return [process.pid for process in processes]


def roll_back(checkpoint: Path, batches: int) -> None:
    """What an older copy of a checkpoint is: the newest batches were never heard of."""
    for folder in ("offsets", "commits"):
        names = sorted(int(path.name) for path in (checkpoint / folder).glob("[0-9]*"))
        for number in names[-batches:]:
            (checkpoint / folder / str(number)).unlink()
            (checkpoint / folder / f".{number}.crc").unlink(missing_ok=True)


def test_a_checkpoint_that_is_older_than_its_table_loses_and_repeats_nothing(bench: Bench) -> None:
    """Its next batches have numbers that the table has seen, and take more than those did."""
    bench.journal.write(mixed(600, 19))
    bench.archive(records_per_trigger_max=200)
    roll_back(bench.lake / "_checkpoints" / "archive-archive", 2)
    bench.journal.write(mixed(200, 20))
    progress = bench.archive(records_per_trigger_max=500)
    assert bench.rows() == bench.journal.rows()
    assert progress.rows == len(mixed(200, 20).rows(""))
    assert ConsumerPosition.read(bench.journal.data_dir, "archive").offset == 800


def test_consumers_in_turn_write_each_message_once(bench: Bench) -> None:
    for seed, consumer in enumerate("aba"):
        bench.journal.write(mixed(100, 30 + seed))
        bench.archive(consumer=consumer)
    assert bench.rows() == bench.journal.rows()


def test_a_consumer_belongs_to_one_lake_until_it_is_handed_over(bench: Bench, tmp_path: Path) -> None:
    """Retention would otherwise pass the slower of two lakes; one that was moved as a whole is the same."""
    bench.journal.write(mixed(100, 35))
    bench.archive()
    bench.lake.rename(tmp_path / "moved")
    first, bench.lake = tmp_path / "moved", tmp_path / "other"
    with pytest.raises(LakeConflict, match=r"consumer 'archive' belongs to archive:.* in .*lake/messages"):
        bench.archive()
    bench.lake = first
    bench.archive()
    bench.lake = tmp_path / "other"
    ConsumerPosition.hand_over(bench.journal.data_dir, "archive")
    bench.archive()
    assert bench.rows() == bench.journal.rows()


def test_a_table_that_is_older_than_its_checkpoint_is_refused_with_both_named(
    bench: Bench, tmp_path: Path
) -> None:
    bench.journal.write(mixed(300, 33))
    bench.archive()
    shutil.copytree(bench.lake / "messages", tmp_path / "older")
    bench.journal.write(mixed(100, 34))
    bench.archive()
    shutil.rmtree(bench.lake / "messages")
    (tmp_path / "older").rename(bench.lake / "messages")
    with pytest.raises(LakeConflict, match=r"read up to offset 400.* has the journal up to offset 300"):
        bench.archive()
    shutil.rmtree(bench.lake / "_checkpoints")
    bench.archive()
    assert bench.rows() == bench.journal.rows()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("restored", r"RESTORE has taken rows out of table .*/messages, .*TO VERSION AS OF 2"),
        pytest.param(
            "put back",
            r"read up to offset 400, .* has the journal up to offset 300.*Remove the checkpoint",
            marks=pytest.mark.deep,
        ),
        pytest.param(
            "removed",
            r"/messages is gone: it was moved, removed or replaced while this job ran",
            marks=pytest.mark.deep,
        ),
    ],
)
def test_what_is_done_to_the_table_while_the_job_runs_is_noticed_by_the_next_batch(
    bench: Bench, tmp_path: Path, harm: str, said: str
) -> None:
    """Its rows would hide that what is below them is missing."""
    messages = bench.lake / "messages"
    bench.journal.write(mixed(300, 40))
    bench.archive()
    shutil.copytree(messages, tmp_path / "older")
    bench.journal.write(mixed(100, 41))

    def done() -> None:
        if harm == "restored":
            DeltaTable(messages).restore(1)
            return
        shutil.rmtree(messages)
        if harm == "put back":
            shutil.copytree(tmp_path / "older", messages)

    with pytest.raises((LakeConflict, QueryFailed), match=said):
        bench.archive_around(done)
    if harm == "restored":
        DeltaTable(messages).restore(2)
    else:
        shutil.rmtree(bench.lake / "_checkpoints")
    if harm == "removed":
        ConsumerPosition.hand_over(bench.journal.data_dir, "archive")
    bench.archive()
    assert bench.rows() == bench.journal.rows()


def test_of_two_jobs_whose_locks_were_removed_neither_doubles_a_row(bench: Bench) -> None:
    """The one that runs finds the table further than it left it, and goes on behind that."""
    bench.journal.write(mixed(300, 42))

    def another() -> None:
        shutil.rmtree(bench.lake / "_checkpoints")
        bench.journal.write(mixed(50, 43))
        bench.archive(consumer="another")

    with suppress(LakeConflict):
        bench.archive_around(another)
    shutil.rmtree(bench.lake / "_checkpoints", ignore_errors=True)
    bench.archive()
    assert bench.rows() == bench.journal.rows()


def test_a_batch_that_spark_did_not_mark_is_not_written_twice(bench: Bench) -> None:
    """What kill -9 between Delta's commit and Spark's leaves behind."""
    bench.journal.write(mixed(600, 13))
    bench.archive(records_per_trigger_max=300)
    commits = bench.lake / "_checkpoints" / "archive-archive" / "commits"
    for name in ("1", ".1.crc"):
        (commits / name).unlink()
    bench.journal.write(mixed(100, 14))
    bench.archive()
    assert bench.rows() == bench.journal.rows()


KILLED_AT_ITS_COMMIT = """
import os, signal, sys
from headrace.commands.main import main
from headrace_spark.archive import folder as archive

commit, moment = archive.append_files, sys.argv[1]

def killed(*about, **more):
    is_second = 1 in more["also"].values()
    if is_second and moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    commit(*about, **more)
    if is_second:
        os.kill(os.getpid(), signal.SIGKILL)

archive.append_files = killed
sys.argv[:2] = ["headrace"]
main()
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_kill_9_between_files_commit_and_checkpoint(bench: Bench, moment: str) -> None:
    bench.journal.write(mixed(400, 15))
    command = ("-c", KILLED_AT_ITS_COMMIT, moment, "pipeline", "archive", "--max-records", "100")
    with bench.process(*command) as process:
        assert process.wait(WAIT_S) == -signal.SIGKILL
    checkpoint = Lake(bench.lake).checkpoint("archive", "archive")
    assert (checkpoint.last_batch, checkpoint.unfinished) == (0, True)
    assert Lake(bench.lake).table.last_batch(str(checkpoint.query_id)) == (0 if moment == "before" else 1)
    bench.archive()
    assert bench.rows() == bench.journal.rows()
    # What the killed attempt wrote is no part of the table, and goes with a vacuum.
    table = DeltaTable(bench.lake / "messages")
    written = set((bench.lake / "messages").rglob("part-*.parquet"))
    named = {bench.lake / "messages" / name for name in table.to_pyarrow_dataset().files}
    assert bool(written - named) == (moment == "before")
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert set((bench.lake / "messages").rglob("part-*.parquet")) == named


def test_a_table_with_more_of_delta_is_written_by_spark_and_goes_on_as_it_was(bench: Bench) -> None:
    table = bench.lake / "messages"
    bench.journal.write(mixed(300, 16))
    bench.archive(records_per_trigger_max=200)
    bench.spark.sql(f"alter table delta.`{table}` set tblproperties (delta.enableChangeDataFeed = true)")
    assert not Lake(bench.lake).table.is_plain()
    bench.journal.write(mixed(300, 17))
    progress = bench.archive()
    assert bench.rows() == bench.journal.rows()
    assert progress.rows == len(mixed(300, 17).rows(""))
    bench.spark.sql(f"alter table delta.`{table}` add constraint sane check (qos < 3)")
    bench.journal.write(mixed(100, 18))
    bench.archive()
    assert bench.rows() == bench.journal.rows()


def test_a_constraint_holds_from_the_batch_after_it_was_made(bench: Bench) -> None:
    table = bench.lake / "messages"
    bench.journal.write(mixed(200, 21))
    made: list[bool] = []

    def constrain(progress: Progress) -> None:
        if progress.rows and not made:
            bench.spark.sql(f"alter table delta.`{table}` add constraint few check (journal_offset < 200)")
            made.append(True)

    stop = Event()

    def write_more() -> None:
        wait_until(lambda: bool(made), stop)
        bench.journal.write(mixed(50, 22))

    first = Thread(target=write_more)
    first.start()
    with pytest.raises(QueryFailed, match="CHECK constraint few"):
        archive.run(bench.spark, bench.settings(follow=True, restarts_max=0), stop, constrain)
    first.join()
    assert bench.rows() == mixed(200, 21).rows(bench.journal.uuid, bench.journal.epoch)


def wait_until(condition: Callable[[], bool], stop: Event) -> None:
    """Until it is so, or the test is over anyway."""
    end = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < end and not stop.wait(0.1):
        pass


def test_kill_9_of_the_driver_while_the_journal_grows_and_a_clean_stop(bench: Bench) -> None:
    """Killed in the middle of its batches, then run again at once, and stopped by SIGTERM when everything is there."""
    growing = Event()

    def grow() -> None:
        for seed in range(100, 200):
            bench.journal.write(mixed(100, seed))
            if growing.wait(0.5):
                return

    bench.journal.write(mixed(1000, 12))
    writer = Thread(target=grow)
    writer.start()
    try:
        with bench.process("--follow", "--trigger", "0", "--max-records", "150") as process:
            wait_for(lambda: bench.has_version(4), process)
            process.send_signal(signal.SIGKILL)
    finally:
        growing.set()
        writer.join()
    with bench.process("--follow", "--trigger", "0") as process:
        expected = len(bench.journal.rows())
        wait_for(lambda: bench.row_count() >= expected, process, interval_s=0.5)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, said
    assert "done:" in said
    assert bench.rows() == bench.journal.rows()


def test_a_stop_of_all_its_processes_in_the_middle_is_one_line(bench: Bench) -> None:
    bench.journal.write(mixed(6000, 14))
    with bench.process("--follow", "--trigger", "0", "--max-records", "100") as process:
        wait_for(lambda: bench.has_version(4), process)
        stop_all(process)
    assert 0 < bench.row_count() < len(bench.journal.rows())
