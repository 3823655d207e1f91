"""Whole histories of a shard whose journal is a partition, from a seed: workers that own it one after the other, think
that they still do, stand still anywhere, are killed and come back with a cache. Whatever comes of the partition may be
late.

    python -m faults.model.kafka_history --seed 7            replay one
    python -m faults.model.kafka_history --histories 10000   as many as it takes

After every step, whatever an owner has confirmed is what a reader finds who has the partition alone, or begins at any
MARK that its owner knew to be confirmed, or at any whole snapshot of those that lie in a partition of their own; and no
record offset below a confirmed end ever has two contents. Some batches are referred to for a while, as by the queue of a
session that is away: whoever owns the shard can read those. At the end the faults stop, and a worker has to own and to
append, unless Kafka has lost what was acknowledged.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from dataclasses import dataclass, field, replace
from random import Random
from struct import Struct, pack
from zlib import crc32

from faults.model.partition import Partition, Request
from faults.model.world import Violation
from headrace.journal.errors import CorruptFile
from headrace.journal.segment import pack_batch_header, seed_of
from headrace.storage.kafka.actions import (
    Action,
    Append,
    Ask,
    Away,
    Back,
    Confirmed,
    Delete,
    Lost,
    Owns,
    Passed,
    Purge,
    Read,
    Replaced,
    Replay,
    Stale,
)
from headrace.storage.kafka.chains import (
    FULL,
    NAME_SIZE,
    ChainFold,
    Manifest,
    Whole,
    entries_in,
    pack_manifest,
    pack_piece,
    pieces_of,
)
from headrace.storage.kafka.entry import BatchEntry, FloorEntry, MarkEntry
from headrace.storage.kafka.envelope import NO_OWNER, Epoch
from headrace.storage.kafka.keeping import BEGINNING, Keeping, Release, newest_chain, place_to_begin
from headrace.storage.kafka.log_fold import Beginning, LogFold, NewOwner, Standing, Taken
from headrace.storage.kafka.owner import TOO_LARGE, Owner, Stage

UUID = bytes(range(16))
SEED = seed_of(UUID)
RECORD_BYTES = 400
RECORD_BYTES_LEAST = 140
PIECE_BYTES = 3000
SNAPSHOT_BYTES = 1 << 20
STEPS = 1000
HEAL_STEPS = 3000
WORKERS = 3

Content = dict[int, bytes]  # base offset -> batch
_ENTRY = Struct("<QQ")  # of a snapshot: where a batch begins and ends
WEIGHTS = (
    ("flow", 150),
    ("start", 3),
    ("advise", 8),
    ("act", 120),
    ("arrive", 60),
    ("replicate", 60),
    ("report", 60),
    ("read", 60),
    ("tick", 30),
    ("append", 40),
    ("mark", 30),
    ("keep_small", 100),
    ("elect_store", 1),
    ("pause", 1),
    ("resume", 4),
    ("kill", 3),
    ("elect", 2),
    ("go_back", 4),
    ("resize", 1),
    ("away", 1),
    ("near", 10),
)
UNSAFE = (("unclean", 4),)
DELETIONS = (("stranger", 3),)


@dataclass
class Kinds:
    """The code under test; mutants take its place."""

    fold: type[LogFold] = LogFold
    owner: type[Owner] = Owner
    beginning: type[Beginning] = Beginning
    chains: type[ChainFold] = ChainFold
    keeping: type[Keeping] = Keeping
    looks_at_witness: bool = True  # whoever begins with a snapshot at the MARK behind it


@dataclass
class Memory:
    """What a worker has of the shard: the batches that have taken effect, by their base offsets; those of them that it
    can read; and the record offset that comes next."""

    content: Content = field(default_factory=dict)
    readable: set[int] = field(default_factory=set)
    reach: int = 0

    def take(self, base: int, body: bytes, end: int) -> None:
        self.content[base] = body
        self.readable.add(base)
        self.reach = max(self.reach, end)

    def copy(self) -> Memory:
        return Memory(dict(self.content), set(self.readable), self.reach)


@dataclass
class Cache:
    """What a worker's disk holds of the partition: confirmed batches alone."""

    standing: Standing
    memory: Memory


