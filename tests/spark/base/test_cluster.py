"""A standalone cluster on loopback: the archive while one worker is killed; and what is said when it cannot work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
import pyspark
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from broker_process import free_port, wait_until
from headrace_spark.base import cluster
from headrace_spark.base.cluster import check_folders, check_master, check_workers
from headrace_spark.base.errors import BadOption, EngineMissing
from headrace_spark.lake.lake import Lake
from spark import quick_java
from spark.conftest import Writer
from spark.journals import mixed

pytestmark = pytest.mark.spark
WAIT_S = 400
HOME = Path(pyspark.__file__).parent
SETTINGS = f"""
[pipeline.spark]
"spark.executor.memory" = "600m"
"spark.executor.cores" = "1"
"spark.executor.extraJavaOptions" = "{quick_java.OPTIONS}"
"""


class Cluster:
    """A master and two workers of one core each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.environment = os.environ | {
            "SPARK_HOME": str(HOME),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": "256m",
            **quick_java.ENVIRONMENT,
        }

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._spawn("master.Master", "--port", str(self.port))
        self._wait_for(0, "elected leader")
        for number in (1, 2):
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / f"work-{number}"))
            self._spawn("worker.Worker", "--port", str(free_port()), *size, self.master)
        for number in (1, 2):
            self._wait_for(number, "Successfully registered")

    def _spawn(self, kind: str, *arguments: str) -> None:
        command = [
            str(HOME / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{kind}",
            "--host",
            "127.0.0.1",
        ]
        log = self._log(len(self.processes)).open("wb")
        ports = ("--webui-port", str(free_port()))
        self.processes.append(
            subprocess.Popen([*command, *ports, *arguments], env=self.environment, stdout=log, stderr=log)
        )
        log.close()

    def _log(self, number: int) -> Path:
        return self.folder / f"daemon-{number}.log"

    def _wait_for(self, number: int, line: str) -> None:
        log = self._log(number)

        def found() -> bool:
            assert self.processes[number].poll() is None, log.read_text()
            return line in log.read_text()

        wait_until(found, line, WAIT_S)

    def kill_worker(self, number: int) -> int:
        """SIGKILL to the worker and its executors, as when a machine goes; returns how many executors there were."""
        worker = psutil.Process(self.processes[number].pid)
        children = worker.children(recursive=True)
        for process in [worker, *children]:
            process.kill()
        self.processes[number].wait()
        return len(children)

    def stop(self) -> None:
        for number, process in enumerate(self.processes):
            if process.poll() is None:
                self.kill_worker(number)


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def archive(spark_cluster: Cluster, journal: Writer, lake: Path) -> subprocess.Popen[str]:
    config = spark_cluster.folder / "headrace.toml"
    config.write_text(SETTINGS)
    command = [sys.executable, "-m", "headrace", "pipeline", "archive", "--config", str(config)]
    command += ["--data-dir", str(journal.data_dir), "--lake", str(lake), "--master", spark_cluster.master]
    command += ["--follow", "--trigger", "0", "--max-records", "200"]
    return subprocess.Popen(command, env=spark_cluster.environment, stderr=subprocess.PIPE, text=True)


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
    process = archive(spark_cluster, journal, lake)

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
