"""The port to tenants: whose a client is, and the limits that each tenant has.

Whose a client is follows from what its CONNECT or HELLO says and from where its connection came in, and from nothing
else: it is known before the home of the client is computed, each worker that a connection is handed to finds the same,
and the answer is there at once. Whether there is such a tenant, and whether the
client may come in, is for access control.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.core.ports.limits import Limits

NO_TENANT: Final = ""  # no tenant may have the name that was given: the client is refused


@mypyc_attr(allow_interpreted_subclasses=True)
class Tenancy:
    """Says which tenant clients and bridges belong to, by its name. Pure: neither time nor what is stored has a say. The
    default is one tenant for all."""

    def of_client(self, user: str | None, listener: str, certificate: str | None) -> str:
        """Return the tenant of a client by the user name of its CONNECT or HELLO, the URL of its listener and the name
        in its certificate (`Link.certificate_name`). NO_TENANT: the client is refused, before anything is made for it.
        """
        return DEFAULT_TENANT

    def of_bridge(self, name: str) -> str:
        """Return the tenant of a configured bridge."""
        return DEFAULT_TENANT


class Quotas:
    """The limits of all tenants of a worker: one object for each tenant, whose states in all shards share it.

    `usual` are those of every tenant that nobody has given others, and of the default tenant, until it is `divided`.
    """

    def __init__(self, usual: Limits) -> None:
        self.usual = usual
        self._of: dict[str, Limits] = {DEFAULT_TENANT: usual}
        self._given: set[str] = set()  # who has others than the usual ones

    def divide(self) -> None:
        """Let the default tenant be one among others from now on, which can be given limits: before anything of it is
        made."""
        own = self._of[DEFAULT_TENANT] = Limits()
        own.take(self.usual)

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
        """Give a tenant that exists limits of its own, for those who are connected too. A default tenant that is the only
        one keeps those of the configuration."""
        own = self.of(tenant)
        if own is not self.usual:
            self._given.add(tenant)
            own.take(limits)

    def take_back(self, tenant: str) -> None:
        """Have a tenant follow the usual limits again, those who are connected too."""
        if tenant in self._given:
            self._given.remove(tenant)
            self.of(tenant).take(self.usual)

    def changed(self) -> None:
        """Have the tenants that follow the usual limits keep them as they are now."""
        for tenant, limits in self._of.items():
            if tenant not in self._given and limits is not self.usual:
                limits.take(self.usual)
