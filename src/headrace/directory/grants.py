"""What one client may do, as access control asks it. Runs on the loop."""

from __future__ import annotations

from headrace.core.ports import directory as ports
from headrace.directory.policy import PUBLISH, RETAIN, SUBSCRIBE, Permissions
from headrace.services.acl import READ


class ClientGrants(ports.Grants):
    """What one client of a user may do. `publishes`: its tenant may publish at all."""

    def __init__(self, permissions: Permissions, publishes: bool = True) -> None:
        super().__init__()
        self._permissions = permissions
        self._publishes = publishes

    def allows(self, access: int, topic: bytes) -> bool:
        if access != READ and not self._publishes:
            return False
        action = SUBSCRIBE if access == READ else PUBLISH
        return self._permissions.allows(action, topic.decode("utf-8"))

    def may_retain(self, topic: bytes) -> bool:
        return self._permissions.allows(RETAIN, topic.decode("utf-8"))

    def allows_filter(self, topic_filter: str) -> bool:
        return self._permissions.allows_filter(topic_filter)


NOTHING = ClientGrants(Permissions([], None, ""))
