"""The broker of a history: a journal that loses what is not durable, snapshots taken in slices, crashes.

Nothing runs by itself. `tick` ends a pass of the loop, `commit` makes the batch on its way durable, `crash` keeps what is
durable and perhaps the batch on its way, and recovers a new broker from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from headrace.core.commit import Barrier
from headrace.core.ports.clock import Clock
from headrace.core.ports.journal import NOT_NOW, OTHER_RECORD, Absent, JournalPort
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.message import Message, decode_batch
from headrace.core.records.record import Progress, Record
from headrace.core.state.replay import Replay
from headrace.core.state.snapshots import SnapshotPass, restore
from headrace.core.worker import Worker
from headrace.errors import NotReadableNow
from headrace.storage.embedded.references import References
from headrace.storage.memory import ManualScheduler

START_US = 1_790_000_000_000_000


class Violation(AssertionError):
    """A promise was broken; the text says which one."""


class CrashJournal(JournalPort):
    """All batches ever handed over and not lost. `floor` is what retention has deleted up to."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[int, bytes]] = []
        self.records: list[Record] = []
        self.durable = 0
        self.floor = 0
        self.compacted: set[int] = set()
        self.reads_fail = False
        self.failed = False  # the last read did

    def next_offset(self) -> int:
        return len(self.records)

    def append(
        self, body: bytes, records: list[object], first_timestamp_us: int, max_timestamp_us: int
    ) -> None:
        self.batches.append((len(self.records), body))
        self.records += decode_batch(body, len(self.records))

    def room(self) -> int:
        return 0

    def has_room(self) -> bool:
        return True

    def fetch(self, offset: int) -> Message | Absent:
        if self._fails():
            return NOT_NOW
        if offset < self.floor:
            raise Violation(f"P2: offset {offset} is still needed, retention deleted up to {self.floor}")
        if offset in self.compacted:
            raise Violation(f"P2: offset {offset} is still needed, compaction has taken it")
        record = self.records[offset]
        return record if isinstance(record, Message) else OTHER_RECORD

    def fetch_page(self, offset: int) -> bytes | Absent:
        if self._fails():
            return NOT_NOW
        record = self.records[offset]
        return record.packed if isinstance(record, Progress) and self._has(offset) else OTHER_RECORD

    def _fails(self) -> bool:
        failed, self.failed = self.failed, self.reads_fail
        if failed and not self.failed and self.waiting is not None:
            self.waiting.wake_all()
        return self.failed

    def _has(self, offset: int) -> bool:
        return offset >= self.floor and offset not in self.compacted

    def cut(self) -> None:
        """Forget what is not durable."""
        while self.batches and self.batches[-1][0] >= self.durable:
            self.batches.pop()
        del self.records[self.durable :]

    def messages(self) -> Iterator[Message]:
        """The durable ones, in order."""
        for record in self.records[: self.durable]:
            if isinstance(record, Message):
                yield record


class Snapshot:
    """A full snapshot and those behind it with what changed since; replay starts at the position of the last."""

    def __init__(self, position: int, entries: list[bytes]) -> None:
        self.first = position
        self.positions = [position]
        self.files = [entries]

    def add(self, position: int, entries: list[bytes]) -> None:
        self.positions.append(position)
        self.files.append(entries)


