"""An archive of several shards: one query, and a batch is in the table for all journals or for none, whoever goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from headrace.journal.consumers import ConsumerPosition
from headrace_spark.archive.settings import ArchiveSettings
from headrace_spark.base.errors import LakeConflict
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.base.progress import Progress
from headrace_spark.jobs import archive
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.messages import archive_id
from spark import quick_java
from spark.conftest import Shards, Writer, settings_of
from spark.journals import mixed

pytestmark = pytest.mark.spark
WAIT_S = 400


class Bench:
    """A broker of several shards, and a lake in a folder or behind a URL."""

    def __init__(self, spark: SparkSession, shards: Shards, lake: Path, by_url: bool) -> None:
        self.spark = spark
        self.shards = shards
        self.lake = lake
        self.by_url = by_url

    def archive(self, **changes: Any) -> Progress:
        settings: ArchiveSettings = settings_of("archive", self.shards.data_dir, self.lake, **changes)
        if self.by_url:
            settings = replace(settings, lake=LakeUrl(f"file:{self.lake}"))
        return archive.run(self.spark, settings, Event(), lambda _: None)

    def rows(self) -> list[dict[str, Any]]:
        table = DeltaTable(self.lake / "messages").to_pyarrow_table().select(list(self.shards.rows()[0]))
        ordered = table.sort_by([("journal_uuid", "ascending"), ("journal_offset", "ascending")])
        found: list[dict[str, Any]] = ordered.to_pylist()
        return found


# What there is of a URL alone the gate runs with one journal: tests/spark/archive/test_by_url.py.
@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.deep)], ids=["folder", "url"])
def bench(request: pytest.FixtureRequest, spark: SparkSession, shards: Shards, tmp_path: Path) -> Bench:
    return Bench(spark, shards, tmp_path / "lake", request.param)


def test_the_table_equals_all_journals_and_the_consumer_is_at_each_end(bench: Bench) -> None:
    progress = bench.archive(records_per_trigger_max=500)
    assert bench.rows() == bench.shards.rows()
    ends = {writer.uuid: len(writer.made.records) for writer in bench.shards.writers}
    assert (progress.ends, progress.offset, progress.lag) == (ends, sum(ends.values()), 0)
    log = DeltaTable(bench.lake / "messages")
    for writer in bench.shards.writers:
        assert ConsumerPosition.read(writer.data_dir, "archive").offset == ends[writer.uuid]
        assert log.transaction_version(archive_id(writer.uuid, writer.epoch)) == ends[writer.uuid]
    bench.shards.write(60, seed=2)
    bench.archive()
    assert bench.rows() == bench.shards.rows()


def test_a_lost_checkpoint_repeats_nothing(bench: Bench) -> None:
    bench.archive(records_per_trigger_max=500)
    shutil.rmtree(bench.lake / "_checkpoints")
    bench.shards.write(60, seed=2)
    bench.archive(records_per_trigger_max=500)
    assert bench.rows() == bench.shards.rows()


@pytest.mark.deep
def test_an_older_checkpoint_loses_nothing(bench: Bench, tmp_path: Path) -> None:
    bench.archive(records_per_trigger_max=400)
    checkpoints = bench.lake / "_checkpoints"
    shutil.copytree(checkpoints, tmp_path / "before")
    bench.shards.write(60, seed=2)
    bench.archive()
    shutil.rmtree(checkpoints)
    shutil.copytree(tmp_path / "before", checkpoints)
    bench.shards.write(60, seed=3)
    bench.archive()
    assert bench.rows() == bench.shards.rows()


def test_a_lake_goes_on_when_its_broker_is_divided(bench: Bench, journal: Writer) -> None:
    """The old journal is in the table, and nobody reads it again; the new ones have other uuids."""
    journal.write(mixed(200))
    settings: ArchiveSettings = settings_of("archive", journal.data_dir, bench.lake)
    if bench.by_url:
        settings = replace(settings, lake=LakeUrl(f"file:{bench.lake}"))
    archive.run(bench.spark, settings, Event(), lambda _: None)
    bench.archive()
    bench.shards.write(60, seed=2)
    bench.archive()
    expected = sorted(
        journal.rows() + bench.shards.rows(), key=lambda row: (row["journal_uuid"], row["journal_offset"])
    )
    assert bench.rows() == expected


def test_one_shard_that_is_archived_keeps_all_out(
    spark: SparkSession, shards: Shards, tmp_path: Path
) -> None:
    bench = Bench(spark, shards, tmp_path / "lake", by_url=False)
    uuid = shards.writers[1].uuid
    with Lake(bench.lake).archiving(uuid), pytest.raises(LakeConflict, match=f"archiving journal {uuid}"):
        bench.archive()


@pytest.mark.deep
def test_a_constraint_leaves_it_one_commit(spark: SparkSession, shards: Shards, tmp_path: Path) -> None:
    bench = Bench(spark, shards, tmp_path / "lake", by_url=False)
    bench.archive()
    spark.sql(
        f"alter table delta.`{bench.lake / 'messages'}` add constraint some check (journal_offset >= 0)"
    )
    before = DeltaTable(bench.lake / "messages").version()
    shards.write(60, seed=2)
    bench.archive()
    assert bench.rows() == shards.rows()
    assert DeltaTable(bench.lake / "messages").version() == before + 1


@pytest.mark.deep  # of one journal, at each moment: tests/spark/test_archive.py
def test_kill_9_in_the_middle_costs_no_row_and_doubles_none(shards: Shards, tmp_path: Path) -> None:
    """Small batches, so that the kill finds one unfinished; killed twice, then run to the end."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "headrace",
        "pipeline",
        "archive",
        "--data-dir",
        str(shards.data_dir),
    ]
    command += ["--lake", str(tmp_path / "lake"), "--max-records", "240", "--master", "local[2]"]
    quick = os.environ | quick_java.ENVIRONMENT
    log = tmp_path / "lake" / "messages" / "_delta_log"
    for versions in (1, 3):
        follow = [*command, "--follow"]  # it cannot come to its end before it is killed
        job = subprocess.Popen(follow, start_new_session=True, stderr=subprocess.DEVNULL, env=quick)
        try:
            until = time.monotonic() + WAIT_S
            while not (log / f"{versions:020}.json").exists():
                assert job.poll() is None, "it ended before it was killed"
                assert time.monotonic() < until
                time.sleep(0.02)
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    done = subprocess.run(command, check=False, capture_output=True, timeout=WAIT_S, env=quick)
    assert done.returncode == 0, done.stderr
    table = DeltaTable(tmp_path / "lake" / "messages").to_pyarrow_table()
    found = table.select(["journal_uuid", "journal_offset"]).to_pylist()
    found.sort(key=lambda row: (row["journal_uuid"], row["journal_offset"]))
    assert found == [
        {name: row[name] for name in ("journal_uuid", "journal_offset")} for row in shards.rows()
    ]
