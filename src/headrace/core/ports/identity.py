"""Who a connection is: what authentication yields, and what everybody is who was not asked.

Limits live on the tenant (`state.session.Commons`); an identity carries them to whoever decides by them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.core.ports.limits import Limits

DEFAULT_TENANT: Final = "default"  # of everybody, until tenants have accounts


class Identity:
    """A user of a tenant. `user` is None for nobody in particular."""

    def __init__(self, tenant: str, user: str | None, limits: Limits) -> None:
        self.tenant = tenant
        self.user = user
        self.limits = limits
