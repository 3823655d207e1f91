"""A tenant's world: its sessions, subscriptions, retained messages and counters. Tenants never see each other (P8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from headrace.core.state.backlog import BacklogSpace
from headrace.core.state.packet_ids import PacketIds
from headrace.core.state.producers import Producers
from headrace.core.state.retained import RetainedStore
from headrace.core.state.subscriptions import SubscriptionTree

if TYPE_CHECKING:
    from headrace.core.ports.journal import PageReader
    from headrace.core.state.groups import Group
    from headrace.core.state.session import Session


class Counters:
    """Plain integers, read when /metrics is scraped."""

    def __init__(self) -> None:
        self.publishes_received = 0
        self.publishes_repeated = 0
        self.publishes_sent = 0
        self.bytes_received = 0
        self.bytes_sent = 0
        self.connects = 0
        self.connects_refused = 0
        self.disconnects = 0
        self.protocol_errors = 0
        self.dropped: dict[int, int] = {}
        self.refused: dict[
            tuple[str, int], int
        ] = {}  # (connect, publish or subscribe; reason code) -> packets

    def refuse(self, what: str, reason_code: int) -> None:
        key = (what, reason_code)
        self.refused[key] = self.refused.get(key, 0) + 1


class Tenant:
    """Everything of one tenant."""

    def __init__(self, name: str, pages: PageReader, ids: PacketIds | None = None) -> None:
        self.name = name
        self.name_utf8 = name.encode("utf-8")
        self.name_bytes: i64 = len(self.name_utf8)
        self.sessions: dict[str, Session] = {}
        self.tree = SubscriptionTree()
        self.shared_tree = SubscriptionTree()
        self.groups: dict[str, Group] = {}
        self.retained = RetainedStore()
        self.producers = Producers()
        self.counters = Counters()
        self.space = BacklogSpace(pages)
        self.ids = PacketIds() if ids is None else ids
        self.owned: dict[str, int] = {}  # user -> subscriptions of the sessions that belong to it
        # (client id, DropReason) -> messages not yet told of; None: nobody is told (`drop_events`)
        self.drops: dict[tuple[str, int], int] | None = None

    def is_heard(self, topic: bytes) -> bool:
        """Return whether any subscription, shared or not, matches this topic."""
        return bool(self.tree.match(topic)) or (bool(self.groups) and bool(self.shared_tree.match(topic)))

    def count_owned(self, user: str, more: int) -> None:
        """The sessions of a user have so many subscriptions more, or fewer."""
        count = self.owned.get(user, 0) + more
        if count:
            self.owned[user] = count
        else:
            self.owned.pop(user, None)

    def count_drop(self, reason: int, count: int) -> None:
        dropped = self.counters.dropped
        dropped[reason] = dropped.get(reason, 0) + count
