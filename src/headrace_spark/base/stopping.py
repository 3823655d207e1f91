"""A stop reaches whoever waits: the thread that runs a job may be deep in a request to a broker that does not answer.

A signal is handled on the main thread, whatever that waits for; so the handler can end the waiting by raising `Stopped`.
Other threads, and Spark's Python processes, are not told: they end with their process.
"""

from __future__ import annotations

from _thread import start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, current_thread, main_thread


class Stopped(Exception):
    """Says that the job was told to stop while it waited for somebody else."""


class Stopping:
    """Knows whether this process was told to stop, and whether its main thread may be taken out of what it waits for."""

    def __init__(self) -> None:
        self.event = Event()
        self._may_raise = False
        self.at_once: Callable[[], None] | None = None
        """Is called as soon as a stop is asked for, on a thread of its own."""

    def ask(self) -> None:
        """Ask for the end. Runs in a signal's handler. Raises Stopped where the main thread waits."""
        self.event.set()
        if self.at_once is not None:
            start_new_thread(self.at_once, ())  # takes no lock, which the main thread might hold
        if self._may_raise:
            raise Stopped

    @contextmanager
    def ends(self) -> Iterator[None]:
        """Let Stopped end what is done within; on the main thread, where signals are handled."""
        if current_thread() is not main_thread():
            yield
            return
        self._may_raise = True
        try:
            yield
        finally:
            self._may_raise = False


STOPPING = Stopping()
"""Of this process: it has one main thread and one handler of signals."""
