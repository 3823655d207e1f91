"""The broker as a process of its own: start it, wait until it is ready, stop it, kill it, start it again.

Which build runs is chosen by HEADRACE_BUILD: `interpreted` (the default; the source tree) or `compiled` (the
installed wheel, `src` kept off the path).  HEADRACE_SUITE is the suite of `workshop/test.sh` that these tests are part
of, if they are.  HEADRACE_PYTHON names the interpreter whose environment holds the
wheel.  While the audits themselves are developed, HEADRACE_AUDIT_BROKER=mosquitto puts Debian's mosquitto
under them: it agrees with the specification where nobody pulls the plug, and fails the audits where somebody
does.

Nothing sleeps here for synchronisation: a start ends with the line that says `ready`, with the process's end,
or at the deadline.  Processes are ended by their own id.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUILD = os.environ.get("HEADRACE_BUILD", "interpreted")
PYTHON = os.environ.get("HEADRACE_PYTHON", sys.executable)
UNDER_AUDIT = os.environ.get("HEADRACE_AUDIT_BROKER", "headrace")
MOSQUITTO = "/usr/sbin/mosquitto"
START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 30.0
SUITE = os.environ.get("HEADRACE_SUITE", BUILD)
PORTS = {
    "interpreted": (10_000, 16_000),
    "compiled": (16_000, 19_000),
    "compiled-e2e": (19_000, 22_000),
    "compiled-deep": (19_000, 22_000),
    "spark-jobs": (22_000, 23_500),
    "spark-rest": (23_500, 25_000),
    "spark-deep": (23_500, 25_000),
}

_used_ports: set[int] = set()


class BrokerExitedError(Exception):
    """The broker ended before it was ready."""

    def __init__(self, code: int, stderr: str) -> None:
        super().__init__(f"broker exited with {code} before it was ready:\n{stderr}")
        self.code, self.stderr = code, stderr


class Response(NamedTuple):
    status: int
    content_type: str
    body: str


def build_environment() -> dict[str, str]:
    """The environment in which `PYTHON -m headrace` is the build under test."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")
    }
    environment["PYTHONUNBUFFERED"] = "1"
    if BUILD == "interpreted":
        environment["PYTHONPATH"] = str(ROOT / "src")
    return environment


def free_port() -> int:
    """A free port below the range from which the kernel takes the ports of outgoing connections.

    The suites that `workshop/test.sh` runs at the same time draw from ranges of their own, and `headrace.testing` from
    the one above: a broker that is down for a moment would find its port taken.
    """
    while True:
        port = random.randrange(*PORTS[SUITE])
        if port not in _used_ports:
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                _used_ports.add(port)
                return port


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = 10.0) -> None:
    """Polls a condition that only another process can make true."""
    until = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {deadline_s} s")
        time.sleep(0.01)


def headrace(
    *arguments: str,
    stdin: bytes | str = b"",
    cwd: Path | None = None,
    deadline_s: float = 30.0,
) -> subprocess.CompletedProcess[str]:
    """Runs one command of the command line to its end."""
    return subprocess.run(
        [PYTHON, "-m", "headrace", *arguments],
        input=stdin if isinstance(stdin, str) else stdin.decode(),
        capture_output=True,
        text=True,
        env=build_environment(),
        cwd=cwd or "/",
        timeout=deadline_s,
        check=False,
    )


