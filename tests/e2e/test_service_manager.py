"""A service manager starts the broker: a socket stands for systemd, the broker is a real process."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import ROOT, BrokerExitedError, BrokerProcess

UNIT = ROOT / "contrib" / "systemd" / "headrace.service"


class Manager:
    """What was said, a datagram each."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.address)
        self.heard: list[dict[str, str]] = []

    def hear(self, key: str, deadline_s: float = 30.0) -> dict[str, str]:
        """The next message that says `key`."""
        until = time.monotonic() + deadline_s
        while True:
            self.socket.settimeout(max(0.001, until - time.monotonic()))
            text = self.socket.recv(4096).decode()
            self.heard.append(dict(line.split("=", 1) for line in text.splitlines()))
            if key in self.heard[-1]:
                return self.heard[-1]


@pytest.fixture
def manager() -> Iterator[Manager]:
    folder = tempfile.mkdtemp(prefix="headrace-")  # a path of pytest's is too long for a socket
    found = Manager(Path(folder))
    yield found
    found.socket.close()
    shutil.rmtree(folder)


@pytest.fixture
def broker(tmp_path: Path, manager: Manager) -> Iterator[BrokerProcess]:
    found = BrokerProcess(tmp_path, environment={"NOTIFY_SOCKET": manager.address})
    yield found
    found.end()


def test_ready_is_said_when_clients_are_accepted_and_stopping_when_it_stops(
    manager: Manager, broker: BrokerProcess
) -> None:
    broker.spawn()
    said = manager.hear("READY")
    socket.create_connection(broker.address, timeout=10).close()
    assert said["READY"] == "1"
    assert f":{broker.port}" in said["STATUS"]
    broker.stop()
    assert manager.hear("STOPPING")["STOPPING"] == "1"
    assert not [said for said in manager.heard if "WATCHDOG" in said]


def test_each_life_is_announced(manager: Manager, broker: BrokerProcess) -> None:
    for _ in range(2):
        broker.spawn()
        manager.hear("READY")
        broker.kill()
    assert not [said for said in manager.heard if "STOPPING" in said]


def test_the_watchdog_hears_that_the_loop_turns(manager: Manager, broker: BrokerProcess) -> None:
    broker.environment["WATCHDOG_USEC"] = "200000"
    broker.spawn()
    manager.hear("READY")
    for _ in range(3):
        assert manager.hear("WATCHDOG")["WATCHDOG"] == "1"
    broker.stop()


def test_a_start_that_fails_is_never_called_ready(manager: Manager, broker: BrokerProcess) -> None:
    with socket.create_server(broker.address), pytest.raises(BrokerExitedError):
        broker.start()
    manager.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.socket.recv(4096)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "headrace.service"
    text = UNIT.read_text("utf-8")
    assert "/usr/bin/headrace serve" in text
    unit.write_text(text.replace("/usr/bin/headrace", sys.executable), encoding="utf-8")
    verify = ["systemd-analyze", "verify", "--man=no", str(unit)]
    checked = subprocess.run(verify, capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_unit_leaves_a_stranger_little_to_do(tmp_path: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", "--no-pager", str(UNIT)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_unit_starts_a_command_that_there_is() -> None:
    [line] = [line for line in UNIT.read_text("utf-8").splitlines() if line.startswith("ExecStart=")]
    arguments = line.split()[1:]
    asked = subprocess.run(
        [sys.executable, "-m", "headrace", arguments[0], "--help"], capture_output=True, text=True, timeout=60
    )
    for option in (argument for argument in arguments if argument.startswith("--")):
        assert option in asked.stdout
