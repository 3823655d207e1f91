"""Answers that wait until the other shards look for what sessions here have subscribed to.

Each filter that is announced has a number. An answer goes when each other shard has confirmed the number of that moment,
or nothing is taken from it any more: then it looks for all filters before anything more is.
"""

from __future__ import annotations

from collections import deque

from headrace.core.commit import Deferred, GroupCommit
from headrace.core.ports.link import WorkerPort
from headrace.core.shards.taking import Taker


class Held(Deferred):
    """An answer that waits for other shards."""

    def finish(self) -> None:
        """Give the answer that has waited for other shards."""
        raise NotImplementedError


class Holding:
    """The answers that wait; `number` is that of the filter that was announced last."""

    def __init__(self, takers: dict[int, Taker], commit: GroupCommit, worker: WorkerPort) -> None:
        self.number = 0
        self._takers = takers
        self._commit = commit
        self._worker = worker
        self._held: deque[tuple[int, Held]] = deque()

    def hold(self, held: Held) -> bool:
        """Keep an answer back until all that is wanted by now is looked for; False if it is."""
        if self._is_looked_for(self.number):
            return False
        self._held.append((self.number, held))
        payer = held.payer
        if payer is not None:
            self._commit.deferred_bytes += held.weight
            self._commit.charge(payer, held.weight)
        return True

    def _is_looked_for(self, number: int) -> bool:
        return all(taker.has(number) for taker in self._takers.values())

    def release(self) -> None:
        """Give the answers that wait for nothing any more, in order."""
        while self._held and self._is_looked_for(self._held[0][0]):
            _, held = self._held.popleft()
            self._commit.ran(held)
            try:
                held.finish()
            except Exception as error:  # noqa: BLE001  the others are answered
                self._worker.contain("deferred", held.payer, error)
