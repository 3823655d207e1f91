"""Which worker owns each shard of a node, as one of its processes knows it: whoever wants to know asks this table.

Shards are dealt to workers in turn when a node starts (ADR 0019), and the table says so then; what changes afterwards is
noted here and nowhere else, so whoever asks keeps no answer.
"""

from __future__ import annotations

from typing import Final

NOBODY: Final = -1  # has a shard that was given up and that nobody has taken


class Owners:
    """The owner of each shard, which is the index of a worker or NOBODY."""

    def __init__(self, shards: int, workers: int) -> None:
        """Deal so many shards to so many workers: shard n belongs to worker n mod `workers`."""
        self._owners = [shard % workers for shard in range(shards)]

    @classmethod
    def unowned(cls, shards: int) -> Owners:
        """Return a table of so many shards, which nobody owns as yet; owners are the runs of nodes."""
        owners = cls(shards, 1)
        owners._owners = [NOBODY] * shards
        return owners

    @property
    def shards(self) -> int:
        """Return how many shards there are, whoever owns them."""
        return len(self._owners)

    def of(self, shard: int) -> int:
        """Return the index of the worker that owns a shard, NOBODY if none does now. Raises ValueError if there is no
        such shard."""
        self._check(shard)
        return self._owners[shard]

    def shards_of(self, worker: int) -> list[int]:
        """Return the shards that a worker owns, ascending."""
        return [shard for shard, owner in enumerate(self._owners) if owner == worker]

    def move(self, shard: int, worker: int) -> None:
        """Note that a worker owns a shard from now on, or NOBODY. Raises ValueError if there is no such shard."""
        self._check(shard)
        self._owners[shard] = worker

    def _check(self, shard: int) -> None:
        if not 0 <= shard < len(self._owners):
            raise ValueError(f"shard {shard} of {len(self._owners)}")
