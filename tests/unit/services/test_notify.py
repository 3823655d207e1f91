"""What a service manager is told, against a socket that stands for it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from headrace.services.notify import Notifier


@pytest.mark.parametrize("name", ["notify", "@headrace-test-notify"])
def test_each_message_is_one_datagram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)  # a long path would not fit into a socket's address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if name.startswith("@") else name)
        manager.settimeout(10)
        notifier = Notifier({"NOTIFY_SOCKET": name})
        notifier.ready("accepts clients")
        notifier.alive()
        notifier.stopping()
        assert manager.recv(4096) == b"READY=1\nSTATUS=accepts clients"
        assert manager.recv(4096) == b"WATCHDOG=1"
        assert manager.recv(4096) == b"STOPPING=1\nSTATUS=stopping"


def test_without_a_manager_nothing_is_sent() -> None:
    notifier = Notifier({"WATCHDOG_USEC": "1000000"}, pid=7)
    notifier.ready("")
    assert notifier.watchdog_s == 0


@pytest.mark.parametrize("address", ["/nowhere/notify", "/" + 200 * "x", "vsock:2:1234", "bad\0name"])
def test_a_manager_that_cannot_be_reached_is_no_reason_to_stop(address: str) -> None:
    Notifier({"NOTIFY_SOCKET": address}).ready("")


def test_a_manager_that_does_not_read_never_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("notify")
        for _ in range(10_000):  # more than any socket holds
            Notifier({"NOTIFY_SOCKET": "notify"}).alive()


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 15),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, 0),
        ({"WATCHDOG_USEC": "soon"}, 0),
        ({"WATCHDOG_USEC": "-5"}, 0),
        ({"WATCHDOG_USEC": ""}, 0),
    ],
)
def test_the_watchdog_is_told_twice_as_often_as_it_asks(environment: dict[str, str], seconds: float) -> None:
    assert Notifier({"NOTIFY_SOCKET": "/x", **environment}, pid=7).watchdog_s == seconds