@dataclass
class Snapshot:
    """One that a worker is writing: its manifest as far as it is known, what it needs, and the records that are still to
    be appended, of which that with `token` is under way, 0: none. `seal` is the MARK behind it, once it is asked for."""

    manifest: Manifest
    needed: int
    values: deque[bytes]
    first: int = -1
    token: int = 0
    seal: MarkEntry | None = None
    is_sealed: bool = False


@dataclass
class Process:
    """A worker's run over the shard."""

    owner: Owner
    memory: Memory
    keeping: Keeping
    writer: int  # its producer of snapshots
    todo: deque[Action] = field(default_factory=deque)
    bits: set[bytes] = field(default_factory=set)
    producer: int = 0
    reading: Read | None = None
    end: int | None = None  # of the partition, as that reading has asked for it
    is_paused: bool = False
    is_tainted: bool = False  # Kafka has lost what it knew
    snapshot: Snapshot | None = None
    newest: tuple[int, int] = (0, -1)  # of its snapshots: position, Kafka offset of the manifest
    parent: bytes = FULL  # the name of that one
    releasing: Release | None = None

    @property
    def owns(self) -> bool:
        return self.owner.stage in (Stage.OWNING, Stage.LOOKING) or (
            self.owner.since.offset >= 0 and self.owner.stage is not Stage.ENDED
        )


