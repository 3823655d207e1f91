"""A node's turn to own the shards of its cluster: it stands by until Kafka's group names it, and gives them up in good
order when another node is named.

Runs on the loop, which waits while the node stands by: nothing is served then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from headrace.services.notify import Notifier

if TYPE_CHECKING:
    from headrace.storage.kafka.candidate import Candidate

POLL_S: Final = 0.1
SOON_S: Final = 10.0  # whoever is named within so long is starting, and does not stand by


class Candidacy:
    """One node's. `is_over`: another node is to have the shards."""

    def __init__(self, candidate: Candidate, notifier: Notifier, end: Callable[[], None], log: Any) -> None:
        """Begin with a member of the group. `end` ends the node in good order; it may be called on any thread."""
        self.is_over = False
        self._candidate = candidate
        self._notifier = notifier
        self._end = end
        self._log = log
        self._since = time.monotonic()
        self._is_told = False
        candidate.over = self._on_over

    def stand_by(self, within_s: float) -> None:
        """Wait until it is this node's turn, so long at most; then a thread holds its place until `hold`. Raises
        KafkaUnusable."""
        self._log.info("standing by", detail="until the group of the cluster's nodes names this one")
        self._candidate.stand_by(self._alive, within_s)
        self._candidate.poll_on_a_thread(self._notifier.alive)

    def _alive(self) -> None:
        """Tell the service manager that nothing is wrong with a start that lasts."""
        if not self._is_told and time.monotonic() - self._since >= SOON_S:
            self._is_told = True
            self._notifier.ready("stands by: another node of the cluster serves")
        self._notifier.alive()

    def _on_over(self) -> None:
        self._log.warning("another node is to have the shards: this one ends")
        self.is_over = True
        self._end()

    def hold(self) -> None:
        """Note that the shards are served: `poll` is called from now on."""
        self._candidate.serve()

    def poll(self) -> float:
        """Hear what the group says. Returns the seconds until the next time."""
        self._candidate.poll()
        return POLL_S

    def leave(self) -> None:
        """Let another node have the shards, once nothing of them is held here. Waits for Kafka, and not for long."""
        self._candidate.leave()
