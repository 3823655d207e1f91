"""Several brokers of a history, each with its journal, and the wires between them.

What is said on a wire arrives in order, when a step of the history says so, or never. A wire breaks for each of its ends
at a time of its own, so that old ones go on being heard when newer ones are there. An owner that was replaced lives on as
a *straggler*: it still talks to everybody, while nothing that it writes is ever durable.
"""

from __future__ import annotations

from collections import deque
from random import Random

from faults.model.world import CrashJournal, Snapshot, Violation, World
from headrace.core.homes import Homes
from headrace.core.ports.settings import BrokerSettings
from headrace.core.shards.neighbours import Neighbours
from headrace.core.shards.peer import Frame, Wire
from headrace.core.shards.peer_codec import decode
from headrace.core.shards.routes import Routes
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.state.letting_go import let_go
from headrace.core.state.replay import Replay
from headrace.core.state.snapshots import restore
from headrace.core.state.state import Fold
from headrace.core.worker import Worker
from headrace.storage.memory import ManualScheduler


class Owner:
    """A worker that owns a shard, or thinks so."""

    def __init__(self, worker: Worker, neighbours: Neighbours) -> None:
        self.worker = worker
        self.neighbours = neighbours
        self.alive = True


class End(Wire):
    """One side of a wire. `coming` is what the other side has said."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.coming: deque[bytes] = deque()
        self.other: End | None = None
        self.broken = False  # nothing said on this side leaves any more
        self.told = False  # that it has broken

    def say(self, frame: Frame) -> None:
        other = self.other
        assert other is not None
        if not self.broken and not other.told:
            other.coming.append(frame.encode())

    def cut(self) -> None:
        self.broken = True


class Shard(World):
    """One shard: its owners over its journal."""

    def __init__(
        self, number: int, shards: int, rng: Random, settings: BrokerSettings, streams: StreamSettings
    ) -> None:
        self.number = number
        self.shards = shards
        self.streams = streams
        self.stragglers: list[Owner] = []
        self.failed: BaseException | None = None
        self._process: Worker | None = None  # in which the shard is taken next, if that lives on
        super().__init__(rng, settings)
        self.settle()
        self.begin()

    def _own(self) -> None:
        process, self._process = self._process, None
        self.worker = process or Worker(ManualScheduler(), self.clock, self.settings, Homes(self.shards))
        self.worker.failures.tell = self._failed
        self.broker = self.worker.own(self.number, self.journal)
        self.owner = Owner(self.worker, self.broker.join(self.journal, Routes(), self.streams))
        self.epoch = len(self.journal.records)  # the record of its start comes here

    def _failed(self, place: str, client_id: str, error: BaseException) -> None:
        """What a broker contains is what a history looks for."""
        self.failed = self.failed or error

    def followed(self) -> int:
        others = [other for other in range(self.shards) if other != self.number]
        return self.broker.fold.streams.floor(others)

    def begin(self) -> None:
        """Its start is durable: it may speak to the others."""
        if self.owner.neighbours.epoch < 0:
            self.owner.neighbours.begin(self.epoch)

    def settle(self) -> None:
        super().settle()
        while self.owner.neighbours.followers.reads and not self.journal.reads_fail:
            self.tick()
            self.check()

    def check(self) -> None:
        """Raise what a broker of this shard has contained."""
        if self.failed is not None:
            raise Violation(f"shard {self.number}: {self.failed!r}") from self.failed

    def crash(self) -> None:
        self.owner.alive = False
        super().crash()
        self.begin()

    def stop(self) -> None:
        owner = self.owner
        super().stop()
        owner.alive = False
        self.begin()

    def move(self, rng: Random, fails: bool) -> None:
        """The shard is given up while its process lives on, which takes it again. `fails`: since its journal has failed,
        so nothing is noted, and what was not durable may be there or not."""
        owner, broker, worker = self.owner, self.broker, self.worker
        if fails:
            broker.commit.on_failure(OSError("failed"))
            self.crashes += 1
        worker.shut(self.number)
        owner.neighbours.leave()
        while broker.leave(rng.choice((1, 3))):
            if not fails and rng.random() < 0.5:
                self.tick()
        if fails:
            if rng.random() < 0.4:
                self.journal.durable = len(self.journal.records)
        else:
            self.settle()
        records = len(self.journal.records)
        worker.disown(self.number)
        while let_go(broker.fold, rng.choice((1, 5))):
            pass
        owner.alive = False
        worker.on_timer()
        worker.end_tick()
        if worker.brokers or len(self.journal.records) != records:
            raise Violation(f"shard {self.number} goes on after it was given up")
        self.kept = self.journal.durable
        self.journal.reads_fail = False
        self.journal.cut()
        self._pass = self._written = self._compaction = None
        self.started_us = self.now_us
        self._process = worker
        self._open()
        self.settle()
        self.begin()

    def replace(self) -> None:
        """Another owner begins with what is durable; the one before does not know."""
        self.crashes += 1
        self.stragglers.append(self.owner)
        before = self.journal
        if self.rng.random() < 0.4:
            before.durable = len(before.records)
        self.journal = CrashJournal()
        self.journal.batches = [batch for batch in before.batches if batch[0] < before.durable]
        self.journal.records = before.records[: before.durable]
        self.journal.durable = self.kept = before.durable
        self.journal.floor, self.journal.compacted = before.floor, set(before.compacted)
        self._pass = self._written = self._compaction = None
        self.started_us = self.now_us
        self._open()
        self.settle()
        self.begin()

    def recovered(self, snapshot: Snapshot | None) -> Fold:
        """The state that a start would find now, with a snapshot or by the whole journal."""
        worker = Worker(ManualScheduler(), self.clock, self.settings, Homes(self.shards))
        broker = worker.own(self.number, self.journal)
        broker.join(self.journal, Routes(), self.streams)
        position = 0
        if snapshot is not None:
            position = snapshot.positions[-1]
            restore(broker.fold, snapshot.files)
        replay = Replay(broker.fold)
        for base, body in self.journal.batches:
            replay.batch(body, base, position)
        for group in broker.fold.groups.dissolved:  # the record of the start would do it
            group.dissolve()
        return broker.fold

    def owners(self) -> list[Owner]:
        return [self.owner, *self.stragglers]


class Cluster:
    """All shards and all wires of a history."""

    def __init__(self, shards: int, rng: Random, settings: BrokerSettings, streams: StreamSettings) -> None:
        self.rng = rng
        self.shards = [Shard(number, shards, rng, settings, streams) for number in range(shards)]
        self.wires: list[tuple[End, End]] = []

    # Time is one for all

    def set_clocks(self) -> None:
        now_us = max(shard.now_us for shard in self.shards)
        for shard in self.shards:
            shard.now_us = now_us
            shard.set_clock()

    def advance(self, seconds: float) -> None:
        """Let time pass; each broker's timers run, stragglers' too."""
        self.set_clocks()
        for shard in self.shards:
            shard.advance(seconds)
            for straggler in shard.stragglers:
                straggler.worker.on_timer()
                straggler.worker.end_tick()

    # Wires

    def connect(self, follower: Owner, shard: int, owner: Owner) -> None:
        """Open a wire on which one owner follows another's shard."""
        near, far = End(follower), End(owner)
        near.other, far.other = far, near
        self.wires.append((near, far))
        follower.neighbours.connect(shard, near)

    def deliver(self, end: End, most: int) -> int:
        """Let some of what was said arrive at one side of a wire; returns how much."""
        count = 0
        while end.coming and count < most and not end.told:
            data = end.coming.popleft()
            count += 1
            if end.owner.alive:
                end.owner.neighbours.heard(end, decode(data))
        return count

    def break_wire(self, pair: tuple[End, End]) -> None:
        """Nothing more is sent on a wire. What is on its way may come, until each side is told."""
        pair[0].broken = pair[1].broken = True

    def tell(self, end: End) -> None:
        """One side hears that its wire has broken, or that the other side is dead."""
        if not end.told:
            end.told = True
            end.coming.clear()
            if end.owner.alive:
                end.owner.neighbours.broken(end)
        self.wires = [pair for pair in self.wires if not (pair[0].told and pair[1].told)]

    def bury(self) -> None:
        """Those that are dead hear nothing any more: their wires break."""
        for pair in self.wires:
            for end in pair:
                if not end.owner.alive:
                    self.break_wire(pair)
                    end.told = True
                    end.coming.clear()

    def settle(self) -> None:
        """Until nobody has anything to say or to write."""
        moved = True
        while moved:
            moved = False
            for shard in self.shards:
                shard.settle()
            for pair in list(self.wires):
                for end in pair:
                    moved = self.deliver(end, 1 << 30) > 0 or moved
