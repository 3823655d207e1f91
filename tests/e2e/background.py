"""A part of a test that goes on beside it, in a thread whose failure is the test's and nobody else's."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background(threading.Thread):
    """Runs `work(stop)` from now on; `stop` is set when the test has seen enough."""

    def __init__(self, work: Callable[[threading.Event], None]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._enough = threading.Event()
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._work(self._enough)
        except BaseException as error:
            self._error = error

    @property
    def going_on(self) -> bool:
        return self.is_alive()

    def finish(self, deadline_s: float = 20.0) -> None:
        """Tells it to stop, waits for it, and raises what it raised."""
        self._enough.set()
        self.join(deadline_s)
        if self._error is not None:
            raise self._error
        assert not self.is_alive(), "it does not come to an end"
