"""The groups of shared subscriptions that are at home in a shard: who comes, who leaves, and what becomes of the queue.

Runs on the loop, for live events and in a replay alike.
"""

from __future__ import annotations

from headrace.core.records.record import DROP_SESSION_ENDED
from headrace.core.state.groups import Group, give_back
from headrace.core.state.session import Session, Subscription
from headrace.core.state.tenant import Tenant
from headrace.core.state.wanted import Unasked
from headrace.mqtt.topics import split_share


class SharedGroups:
    """Groups by number. They stay for as long as something of them is in flight, also those that have no members."""

    def __init__(self, tenants: dict[str, Tenant]) -> None:
        """Begin without groups. `tenants` is the directory of the state, by name."""
        self._tenants = tenants
        self.wanted = Unasked()
        self.by_id: dict[int, Group] = {}
        # Groups that the records replayed so far have dissolved: draws from them may be noted behind that.
        self.dissolved: list[Group] = []
        self.replaying = False  # set with every event that is replayed, until the broker has started

    def make(self, tenant: Tenant, key: str, group_id: int) -> Group:
        """Return the group of a shared subscription, made under `group_id` if there is none."""
        group = tenant.groups.get(key)
        if group is None:
            name, inner = split_share(key)
            group = Group(tenant, name, inner, group_id)
            tenant.groups[key] = group
            self.by_id.setdefault(group_id, group)  # a snapshot may have it further on, and dissolved
            self.wanted.add(tenant.name, inner)
            # Not as every subscription is: whoever gives messages to sessions passes it on, as one with No Local.
            carried = Subscription(group.carrier, inner, 2, True, True, 2, 0, b"")
            tenant.shared_tree.add(inner, carried)
        return group

    def join(self, session: Session, subscription: Subscription, group_id: int) -> None:
        group = self.make(self._tenants[session.tenant.name], subscription.filter, group_id)
        is_new = session not in group.members
        group.join(session, subscription)
        if is_new and session.closed_at_us:
            # It was no member when its connection ended, and has what it had as one before.
            give_back(session)

    def leave(self, session: Session, topic_filter: str, at: int) -> None:
        """Remove a member from a group: what it has in flight completes with it; the last member takes the queue
        along."""
        group = self._tenants[session.tenant.name].groups.get(topic_filter)
        if group is None:
            return
        group.leave(session)
        if not group.members:
            self._dissolve(group, at)

    def started(self, at: int) -> None:
        """Apply the record of a start, at offset `at`: groups that nobody is in are dissolved now."""
        dissolved, self.dissolved, self.replaying = self.dissolved, [], False
        for group in dissolved:
            self._discard(group)
        for tenant in self._tenants.values():
            for group in [found for found in tenant.groups.values() if not found.members]:
                self._dissolve(group, at)

    def _dissolve(self, group: Group, at: int) -> None:
        """Dissolve a group without members, by the record at offset `at`; but a group of a snapshot had some further
        on, who come when their subscriptions are replayed."""
        if group.applied >= at:
            return
        tenant = self._tenants[group.tenant.name]
        del tenant.groups[group.carrier.client_id]
        tenant.shared_tree.remove(group.filter, group.carrier)
        self.wanted.remove(tenant.name, group.filter)
        if self.replaying:
            self.dissolved.append(group)
        else:
            self._discard(group)

    def _discard(self, group: Group) -> None:
        """Drop what waits in a group that is dissolved; it stays for as long as something of it is in flight."""
        left = group.dissolve()
        if not group.drawn and self.by_id.get(group.incarnation) is group:
            del self.by_id[group.incarnation]
        if left:
            group.tenant.count_drop(DROP_SESSION_ENDED, left)

    def all(self) -> list[Group]:
        """Return the groups, and of those that are dissolved the ones with entries in flight; the others are
        forgotten."""
        for group in list(self.by_id.values()):
            held = self._tenants[group.tenant.name].groups.get(group.carrier.client_id)
            if held is not group and not group.drawn:
                del self.by_id[group.incarnation]
        return list(self.by_id.values())
