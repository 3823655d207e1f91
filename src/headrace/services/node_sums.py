"""What all shards of a node keep together: retained messages, their memory, topic queues.

Each shard is told every now and then what the others have, and compares it and its own with a limit of the node: so the
limit costs a message nothing, and shards go beyond it at most by what they take between two looks. Runs on the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.core.broker import Broker
from headrace.core.state.tenant import Tenant
from headrace.services.node_counts import NodeCounts
from headrace.services.node_table import key_of

INTERVAL_S: Final = 1.0
SLICE_S: Final = 0.02
TENANTS_AT_ONCE: Final = 100  # in a pass of the loop
ENTRIES: Final = (
    1 << 14
)  # of its table, up to three for a tenant: room for 4096 tenants that have some of all
_KINDS: Final = ("retained messages", "retained memory", "queues")


class NodeSums:
    """The sums of a node, by tenant. `counts`: what the workers tell each other, None where there is one."""

    def __init__(self, brokers: Sequence[Broker], counts: NodeCounts | None) -> None:
        self._brokers = brokers
        self._counts = counts
        self._told: set[str] = set()  # tenants of which the other workers were told something
        self._left: list[str] = []  # of this round

    def share(self) -> float:
        """Tell the other workers what our shards have of some tenants, and our shards what all others have. Returns the
        seconds until the next ones."""
        folds = [broker.fold for broker in self._brokers]
        if not self._left:
            names = {name for fold in folds for name in fold.tenants}
            for name in self._told - names:  # the last shard that had it was given up
                self._tell_nothing(name)
            self._told, self._left = names, list(names)
        for name in self._left[-TENANTS_AT_ONCE:]:
            self._share(name, [fold.tenants[name] for fold in folds if name in fold.tenants])
        del self._left[-TENANTS_AT_ONCE:]
        return SLICE_S if self._left else INTERVAL_S

    def _share(self, name: str, tenants: list[Tenant]) -> None:
        """Share what there is of a tenant; `tenants` is the tenant in each of our shards that has it."""
        messages = self._elsewhere("retained messages", name, [len(one.retained) for one in tenants])
        memory = self._elsewhere("retained memory", name, [one.retained.memory() for one in tenants])
        queues = self._elsewhere("queues", name, [len(one.queues) for one in tenants])
        for at, tenant in enumerate(tenants):
            tenant.retained.messages_elsewhere = messages[at]
            tenant.retained.memory_elsewhere = memory[at]
            tenant.queues_elsewhere = queues[at]

    def _tell_nothing(self, name: str) -> None:
        for kind in _KINDS:
            if self._counts is not None:
                self._counts.set(key_of(kind, name), 0)

    def _elsewhere(self, kind: str, name: str, own: list[int]) -> list[int]:
        """Return how much of a kind there is of a tenant in all shards but each of ours, which have so much."""
        total = sum(own)
        others = 0
        if self._counts is not None:
            key = key_of(kind, name)
            self._counts.set(key, total)
            others = self._counts.others(key)
        return [total + others - each for each in own]
