"""Whole histories of a shard whose journal is a partition, from a seed: workers that own it one after the other, think
that they still do, stand still anywhere, are killed and come back with a cache. Whatever comes of the partition may be
late.

    python -m faults.model.kafka_history --seed 7            replay one
    python -m faults.model.kafka_history --histories 10000   as many as it takes

After every step, whatever an owner has confirmed is what a reader finds who has the partition alone, or begins at any
MARK that its owner knew to be confirmed, or at any whole snapshot; and no record offset below a confirmed end ever has
two contents. At the end the faults stop, and a worker has to own and to append, unless Kafka has lost what was
acknowledged.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from dataclasses import dataclass, field
from random import Random
from struct import pack

from faults.model.partition import Partition, Request
from faults.model.world import Violation
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
from headrace.storage.kafka.entry import BatchEntry, FloorEntry, MarkEntry
from headrace.storage.kafka.envelope import Epoch
from headrace.storage.kafka.log_fold import Beginning, LogFold, NewOwner, Standing, Taken
from headrace.storage.kafka.owner import TOO_LARGE, Owner, Stage

UUID = bytes(range(16))
SEED = seed_of(UUID)
RECORD_BYTES = 400
RECORD_BYTES_LEAST = 140
STEPS = 400
HEAL_STEPS = 3000
WORKERS = 3

Content = dict[int, bytes]  # base offset -> batch
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
    ("manifest", 30),
    ("floor", 40),
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


@dataclass
class Cache:
    """What a worker's disk holds of the partition: confirmed batches alone."""

    standing: Standing
    content: Content


@dataclass
class Chain:
    """A whole snapshot."""

    position: int
    mark: int
    content: Content


