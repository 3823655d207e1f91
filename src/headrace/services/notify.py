"""What a service manager is told, as systemd's `sd_notify` does it: a datagram to the socket that NOTIFY_SOCKET names.

    READY=1        clients are accepted (Type=notify)
    STOPPING=1     a stop has begun
    WATCHDOG=1     the event loop turns; due every WATCHDOG_USEC microseconds, sent twice as often
    STATUS=...     a line that `systemctl status` shows; it comes with READY and STOPPING

Without NOTIFY_SOCKET nothing is sent. Standard library only; runs on the loop and never waits: what the manager does
not take at once is not sent.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

ABSTRACT = "@"  # stands for the zero byte before a name that is in no file system


class Notifier:
    """Tells the service manager of this process. `watchdog_s`: how often `alive` is wanted, 0 for never."""

    def __init__(self, environment: Mapping[str, str] = os.environ, pid: int | None = None) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self.watchdog_s = _watchdog_s(environment, os.getpid() if pid is None else pid) / 2
        if not self._address:
            self.watchdog_s = 0.0

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=stopping")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        """Send a text to the service manager: a manager that is gone, or does not read, is no reason for a broker to
        stop."""
        if not self._address:
            return
        address = self._address
        if address.startswith(ABSTRACT):
            address = "\0" + address[1:]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(text.encode("utf-8"), address)
        except (OSError, ValueError):  # ValueError: what stands there can be no address
            return


def _watchdog_s(environment: Mapping[str, str], pid: int) -> float:
    """Return WATCHDOG_USEC in seconds; 0 if there is none, or if it is another process that is watched."""
    try:
        watched = int(environment.get("WATCHDOG_PID", "") or pid)
        microseconds = int(environment.get("WATCHDOG_USEC", "") or 0)
    except ValueError:
        return 0.0
    return max(0, microseconds) / 1e6 if watched == pid else 0.0
