"""How a started broker says that it is ready: a datagram to the socket named in its NOTIFY_SOCKET."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

LOOK_INTERVAL_S = 0.05  # at the process, between two looks at the socket


class Readiness:
    """The socket that hears of readiness, in a folder of its own: the address of one may have no more than 104
    bytes."""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-")
        self.address = str(Path(self._folder.name) / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._socket.settimeout(LOOK_INTERVAL_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._folder.cleanup()

    def wait(self, timeout_s: float, has_ended: Callable[[], bool]) -> None:
        """Return when READY=1 has come, or when `has_ended` says so. Raises TimeoutError."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            try:
                if "READY=1" in self._socket.recv(4096).decode("utf-8").splitlines():
                    return
            except TimeoutError:
                if has_ended():
                    return
        raise TimeoutError
