"""A budget of messages that all workers of a node draw on, by the counts and moments that they share."""

from __future__ import annotations

from headrace.core.inbound.pace import Together
from headrace.services.node_counts import NodeCounts
from headrace.services.node_table import key_of
from headrace.services.node_times import NodeTimes


class NodeBudget(Together):
    """What all workers know of one budget, by its names."""

    def __init__(self, counts: NodeCounts, times: NodeTimes, names: tuple[str, ...]) -> None:
        super().__init__()
        self._counts, self._times, self._names = counts, times, names
        self._key = key_of(*names)

    def full_at_us(self) -> int:
        return round(self._times.latest(*self._names) * 1_000_000)

    def hold(self, full_at_us: int) -> None:
        self._times.hold(full_at_us / 1_000_000, *self._names)

    def shares_of_others(self) -> int:
        return self._counts.others(self._key)

    def tell_shares(self, shares: int) -> None:
        self._counts.set(self._key, shares)
