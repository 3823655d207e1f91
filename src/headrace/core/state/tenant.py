"""A tenant's world: its sessions and shared subscriptions, and what they share. Tenants never see each other (P8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.state.session import Commons

if TYPE_CHECKING:
    from headrace.core.ports.journal import PageReader
    from headrace.core.ports.limits import Limits
    from headrace.core.state.groups import Group
    from headrace.core.state.packet_ids import PacketIds
    from headrace.core.state.session import Session


class Tenant(Commons):
    """Everything that the broker holds of one tenant."""

    def __init__(
        self, name: str, pages: PageReader, ids: PacketIds | None = None, limits: Limits | None = None
    ) -> None:
        super().__init__(name, pages, ids, limits)
        self.sessions: dict[str, Session] = {}
        self.groups: dict[str, Group] = {}

    def shares(self) -> bool:
        """Return whether messages may go to others than single sessions: to groups, or to topic queues."""
        return bool(self.groups) or bool(self.queues)
