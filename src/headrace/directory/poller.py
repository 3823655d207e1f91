"""The thread that polls a directory for changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress


class Poller:
    """Calls `poll` every `interval_s`, whatever goes wrong. `told` hears of the first poll that fails, with the error,
    and of the first that goes well again, with None; it is called on the poller's thread. `is_away`: that the last one
    has failed was told already."""

    def __init__(
        self,
        poll: Callable[[], object],
        interval_s: float,
        told: Callable[[Exception | None], object],
        is_away: bool = False,
    ) -> None:
        self._poll = poll
        self._interval_s = interval_s
        self._told = told
        self._stopped = threading.Event()
        self._awake = threading.Event()
        self._away = is_away
        self._thread = threading.Thread(target=self._run, name="directory-poller", daemon=True)

    def start(self) -> None:
        """Begin to poll."""
        self._thread.start()

    def wake(self) -> None:
        """Poll now, and in the usual interval after that."""
        self._awake.set()

    def stop(self, wait_s: float = 10.0) -> bool:
        """End polling, and return whether the thread has ended within this time."""
        self._stopped.set()
        self._awake.set()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._poll()
            except Exception as error:  # noqa: BLE001  whatever it was: who polls no more lets in whom nobody wants
                self._tell(error)
            else:
                self._tell(None)
            self._awake.wait(self._interval_s)
            self._awake.clear()

    def _tell(self, error: Exception | None) -> None:
        """Tell of a change between there and away, once."""
        if (error is not None) != self._away:
            self._away = error is not None
            with suppress(Exception):  # a log that nobody can write to: polling goes on
                self._told(error)