@dataclass
class Process:
    """A worker's run over the shard."""

    owner: Owner
    content: Content = field(default_factory=dict)
    todo: deque[Action] = field(default_factory=deque)
    bits: set[bytes] = field(default_factory=set)
    producer: int = 0
    reading: Read | None = None
    end: int | None = None  # of the partition, as that reading has asked for it
    is_paused: bool = False
    is_tainted: bool = False  # Kafka has lost what it knew
    marks: list[tuple[int, int]] = field(
        default_factory=list
    )  # confirmed, to be snapshots: offset, record offset
    chains: list[Chain] = field(default_factory=list)
    lost: bool = False

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
        self.chains: list[Chain] = []
        self.reported: list[Request] = []  # that stand somewhere, and of which no report has come
        self.marks: dict[
            int, int
        ] = {}  # confirmed ones: Kafka offset -> where the batches begin that are behind it
        self.confirmed: Content = {}
        self.now = 0.0
        self.numbers = 0
        self.seen = (0, 0, 0)  # of the partition, when the promises were last looked at
        self.is_faulty = True  # until the end, when the faults stop
        self.has_lost = False  # Kafka: what a worker's disk still has
        self.has_forgotten = False  # Kafka: maybe the FLOOR of what was deleted
        self.is_spoiled = False  # somebody has deleted what was needed
        self.counts = dict.fromkeys(
            ("confirmed", "owned", "in_place", "replaced", "lost", "stale", "floors"), 0
        )
        self.counts |= dict.fromkeys(("stragglers", "by_reading", "parts", "cached", "chained"), 0)
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
        if len(self.processes) < WORKERS:
            fold, content, chains = self._fold_to_begin_with()
            if fold is None:
                return
            bits: set[bytes] = set()

            def draw() -> bytes:
                found = self.random.randbytes(16)
                bits.add(found)
                return found

            owner = self.kinds.owner(fold, f"w{self._number()}", draw, RECORD_BYTES, RECORD_BYTES_LEAST)
            process = Process(owner, content, bits=bits, producer=self._number(), chains=chains)
            self.processes.append(process)
            owner.own(self.now)
            self._take_actions(process)

    def _fold_to_begin_with(self) -> tuple[LogFold | None, Content, list[Chain]]:
        """A fold, what is in memory at it, and the snapshots that are known: of a cache, of a snapshot, or of nothing."""
        fold = self.kinds.fold(UUID)
        chains = sorted(self._usable_chains(), key=lambda chain: chain.position)[-2:]
        if self.caches and self.random.random() < 0.5:
            cache = self.random.choice(self.caches)
            fold.begin_behind(cache.standing)
            self.counts["cached"] += 1
            return fold, dict(cache.content), chains
        if chains:
            chain = chains[-1]
            fold.begin_at_mark(chain.mark, self.partition.values[chain.mark])
            self.counts["chained"] += 1
            return fold, dict(chain.content), chains
        return (fold, {}, []) if self.partition.start == 0 else (None, {}, [])

    def _usable_chains(self) -> list[Chain]:
        partition = self.partition
        return [chain for chain in self.chains if partition.start <= chain.mark < partition.high_watermark]

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
                cache = Cache(fold.standing, dict(process.content))
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
        process.content[action.batch.base_offset] = action.batch.body

    def _on_passed(self, process: Process, action: Passed) -> None:
        """Owners of this model know all places that stand."""

    def _on_owns(self, process: Process, action: Owns) -> None:
        self.counts["owned" if action.epoch == action.since else "in_place"] += 1
        if process.is_tainted:
            return
        owners = self._read_all()[1]
        between = [one for one in owners if action.since.offset < one.offset <= action.epoch.offset]
        if any(one.bits not in process.bits for one in between):
            raise Violation("memory stands although another worker owned the shard meanwhile")
        self._check_memory(process)

    def _on_confirmed(self, process: Process, action: Confirmed) -> None:
        entry = action.entry
        self.counts["confirmed"] += 1
        if isinstance(entry, MarkEntry):
            if not process.is_tainted:
                self.marks[action.offset] = max_end(process.content)
                process.marks.append((action.offset, max_end(process.content)))
        elif isinstance(entry, BatchEntry):
            body = entry.data[56:]
            process.content[entry.base_offset] = body
            if process.is_tainted:
                return
            if self.confirmed.setdefault(entry.base_offset, body) != body:
                raise Violation(f"record offset {entry.base_offset} was confirmed with two contents")
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
        process.owner.append(BatchEntry.of(head + body), self.now)
        self._take_actions(process)

    def _mark(self) -> None:
        process = self._any(Stage.OWNING)
        if process is not None:
            position = process.chains[-1].position if process.chains else 0
            process.owner.append(MarkEntry(position, -1), self.now)
            self._take_actions(process)

    def _manifest(self) -> None:
        """Finish a snapshot, maybe long after its MARK was confirmed, and after somebody else owns the shard."""
        process = self._any()
        if process is not None and process.marks and not process.is_tainted:
            mark, position = process.marks.pop()
            content = {base: body for base, body in process.content.items() if base < position}
            chain = Chain(position, mark, content)
            process.chains.append(chain)
            self.chains.append(chain)

    def _floor(self) -> None:
        process = self._any(Stage.OWNING)
        if process is not None and len(process.chains) > 1:
            older = process.chains[-2]
            process.owner.append(FloorEntry(older.position, older.mark), self.now)
            self._take_actions(process)

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
        found = self._read_all()[0]
        self.confirmed = {base: body for base, body in self.confirmed.items() if found.get(base) == body}
        self.chains = [chain for chain in self.chains if chain.mark < partition.end]
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
        needed = max((chain.position for chain in self._usable_chains()), default=0)
        if not self.is_spoiled or self.partition.start == 0:
            first = needed if self.partition.start else 0
        else:  # what is there of it is right
            first = min(alone, default=max_end(self.confirmed))
        self._check_content("the partition alone", alone, first)
        for mark, first in self.random.sample([*self.marks.items()], min(2, len(self.marks))):
            if self.partition.start <= mark < self.partition.high_watermark:
                self._check_content(f"the MARK at {mark}", self._read_all(mark)[0], first)
        chains = self._usable_chains()
        for chain in self.random.sample(chains, min(2, len(chains))):
            found = chain.content | self._read_all(chain.mark)[0]
            self._check_content(f"the snapshot at {chain.position}", found, 0)

    def _check_content(self, what: str, found: Content, first: int) -> None:
        for base, body in self.confirmed.items():
            if base >= first and found.get(base) != body:
                raise Violation(f"a reader from {what} does not find what was confirmed at {base}")

    def _check_memory(self, process: Process) -> None:
        for base, body in self.confirmed.items():
            if process.content.get(base) != body and base < process.owner.fold.next_offset:
                raise Violation(f"an owner's memory lacks what was confirmed at {base}")
        if self.is_spoiled:
            return  # the partition may not be whole
        found = self._read_all()[0]
        for base, body in process.content.items():
            if base in found and found[base] != body:
                raise Violation(f"an owner's memory has another batch at {base} than the partition")
            if found and min(found) < base and base not in found and not self._is_under_way(process, base):
                raise Violation(f"an owner's memory has a batch at {base} that the partition lacks")

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
                if not self.processes and self.is_spoiled:
                    return
            getattr(self, f"_{names[step % len(names)]}")()
            if step % 3 == 0:
                self._advise()
            if step % 10 == 0:
                self._tick()
            partition.catch_up()
            self._check()
        raise Violation(f"nobody owns the shard in the end: {[one.owner.stage for one in self.processes]}")


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
