"""A broker as a process of its own, on a fresh directory and a free port, which a test may stop, kill and start again.

    with BrokerProcess(session__inflight_max=10) as broker:
        application.connect(broker.host, broker.port)
        broker.wait_until_published("plant/#", count=3)
        broker.kill()
        broker.start()

It keeps its port and its data over a restart, as its clients expect. Blocks; for one in the event loop of the caller
there is `headrace.testing.Broker`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.errors import HeadraceError
from headrace.testing.contents import Contents, Message
from headrace.testing.ports import HOST, free_port, with_port
from headrace.testing.readiness import Readiness
from headrace.testing.settings import assignments

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
WAIT_TIMEOUT_S = 10.0
PORTS_TRIED = 5
POLL_INTERVAL_S = 0.01
_TAKEN = re.compile(r"address already in use", re.IGNORECASE)


class BrokerFailed(HeadraceError):
    """The broker ended by itself, or with an error. `code` is its exit status, `log` what it wrote."""

    def __init__(self, what: str, code: int, log: str) -> None:
        super().__init__(f"the broker {what} with exit status {code}; its log:\n{log}")
        self.code, self.log = code, log


class BrokerProcess:
    """One broker in a process of its own. `settings` are keys of the configuration, which keywords may name too:
    `session__inflight_max=10`.

    `folder`: where its data stay; without one it is temporary, and removed by `close`. `port` 0 takes a free one.
    `listeners` are more of them beside `tcp://127.0.0.1:PORT`; their port 0 becomes a free one, too. `config`: a TOML
    file, for what `settings` cannot say. Variables `HEADRACE_...` of the environment are kept from the broker.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        folder: Path | None = None,
        port: int = 0,
        listeners: Sequence[str] = (),
        config: Path | None = None,
        **keywords: object,
    ) -> None:
        self._assignments = assignments(settings, keywords)
        self._has_admin = any(line.startswith("admin=") for line in self._assignments)
        self._wanted = listeners
        self._config = config
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="headrace-")
        self.folder = Path(self._temporary.name) if self._temporary else Path(str(folder)).absolute()
        self.data_dir = self.folder / "data"
        self._contents = Contents(self.data_dir)
        self._process: subprocess.Popen[bytes] | None = None
        self._port_is_given = port != 0
        self._take_ports(port)

    def _take_ports(self, port: int) -> None:
        self.port = port or free_port()
        self.admin_port = free_port()
        self.listeners = [with_port(url) for url in self._wanted]

    @property
    def host(self) -> str:
        return HOST

    @property
    def url(self) -> str:
        return f"tcp://{HOST}:{self.port}"

    @property
    def admin_url(self) -> str:
        """Return where `/metrics` is, unless `admin` is among the settings."""
        return f"http://{HOST}:{self.admin_port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Return the pid of the process that was started last. Raises RuntimeError before the first start."""
        return self._started().pid

    @property
    def log(self) -> str:
        """Return what the broker has written to stderr, in all its lives."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "broker.log").read_text(encoding="utf-8", errors="replace")
        return ""

    # Life and death

    def start(self, timeout_s: float = START_TIMEOUT_S) -> Self:
        """Start and wait until it accepts clients. Raises BrokerFailed, TimeoutError; RuntimeError if it runs."""
        if self.running:
            raise RuntimeError("the broker is running")
        is_first = self._process is None
        for left in reversed(range(PORTS_TRIED)):
            try:
                self._start_once(timeout_s)
            except BrokerFailed as error:
                if not (is_first and left and not self._port_is_given and _TAKEN.search(error.log)):
                    raise
                (self.folder / "broker.log").unlink()
                self._take_ports(0)
            else:
                return self
        raise AssertionError  # the last round returns or raises

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Send SIGTERM, at which the broker says goodbye to its clients and writes everything down. Nothing if it does
        not run.

        Raises BrokerFailed if its exit status is not 0; TimeoutError, with the process still there.
        """
        if self._has_failed():
            raise BrokerFailed("ended", self._started().returncode, self.log)
        if not self.running:
            return
        process = self._started()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the broker has not stopped within {timeout_s} s:\n{self.log}") from None
        if code:
            raise BrokerFailed("stopped", code, self.log)

    def kill(self) -> None:
        """Send SIGKILL to the broker, and to its workers if it has several, as if the plug were pulled. Nothing if it
        does not run."""
        if self._process is not None:
            _kill(self._process)

    def restart(self) -> None:
        """Do `stop` and `start`."""
        self.stop()
        self.start()

    def reload(self) -> None:
        """Send SIGHUP, at which the broker reads certificates, passwords and ACL again."""
        self._started().send_signal(signal.SIGHUP)

    def close(self) -> None:
        """Kill the broker if it runs, and remove a temporary folder. It cannot be started again."""
        self.kill()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What it holds

    def messages(self, topic: str = "#") -> list[Message]:
        """Return the messages of QoS 1 and 2 in the journal whose topic matches this filter, in order; also while the
        broker is down."""
        return self._contents.messages(topic)

    def metrics(self) -> dict[str, float]:
        """Return every sample of `/metrics`: its name with labels, as written there, and its value."""
        with urllib.request.urlopen(f"{self.admin_url}/metrics", timeout=WAIT_TIMEOUT_S) as answer:  # noqa: S310  http, of this machine
            lines = answer.read().decode("utf-8").splitlines()
        samples = [line.rsplit(" ", 1) for line in lines if line and not line.startswith("#")]
        return {name: float(value) for name, value in samples}

    # Waiting

    def wait_until(
        self, condition: Callable[[], bool], what: str = "the condition", timeout_s: float = WAIT_TIMEOUT_S
    ) -> None:
        """Ask `condition` again and again until it is true. Raises TimeoutError that tells what the broker holds, and
        BrokerFailed at once if the broker has ended by itself meanwhile."""
        until = time.monotonic() + timeout_s
        while not condition():
            if self._has_failed():
                raise BrokerFailed("ended", self._started().returncode, self.log)
            if time.monotonic() > until:
                raise TimeoutError(f"{what}: not within {timeout_s} s; {self._contents.summary()}")
            time.sleep(POLL_INTERVAL_S)

    def wait_until_published(
        self, topic: str = "#", count: int = 1, timeout_s: float = WAIT_TIMEOUT_S
    ) -> list[Message]:
        """Wait for `count` messages of QoS 1 or 2 on topics that match; returns all there are."""
        self.wait_until(self._contents.published(topic, count), f"{count} messages on {topic}", timeout_s)
        return self.messages(topic)

    def wait_until_connected(self, client_id: str, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        self.wait_until(self._contents.connected(client_id), f"{client_id} connected", timeout_s)

    def wait_until_disconnected(self, client_id: str, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        self.wait_until(self._contents.disconnected(client_id), f"{client_id} disconnected", timeout_s)

    def wait_until_subscribed(
        self, topic: str, client_id: str | None = None, timeout_s: float = WAIT_TIMEOUT_S
    ) -> None:
        """Wait until that client, or any, has subscribed to exactly this topic filter."""
        condition = self._contents.subscribed(topic, client_id)
        self.wait_until(condition, f"{client_id or 'somebody'} subscribed to {topic}", timeout_s)

    def _start_once(self, timeout_s: float) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with Readiness() as readiness, (self.folder / "broker.log").open("ab") as log:
            process = subprocess.Popen(
                self._command(),
                env=_environment() | {"NOTIFY_SOCKET": readiness.address},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            self._process = process
            weakref.finalize(self, _end, process)
            try:
                readiness.wait(timeout_s, lambda: process.poll() is not None)
            except TimeoutError:
                self.kill()
                raise TimeoutError(f"the broker is not ready within {timeout_s} s:\n{self.log}") from None
            if process.returncode is not None:
                raise BrokerFailed("ended before it was ready", process.returncode, self.log)

    def _command(self) -> list[str]:
        command = [sys.executable, "-P", "-m", "headrace", "serve", "--data-dir", str(self.data_dir)]
        if self._config is not None:
            command += ["--config", str(self._config)]
        for url in (self.url, *self.listeners):
            command += ["--listen", url]
        if not self._has_admin:
            command += ["--admin", self.admin_url]
        return command + [part for line in self._assignments for part in ("--set", line)]

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the broker was not started")
        return self._process

    def _has_failed(self) -> bool:
        """Return whether the broker has ended without having been asked to."""
        return self._process is not None and self._process.poll() not in (None, 0, -signal.SIGKILL)


def _environment() -> dict[str, str]:
    """Return our environment, without what would configure the broker or is meant for us alone."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HEADRACE_") and name not in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave no process behind when the test's own ends, or forgets the broker."""
    if process.poll() is None:
        _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its workers. It stands still meanwhile: it would start them again, and without it they would
    stop in good order."""
    if process.poll() is None:
        process.send_signal(signal.SIGSTOP)
        for worker in _workers(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
    process.kill()
    process.wait()


def _workers(pid: int) -> list[int]:
    """Return the processes that a supervisor has started."""
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]
    return []
