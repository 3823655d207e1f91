"""Tenants by user names, for tests: `blue/ada` is a user of the tenant `blue`, and bridges are of `blue`."""

from __future__ import annotations

from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.core.ports.tenancy import NO_TENANT, Tenancy

BLUE, GREEN = "blue", "green"


class ByName(Tenancy):
    """Whoever names no tenant is of the default one; only lower case letters name one."""

    def of_client(self, user: str | None, listener: str, certificate: str | None) -> str:
        tenant, slash, _ = (user or "").partition("/")
        if not slash:
            return DEFAULT_TENANT
        return tenant if tenant.isalpha() and tenant.islower() else NO_TENANT

    def of_bridge(self, name: str) -> str:
        return BLUE
