"""The tenants of a worker: the limits that each of them has."""

from __future__ import annotations

from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.core.ports.limits import Limits


class Quotas:
    """The limits of all tenants of a worker: one object for each tenant, whose states in all shards share it.

    `usual` are those of every tenant that nobody has given others, and of the default tenant.
    """

    def __init__(self, usual: Limits) -> None:
        self.usual = usual
        self._of: dict[str, Limits] = {DEFAULT_TENANT: usual}
        self._given: set[str] = set()  # who has others than the usual ones

    def look(self, tenant: str) -> Limits:
        """Return the limits of a tenant, which may not have been made; nothing is made for it."""
        return self._of.get(tenant, self.usual)

    def of(self, tenant: str) -> Limits:
        """Return the limits of a tenant that is made now: they are its own from here on."""
        limits = self._of.get(tenant)
        if limits is None:
            limits = Limits()
            limits.take(self.usual)
            self._of[tenant] = limits
        return limits

    def give(self, tenant: str, limits: Limits) -> None:
        """Give a tenant that exists limits of its own, for those who are connected too. The default tenant keeps those
        of the configuration."""
        if tenant != DEFAULT_TENANT:
            self._given.add(tenant)
            self.of(tenant).take(limits)

    def changed(self) -> None:
        """Have the tenants that follow the usual limits keep them as they are now."""
        for tenant, limits in self._of.items():
            if tenant not in self._given and tenant != DEFAULT_TENANT:
                limits.take(self.usual)
