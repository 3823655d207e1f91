"""Looks again and again whether a cluster's topics are as its journals need them: somebody may change a setting by which
acknowledged messages go, while the node runs.

Kafka is asked on a thread of its own, which nobody waits for: without an answer nothing new is known.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from headrace.errors import HeadraceError

INTERVAL_S: Final = 60.0


class Lookout:
    """`trouble` has what is not as it must be, "" where nothing is known to be wrong."""

    def __init__(self, ask: Callable[[], list[str]], found: list[str], log: Any) -> None:
        """Begin with what was `found` at the start. `ask` returns a line for everything that is not as it must be; it
        waits, and raises HeadraceError where there is no answer."""
        self.trouble = "; ".join(found)
        self._ask = ask
        self._log = log
        self._thread: threading.Thread | None = None

    def turn(self) -> float:
        """Have Kafka asked. Returns the seconds until the next time."""
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self.look, name="kafka-lookout", daemon=True)
            thread.start()
            self._thread = thread
        return INTERVAL_S

    def look(self) -> None:
        """Ask, and tell the log what has changed. Waits for the answer."""
        try:
            found = "; ".join(self._ask())
        except HeadraceError:  # the journals say themselves that Kafka is away
            return
        if found != self.trouble:
            self.trouble = found
            if found:
                self._log.error("the cluster is not as it must be", detail=found)
            else:
                self._log.warning("the cluster is as it must be again")
