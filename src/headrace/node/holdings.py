"""The shards that a worker owns now: how they come and go while it runs, and what it does when a journal fails.

Runs on the loop. A shard that is given up leaves in slices, with passes of the loop between them: nobody who is at home
in another shard of the process waits for it. Its clients are told to come again, the other shards find it away, and
nothing of it stays in memory. Whoever takes it goes on from what its storage holds, as at a start.

A shard whose journal has failed is given up, and taken again from what is on disk, as a new process would (decision 21):
one failed write costs its own clients a moment, and the others nothing. A worker that owns nothing else ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

from headrace.backoff import Backoff
from headrace.core.ports.link import Link
from headrace.core.records.message_id import JournalName
from headrace.core.shards.neighbours import Neighbours
from headrace.core.state.letting_go import let_go
from headrace.core.state.state import Fold
from headrace.core.worker import Worker
from headrace.journal.errors import JournalError
from headrace.node.shard import OwnedShard, Surroundings, settle
from headrace.peers.peers import Peers
from headrace.services.bridges import Bridges
from headrace.services.doors import Doors
from headrace.services.metrics import PastReads
from headrace.storage.port import ShardStorage
from headrace.workers.owners import NOBODY, Owners

SHORTEST_S, LONGEST_S = 1.0, 30.0  # between two attempts to take a shard whose journal has failed
LET_GO_AT_ONCE: Final = 2000  # sessions and subscriptions that are forgotten in a pass of the loop

Storages = Callable[[int], ShardStorage]  # opens that of a shard; may wait. Raises JournalError, OSError.


def status_of(error: BaseException | None) -> int:
    """Return the exit status of a process that ends for that."""
    return error.exit_status if isinstance(error, JournalError) else 1


class Holdings:
    """The shards of one worker. `shards` is changed in place; `lost` says of those that were given up for a failed
    journal why nobody has them now. `end` ends the process in good order. `reads` is what journals counted that are
    closed."""

    def __init__(
        self,
        index: int,
        owners: Owners,
        worker: Worker,
        storages: Storages,
        end: Callable[[], None],
        log: Any,
    ) -> None:
        self.shards: list[OwnedShard] = []
        self.lost: dict[int, str] = {}
        self._lost_with: dict[int, int] = {}  # shard -> exit status of its failure
        self.reads = PastReads()
        self.peers: Peers | None = None
        self._index = index
        self._owners = owners
        self._worker = worker
        self._storages = storages
        self._end = end
        self._log = log
        self._around: Surroundings | None = None
        self._doors: Doors | None = None
        self._bridges: Bridges | None = None
        self._names: dict[int, JournalName] = {}
        # What has to be learned of a state before it begins: whose wills are due is decided then.
        self.brought_back: Callable[[Fold], Awaitable[None]] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = asyncio.Event()
        # In a cluster: told of a shard that was given up for a failed journal, and why. Others may have it by then.
        self.gone: Callable[[int, str], None] | None = None

    # Start and stop of the process

    def open(self, around: Surroundings) -> None:
        """Open the journals of all shards that are this worker's at its start. Raises JournalError, OSError, and then
        those that were opened are for `close`."""
        self._around = around
        for number in self._owners.shards_of(self._index):
            self.shards.append(OwnedShard(number, self._storages(number), around))

    def serve(self, doors: Doors, bridges: Bridges) -> None:
        """Keep the shards as they are served from now on: one whose journal fails ends the process no more, where there
        are others."""
        self._doors, self._bridges = doors, bridges
        for shard in self.shards:
            shard.keep_small()

    async def rest(self) -> None:
        """Give nothing up and take nothing any more, for the stop of the process; what is under way comes to its end."""
        self._ending.set()
        await asyncio.gather(*self._tasks)
        for shard in self.shards:
            shard.rest()

    def close(self) -> None:
        """Give up all storages."""
        self._ending.set()
        for shard in self.shards:
            shard.close()

    def learn(self, names: Mapping[int, JournalName]) -> None:
        """Learn what the journals of these shards are called, for all shards here, those that come as well."""
        self._names.update(names)
        for shard in self.shards:
            shard.name_sources(names)

    # For whoever asks

    @property
    def trouble(self) -> str:
        """Return why a shard is not ready, and which; "" when all are."""
        lost = next(iter(self.lost.values()), "")
        return lost or next((shard.trouble for shard in self.shards if shard.trouble), "")

    @property
    def failed(self) -> bool:
        """Return whether a journal takes nothing more."""
        return bool(self.lost) or any(shard.failure is not None for shard in self.shards)

    @property
    def exit_status(self) -> int:
        """Return how the process ends: 0 if all journals are whole; else 1, or that of a JournalMoved."""
        failures = [shard.failure for shard in self.shards if shard.failure is not None]
        return max([*map(status_of, failures), *self._lost_with.values()], default=0)

    # One shard comes, another one goes

    def fail(self, number: int) -> None:
        """Note that the journal of a shard takes nothing more: its shard is given up, and taken again when that is
        possible, while the others of this worker are served. Where there is none the process ends."""
        if self.gone is not None and not self._ending.is_set():
            self._start(self._let_go(number))
            return
        others = [one for one in self.shards if one.number != number and one.failure is None]
        if self._doors is None or self._ending.is_set() or not others:
            self._end()
        elif number not in self.lost:
            shard = next(one for one in self.shards if one.number == number)
            self.lost[number], self._lost_with[number] = shard.trouble, status_of(shard.failure)
            self._start(self._replace(number))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _let_go(self, number: int) -> None:
        """Give up a shard whose journal takes nothing more, unless that is under way."""
        shard = next((one for one in self.shards if one.number == number), None)
        if shard is None or self._owners.of(number) != self._index:
            return
        why = str(shard.failure)
        try:
            await self.give_up(number)
        except Exception as error:  # noqa: BLE001
            self._worker.failures.note("journal", "", error)
            self._end()
        else:
            assert self.gone is not None, "asked for before"
            self.gone(number, why)

    async def _replace(self, number: int) -> None:
        """Give a shard up and take it again. What raises where nothing should ends the process: nobody knows what is left
        of the shard."""
        try:
            await self.give_up(number)
            await self._take_back(number)
        except Exception as error:  # noqa: BLE001
            self._worker.failures.note("journal", "", error)
            self._end()

    async def _take_back(self, number: int) -> None:
        """Take a shard as soon as that is possible."""
        backoff = Backoff(SHORTEST_S, LONGEST_S)
        while not await self._is_ending(backoff.next_s()):
            try:
                await self.take(number)
            except Exception as error:  # noqa: BLE001  it is tried again
                why = f"shard {number}: {error}"
                if self.lost[number] != why:
                    self._log.error("the shard cannot be taken again yet", shard=number, error=str(error))
                self.lost[number], self._lost_with[number] = why, status_of(error)
            else:
                del self.lost[number], self._lost_with[number]
                return

    async def _is_ending(self, within_s: float) -> bool:
        """Wait for so long; return at once with True when the process stops."""
        try:
            await asyncio.wait_for(self._ending.wait(), within_s)
        except TimeoutError:
            return False
        return True

    async def give_up(self, number: int) -> None:
        """Give up a shard that is owned, until nothing of it is left here."""
        self._owners.move(number, NOBODY)
        self._worker.shut(number)
        shard = next(one for one in self.shards if one.number == number)
        if self._bridges is not None:
            await self._bridges.leave(shard.broker)
        if self.peers is not None:
            self.peers.disown(number)
        await shard.end_connections()
        await shard.come_to_rest()
        if shard.failure is None:
            await settle(self._worker, [shard])
            await shard.snapshot()
        self._worker.disown(number, self._links())
        self._worker.end_tick()
        self.shards.remove(shard)
        self.reads.add(shard.storage.reads)
        shard.unwatch()
        try:
            await asyncio.to_thread(shard.close)
        except OSError as error:
            self._log.error("the storage of the shard did not close well", shard=number, error=str(error))
        while let_go(shard.broker.fold, LET_GO_AT_ONCE):
            await asyncio.sleep(0)
        self._log.warning("shard given up", shard=number)

    def _links(self) -> list[Link]:
        return [] if self._doors is None else list(self._doors.connections())

    async def take(self, number: int) -> None:
        """Take a shard that nobody owns, with what its storage holds. Raises JournalError, OSError, and then it is
        nobody's still."""
        assert self._around is not None, "opened"
        storage = await asyncio.to_thread(self._storages, number)
        shard = OwnedShard(number, storage, self._around)
        try:
            await shard.adopt()
            if self.brought_back is not None:
                await self.brought_back(shard.broker.fold)
            self.shards.append(shard)
            self.learn({number: shard.name})
            shard.name_sources(self._names)
            shard.start(None if self._doors is None else self._doors.poller)
        except BaseException:
            self._drop(shard)
            raise
        await settle(self._worker, [shard])
        if shard.failure is not None:
            await self.give_up(number)
            raise shard.failure
        self._begin(shard)

    def _drop(self, shard: OwnedShard) -> None:
        """Close a shard that could not be taken."""
        self._worker.disown(shard.number)
        if shard in self.shards:
            self.shards.remove(shard)
        shard.unwatch()
        shard.close()

    def _begin(self, shard: OwnedShard) -> None:
        """Let clients and the other shards come."""
        shard.begin()
        neighbours = shard.broker.neighbours
        if self.peers is not None and isinstance(neighbours, Neighbours):
            self.peers.own(neighbours)
        if self._bridges is not None:
            self._bridges.come(shard.broker)
        shard.serve()
        self._owners.move(shard.number, self._index)
        shard.keep_small()
        self._log.info("shard taken", shard=shard.number)
