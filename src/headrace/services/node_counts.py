"""How many there are of something on all workers of a node.

What two workers let in at the same moment can be one too many for each of them. What a worker had counts until it starts
again and empties its table, or its supervisor does (`forget`); what its journals bring back counts until it has
recovered and says it anew (`keep`). Runs on the loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from headrace.services.node_table import ENTRIES, NodeTable

_ZEROS_SHARE: Final = 8  # one in so many keys is worth making the table anew


class NodeCounts:
    """The counts of one worker, and sums over the others. Beyond as many different keys as its table holds a worker
    counts for itself."""

    def __init__(
        self, path: Path, worker: int, workers: int, *, recovers: bool = False, entries: int = ENTRIES
    ) -> None:
        """Open the file, with our table empty; with `recovers` as the process before has left it, until `keep`. Raises
        OSError."""
        self.workers = workers
        self._table = NodeTable(path, worker, workers, entries)
        self._zeros = 0  # of our keys, those we have none of any more
        if not recovers:
            self._table.keep({})

    def set(self, key: int, count: int) -> None:
        """Say that we have so many of `key` now."""
        table = self._table
        if key not in table:
            if not count:
                return
            if len(table) >= table.full and self._zeros >= table.full // _ZEROS_SHARE:
                self._forget_zeros()
            if len(table) >= table.full:
                return
            self._zeros += 1
        self._zeros += (count == 0) - (table.mine(key) == 0)
        table.put(key, count)

    def keep(self, counts: Mapping[int, int]) -> None:
        """Have so many of these keys, and none of any other."""
        self._table.keep(dict(islice(counts.items(), self._table.full)))
        self._zeros = 0

    def others(self, key: int) -> int:
        """Return how many the other workers have of `key`."""
        return sum(self._table.of_others(key))

    def renew(self) -> None:
        """Share the file anew if another program has removed it. Raises OSError."""
        self._table.renew()

    def close(self) -> None:
        """Have nothing any more, and let go of the file."""
        self._table.keep({})
        self._table.close()

    def _forget_zeros(self) -> None:
        """Make room where most keys are of those who have gone."""
        self._table.keep({key: count for key, count in self._table.all_of_mine().items() if count})
        self._zeros = 0


def forget(path: Path, worker: int, workers: int) -> None:
    """Have a worker whose process has ended count nothing, also where none takes its place. Raises OSError."""
    if path.exists():
        NodeCounts(path, worker, workers).close()
