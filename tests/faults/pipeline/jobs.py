"""A job of the pipeline as a supervisor runs it: a process of its own, started again whenever it was killed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from broker_process import wait_until
from spark import quick_java

STOP_S = 120.0
TARGETS = ("driver", "JVM", "worker")
"""The Python process of a job, Spark's process below it, or one Python worker of that, rather one at work."""
# Small heaps and the quick compiler: four Sparks share two cores.
QUICK = quick_java.ENVIRONMENT


class Job:
    """`headrace pipeline run NAME --follow`."""

    def __init__(self, name: str, data_dir: Path, lake: Path, keys: Mapping[str, str], logs: Path) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        self._command = [sys.executable, "-m", "headrace", "pipeline", "run", name, "--follow"]
        self._command += ["--data-dir", str(data_dir), "--lake", str(lake)]
        self._command += [
            "--master",
            "local[2]",
            "--trigger",
            "0.5",
            "--set",
            'pipeline.driver_memory="700m"',
        ]
        for key, value in keys.items():
            self._command += ["--set", f"{key}={json.dumps(value)}"]
        # What a killed Spark leaves behind goes with the folder.
        self._environment = os.environ | QUICK | {"SPARK_LOCAL_DIRS": str(logs / "spark")}
        self._process: psutil.Popen | None = None
        self._children: list[psutil.Process] = []

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = psutil.Popen(
                self._command, env=self._environment, stdout=log, stderr=subprocess.STDOUT
            )

    def kill(self, target: str, chance: random.Random) -> bool:
        """SIGKILL, and started again if that ends the job; False if there is no such process now."""
        victim = self._victim(target, chance)
        if victim is None:
            return False
        self._children += self._below()
        with suppress(psutil.NoSuchProcess):
            victim.kill()
        if target != "worker":
            assert self._process is not None
            self._process.wait(STOP_S)
            self.start()
        return True

    def _below(self) -> list[psutil.Process]:
        assert self._process is not None
        try:
            return list(self._process.children(recursive=True))
        except psutil.NoSuchProcess:
            return []

    def _victim(self, target: str, chance: random.Random) -> psutil.Process | None:
        if target == "driver":
            return self._process
        found = []
        for process in self._below():
            with suppress(psutil.Error):
                is_worker = "pyspark.daemon" in process.cmdline() and not process.children()
                if is_worker if target == "worker" else process.name() == "java":
                    found.append(process)
        at_work = [process for process in found if _works(process)]
        return chance.choice(at_work or found) if found else None

    def require_running(self) -> None:
        """A job that ended by itself is a failure, whatever else is killed."""
        assert self._process is not None
        assert self._process.poll() is None, f"{self.name} ended by itself:\n{self.log.read_text()[-3000:]}"

    def own_restarts(self) -> int:
        """How often the query failed and was started again without the supervisor."""
        return self.log.read_text().count("is started again from its checkpoint")

    def stop(self) -> None:
        """SIGTERM: it must end with 0."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(STOP_S)
        assert code == 0, f"{self.name} ended with {code}:\n{self.log.read_text()[-3000:]}"

    def end(self) -> None:
        """No process is left behind, not even of the lives that were killed."""
        if self._process is None:
            return
        left = [*self._children, *self._below(), self._process]
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        wait_until(lambda: not any(_runs(process) for process in left), f"the end of {self.name}", STOP_S)


def _works(process: psutil.Process) -> bool:
    """On a core at this moment, or waiting for one."""
    try:
        return bool(process.status() == psutil.STATUS_RUNNING)
    except psutil.NoSuchProcess:
        return False


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
