"""An archive behind a URL: `file:` through the same calls as a bucket. The table equals the journal, whoever goes on."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.journal.consumers import ConsumerPosition
from headrace_spark.archive.settings import ArchiveSettings
from headrace_spark.base.errors import LakeConflict, QueryFailed, TableMoved
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.base.progress import Progress
from headrace_spark.jobs import archive
from headrace_spark.lake.delta_commit import Step, append_rows
from headrace_spark.lake.hadoop_files import HadoopFiles
from headrace_spark.lake.url_lake import UrlLake
from spark.conftest import Writer, settings_of
from spark.journals import mixed
from spark.test_source_stream import drop_what_nobody_needs

pytestmark = pytest.mark.spark


class Bench:
    """One journal, one lake behind a URL, and drivers that know nothing of each other."""

    def __init__(self, spark: SparkSession, journal: Writer, folder: Path) -> None:
        self.spark = spark
        self.journal = journal
        self.folder = folder
        self.url = LakeUrl(f"file:{folder}")
        self.lake = UrlLake(spark, self.url)

    def settings(self, **changes: Any) -> ArchiveSettings:
        settings: ArchiveSettings = settings_of("archive", self.journal.data_dir, self.folder)
        return replace(settings, lake=self.url, **changes)

    def archive(self, **changes: Any) -> Progress:
        return archive.run(self.spark, self.settings(**changes), Event(), lambda _: None)

    def offsets(self) -> list[int]:
        table = DeltaTable(self.folder / "messages").to_pyarrow_table(columns=["journal_offset"])
        return sorted(table["journal_offset"].to_pylist())

    def expected(self) -> list[int]:
        return [row["journal_offset"] for row in self.journal.rows()]


@pytest.fixture
def bench(spark: SparkSession, journal: Writer, tmp_path: Path) -> Bench:
    return Bench(spark, journal, tmp_path / "lake")


def test_the_table_equals_the_journal_and_the_consumer_is_at_its_end(bench: Bench) -> None:
    bench.journal.write(mixed(900, 1))
    progress = bench.archive(records_per_trigger_max=400)
    expected = bench.journal.rows()
    table = DeltaTable(bench.folder / "messages").to_pyarrow_table().select(list(expected[0]))
    assert table.sort_by("journal_offset").to_pylist() == expected
    assert (progress.rows, progress.offset, progress.lag) == (len(expected), 900, 0)
    assert ConsumerPosition.read(bench.journal.data_dir, "archive").offset == 900
    assert [path.name for path in (bench.folder / "_checkpoints").glob("[!.]*")] == ["upkeep-messages"]


def test_another_driver_goes_on_from_the_table_alone(bench: Bench) -> None:
    bench.journal.write(mixed(300, 2))
    bench.archive()
    assert bench.archive().rows == 0
    bench.journal.write(mixed(200, 3))
    shutil.rmtree(bench.folder / "_checkpoints")  # a machine that has nothing of the one before
    assert bench.archive().offset == 500
    assert bench.offsets() == bench.expected()


@pytest.mark.deep
def test_an_older_copy_of_the_lake_gets_what_it_lacks(bench: Bench, tmp_path: Path) -> None:
    bench.journal.write(mixed(300, 4))
    bench.archive()
    shutil.copytree(bench.folder, tmp_path / "copy")
    bench.journal.write(mixed(300, 5))
    bench.archive()
    shutil.rmtree(bench.folder)
    shutil.copytree(tmp_path / "copy", bench.folder)
    bench.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]  # another process
    bench.archive()
    assert bench.offsets() == bench.expected()


@pytest.mark.deep
def test_a_restore_while_the_job_runs_is_noticed_by_the_next_batch(bench: Bench) -> None:
    """It keeps the transaction by which the table says where it stands."""
    bench.journal.write(mixed(300, 50))
    bench.archive()
    stop, once = Event(), Event()

    def look(progress: Progress) -> None:
        if progress.offset == 400 and not once.is_set():
            once.set()
            DeltaTable(bench.folder / "messages").restore(1)
            bench.journal.write(mixed(100, 52))
        if progress.offset == 500:
            stop.set()

    bench.journal.write(mixed(100, 51))
    with pytest.raises(QueryFailed, match="RESTORE has taken rows out of table"):
        archive.run(bench.spark, bench.settings(follow=True, trigger_s=0.1), stop, look)
    DeltaTable(bench.folder / "messages").restore(2)
    bench.archive()
    assert bench.offsets() == bench.expected()


@pytest.mark.deep
def test_rows_that_a_query_of_ones_own_wrote_are_not_written_again(bench: Bench) -> None:
    bench.journal.write(mixed(300, 6))
    bench.lake.table.create(bench.spark)
    source = bench.spark.read.format("headrace").load(str(bench.journal.data_dir))
    source.write.format("delta").mode("append").save(str(bench.lake.messages))
    bench.journal.write(mixed(300, 7))
    bench.archive()
    assert bench.offsets() == bench.expected()


def test_a_batch_from_elsewhere_than_the_table_stands_is_refused(bench: Bench) -> None:
    bench.journal.write(mixed(50, 8))
    bench.lake.table.create(bench.spark)
    rows = bench.spark.read.format("headrace").load(str(bench.journal.data_dir))
    append_rows(bench.spark, bench.lake.messages, rows, [Step("archive-u-0", 50, None)])
    for after in (None, 40, 60):
        with pytest.raises(TableMoved, match="is at version 50 of archive-u-0"):
            append_rows(bench.spark, bench.lake.messages, rows, [Step("archive-u-0", 90, after)])
    assert bench.offsets() == bench.expected()


def test_of_two_that_go_on_from_one_place_one_commits(bench: Bench) -> None:
    """Both have looked, then both commit: Delta's own check is the judge."""
    bench.journal.write(mixed(50, 9))
    bench.lake.table.create(bench.spark)
    rows = bench.spark.read.format("headrace").load(str(bench.journal.data_dir))

    def commit(_number: int) -> bool:
        try:
            append_rows(bench.spark, bench.lake.messages, rows, [Step("archive-u-0", 50, None)])
        except (TableMoved, Py4JJavaError, PySparkException):
            return False
        return True

    with ThreadPoolExecutor(4) as drivers:
        assert sum(drivers.map(commit, range(4))) == 1
    assert bench.offsets() == bench.expected()


