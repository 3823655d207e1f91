"""An event loop in a thread of its own, for programs that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from headrace.clients.frame.errors import Closed

Result = TypeVar("Result")
_FAREWELL_S: Final = 5.0


class LoopThread:
    """Runs what it is given, until `stop`. The thread does not keep a program from ending."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._stopped = False
        self._submitting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._finish())
        finally:
            self._loop.close()

    @staticmethod
    async def _finish() -> None:
        """Let what was submitted come to its end, and cut off what does not."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            _, late = await asyncio.wait(left, timeout=_FAREWELL_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Begin to run a coroutine; the future has what comes of it. Raises Closed after `stop`."""
        with self._submitting:
            if self._stopped:
                work.close()
                raise Closed("the thread has ended")
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine, and wait for what it returns or raises."""
        return self.submit(work).result()

    def stop(self) -> None:
        """End the thread, behind what was submitted: whoever waits for that is told what became of it."""
        with self._submitting:
            self._stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
