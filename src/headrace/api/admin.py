"""The admin HTTP of a node, from its address to its end. Runs on the loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from starlette.types import ASGIApp

from headrace.api.server import AdminServer, Bounds, Report, admin_server

STARTED_INTERVAL_S = 0.001
STOP_TIMEOUT_S = 5.0


class Admin:
    """Serves an application at one address. `context` makes the TLS context anew, None without TLS; it may raise
    UnusableCertificate. `url` is "" until it serves."""

    def __init__(self, context: Callable[[], ssl.SSLContext | None]) -> None:
        self.url = ""
        self._context = context
        self._server: AdminServer | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(
        self, bound: socket.socket, url: str, app: ASGIApp, report: Report, bounds: Bounds
    ) -> None:
        """Serve on a bound socket, which others reach as `url`. Raises OSError, UnusableCertificate: it is closed."""
        try:
            context = self._context()
        except BaseException:
            bound.close()
            raise
        self._server = server = admin_server(app, context, report, bounds)
        self.url = url
        self._task = task = asyncio.get_running_loop().create_task(server.serve([bound]))
        while not server.started:
            if task.done():
                task.result()
            await asyncio.sleep(STARTED_INTERVAL_S)

    def reload(self) -> None:
        """Serve new connections with the certificate of now. Raises UnusableCertificate; then the old one stays."""
        if self._server is not None:
            self._server.reload(self._context())

    def move(self, bound: socket.socket) -> None:
        """Serve on another bound socket from now on."""
        if self._server is None:
            bound.close()
        else:
            self._server.move(bound)

    def end(self) -> None:
        """Begin to stop, without waiting for it."""
        if self._server is not None:
            self._server.should_exit = True

    async def close(self) -> None:
        """Stop, and wait for at most `STOP_TIMEOUT_S` until requests under way have ended."""
        self.end()
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=STOP_TIMEOUT_S)
