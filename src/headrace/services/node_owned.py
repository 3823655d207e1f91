"""How many subscriptions or devices a user has on the other workers of the node: counts of a file that all map.

Runs on the loop.
"""

from __future__ import annotations

from headrace.core.ports.owned import OwnedElsewhere
from headrace.services.node_counts import NodeCounts
from headrace.services.node_table import key_of


class NodeOwned(OwnedElsewhere):
    """The other workers, by counts that are of nothing else."""

    def __init__(self, counts: NodeCounts) -> None:
        super().__init__()
        self._counts = counts

    def renew(self) -> None:
        """Share the file anew if another program has removed it. Raises OSError."""
        self._counts.renew()

    def count(self, tenant: str, user: str) -> int:
        return self._counts.others(key_of(tenant, user))

    def tell(self, tenant: str, user: str, count: int) -> None:
        self._counts.set(key_of(tenant, user), count)

    def tell_all(self, counts: dict[tuple[str, str], int]) -> None:
        self._counts.keep({key_of(tenant, user): count for (tenant, user), count in counts.items()})
