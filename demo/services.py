"""The broker, the archive job, the fleet and the subscriber as processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from headrace.data.claim import cores

REPOSITORY = Path(__file__).parents[1]
PYTHON = (sys.executable, "-m")
WORKERS_MAX = 2  # of the broker
BROKER_READY = "promise="  # what the broker says of its acknowledgements once all workers serve
KILLED_S = 10.0  # for so long what is killed may take to end
# A JVM that lives for a minute never earns back what its optimising compiler costs (31 s of CPU against 13 s).
SHORT_LIVED_JVM = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}


class Service:
    """One process that can be started, killed and started again; its output goes to a log file."""

    def __init__(self, name: str, log: Path, *command: str) -> None:
        self.name = name
        self.log = log
        self.command = command
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=REPOSITORY,
                env=os.environ | SHORT_LIVED_JVM,
            )

    def start_ready(self, within_s: float, sign: str = "ready") -> float:
        """Start and wait for a line that holds `sign`; the seconds it took."""
        began = time.monotonic()
        before = self.log.stat().st_size if self.log.exists() else 0
        self.start()
        while sign not in self.log.read_text(encoding="utf-8", errors="replace")[before:]:
            if not self.running or time.monotonic() - began > within_s:
                raise ServiceError(f"{self.name} did not become ready\n{self.tail()}")
            time.sleep(0.02)
        return time.monotonic() - began

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL to the process and its workers, as a power cut would."""
        if self.process is not None:
            workers = psutil.Process(self.process.pid).children() if self.running else []
            self.process.send_signal(
                signal.SIGSTOP
            )  # it would start them again, and they would stop without it
            for worker in workers:
                with suppress(psutil.NoSuchProcess):
                    worker.kill()
            self.process.kill()
            psutil.wait_procs(workers, timeout=KILLED_S)
            self.process.wait()

    def stop(self, within_s: float) -> int:
        """SIGTERM; the exit code, or -9 when it had to be killed after all."""
        if self.process is None:
            return 0
        self.process.terminate()
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return -9

    def tail(self) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])


class ServiceError(Exception):
    """A process did not start or ended when it should not have."""


def broker(out: Path, port: int) -> Service:
    """Return a broker, with two workers where there are two cores."""
    listen, workers = f"tcp://127.0.0.1:{port}", str(min(cores(), WORKERS_MAX))
    options = ("--data-dir", str(out / "data"), "--listen", listen, "--workers", workers)
    return Service("broker", out / "broker.log", *PYTHON, "headrace", "serve", *options)


def archive(out: Path) -> Service:
    folders = ("--data-dir", str(out / "data"), "--lake", str(out / "lake"))
    return Service(
        "archive", out / "archive.log", *PYTHON, "headrace", "pipeline", "archive", *folders, "--follow"
    )


def subscriber(out: Path, port: int) -> Service:
    options = ("--port", str(port), "--log", str(out / "deliveries.tsv"))
    return Service("subscriber", out / "subscriber.out", *PYTHON, "demo.subscriber", *options)


def fleet(out: Path, port: int, readings: int, rate: float) -> Service:
    options = ("--port", str(port), "--readings", str(readings), "--rate", str(rate))
    return Service(
        "fleet", out / "fleet.out", *PYTHON, "demo.fleet", *options, "--log", str(out / "readings.tsv")
    )