def test_a_driver_whose_lease_was_taken_stops(bench: Bench) -> None:
    bench.journal.write(mixed(50, 10))
    stop = Event()
    said: list[Progress] = []

    def take_over(progress: Progress) -> None:
        said.append(progress)
        lease = bench.lake.lease(bench.journal.uuid)
        HadoopFiles(bench.spark).write(lease.url, json.dumps({"holder": "another"}))

    with pytest.raises(LakeConflict, match="another process is archiving journal"):
        archive.run(bench.spark, bench.settings(follow=True, trigger_s=0.1), stop, take_over)
    assert said
    assert "another" in (bench.folder / "_checkpoints" / f"{bench.journal.uuid}.lease").read_text()


@pytest.mark.deep
def test_retention_that_was_faster_is_refused(bench: Bench) -> None:
    bench.journal.write(mixed(900, 11))
    bench.archive()
    bench.journal.write(mixed(900, 12))
    ConsumerPosition.remove(bench.journal.data_dir, "archive")
    start = drop_what_nobody_needs(bench.journal)
    with pytest.raises(QueryFailed, match=f"offsets 900 to {start} are gone"):
        bench.archive()
    bench.archive(fail_on_data_loss=False)
    assert bench.offsets() == [offset for offset in bench.expected() if offset < 900 or offset >= start]


@pytest.mark.deep
def test_small_files_are_compacted_between_batches(bench: Bench) -> None:
    small = replace(bench.settings().upkeep, small_files_max=1)
    mark = bench.folder / "_checkpoints" / "upkeep-messages"
    for seed in range(2):
        bench.journal.write(mixed(60, 20 + seed))
        bench.archive(upkeep=small)
    os.utime(mark, (0, 0))
    bench.archive(upkeep=small)
    assert mark.stat().st_mtime > 0
    operations = [commit["operation"] for commit in DeltaTable(bench.folder / "messages").history()]
    assert "OPTIMIZE" in operations
    assert bench.offsets() == bench.expected()
    bench.journal.write(mixed(60, 22))
    bench.archive(upkeep=small)  # a compaction says nothing of where the table is
    assert bench.offsets() == bench.expected()
