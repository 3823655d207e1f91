"""What all clients of a tenant use together: connections, connects a second, messages and bytes a second. Runs on the
loop.

Among several workers the numbers are those of the node: a connection is counted before the sum is read, and taken back
where that is too much, so there are never more than the limit, whoever comes at the same time. Where there are no
tenants nothing is counted.
"""

from __future__ import annotations

import time

from headrace.core.inbound.pace import Budget, SharedBudget
from headrace.core.ports.limits import NO_LIMIT, Limits
from headrace.net.gate import Allowance
from headrace.services.node_budget import NodeBudget
from headrace.services.node_counts import NodeCounts
from headrace.services.node_table import key_of
from headrace.services.node_times import NodeTimes


class TenantUse:
    """What the clients of one tenant use here."""

    __slots__ = ("budget", "bytes_budget", "connections", "connects", "connects_per_s", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.connections = 0
        self.budget: Budget | None = None
        self.bytes_budget: Budget | None = None
        self.connects: Allowance | None = None
        self.connects_per_s = NO_LIMIT


class TenantUses:
    """Counts what tenants use. `counts` and `times` are what the other workers know, None where there are none."""

    def __init__(self) -> None:
        self._uses: dict[str, TenantUse] = {}  # of those who are connected, or have a limit of connects
        self.counts: NodeCounts | None = None
        self.times: NodeTimes | None = None

    def comes_too_often(self, tenant: str, limits: Limits) -> bool:
        """Return whether a client that has signed in is one too many in this second."""
        most = limits.tenant_connects_per_s
        if most == NO_LIMIT:
            return False
        use = self._use(tenant)
        if use.connects is None or use.connects_per_s != most:
            use.connects_per_s = most
            burst = float(max(1, most))
            use.connects = Allowance(most or 1, burst, time.monotonic, self.times, "tenant connects")
        return most == 0 or not use.connects.take(tenant)

    def admit(self, tenant: str, limits: Limits, takes_over: bool) -> TenantUse | None:
        """Count a connection, and return with whom. None: the tenant has as many as it may have, and this one takes over
        none of them."""
        use = self._use(tenant)
        use.connections += 1
        most = limits.tenant_connections_max
        self._tell(use)
        if most == NO_LIMIT or takes_over or self._connections_of(use) <= most:
            return use
        self.left(use)
        return None

    def left(self, use: TenantUse) -> None:
        """Note that a connection that was counted has ended."""
        use.connections -= 1
        self._tell(use)
        if not use.connections and use.connects is None and self._uses.get(use.name) is use:
            del self._uses[use.name]

    def budget(self, use: TenantUse, per_s: int, now_ms: int) -> Budget:
        """Return the messages that a tenant may publish, as one budget of all its connections."""
        if use.budget is None or use.budget.per_s != per_s:
            use.budget = self._budget("tenant messages", use, per_s, now_ms)
        return use.budget

    def bytes_budget(self, use: TenantUse, per_s: int, now_ms: int) -> Budget:
        """Return the bytes that a tenant may send, as one budget of all its connections."""
        if use.bytes_budget is None or use.bytes_budget.per_s != per_s:
            use.bytes_budget = self._budget("tenant bytes", use, per_s, now_ms)
        return use.bytes_budget

    def _budget(self, what: str, use: TenantUse, per_s: int, now_ms: int) -> Budget:
        """Return a new budget of a tenant; among other workers it is one with theirs."""
        if self.counts is None or self.times is None:
            return Budget(per_s, now_ms)
        return SharedBudget(per_s, now_ms, NodeBudget(self.counts, self.times, (what, use.name)))

    def _use(self, tenant: str) -> TenantUse:
        use = self._uses.get(tenant)
        if use is None:
            use = self._uses[tenant] = TenantUse(tenant)
        return use

    def _connections_of(self, use: TenantUse) -> int:
        others = 0 if self.counts is None else self.counts.others(key_of("tenant", use.name))
        return others + use.connections

    def _tell(self, use: TenantUse) -> None:
        if self.counts is not None:
            self.counts.set(key_of("tenant", use.name), use.connections)
