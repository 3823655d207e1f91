"""Who a connection is: what authentication yields, and what everybody is who was not asked.

Limits live on the tenant (`state.session.Commons`); an identity carries them to whoever decides by them.
"""

from __future__ import annotations

from typing import Final

DEFAULT_TENANT: Final = "default"  # of everybody, until tenants have accounts


class Limits:
    """What a tenant allows each of its users, over all of the user's connections and sessions; 0: no limit.

    `over_rate`: "wait", or "disconnect" where who publishes more than it may, by this limit or by that of its
    connection, is ended. A reload changes them in place, so that they hold for those who are connected.
    """

    def __init__(self) -> None:
        self.user_connections_max: int = 0
        self.user_messages_per_s: int = 0
        self.user_subscriptions_max: int = 0  # of the sessions, also while they are away
        self.over_rate: str = "wait"


class Identity:
    """A user of a tenant. `user` is None for nobody in particular."""

    def __init__(self, tenant: str, user: str | None, limits: Limits) -> None:
        self.tenant = tenant
        self.user = user
        self.limits = limits