class History:
    """One history. `unsafe`: leaders are elected that lack what was acknowledged; `deletions`: somebody else deletes."""

    def __init__(
        self, seed: int, unsafe: bool = False, deletions: bool = False, kinds: Kinds | None = None
    ) -> None:
        self.random = Random(seed)
        self.kinds = kinds or Kinds()
        self.partition = Partition(self.random, RECORD_BYTES)
        self.processes: list[Process] = []
        self.caches: list[Cache] = []
        self.snapshots = Partition(self.random, SNAPSHOT_BYTES)
        self.stored: list[Request] = []  # of snapshots, that stand somewhere, and of which no report has come
        self.ends: dict[bytes, int] = {}  # of the batch with this body: the record offset behind it
        self.known: tuple[object, ChainFold, dict[bytes, bytearray]] | None = None
        self.reported: list[Request] = []  # that stand somewhere, and of which no report has come
        self.marks: dict[
            int, int
        ] = {}  # confirmed ones: Kafka offset -> where the batches begin that are behind it
        self.confirmed: Content = {}
        self.stands: dict[int, int] = {}  # where: base offset -> Kafka offset
        self.now = 0.0
        self.numbers = 0
        self.seen = (0, 0, 0)  # of the partition, when the promises were last looked at
        self.is_faulty = True  # until the end, when the faults stop
        self.has_lost = False  # Kafka: what a worker's disk still has
        self.has_forgotten = False  # Kafka: maybe the FLOOR of what was deleted
        self.is_spoiled = False  # somebody has deleted what was needed
        self.is_cut = False  # Kafka has lost something that was acknowledged
        self.counts = dict.fromkeys(
            ("confirmed", "owned", "in_place", "replaced", "lost", "stale", "floors"), 0
        )
        self.counts |= dict.fromkeys(("stragglers", "parts", "cached", "chained", "snapshots", "held"), 0)
        weights = WEIGHTS + (UNSAFE if unsafe else ()) + (DELETIONS if deletions else ())
        self.names = [name for name, _ in weights]
        self.weights = [weight for _, weight in weights]

    def run(self, steps: int) -> History:
        for _ in range(steps):
            (name,) = self.random.choices(self.names, self.weights)
            getattr(self, f"_{name}")()
            self._check()
        self._heal()
        return self

    # Workers

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers

    def _any(self, *stages: Stage) -> Process | None:
        awake = [
            one for one in self.processes if not one.is_paused and (not stages or one.owner.stage in stages)
        ]
        return self.random.choice(awake) if awake else None

    def _start(self) -> None:
        if len(self.processes) >= WORKERS:
            return
        begun = self._begin()
        if begun is None:
            return
        fold, memory, keeping = begun
        bits: set[bytes] = set()

        def draw() -> bytes:
            found = self.random.randbytes(16)
            bits.add(found)
            return found

        owner = self.kinds.owner(fold, f"w{self._number()}", draw, RECORD_BYTES, RECORD_BYTES_LEAST)
        process = Process(owner, memory, keeping, self._number(), bits=bits, producer=self._number())
        self.processes.append(process)
        owner.own(self.now)
        self._take_actions(process)

    def _begin(self) -> tuple[LogFold, Memory, Keeping] | None:
        """Begin as a storage does: with the newest snapshot, then what a cache has, or from the oldest place that stands.
        None: it is tried again, with what was learned of the partition, or nobody ever can."""
        start = self.random.choice((0, self.partition.start))  # where the partition is known to begin
        chain = newest_chain(self._chains(start), start)
        keeping = self.kinds.keeping(chain[-1].manifest.index if chain else (BEGINNING,))
        memory = self._restored(chain)
        if chain:
            self.counts["chained"] += 1
            if self.kinds.looks_at_witness and not self._witness_stands(chain):
                self._refuse_chain(chain)
                return None
        fold = self.kinds.fold(UUID)
        if self.caches and self.random.random() < 0.5:
            cache = self.random.choice(self.caches)
            fold.begin_behind(cache.standing)
            keeping.read_from(fold.tail)
            memory.content |= cache.memory.content
            memory.readable |= cache.memory.readable
            memory.reach = max(memory.reach, cache.memory.reach)
            self.counts["cached"] += 1
            return fold, memory, keeping
        place = place_to_begin(keeping.places, start, chain[-1].manifest.position if chain else 0)
        if place is None:
            if start == self.partition.start and not self._has_lost_its_beginning():
                raise Violation("nobody can begin any more")
            return None
        return self._begun_at(place, fold, memory, keeping)

    def _begun_at(
        self, place: tuple[int, int], fold: LogFold, memory: Memory, keeping: Keeping
    ) -> tuple[LogFold, Memory, Keeping] | None:
        """Begin at a place, if it is there still."""
        mark = place[1]
        if mark < self.partition.start:
            return None
        keeping.read_from(mark + 1)
        if place != BEGINNING:
            try:
                fold.begin_at_mark(mark, self.partition.values.get(mark, b""))
            except CorruptFile:
                if not self.is_cut:
                    raise Violation(f"no MARK is at {mark}, and a manifest names it") from None
                return None
        return fold, memory, keeping

    def _has_lost_its_beginning(self) -> bool:
        return self.is_spoiled or self.has_forgotten

    def _refuse_chain(self, chain: list[Whole]) -> None:
        """Take it that a person has said that the snapshots may go, unless it was only read before it was deleted."""
        if chain[-1].manifest.mark < self.partition.start:
            return
        if not self.is_cut:
            raise Violation("nothing was lost, and the MARK behind a snapshot is not there")
        self.counts["lost"] += 1
        self.snapshots.delete(self.snapshots.high_watermark)
        self.has_forgotten = True

    # Snapshots that lie in Kafka

    def _known_snapshots(self) -> tuple[ChainFold, dict[bytes, bytearray]]:
        """What the partition of snapshots has: which are whole, and what the pieces of each hold."""
        snapshots = self.snapshots
        if self.known is None or self.known[0] != snapshots.state:
            pieces: dict[bytes, bytearray] = {}

            def keep(name: bytes, data: bytes) -> None:
                pieces.setdefault(name, bytearray()).extend(data)

            fold = self.kinds.chains(UUID, keep)
            for offset in range(snapshots.start, snapshots.high_watermark):
                fold.take(offset, snapshots.values[offset])
            self.known = snapshots.state, fold, pieces
        return self.known[1:]

    def _chains(self, start: int) -> list[list[Whole]]:
        return self._known_snapshots()[0].chains(start)

    def _restored(self, chain: list[Whole]) -> Memory:
        """What a chain of snapshots has; nothing of it can be read in the journal yet."""
        pieces = self._known_snapshots()[1]
        memory = Memory()
        for whole in chain:
            held = bytes(pieces.get(whole.manifest.name, b""))
            for entry in entries_in([held]):
                base, end = _ENTRY.unpack_from(entry)
                memory.content[base] = entry[_ENTRY.size :]
                memory.reach = max(memory.reach, end)
            memory.reach = max(memory.reach, whole.manifest.position)
        return memory

    def _witness_stands(self, chain: list[Whole]) -> bool:
        """Whether the MARK behind a snapshot is in the journal's partition."""
        next_offset, mark = chain[-1].manifest.index[-1]
        if not self.partition.start <= mark < self.partition.high_watermark:
            return False
        fold = self.kinds.fold(UUID)
        try:
            fold.begin_at_mark(mark, self.partition.values[mark])
        except CorruptFile:
            return False
        return (fold.next_offset, fold.owner) == (next_offset, chain[-1].epoch)

    def _take_actions(self, process: Process) -> None:
        process.todo.extend(process.owner.take_actions())

    def _act(self) -> None:
        process = self._any()
        if process is not None and process.todo:
            action = process.todo.popleft()
            getattr(self, f"_on_{type(action).__name__.lower()}")(process, action)

    def _pause(self) -> None:
        process = self._any()
        if process is not None:
            process.is_paused = True

    def _resume(self) -> None:
        for process in self.processes:
            process.is_paused = process.is_paused and self.random.random() < 0.5

    def _kill(self) -> None:
        if self.processes:
            self._bury(self.random.choice(self.processes))

    def _bury(self, process: Process) -> None:
        """End a process; its disk stays, its requests are under way."""
        self.processes.remove(process)
        owner = process.owner
        if process.owns and not process.todo and not process.is_tainted:
            fold = owner.fold
            if not fold._pieces:
                cache = Cache(fold.standing, process.memory.copy())
                self.caches = [*self.caches[-2:], cache]

    # Actions

    def _on_read(self, process: Process, action: Read) -> None:
        process.reading, process.end = action, None

    def _on_append(self, process: Process, action: Append) -> None:
        self.partition.requests.append(Request(process.producer, action.token, action.value))

    def _on_purge(self, process: Process, action: Purge) -> None:
        for request in [one for one in self.partition.requests if one.producer == process.producer]:
            if self.random.random() < 0.5:  # it had not left yet
                self.partition.requests.remove(request)
        process.producer = self._number()

    def _on_ask(self, process: Process, action: Ask) -> None:
        """The group answers whenever it does: `_advise`."""

    def _on_replay(self, process: Process, action: Replay) -> None:
        batch = action.batch
        process.memory.take(batch.base_offset, bytes(batch.body), batch.end_offset)

    def _on_passed(self, process: Process, action: Passed) -> None:
        process.keeping.on_passed(action.offset, action.place)

    def _on_owns(self, process: Process, action: Owns) -> None:
        if not process.keeping.is_witnessed:
            self.counts["lost"] += 1
            if not self.is_cut:
                raise Violation("nothing was lost, and the MARK behind a snapshot was not read")
            self.processes.remove(process)
            return
        self.counts["owned" if action.epoch == action.since else "in_place"] += 1
        if process.is_tainted:
            return
        owners = self._read_all()[1]
        between = [one for one in owners if action.since.offset < one.offset <= action.epoch.offset]
        if any(one.bits not in process.bits for one in between):
            raise Violation("memory stands although another worker owned the shard meanwhile")
        self._check_memory(process)
        self._check_references(process)

    def _on_confirmed(self, process: Process, action: Confirmed) -> None:
        entry = action.entry
        self.counts["confirmed"] += 1
        if isinstance(entry, MarkEntry):
            process.keeping.on_mark(action.next_offset, action.offset)
            if not process.is_tainted:
                self.marks[action.offset] = action.next_offset
            if process.snapshot is not None and process.snapshot.seal is entry:
                self._seal(process, process.snapshot, action)
        elif isinstance(entry, FloorEntry):
            offset = process.keeping.on_floor(entry.mark)
            process.memory.readable = {base for base in process.memory.readable if base >= offset}
            if process.releasing is not None and process.releasing.floor is entry:
                self.snapshots.delete(process.releasing.snapshots_below)
        else:
            body = entry.data[56:]
            process.memory.take(entry.base_offset, body, entry.end_offset)
            if process.is_tainted:
                return
            if self.confirmed.setdefault(entry.base_offset, body) != body:
                raise Violation(f"record offset {entry.base_offset} was confirmed with two contents")
            self.stands[entry.base_offset] = action.offset
            self.seen = (-1, 0, 0)

    def _on_delete(self, process: Process, action: Delete) -> None:
        self.counts["floors"] += 1
        self.partition.delete(action.offset)

    def _on_away(self, process: Process, action: Away) -> None: ...

    def _on_back(self, process: Process, action: Back) -> None: ...

    def _on_replaced(self, process: Process, action: Replaced) -> None:
        self.counts["replaced"] += 1
        self.processes.remove(process)

    def _on_stale(self, process: Process, action: Stale) -> None:
        self.counts["stale"] += 1
        self.processes.remove(process)

    def _on_lost(self, process: Process, action: Lost) -> None:
        self.counts["lost"] += 1
        if not self._may_be_lost(process):
            raise Violation(f"nothing was lost, and an owner says: {action.reason}")
        self.processes.remove(process)
        self.caches = []

    def _may_be_lost(self, process: Process) -> bool:
        return process.is_tainted or self.has_lost or self.is_spoiled

    # What owners do

    def _append(self) -> None:
        process = self._any(Stage.OWNING, Stage.LOOKING, Stage.READING, Stage.CLAIMING)
        if process is None or not process.owns or not process.owner.is_idle or process.todo:
            return
        count = self.random.randint(1, 3)
        size = self.random.choice((10, 60, 1000))
        self.counts["parts"] += size == 1000
        body = pack("<IQ", self._number(), process.producer) + self.random.randbytes(size)
        base = process.owner.fold.next_offset
        head = pack_batch_header(SEED, body, base, count, 0, 0, 0, 0)
        self.ends[body] = base + count
        process.owner.append(BatchEntry.of(head + body), self.now)
        self._take_actions(process)

    def _mark(self) -> None:
        process = self._any(Stage.OWNING)
        if process is not None:
            process.owner.append(MarkEntry(*process.newest), self.now)
            self._take_actions(process)

    def _keep_small(self) -> None:
        """Begin a snapshot, or bring on one that was begun."""
        process = self._any(Stage.OWNING, Stage.LOOKING)
        if process is None:
            return
        if process.snapshot is None:
            self._snapshot(process)
        for _ in range(2):
            self._write(process)
            self._store()

    def _snapshot(self, process: Process) -> None:
        """Begin a snapshot of what has taken effect."""
        if process.todo or process.is_tainted:
            return
        memory, since = process.memory, process.newest[0]
        is_full = process.parent == FULL or self.random.random() < 0.4
        if not is_full and memory.reach == since:
            return
        entries = [
            _ENTRY.pack(base, self.ends[body]) + body
            for base, body in memory.content.items()
            if is_full or base >= since
        ]
        held = list(pieces_of(entries, PIECE_BYTES))
        manifest = Manifest(
            self.random.randbytes(NAME_SIZE),
            FULL if is_full else process.parent,
            memory.reach,
            memory.reach,
            -1,
            0,
            len(entries),
            len(held),
            crc32(b"".join(held)),
        )
        values = (pack_piece(SEED, NO_OWNER, manifest.name, n, data) for n, data in enumerate(held))
        needed = min((base for base in memory.content if self._is_held(process, base)), default=memory.reach)
        process.snapshot = Snapshot(manifest, min(needed, memory.reach), deque(values))

    def _is_held(self, process: Process, base: int) -> bool:
        return process.memory.reach < held_until(base, process.memory.content[base])

    def _write(self, process: Process) -> None:
        """Go on with a snapshot: its next piece, the MARK behind it, its manifest."""
        snapshot = process.snapshot
        if snapshot is None or snapshot.token:
            return
        if process.is_tainted:  # it may have what Kafka has lost, and does not know it yet
            process.snapshot, process.parent = None, FULL
        elif snapshot.values:
            snapshot.token = self._number()
            self.snapshots.requests.append(Request(process.writer, snapshot.token, snapshot.values[0]))
        elif snapshot.seal is None:
            snapshot.seal = MarkEntry(*process.newest)
            process.owner.append(snapshot.seal, self.now)
            self._take_actions(process)

    def _seal(self, process: Process, snapshot: Snapshot, mark: Confirmed) -> None:
        """Make the manifest, once the MARK behind the snapshot is confirmed."""
        if process.is_tainted:
            return
        places = tuple(process.keeping.places)
        snapshot.manifest = replace(snapshot.manifest, mark=mark.offset, index=places)
        snapshot.values.append(pack_manifest(SEED, mark.epoch, snapshot.manifest))
        snapshot.is_sealed = True

    def _written(self, process: Process, snapshot: Snapshot, offset: int) -> None:
        """Take a report of what is under way of a snapshot: it stands at a Kafka offset."""
        snapshot.token = 0
        snapshot.values.popleft()
        if snapshot.first < 0:
            snapshot.first = offset
        if not snapshot.is_sealed:
            return
        self.counts["snapshots"] += 1
        process.snapshot = None
        process.newest = snapshot.manifest.position, offset
        is_full = snapshot.manifest.parent == FULL
        process.parent = snapshot.manifest.name
        release = process.keeping.on_full(snapshot.needed, snapshot.first) if is_full else None
        if release is None:
            return
        if release.floor is None:
            self.snapshots.delete(release.snapshots_below)
        else:
            process.releasing = release
            process.owner.append(release.floor, self.now)
            self._take_actions(process)

    def _store(self) -> None:
        """Bring on what is under way to the partition of snapshots; a report may be an error, though it stands there."""
        snapshots, random = self.snapshots, self.random
        if snapshots.requests:
            producer = random.choice(snapshots.requests).producer
            request = next(one for one in snapshots.requests if one.producer == producer)
            snapshots.arrive(request, self.is_faulty and random.random() < 0.1 and len(request.copies) < 2)
            self.stored.append(request)
        if random.random() < 0.7:
            snapshots.catch_up()
        ready = [one for one in self.stored if one.copies[-1] < snapshots.high_watermark]
        if not ready:
            return
        request = random.choice(ready)
        if any(one.is_paused and is_under_way(one, request) for one in self.processes):
            return  # it is told when it goes on
        self.stored.remove(request)
        fails = request.term != snapshots.term or (self.is_faulty and random.random() < 0.03)
        for process in [one for one in self.processes if is_under_way(one, request)]:
            if fails:  # it is given up, and the next one is a full one
                process.snapshot, process.parent, process.writer = None, FULL, self._number()
            elif process.snapshot is not None:
                self._written(process, process.snapshot, random.choice(request.copies))

    def _elect_store(self) -> None:
        self.snapshots.elect()

    # What comes from outside

    def _flow(self) -> None:
        """One of everything that brings a record on."""
        if not self.processes:
            self._start()
        for _ in range(2):
            for step in (self._append, self._act, self._arrive, self._catch_up, self._report, self._read):
                step()

    def _catch_up(self) -> None:
        self.partition.catch_up()

    def _advise(self) -> None:
        process = self._any(Stage.READING)
        if process is not None:
            process.owner.on_advice(self.now)
            self._take_actions(process)

    def _tick(self) -> None:
        (passed_s,) = self.random.choices((0.02, 0.1, 0.3, 3.0), (20, 30, 15, 2))
        self.now += passed_s
        for process in self.processes:
            if not process.is_paused:
                process.owner.on_time(self.now)
                self._take_actions(process)

    def _read(self) -> None:
        process = self._any()
        if process is None or process.reading is None or self.partition.is_away:
            return
        owner, reading = process.owner, process.reading
        if process.end is None:
            process.end = self.partition.last_offset()
            if process.end is None:
                return
        if reading.offset < self.partition.start:
            owner.on_missing(reading.number, self.partition.start)
            process.reading = None
        else:
            found = self.partition.read(reading.offset, self.random.randint(1, 8))
            for offset, value in found:
                owner.on_record(reading.number, offset, value, self.now)
            at = reading.offset + len(found)
            process.reading = Read(reading.number, at)
            if at >= process.end:
                process.reading = None
                owner.on_end(reading.number, process.end, self.now)
        self._take_actions(process)

    def _arrive(self) -> None:
        partition = self.partition
        if partition.is_away or not partition.requests:
            return
        producer = self.random.choice(partition.requests).producer
        request = next(one for one in partition.requests if one.producer == producer)  # in their order
        again = self.random.random() < 0.2 and len(request.copies) < 2
        if not any(one.producer == producer for one in self.processes):
            self.counts["stragglers"] += 1
        refused = partition.arrive(request, again)
        if refused:
            if again:
                partition.requests.remove(request)
            self._tell(request, None, TOO_LARGE)
        else:
            self.reported.append(request)

    def _report(self) -> None:
        partition, random = self.partition, self.random
        if self.is_faulty and random.random() < 0.05 and partition.requests:
            self._tell(random.choice(partition.requests), None, "timed out")
            return
        ready = [one for one in self.reported if one.copies[-1] < partition.high_watermark]
        if partition.is_away or not ready:
            return
        request = random.choice(ready)
        self.reported.remove(request)
        if request.term != partition.term or (self.is_faulty and random.random() < 0.05):
            return  # lost; its leader is gone
        told = random.choice((request.copies[0], request.copies[-1], request.copies[-1], None))
        self._tell(request, told, "timed out" if self.is_faulty and random.random() < 0.05 else "")

    def _tell(self, request: Request, offset: int | None, error: str) -> None:
        for process in self.processes:
            if process.producer == request.producer:
                before = process.owner.fold.tail
                process.owner.on_report(request.token, offset, error, self.now)
                new = process.owner.actions
                if offset is not None and offset < before and any(isinstance(one, Confirmed) for one in new):
                    raise Violation("a record was confirmed where there had been another one")
                self._take_actions(process)

    # What happens to Kafka

    def _replicate(self) -> None:
        self.partition.replicate()

    def _elect(self) -> None:
        self.partition.elect()

    def _go_back(self) -> None:
        self.partition.go_back()

    def _resize(self) -> None:
        self.partition.bytes_max = self.random.choice((RECORD_BYTES, RECORD_BYTES, RECORD_BYTES_LEAST + 60))

    def _away(self) -> None:
        self.partition.is_away = True

    def _near(self) -> None:
        self.partition.is_away = False

    def _unclean(self) -> None:
        partition = self.partition
        before = partition.high_watermark
        partition.elect_unclean()
        if partition.end >= before:
            return
        for process in self.processes:
            process.is_tainted = process.is_tainted or process.owner.fold.tail > partition.end
        self.confirmed = {
            base: body for base, body in self.confirmed.items() if self.stands[base] < partition.end
        }
        self.is_cut = True
        self.marks = {mark: base for mark, base in self.marks.items() if mark < partition.end}
        self.has_forgotten = True
        self.has_lost = self.has_lost or any(cache.standing.tail > partition.end for cache in self.caches)

    def _stranger(self) -> None:
        partition = self.partition
        if partition.high_watermark > partition.start:
            partition.delete(self.random.randint(partition.start, partition.high_watermark))
            self.is_spoiled = True

    # Promises

    def _read_all(self, start: int | None = None) -> tuple[Content, list[Epoch]]:
        """What a reader finds, and which owners: from a MARK on, or who has the partition alone."""
        partition = self.partition
        fold = self.kinds.fold(UUID)
        if start is None and partition.start > 0:
            start = self._beginning()
            if start is None:
                if self.is_spoiled or self.has_forgotten:
                    return dict(self.confirmed), []
                raise Violation("a reader that has the partition alone finds no beginning")
        if start is not None:
            fold.begin_at_mark(start, partition.values[start])
        content: Content = {}
        owners: list[Epoch] = []
        for offset in range(fold.tail, partition.high_watermark):
            verdict = fold.take(offset, partition.values[offset])
            if isinstance(verdict, Taken):
                content[verdict.batch.base_offset] = verdict.batch.body
            elif isinstance(verdict, NewOwner):
                if owners and verdict.epoch.offset <= owners[-1].offset:
                    raise Violation("an owner has no higher epoch than the one before")
                if any(verdict.epoch.bits == one.bits for one in owners):
                    raise Violation("one OWNED takes effect twice")
                owners.append(verdict.epoch)
        return content, owners

    def _beginning(self) -> int | None:
        search = self.kinds.beginning(UUID)
        for offset in range(self.partition.start, self.partition.high_watermark):
            found = search.take(offset, self.partition.values[offset])
            if found is not None:
                return found
        return None

    def _check(self) -> None:
        if self.partition.state == self.seen:
            return
        self.seen = self.partition.state
        alone = self._read_all()[0]
        chains = [chain for chain in self._chains(self.partition.start) if self._is_usable(chain)]
        needed = max((chain[-1].manifest.position for chain in chains), default=0)
        first = 0
        if self.partition.start > 0:  # without a snapshot it is known of what is there alone that it is right
            alone_first = min(alone, default=max_end(self.confirmed))
            first = alone_first if self.is_spoiled or not chains else needed
        self._check_content("the partition alone", alone, first)
        for mark, first in self.random.sample([*self.marks.items()], min(2, len(self.marks))):
            if self.partition.start <= mark < self.partition.high_watermark:
                self._check_content(f"the MARK at {mark}", self._read_all(mark)[0], first)
        for chain in self.random.sample(chains, min(2, len(chains))):
            manifest = chain[-1].manifest
            place = place_to_begin(manifest.index, self.partition.start, manifest.position)
            if place is None:
                if chain is chains[0] and not self.is_spoiled:  # older ones are about to be deleted
                    raise Violation(f"nobody can begin with the snapshot at {manifest.position}")
                continue
            found = self._restored(chain).content
            found |= self._read_all(None if place == BEGINNING else place[1])[0]
            self._check_content(f"the snapshot at {manifest.position}", found, 0)

    def _is_usable(self, chain: list[Whole]) -> bool:
        return self._witness_stands(chain) if self.is_cut or self.is_spoiled else True

    def _check_content(self, what: str, found: Content, first: int) -> None:
        for base, body in self.confirmed.items():
            if base >= first and found.get(base) != body:
                raise Violation(f"a reader from {what} does not find what was confirmed at {base}")

    def _check_memory(self, process: Process) -> None:
        content = process.memory.content
        for base, body in self.confirmed.items():
            if content.get(base) != body and base < process.owner.fold.next_offset:
                raise Violation(f"an owner's memory lacks what was confirmed at {base}")
        if self.is_spoiled:
            return  # the partition may not be whole
        found = self._read_all()[0]
        for base, body in content.items():
            if base in found and found[base] != body:
                raise Violation(f"an owner's memory has another batch at {base} than the partition")
            if found and min(found) < base and base not in found and not self._is_under_way(process, base):
                raise Violation(f"an owner's memory has a batch at {base} that the partition lacks")

    def _check_references(self, process: Process) -> None:
        """Look whether an owner can read what is referred to now."""
        if self.is_spoiled or self.is_cut:
            return
        memory = process.memory
        for base, body in self.confirmed.items():
            if base < memory.reach < held_until(base, body):
                self.counts["held"] += 1
                if base not in memory.readable:
                    raise Violation(
                        f"a queue refers to what was confirmed at {base}, and its owner cannot read it"
                    )

    def _is_under_way(self, process: Process, base: int) -> bool:
        return self.partition.high_watermark < process.owner.fold.tail

    # The end

    def _heal(self) -> None:
        """Stop the faults; one worker has to own the shard and to append, if nothing was lost."""
        partition = self.partition
        partition.is_away = self.is_faulty = False
        partition.bytes_max = RECORD_BYTES
        wanted = self.counts["confirmed"] + 3
        names = ("act", "arrive", "report", "read", "append")
        for step in range(HEAL_STEPS):
            if self.counts["confirmed"] >= wanted:
                return
            for process in self.processes:
                process.is_paused = False
            if not self.processes:
                self._start()
                if not self.processes and self._has_lost_its_beginning():
                    return
            getattr(self, f"_{names[step % len(names)]}")()
            if step % 3 == 0:
                self._advise()
            if step % 10 == 0:
                self._tick()
            partition.catch_up()
            self._check()
        raise Violation(f"nobody owns the shard in the end: {[one.owner.stage for one in self.processes]}")


