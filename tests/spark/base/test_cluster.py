"""A standalone cluster on loopback: `archive` while one worker is killed, `clean` behind it; and what is said when it
cannot work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any, cast

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from broker_process import wait_until
from headrace_spark.base import cluster
from headrace_spark.base.cluster import check_folders, check_master, check_workers
from headrace_spark.base.errors import BadOption, EngineMissing
from headrace_spark.lake.lake import Lake
from spark.conftest import Writer
from spark.journals import mixed
from spark.standalone import SETTINGS, WAIT_S, Cluster, standalone_cluster

pytestmark = pytest.mark.spark


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path) as cluster:
        yield cluster


def run(
    spark_cluster: Cluster, job: str, journal: Writer, lake: Path, *options: str
) -> subprocess.Popen[str]:
    config = spark_cluster.folder / "headrace.toml"
    config.write_text(SETTINGS)
    command = [sys.executable, "-m", "headrace", "pipeline", "run", job, "--config", str(config)]
    command += ["--data-dir", str(journal.data_dir), "--lake", str(lake), "--master", spark_cluster.master]
    return subprocess.Popen(
        [*command, *options], env=spark_cluster.environment, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_a_killed_worker_costs_nothing(spark_cluster: Cluster, journal: Writer, tmp_path: Path) -> None:
    lake, grown = tmp_path / "lake", Event()

    def rows() -> int:
        state = Lake(lake).table.state()
        return 0 if state is None else state.rows

    def grow() -> None:
        for seed in range(100, 140):
            journal.write(mixed(50, seed))
            if grown.wait(0.25):
                return

    journal.write(mixed(1500, 1))
    more = ("--follow", "--trigger", "0", "--set", "pipeline.archive.records_per_trigger_max=200")
    process = run(spark_cluster, "archive", journal, lake, *more)

    def running(condition: Callable[[], bool]) -> Callable[[], bool]:
        def check() -> bool:
            assert process.poll() is None, process.communicate()[1]
            return condition()

        return check

    writer = Thread(target=grow)
    try:
        wait_until(running(lambda: rows() >= 300), "the first batches", WAIT_S)
        writer.start()
        assert spark_cluster.kill_worker(1) > 0
        wait_until(running(lambda: rows() >= 1000), "batches without the worker", WAIT_S)
        grown.set()
        writer.join()
        wait_until(running(lambda: rows() >= len(journal.rows())), "all of it", WAIT_S)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=WAIT_S)
    finally:
        grown.set()
        process.kill()
        process.communicate()
    assert process.returncode == 0, said
    table = DeltaTable(lake / "messages").to_pyarrow_table().sort_by("journal_offset")
    found: list[dict[str, Any]] = table.select(list(journal.rows()[0])).to_pylist()
    assert found == journal.rows()
    clean(spark_cluster, journal, lake)


def clean(spark_cluster: Cluster, journal: Writer, lake: Path) -> None:
    """On what is left of the cluster: every row goes into exactly one table."""
    schemas = spark_cluster.folder / "schemas.toml"
    schemas.write_text('[[schema]]\nname = "any"\ntopics = ["#"]\n')
    keys = ("--set", f"pipeline.clean.topic_schemas='{schemas}'")
    process = run(spark_cluster, "clean", journal, lake, *keys)
    try:
        _, said = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, said
    found = [
        offset
        for table in ("clean", "quarantine", "repeats")
        for offset in DeltaTable(lake / table).to_pyarrow_table()["journal_offset"].to_pylist()
    ]
    assert sorted(found) == [row["journal_offset"] for row in journal.rows()]


def test_a_master_that_is_none() -> None:
    check_master("local[2]")
    for master in ("spark://host", "spark://", "spark://host:port"):
        with pytest.raises(BadOption, match="spark://host:port is needed"):
            check_master(master)
    with pytest.raises(EngineMissing, match=r"no Spark master answers at spark://127.0.0.1:1 .*refused"):
        check_master("spark://127.0.0.1:1")


def test_what_workers_lack_is_named(spark: SparkSession) -> None:
    check_workers(spark)
    with pytest.raises(EngineMissing, match=r"Spark workers lack nothing\.like_it, nowhere: install them"):
        check_workers(spark, ("msgspec", "nowhere", "nothing.like_it"))


def test_a_folder_that_workers_do_not_see_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each machine would write a lake of its own, and the table name files that are elsewhere."""
    monkeypatch.setattr(cluster, "_SEEN_WITHIN_S", 0.0)
    lake, data_dir = tmp_path / "lake", tmp_path / "data"
    (data_dir / "journal").mkdir(parents=True)
    check_folders(spark, lake, data_dir, [data_dir / "journal"])
    assert list((lake / "_checkpoints").iterdir()) == []
    with pytest.raises(BadOption, match=r"data_dir=.*/data.*: the worker on .* does not see it.*headrace://"):
        check_folders(spark, lake, data_dir, [data_dir / "journal", data_dir / "elsewhere"])
    monkeypatch.setattr(Path, "touch", lambda _path: None)
    with pytest.raises(BadOption, match=r"pipeline.lake=.*/lake.*: the worker on .* does not see it.*a URL"):
        check_folders(spark, lake, None, [])


def test_marks_that_killed_processes_left_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, seen = tmp_path / "_checkpoints", list[Path]()
    folder.mkdir()
    for name, age_s in ((".seen-old", 7200), (".seen-new", 60), ("archive.lock", 7200)):
        (folder / name).touch()
        os.utime(folder / name, (time.time() - age_s,) * 2)
    monkeypatch.setattr(cluster, "require_seen", lambda *about: seen.extend(about[3]))
    cluster.check_folders(cast(SparkSession, None), tmp_path, None, [])
    assert [path.parent for path in seen] == [folder]
    assert sorted(path.name for path in folder.iterdir()) == [".seen-new", "archive.lock"]
