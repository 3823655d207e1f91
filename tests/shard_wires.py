"""Brokers of several shards, each over a journal in memory, and wires between them that carry frames as bytes."""

from __future__ import annotations

from collections import deque
from itertools import count

from harness import Client, Harness
from headrace.core.homes import Homes
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.core.ports.settings import BrokerSettings
from headrace.core.shards.neighbours import Neighbours
from headrace.core.shards.peer import Frame, Wire
from headrace.core.shards.peer_codec import decode
from headrace.core.shards.routes import Routes
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.worker import Worker
from headrace.storage.memory import ManualScheduler


class WiredShard(Harness):
    """A broker that is one of several; its epoch counts its starts. Clients get a name that is at home here."""

    def __init__(self, number: int, shards: int, settings: BrokerSettings, streams: StreamSettings) -> None:
        self.number = number
        self.shards = shards
        self.streams = streams
        self.epoch = 0
        super().__init__(settings)
        self.neighbours.begin(self.epoch)

    def _own(self) -> None:
        self.worker = Worker(ManualScheduler(), self.clock, self.settings, Homes(self.shards))
        self.broker = self.worker.own(self.number, self.journal)
        self.neighbours: Neighbours = self.broker.join(self.journal, Routes(), self.streams)

    def client(self, client_id: str, **options: object) -> Client:
        names = (f"{client_id}{number}" for number in count())
        homes = self.worker.homes
        name = next(name for name in names if homes.of_client(DEFAULT_TENANT, name) == self.number)
        return super().client(name, **options)

    def retained(self) -> dict[bytes, bytes]:
        """The retained messages that this shard keeps."""
        messages = self.broker.fold.tenant(DEFAULT_TENANT).retained.messages()
        return {message.topic: message.payload for message in messages}


class End(Wire):
    """One side of a wire; what was said on it waits as bytes."""

    def __init__(self, shard: WiredShard) -> None:
        self.shard = shard
        self.said: deque[bytes] = deque()
        self.is_cut = False

    def say(self, frame: Frame) -> None:
        self.said.append(frame.encode())

    def cut(self) -> None:
        self.is_cut = True


class NarrowEnd(End):
    """One side of a wire that is full as long as something waits to leave."""

    @property
    def full(self) -> bool:
        return len(self.said) > 0


class WiredShards:
    """So many shards; `carry` lets all that is said be heard. `held` are pairs (follower, source) whose wire carries
    nothing for now."""

    def __init__(
        self,
        count: int = 3,
        settings: BrokerSettings | None = None,
        streams: StreamSettings | None = None,
        connected: bool = True,
    ) -> None:
        self.streams = streams or StreamSettings()
        self.settings = settings or BrokerSettings()
        self.shards = [WiredShard(n, count, self.settings, self.streams) for n in range(count)]
        self.wires: dict[tuple[int, int], tuple[End, End]] = {}
        self.held: set[tuple[int, int]] = set()
        if connected:
            self.connect_all()

    def __getitem__(self, number: int) -> WiredShard:
        return self.shards[number]

    def connect(self, follower: int, source: int) -> None:
        near, far = End(self.shards[follower]), End(self.shards[source])
        self.wires[follower, source] = near, far
        self.shards[follower].neighbours.connect(source, near)

    def connect_all(self) -> None:
        for follower in self.shards:
            for source in self.shards:
                if source is not follower:
                    self.connect(follower.number, source.number)
        self.carry()

    def disconnect(self, follower: int, source: int) -> None:
        """Break a wire: both sides are told."""
        near, far = self.wires.pop((follower, source))
        near.shard.neighbours.broken(near)
        far.shard.neighbours.broken(far)

    def isolate(self, number: int) -> None:
        """Break all wires of a shard."""
        for follower, source in list(self.wires):
            if number in (follower, source):
                self.disconnect(follower, source)

    def join_again(self, number: int) -> None:
        for other in range(len(self.shards)):
            if other != number:
                self.connect(number, other)
                self.connect(other, number)

    def crash(self, number: int) -> None:
        """A shard loses what is not durable, and has a new owner."""
        self.isolate(number)
        shard = self.shards[number]
        shard.crash()
        shard.epoch += 1
        shard.neighbours.begin(shard.epoch)

    def sync(self) -> None:
        for shard in self.shards:
            shard.sync()

    def hear(self, end: End) -> None:
        """One thing that was said at this end of a wire is heard at the other one; nobody has a pass of the loop."""
        near, far = next(pair for pair in self.wires.values() if end in pair)
        other = far if end is near else near
        other.shard.neighbours.heard(other, decode(end.said.popleft()))

    def step(self) -> bool:
        """What was said by now is heard; True if anything was."""
        moved = False
        for pair, (near, far) in list(self.wires.items()):
            if pair in self.held:
                continue
            for end, other in ((near, far), (far, near)):
                for _ in range(len(end.said)):
                    moved = True
                    other.shard.neighbours.heard(other, decode(end.said.popleft()))
        self.sync()
        return moved

    def carry(self) -> None:
        """All that is said is heard, and takes effect."""
        self.sync()
        while self.step():
            pass

    def advance(self, seconds: float) -> None:
        for shard in self.shards:
            shard.advance(seconds)
        self.carry()

    def topic_in(self, shard: int, prefix: str = "t/") -> str:
        """A topic whose retained message is at home in this shard."""
        homes = self.shards[0].worker.homes
        names = (f"{prefix}{number}" for number in count())
        return next(name for name in names if homes.of_topic(DEFAULT_TENANT, name) == shard)


def received(client: Client) -> list[bytes]:
    return [payload for _, payload, _, _ in client.publishes()]
