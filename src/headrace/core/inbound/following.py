"""QoS 0 behind what its connection has sent before and what is not durable yet: it takes effect in its place (ADR 0028).

Runs on the loop. What waits counts against the share of its publisher, and goes on when that one is gone. Only where
very many have left something behind and are gone is some of it dropped, and counted.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from mypy_extensions import i64

from headrace.core.commit import ENTRY_BYTES, Deferred, GroupCommit
from headrace.core.outbound.fan_out import LANES_BYTES_MAX
from headrace.core.outbound.routing import Router
from headrace.core.records.record import DROP_QOS0_SLOW

if TYPE_CHECKING:
    from headrace.core.ports.link import Link
    from headrace.core.ports.settings import BrokerSettings
    from headrace.core.records.message import Message
    from headrace.core.state.session import Commons


class Following:
    """Holds the QoS 0 messages that wait for what is before them. `bytes` is what they count as."""

    def __init__(self, commit: GroupCommit, router: Router, settings: BrokerSettings) -> None:
        self._work_at_once: i64 = settings.deliveries_at_once
        self._bytes_at_once: i64 = settings.write_buffer_high // 4  # a pass may have two parts of a batch
        self._commit = commit
        self._router = router
        self._waiting: deque[_Follower] = deque()
        self.bytes: i64 = 0
        self._limit: i64 = LANES_BYTES_MAX  # of `bytes`, when those who are gone are looked for next

    def put(self, link: Link, tenant: Commons, message: Message, packet: bytes | None) -> None:
        """Let a message take effect behind all that its publisher has sent. `packet` is the PUBLISH as it came, where it
        may leave so."""
        follower = _Follower(self, link, tenant, message, packet)
        self._commit.defer(follower)
        link.effective_at = self._commit.entered  # what comes behind it waits for it too
        self._waiting.append(follower)
        self.bytes += follower.weight
        if self.bytes > self._limit:
            self._make_room()

    def _make_room(self) -> None:
        """Drop what publishers left behind who are gone, the longest waiting first, until half of the room is free."""
        for follower in self._waiting:
            if self.bytes <= LANES_BYTES_MAX // 2:
                break
            if follower.link.closed and follower.message is not None:
                self._drop(follower)
        self._limit = max(LANES_BYTES_MAX, self.bytes + LANES_BYTES_MAX // 2)

    def _drop(self, follower: _Follower) -> None:
        follower.message = None
        follower.packet = None
        follower.tenant.count_drop(DROP_QOS0_SLOW, 1)
        held: i64 = follower.weight - ENTRY_BYTES
        follower.weight = ENTRY_BYTES
        follower.link.deferred -= held
        self._commit.deferred_bytes -= held
        self.bytes -= held

    def take_effect(self, follower: _Follower) -> i64:
        """Give the message that has waited longest to its sessions; returns the work. Bytes are work, too: of what has
        come in many passes of the loop no more leaves in one than a subscriber's buffer takes, or it would be dropped."""
        self._waiting.popleft()
        self.bytes -= follower.weight
        if not self._waiting:
            self._limit = LANES_BYTES_MAX
        message = follower.message
        if message is None:
            return 1
        size: i64 = message.size
        work = self._router.route_qos0(follower.tenant, message, follower.packet, follower.link)
        return work + size * self._work_at_once // self._bytes_at_once


class _Follower(Deferred):
    """A QoS 0 message in its place of a batch."""

    def __init__(
        self, following: Following, link: Link, tenant: Commons, message: Message, packet: bytes | None
    ) -> None:
        super().__init__(link, 2 * message.size)
        self._following = following
        self.link = link
        self.tenant = tenant
        self.message: Message | None = message
        self.packet = packet
        self._work: i64 = 1

    def run(self) -> None:
        self._work = self._following.take_effect(self)

    def work(self) -> i64:
        return self._work
