"""How many there are of something on all workers of a node.

What two workers let in at the same moment can be one too many for each of them. What a worker had counts until it starts
again and empties its table. Runs on the loop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headrace.services.node_table import FULL, NodeTable

_ZEROS_MIN: Final = FULL // 8  # that are worth making the table anew


class NodeCounts:
    """The counts of one worker, and sums over the others. Beyond FULL different keys a worker counts for itself."""

    def __init__(self, path: Path, worker: int, workers: int) -> None:
        """Open the file, with our table empty. Raises OSError."""
        self.workers = workers
        self._table = NodeTable(path, worker, workers)
        self._zeros = 0  # of our keys, those we have none of any more
        self._table.keep({})

    def set(self, key: int, count: int) -> None:
        """Say that we have so many of `key` now."""
        table = self._table
        if key not in table:
            if not count:
                return
            if len(table) >= FULL and self._zeros >= _ZEROS_MIN:
                self._forget_zeros()
            if len(table) >= FULL:
                return
            self._zeros += 1
        self._zeros += (count == 0) - (table.mine(key) == 0)
        table.put(key, count)

    def others(self, key: int) -> int:
        """Return how many the other workers have of `key`."""
        return sum(self._table.of_others(key))

    def close(self) -> None:
        """Have nothing any more, and let go of the file."""
        self._table.keep({})
        self._table.close()

    def _forget_zeros(self) -> None:
        """Make room where most keys are of those who have gone."""
        self._table.keep({key: count for key, count in self._table.all_of_mine().items() if count})
        self._zeros = 0
