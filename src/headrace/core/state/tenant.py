"""A tenant's world: its sessions and shared subscriptions, and what they share. Tenants never see each other (P8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.ports.limits import NO_LIMIT
from headrace.core.state.session import ALL_SESSIONS, Commons

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

    def hold(self, session: Session) -> None:
        """Have a session found by its client id."""
        held = self.sessions.get(session.client_id)
        self.sessions[session.client_id] = session
        if held is None:
            self._count_sessions(1)

    def drop(self, session: Session) -> None:
        """Have a session found no more, unless another one has its client id by now."""
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]
            self._count_sessions(-1)

    def take_place(self) -> bool:
        """Return whether there is room for one more session, which is counted until `give_place`: two shards that make
        one at the same time do not have one too many."""
        most = self.limits.tenant_sessions_max
        if self.of_all_shards is None:
            return most == NO_LIMIT or len(self.sessions) < most
        self._count_sessions(1)
        if most == NO_LIMIT or self.of_all_shards.count(self.name, ALL_SESSIONS) <= most:
            return True
        self._count_sessions(-1)
        return False

    def give_place(self) -> None:
        """Count the room that was taken no more: its session counts, if it was made."""
        self._count_sessions(-1)

    def _count_sessions(self, more: int) -> None:
        if self.of_all_shards is not None:
            self.of_all_shards.add(self.name, ALL_SESSIONS, more)

    def shares(self) -> bool:
        """Return whether messages may go to others than single sessions: to groups, or to topic queues."""
        return bool(self.groups) or bool(self.queues)