class World:
    """One broker after another over one journal."""

    def __init__(self, rng: Random, settings: BrokerSettings) -> None:
        self.rng = rng
        self.settings = settings
        self.now_us = START_US
        self.wrong_us = 0  # by so much the clock of the wall is wrong; that of time passing never is
        self.jumped = False
        self.clock = Clock()
        self.journal = CrashJournal()
        self.snapshots: list[Snapshot] = []
        self.crashes = 0
        self.finished = 0  # snapshots
        self.kept = 0  # what the journal had kept at the last start
        self.started_us = START_US  # of starts that followed each other, the first one: wills may run from it
        self._pass: SnapshotPass | None = None
        self._slices: Iterator[list[bytes]] = iter(())
        self._entries: list[bytes] = []
        self._written: Barrier | None = None  # what the entries reflect is durable
        self._full = True  # the next snapshot is a full one
        self._compaction: Iterator[None] | None = None
        self._open()

    def _open(self) -> None:
        self.set_clock()
        self._own()
        self._recover()
        self.broker.sessions.absences.start()

    def _own(self) -> None:
        """Make a broker that knows nothing yet."""
        self.worker = Worker(ManualScheduler(), self.clock, self.settings)
        self.broker = self.worker.own(0, self.journal)

    def followed(self) -> int:
        """The journal is kept from here on for others."""
        return len(self.journal.records)

    def _recover(self) -> None:
        fold, position = self.broker.fold, 0
        if self.snapshots:
            newest = self.snapshots[-1]
            whole = len(newest.files)
            if self.rng.random() < 0.1:  # now and then one is damaged, and those behind it are of no use
                whole = self.rng.randrange(whole)
            chosen = newest if whole else self.snapshots[0]
            whole = whole or 1
            position = chosen.positions[whole - 1]
            restore(fold, chosen.files[:whole])
        self._full = True
        replay = Replay(fold)
        for base, body in self.journal.batches:
            if base + 100_000 < position:
                continue
            replay.batch(body, base, position)

    def set_clock(self) -> None:
        self.clock.now_us = self.now_us + self.wrong_us
        self.clock.mono_ms = self.clock.looked_ms = self.now_us // 1000

    # Steps

    def tick(self) -> None:
        self.worker.end_tick()

    def commit(self) -> None:
        self.journal.durable = len(self.journal.records)
        self.broker.commit.on_high_watermark(self.journal.durable)

    def settle(self) -> None:
        """Until nothing waits for the journal."""
        self.tick()
        while not self.broker.commit.idle:
            self.commit()
            self.tick()

    def advance(self, seconds: float) -> None:
        self.now_us += int(seconds * 1_000_000)
        self.set_clock()
        self.worker.on_timer()

    def jump(self, seconds: int) -> None:
        """Somebody sets the clock: by so much, in either direction."""
        self.wrong_us += seconds * 1_000_000
        self.jumped = True
        self.set_clock()

    def snapshot_slice(self) -> None:
        """The next few entries of the snapshot being written; the last ones make it count. Behind it, as in the node, a
        slice of compaction at a time."""
        if self._compaction is not None:
            if next(self._compaction, self) is self:
                self._compaction = None
            return
        if self._pass is None:
            self._full = self._full or self.rng.random() < 0.2
            self._pass = SnapshotPass(self.broker.fold, self.broker.commit, self._full)
            self._slices = self._pass.slices(20)
            self._entries = []
        for entries in self._slices:
            self._entries += entries
            return
        if self._written is None:
            self._written = Barrier()
            self.broker.commit.defer(self._written)
        if not self._written.passed:
            return
        self._written = None
        floor = min(self._pass.position, self._pass.lowest_offset)
        if self._full:
            self.snapshots = [*self.snapshots[-1:], Snapshot(self._pass.position, self._entries)]
        else:
            self.snapshots[-1].add(self._pass.position, self._entries)
        self.finished += 1
        self._full = False
        self.journal.floor = min(floor, self.snapshots[0].first, self.followed())
        self._pass = None
        self._compaction = self._compacting()

    def _compacting(self) -> Iterator[None]:
        """What no start replays and nobody refers to goes, once that is durable."""
        end = min(self.snapshots[0].first, self.followed())
        references = References(self.broker.fold, 0, end, self.rng.choice((1, 3, 2000)))
        yield from references.retained()
        yield from self._durable()
        try:
            yield from references.owners()
        except NotReadableNow:
            return
        yield from self._durable()
        self.journal.compacted |= set(range(end)) - references.between(0, end)

    def _durable(self) -> Iterator[None]:
        barrier = Barrier()
        self.broker.commit.defer(barrier)
        while not barrier.passed:
            yield

    def crash(self) -> None:
        """Power off, power on. A batch that was not acknowledged may have reached the disk all the same."""
        self.crashes += 1
        if self.rng.random() < 0.4:
            self.journal.durable = len(self.journal.records)
        self.kept = self.journal.durable
        self.journal.reads_fail = False
        self.journal.cut()
        self._pass = self._written = self._compaction = None
        self.now_us += self.rng.choice((0, 100_000, 3_000_000))
        started_us = self.now_us
        self._open()
        if self.rng.random() < 0.05:
            self.tick()
            self.crash()
        self.started_us = started_us
        self.settle()

    def stop(self) -> None:
        """SIGTERM and a new start."""
        self._compaction = None
        self.broker.sessions.partings.stop()
        self.settle()
        self._full = self._full or self._pass is not None  # what the abandoned one noted as written is not
        self._pass = self._written = None
        before = self.finished
        while self.finished == before:
            self.snapshot_slice()
            self.settle()
        self.kept = self.journal.durable
        self._compaction = None
        self.journal.reads_fail = False
        self.started_us = self.now_us
        self._open()
        self.settle()
