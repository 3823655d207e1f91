"""A standalone Spark cluster on loopback: a master and two workers of one core each, which can be killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil
import pyspark

from broker_process import free_port, wait_until
from spark import quick_java

HOME: Final = Path(pyspark.__file__).parent
WORKERS: Final = (1, 2)
WAIT_S: Final = 400
SETTINGS: Final = f"""
[pipeline.spark]
"spark.executor.memory" = "600m"
"spark.executor.cores" = "1"
"spark.executor.extraJavaOptions" = "{quick_java.OPTIONS}"
"""
"""What a job is told of Spark, so that each of the workers has an executor of it."""
_WITHOUT: Final = 'mount -t tmpfs none "$0" && exec "$@"'


class Cluster:
    """Number 0 is the master, 1 and 2 are the workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.hidden: Path | None = None
        """A folder that workers which are started now do not have, as on another machine; that needs root."""
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._starts = 0
        self._logs: dict[int, Path] = {}
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
        self.start_master()
        for number in WORKERS:
            self._spawn_worker(number)
        for number in WORKERS:
            self._wait_for(number, "Successfully registered")

    def start_master(self) -> None:
        self._spawn(0, "master.Master", "--port", str(self.port))
        self._wait_for(0, "elected leader")

    def start_worker(self, number: int) -> None:
        """Returns when the master knows it."""
        self._spawn_worker(number)
        self._wait_for(number, "Successfully registered")

    def _spawn_worker(self, number: int) -> None:
        size = ("--cores", "1", "--memory", "1g", "--work-dir", str(self._work(number)))
        self._spawn(number, "worker.Worker", "--port", str(free_port()), *size, self.master)

    def _work(self, number: int) -> Path:
        return self.folder / f"work-{number}"

    def _spawn(self, number: int, kind: str, *arguments: str) -> None:
        command = [
            str(HOME / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{kind}",
            "--host",
            "127.0.0.1",
        ]
        self._starts += 1
        self._logs[number] = self.folder / f"daemon-{number}-{self._starts}.log"
        if self.hidden is not None:
            command = ["unshare", "-m", "sh", "-c", _WITHOUT, str(self.hidden), *command]
        ports = ("--webui-port", str(free_port()))
        # What workers have is what drivers send them, and the environment of their Python.
        environment = {name: value for name, value in self.environment.items() if name != "PYTHONPATH"}
        with self._logs[number].open("wb") as log:
            self.processes[number] = subprocess.Popen(
                [*command, *ports, *arguments], env=environment, stdout=log, stderr=log
            )

    def _wait_for(self, number: int, line: str) -> None:
        log = self._logs[number]

        def found() -> bool:
            assert self.processes[number].poll() is None, log.read_text()
            return line in log.read_text()

        wait_until(found, line, WAIT_S)

    def kill_worker(self, number: int) -> int:
        """SIGKILL to the worker and its executors, as when a machine goes; returns how many processes it had."""
        worker = psutil.Process(self.processes[number].pid)
        children = worker.children(recursive=True)
        for process in [worker, *children]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.processes[number].wait()
        return len(children)

    def forget(self) -> None:
        """Remove what jobs that have ended left in the folders of the workers, packages above all."""
        for number in WORKERS:
            for application in self._work(number).glob("app-*"):
                shutil.rmtree(application, ignore_errors=True)

    def stop(self) -> None:
        for number, process in self.processes.items():
            if process.poll() is None:
                self.kill_worker(number)


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster until the block ends."""
    made = Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()