def is_under_way(process: Process, request: Request) -> bool:
    """Whether a process waits for the report of this record of a snapshot."""
    return process.snapshot is not None and process.snapshot.token == request.token


def held_until(base: int, body: bytes) -> int:
    """The record offset up to which somebody refers to a batch; that of the batch if nobody does."""
    drawn = crc32(body)
    return base + (drawn >> 3) % 60 if drawn % 4 == 0 else base


def max_end(content: Content) -> int:
    """Behind the highest base offset there is; the model's batches are told apart by it alone."""
    return max(content, default=-1) + 1


def run(
    seed: int,
    steps: int = STEPS,
    unsafe: bool = False,
    deletions: bool = False,
    kinds: Kinds | None = None,
) -> History:
    """Run one history. Raises Violation."""
    try:
        return History(seed, unsafe, deletions, kinds).run(steps)
    except Violation as error:
        raise Violation(f"seed {seed}, unsafe={unsafe}, deletions={deletions}: {error}") from error
    except Exception as error:
        raise Violation(f"seed {seed}, unsafe={unsafe}, deletions={deletions}: {error!r}") from error


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--from", dest="first", type=int, default=1)
    options = parser.parse_args()
    first, count = (options.first, options.histories) if options.seed is None else (options.seed, 1)
    began, sums = time.monotonic(), dict[str, int]()
    for seed in range(first, first + count):
        for unsafe, deletions in ((False, False), (True, False), (False, True)):
            for name, number in run(seed, unsafe=unsafe, deletions=deletions).counts.items():
                sums[name] = sums.get(name, 0) + number
    print(f"{count} seeds in {time.monotonic() - began:.0f} s: {sums}")


if __name__ == "__main__":
    main()
