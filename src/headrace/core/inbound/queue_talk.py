"""What is said about topic queues between this shard and all of them, itself too.

Runs on the loop. A consumer and a queue of the same shard speak as those of two shards do, over a wire that is a list: it
is emptied once in a pass, since nobody may hear something from within a call in which he speaks.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from headrace.core.commit import GroupCommit
from headrace.core.inbound.claims import FarOwners, Owners
from headrace.core.inbound.consuming import Consuming
from headrace.core.inbound.far_queues import FarQueues
from headrace.core.inbound.visitors import Visitors
from headrace.core.ports.link import WorkerPort
from headrace.core.records.message import Message
from headrace.core.shards.peer import Frame, Hearing, Wire
from headrace.core.shards.queue_port import QueuePort
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.state.makers import Maker
from headrace.core.state.state import Fold

_UNKNOWN: Final = "\0"  # before a client id it is a user of its own: no user's name holds a zero


class QueueTalk(QueuePort):
    """Both sides of what is said about topic queues, where `far` has the connections here and `visitors` the queues, and
    about whose devices are."""

    def __init__(
        self,
        shard: int,
        fold: Fold,
        commit: GroupCommit,
        consuming: Consuming,
        owners: Owners,
        worker: WorkerPort,
        settings: StreamSettings,
    ) -> None:
        self.far = FarQueues(fold, commit, consuming, worker, settings.answer_within_ms)
        self.visitors = Visitors(consuming, worker)
        self.owners = FarOwners(fold, commit, owners, worker, settings.answer_within_ms)
        owners.far = self.owners
        self._owners = owners
        self._shard = shard
        self._fold = fold
        self._consuming = consuming
        self._worker = worker
        self._there = NearWire(worker, shard)
        self._back = NearWire(worker, shard)
        self._of_home: Hearing[Wire] = Hearing()
        self._of_follower: Hearing[Wire] = Hearing()
        self.hears(self._of_home, self._of_follower)
        self.far.reached(shard, self._there)

    def hears(self, of_home: Hearing[Wire], of_follower: Hearing[Wire]) -> None:
        self.far.hears(of_home)
        self.visitors.hears(of_follower)
        self.owners.hears(of_home, of_follower)

    def reached(self, home: int, wire: Wire) -> None:
        self.owners.reached(home, wire)
        self.far.reached(home, wire)

    def cut(self, home: int) -> None:
        self.owners.cut(home)
        self.far.cut(home)

    def closed(self, shard: int) -> None:
        self.visitors.closed(shard)

    def user_of(self, message: Message) -> str:
        tenant, client_id = self._fold.make(message.tenant), message.client_id
        user = self._owners.of(tenant, client_id)
        if user is None and not tenant.devices.is_home(client_id):
            return _UNKNOWN + client_id  # a device behind a gateway: it counts by itself alone
        return user or ""

    def begins(self, message: Message, user: str) -> None:
        if self._consuming.is_home(message.tenant, message.topic):
            tenant = self._fold.make(message.tenant)
            client_id = message.client_id
            if user.startswith(_UNKNOWN) and tenant.devices.is_home(client_id):
                user = self._owners.of(tenant, client_id) or ""
            self._consuming.open(tenant, message.topic, Maker(user, client_id))

    def may_have(self, message: Message) -> bool:
        return self._consuming.may_have(message.topic)

    def hear_itself(self) -> None:
        self._empty(self._there, self._of_follower)
        self._empty(self._back, self._of_home)

    def _empty(self, wire: NearWire, hearing: Hearing[Wire]) -> None:
        """Let what was said by now be heard. What raises costs this conversation, as one with another shard."""
        for _ in range(len(wire.said)):
            frame = wire.said.popleft()
            try:
                hearing.hear(self._back, frame)
            except Exception as error:  # noqa: BLE001
                self._worker.contain("deferred", None, error)
                self._begin_anew()
                return

    def _begin_anew(self) -> None:
        """Do what a broken wire would: who had asked for something is not left without an answer."""
        self._there.said.clear()
        self._back.said.clear()
        self.far.cut(self._shard)
        self.visitors.closed(self._shard)
        self._there.said.clear()  # who has departed there is gone already
        self.far.reached(self._shard, self._there)

    def on_timer(self) -> None:
        self.far.on_timer()
        self.owners.on_timer()


class NearWire(Wire):
    """What this shard says to itself, until it hears it."""

    def __init__(self, worker: WorkerPort, shard: int) -> None:
        self.far = shard
        self.said: deque[Frame] = deque()
        self._worker = worker

    def say(self, frame: Frame) -> None:
        self.said.append(frame)
        self._worker.request_tick()

    def cut(self) -> None:
        """Do nothing: it lasts as long as the shard."""
