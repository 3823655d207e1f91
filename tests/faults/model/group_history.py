"""Histories of workers that share shards by what Kafka's group says, from a seed: the group is lost for all or for one,
names two workers or none, or changes its mind every moment; shards take their time to be taken, handed over and lost.

    python -m faults.model.group_history --seed 7            replay one
    python -m faults.model.group_history --histories 10000   as many as it takes

A partition decides who owns a shard: the one that has claimed it last, whoever else still thinks that it does. While the
group is lost for everybody nothing changes hands. Once Kafka is calm each shard has one owner within 60 s, which is the
one that the group names, and nobody takes anything any more.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from faults.model.world import Violation
from headrace.storage.kafka.claims import Action, Claims, HandOver, JoinAnew, Stage, Take

WORKERS, SHARDS = 3, 4
TICK_S = 0.1
STORM_S, CALM_S, QUIET_S = 150.0, 60.0, 20.0
NOBODY = -1


@dataclass
class Worker:
    """One worker: its claims, what it was told last of the group, and what is under way to it, with the time when it is
    there: an action of its own that is done then, or a shard that another one has claimed."""

    claims: Claims
    is_alive: bool = True
    is_member: bool = False
    names: list[int] = field(default_factory=list)
    due: list[tuple[float, Action | int]] = field(default_factory=list)


class History:
    """One history."""

    def __init__(self, seed: int, claims: type[Claims] = Claims) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.kind = claims
        self.workers = [Worker(self._claims()) for _ in range(WORKERS)]
        self.owners = [NOBODY] * SHARDS  # as the partitions say
        self.fault = "none"
        self.fault_until = 0.0
        self.stale = 0  # the worker of a fault that strikes one
        self.stale_names: list[int] = []
        self.counts = dict.fromkeys(("taken", "handed_over", "replaced", "joined_anew", "refused"), 0)

    def _claims(self) -> Claims:
        return self.kind(SHARDS, self.random.random, self.now)

    def run(self) -> History:
        self._pass(STORM_S, self._storm)
        self.fault = "none"
        for worker in self.workers:
            worker.is_alive = True
        self._pass(CALM_S, self._group)
        self._check_settled()
        taken = self.counts["taken"]
        self._pass(QUIET_S, self._group)
        self._check_settled()
        if self.counts["taken"] != taken:
            raise Violation("shards change hands although all is calm")
        return self

    def _pass(self, seconds: float, tell: Callable[[], None]) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += TICK_S
            tell()
            for number, worker in enumerate(self.workers):
                if worker.is_alive:
                    self._work(number, worker)

    # What Kafka's group says

    def _storm(self) -> None:
        random = self.random
        if self.now >= self.fault_until:
            self.fault = random.choice(("none", "lost", "stale", "both", "nobody", "flapping", "dead"))
            self.fault_until = self.now + random.uniform(0.5, 40.0)
            self.stale = random.randrange(WORKERS)
            self.stale_names = random.sample(range(SHARDS), random.randint(0, SHARDS))
            if self.fault == "dead":
                self._end(self.stale)
            elif random.random() < 0.5:
                for worker in self.workers:
                    worker.is_alive = True
        self._group()

    def _end(self, number: int) -> None:
        """Kill a worker; it comes back without anything."""
        self.workers[number] = Worker(self._claims(), is_alive=False)

    def _group(self) -> None:
        """Tell each worker, whenever it hears of it, what it is named for."""
        alive = [number for number, worker in enumerate(self.workers) if worker.is_alive]
        for number in alive:
            if self.random.random() < 0.5:
                self._tell(number, alive)

    def _tell(self, number: int, alive: list[int]) -> None:
        worker, fault = self.workers[number], self.fault
        if fault == "lost" or (fault == "stale" and number == self.stale):
            if worker.is_member and fault == "lost":
                worker.claims.on_lost(self.now)
                worker.is_member = False
            return  # one that is stale hears nothing, and keeps what it was told
        names = [shard for shard in range(SHARDS) if alive[shard % len(alive)] == number]
        if fault == "both" and number == self.stale:
            names = sorted({*names, *self.stale_names})
        elif fault == "nobody":
            names = []
        elif fault == "flapping":
            names = self.random.sample(range(SHARDS), self.random.randint(0, SHARDS))
        if worker.is_member and names == worker.names:
            worker.claims.on_heard(self.now)
        else:
            worker.claims.on_assigned(names, self.now)
        worker.is_member, worker.names = True, names

    # What workers do

    def _work(self, number: int, worker: Worker) -> None:
        worker.claims.on_time(self.now)
        for action in worker.claims.take_actions():
            if isinstance(action, JoinAnew):
                self.counts["joined_anew"] += 1
                continue
            if not worker.is_member:
                raise Violation(f"the group says nothing, and worker {number} wants {action}")
            worker.due.append((self.now + self.random.uniform(0.05, 3.0), action))
        ripe = [one for one in worker.due if one[0] <= self.now]
        worker.due = [one for one in worker.due if one[0] > self.now]
        for _, what in ripe:
            if isinstance(what, Take):
                self._take(number, worker, what.shard)
            elif isinstance(what, HandOver):
                self.counts["handed_over"] += 1
                worker.claims.on_ended(what.shard, self.now)
            elif isinstance(what, int):
                self._hear_replaced(worker, what)

    def _take(self, number: int, worker: Worker, shard: int) -> None:
        if not worker.claims.is_advised(shard, self.now):
            self.counts["refused"] += 1
            worker.claims.on_ended(shard, self.now)
            return
        before = self.owners[shard]
        self.owners[shard] = number
        self.counts["taken"] += 1
        worker.claims.on_owned(shard, self.now)
        if before not in (NOBODY, number):
            self.workers[before].due.append((self.now + self.random.uniform(0.05, 6.0), shard))

    def _hear_replaced(self, worker: Worker, shard: int) -> None:
        """Let a worker see the OWNED of another one, if it still thinks that it owns the shard."""
        if worker.claims.stage(shard) is Stage.OWNED and self.workers[self.owners[shard]] is not worker:
            self.counts["replaced"] += 1
            worker.claims.on_ended(shard, self.now)

    # Promises

    def _check_settled(self) -> None:
        for shard in range(SHARDS):
            owners = [n for n, worker in enumerate(self.workers) if worker.claims.stage(shard) is Stage.OWNED]
            if owners != [shard % WORKERS] or self.owners[shard] != shard % WORKERS:
                raise Violation(
                    f"shard {shard} is owned by {self.owners[shard]}, and {owners} think that they own it"
                )


def run(seed: int, claims: type[Claims] = Claims) -> History:
    """Run one history. Raises Violation."""
    try:
        return History(seed, claims).run()
    except Violation as error:
        raise Violation(f"seed {seed}: {error}") from error


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--from", dest="first", type=int, default=1)
    options = parser.parse_args()
    first, count = (options.first, options.histories) if options.seed is None else (options.seed, 1)
    began, sums = time.monotonic(), dict[str, int]()
    for seed in range(first, first + count):
        for name, number in run(seed).counts.items():
            sums[name] = sums.get(name, 0) + number
    print(f"{count} seeds in {time.monotonic() - began:.0f} s: {sums}")


if __name__ == "__main__":
    main()
