"""What all shards of a node keep together: retained messages, their memory, topic queues.

Each shard is told every now and then what the others have, and compares it and its own with a limit of the node: so the
limit costs a message nothing, and shards go beyond it at most by what they take between two looks. Runs on the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from headrace.core.broker import Broker
from headrace.core.state.tenant import Tenant
from headrace.services.node_counts import NodeCounts
from headrace.services.node_table import key_of

INTERVAL_S: Final = 1.0
ENTRIES: Final = 256  # of its table, three for a tenant


class NodeSums:
    """The sums of a node, by tenant. `counts`: what the workers tell each other, None where there is one."""

    def __init__(self, brokers: Sequence[Broker], counts: NodeCounts | None) -> None:
        self._brokers = brokers
        self._counts = counts
        self._told: set[str] = set()  # tenants of which the other workers were told something

    def share(self) -> float:
        """Tell the other workers what our shards have, and our shards what all others have. Returns the seconds until
        the next time."""
        names = {name for broker in self._brokers for name in broker.fold.tenants}
        for name in self._told - names:  # the last shard that had it was given up
            self._tell_nothing(name)
        self._told = names
        folds = [broker.fold for broker in self._brokers]
        for name in names:
            tenants = [fold.tenants[name] for fold in folds if name in fold.tenants]
            messages = self._elsewhere("retained messages", tenants, lambda tenant: len(tenant.retained))
            memory = self._elsewhere("retained memory", tenants, lambda tenant: tenant.retained.memory())
            queues = self._elsewhere("queues", tenants, lambda tenant: len(tenant.queues))
            for at, tenant in enumerate(tenants):
                tenant.retained.messages_elsewhere = messages[at]
                tenant.retained.memory_elsewhere = memory[at]
                tenant.queues_elsewhere = queues[at]
        return INTERVAL_S

    def _tell_nothing(self, name: str) -> None:
        for kind in ("retained messages", "retained memory", "queues"):
            if self._counts is not None:
                self._counts.set(key_of(kind, name), 0)

    def _elsewhere(self, kind: str, tenants: list[Tenant], held: Callable[[Tenant], int]) -> list[int]:
        """Return how much of a kind there is in all shards but each of ours."""
        own = [held(tenant) for tenant in tenants]
        total = sum(own)
        others = 0
        if self._counts is not None:
            key = key_of(kind, tenants[0].name)
            self._counts.set(key, total)
            others = self._counts.others(key)
        return [total + others - each for each in own]
