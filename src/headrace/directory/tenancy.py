"""Whose a client is by its user name: acme/gateway-1 is gateway-1 of the tenant acme. Pure."""

from __future__ import annotations

from headrace.core.ports.tenancy import NO_TENANT, Tenancy
from headrace.directory.errors import InvalidField
from headrace.directory.names import tenant_name


class ByPrefix(Tenancy):
    """The first separator divides a user name into tenant and user. Who names no tenant is of the default one; "" stands
    for none, and then such clients are refused. Where a listener takes names from certificates, that is the name."""

    def __init__(self, separator: str, default: str) -> None:
        super().__init__()
        self._separator = separator
        self._default = default

    def of_client(self, user: str | None, listener: str, certificate: str | None) -> str:
        tenant, divided, rest = (certificate or user or "").partition(self._separator)
        if not divided:
            return self._default or NO_TENANT
        try:
            return tenant_name(tenant) if rest else NO_TENANT
        except InvalidField:
            return NO_TENANT

    def user_of(self, name: str) -> str:
        """Return the user of a name that a client signs in with, without its tenant."""
        _, divided, rest = name.partition(self._separator)
        return rest if divided else name

    def name_of(self, name: str) -> str:
        """Return the short one of the two names of a user of the default tenant: gateway-1, also for default/gateway-1.
        A user whose own name holds the separator has the long one alone."""
        tenant, divided, rest = name.partition(self._separator)
        is_long = bool(divided and tenant) and tenant == self._default
        return rest if is_long and rest and self._separator not in rest else name
