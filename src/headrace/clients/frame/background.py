"""An event loop in a thread of its own, for programs that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopThread:
    """Runs what it is given, until `stop`. The thread does not keep a program from ending."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Begin to run it; the future has what comes of it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run it, and wait for what it returns or raises."""
        return self.submit(work).result()

    def stop(self) -> None:
        """End the thread. Nothing that was submitted may still run."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
