"""The admin HTTP of a process without a loop of its own: served on a thread, with the bounds of the broker's."""

from __future__ import annotations

import asyncio
import socket
from threading import Event, Thread
from types import TracebackType
from typing import Self

from starlette.applications import Starlette

from headrace.api.admin import Admin
from headrace.api.server import Bounds, Report

CONNECTIONS_MAX = 16


class ServedApart:
    """Serves while it is entered. Entering raises OSError if the socket cannot be served."""

    def __init__(self, app: Starlette, bound: socket.socket, url: str, report: Report) -> None:
        self._app = app
        self._bound = bound
        self._url = url
        self._report = report
        self._started = Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._thread = Thread(target=self._run, name="metrics", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        assert self._end is not None
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001  told to the thread that waits for it
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        admin = Admin(lambda: None)
        await admin.open(self._bound, self._url, self._app, self._report, Bounds(CONNECTIONS_MAX))
        self._started.set()
        await self._end.wait()
        await admin.close()
