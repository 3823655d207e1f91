"""Until when something holds on all workers of a node: a ban, or the time at which an allowance is whole again.

An allowance of so many in a second is one moment, since each that is taken moves it on. Each worker writes the moment
that it has made of the latest one of all, so what counts is the latest: rates are of the node, not of a worker. Only what
two workers take within the same microseconds is taken once too often. Moments are in seconds of CLOCK_MONOTONIC, which
all processes of a machine have in common. What a worker has written holds also when it has died. Runs on the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace.net.gate import Moments
from headrace.services.node_table import NodeTable, key_of

_S: Final = 1_000_000_000  # moments are written in nanoseconds
_LATEST: Final = 1 << 63  # centuries from now: as good as never


class NodeTimes(Moments):
    """The moments of one worker, and the latest of all. Beyond as many different keys that are still to come
    as its table holds a worker counts for itself."""

    def __init__(
        self, path: Path, worker: int, workers: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Open the file. Raises OSError."""
        self._table = NodeTable(path, worker, workers)
        self._clock = clock
        self._looked_s = -1.0  # when we looked for moments that have gone by

    def latest(self, *names: str) -> float:
        key = key_of(*names)
        return max(self._table.mine(key), *self._table.of_others(key)) / _S

    def hold(self, moment_s: float, *names: str) -> None:
        key, table = key_of(*names), self._table
        if key not in table and len(table) >= table.full:
            self._forget_past()
            if len(table) >= table.full:
                return
        table.put(key, round(min(moment_s * _S, _LATEST)))

    def renew(self) -> None:
        """Share the file anew if another program has removed it. Raises OSError."""
        self._table.renew()

    def close(self) -> None:
        """Let go of the file."""
        self._table.close()

    def _forget_past(self) -> None:
        """Make room, once a second at most: a look at all of them takes milliseconds."""
        now_s = self._clock()
        if now_s < self._looked_s + 1:
            return
        self._looked_s = now_s
        past = now_s * _S
        self._table.keep({key: at for key, at in self._table.all_of_mine().items() if at > past})