class BrokerProcess:
    """One broker on one data directory.  It keeps its ports over a restart, as its clients expect."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        extra: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.settings = dict(settings or {})
        self.extra = list(extra)
        self.environment = dict(environment or {})
        self.port = free_port()
        self.admin_port = free_port()
        self.process: subprocess.Popen[str] | None = None
        self.lines: list[str] = []  # of every life of this broker
        self._reader: threading.Thread | None = None
        self._changed = threading.Condition()
        self._ended = True

    @property
    def address(self) -> tuple[str, int]:
        return ("127.0.0.1", self.port)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def stderr(self) -> str:
        return "".join(self.lines)

    @property
    def trouble(self) -> str:
        """The first traceback on stderr, below a line of what it ends with; "" if there is none."""
        before, _, found = self.stderr.partition("Traceback")
        if not found:
            return ""
        frames = found.replace("\\n", "\n").splitlines()
        ending = next((line for line in frames[1:] if line and not line.startswith((" ", "|"))), frames[-1])
        return f"{ending}\n{before[-2000:]}Traceback{found[:8000]}"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def command(self) -> list[str]:
        arguments = ["--data-dir", str(self.data_dir), "--listen", f"tcp://127.0.0.1:{self.port}"]
        arguments += ["--admin", f"http://127.0.0.1:{self.admin_port}"]
        for key, value in self.settings.items():
            arguments += ["--set", f"{key}={value}"]
        return [PYTHON, "-m", "headrace", "serve", *arguments, *self.extra]

    ready_line = re.compile(r"\bready\b", re.IGNORECASE)

    # -- life and death

    def spawn(self) -> None:
        """Starts the process and returns at once."""
        assert not self.running
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            self.command(),
            cwd=self.folder,
            env=build_environment() | self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        assert self.process.stderr is not None
        self._ended = False
        self._reader = threading.Thread(target=self._read_stderr, args=(self.process.stderr,), daemon=True)
        self._reader.start()

    def start(self, deadline_s: float = START_DEADLINE_S) -> BrokerProcess:
        seen = len(self.lines)
        self.spawn()
        try:
            self.wait_for_line(self.ready_line, deadline_s, after=seen)
        except (TimeoutError, BrokerExitedError):
            self.end()
            raise
        return self

    def wait_for_line(
        self, pattern: re.Pattern[str] | str, deadline_s: float = START_DEADLINE_S, after: int = 0
    ) -> str:
        """The first line on stderr that matches, from line number `after` on."""
        wanted = re.compile(pattern) if isinstance(pattern, str) else pattern
        until = time.monotonic() + deadline_s
        with self._changed:
            while True:
                found = next((line for line in self.lines[after:] if wanted.search(line)), None)
                if found is not None:
                    return found
                if self._ended:
                    raise BrokerExitedError(self.wait(5), self.stderr)
                if not self._changed.wait(until - time.monotonic()):
                    raise TimeoutError(f"no line like {wanted.pattern!r} in:\n{self.stderr}")

    def wait(self, deadline_s: float = STOP_DEADLINE_S) -> int:
        assert self.process is not None
        return self.process.wait(deadline_s)

    def stop(self, deadline_s: float = STOP_DEADLINE_S) -> None:
        """SIGTERM; it must drain and exit with 0."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.wait(deadline_s)
        self._collect()
        assert code == 0, f"exit code {code} after SIGTERM:\n{self.stderr}"

    def kill(self) -> None:
        """SIGKILL, as the plug pulled."""
        assert self.process is not None
        self.process.kill()
        self.wait()
        self._collect()

    def restart(self) -> None:
        self.stop()
        self.start()

    def crash(self) -> None:
        self.kill()
        self.start()

    def end(self) -> None:
        """Whatever state it is in: no process is left behind."""
        if self.running:
            self.kill()
        self._collect()

    def _read_stderr(self, stream: IO[str]) -> None:
        for line in stream:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _collect(self) -> None:
        if self._reader is not None:
            self._reader.join(5)
        if self.process is not None and self.process.stderr is not None:
            self.process.stderr.close()

    # -- the admin endpoint

    def get(self, path: str, method: str = "GET") -> Response:
        request = urllib.request.Request(f"http://127.0.0.1:{self.admin_port}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return Response(answer.status, answer.headers.get("content-type", ""), answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Response(error.code, error.headers.get("content-type", ""), error.read().decode())

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics: name with its labels, as written there -> value."""
        samples = [
            line.rsplit(" ", 1)
            for line in self.get("/metrics").body.splitlines()
            if line[:1] not in ("", "#")
        ]
        return {name: float(value) for name, value in samples}


class MosquittoProcess(BrokerProcess):
    """Debian's mosquitto in the broker's place, to try the audits out; `extra` are lines of its configuration."""

    ready_line = re.compile(r"running")

    def command(self) -> list[str]:
        self.data_dir.mkdir(exist_ok=True)
        lines = [f"listener {self.port} 127.0.0.1", "allow_anonymous true", "user root", "persistence true"]
        lines += [f"persistence_location {self.data_dir}/", "max_queued_messages 0", "log_dest stderr"]
        lines += ["max_inflight_messages 1024", "set_tcp_nodelay true"]
        (self.folder / "mosquitto.conf").write_text("\n".join([*lines, *self.extra]))
        return [MOSQUITTO, "-c", str(self.folder / "mosquitto.conf")]


def make_broker(
    folder: Path,
    settings: Mapping[str, object] | None = None,
    extra: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> BrokerProcess:
    kind = MosquittoProcess if UNDER_AUDIT == "mosquitto" else BrokerProcess
    return kind(folder, settings, extra, environment)
