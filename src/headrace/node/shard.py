"""One shard of a worker: its storage, the broker that is folded from it, and what the node asks of the two.

Runs on the loop. The node makes the storage, then calls `recover`, `start`, `begin` and `serve`; at a stop `rest`,
`close_sessions`, `snapshot` and `close`. A shard whose journal fails acknowledges nothing more, and is given up.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from secrets import randbelow
from typing import Any, cast

from headrace.core.records.message_id import JournalName, Origin
from headrace.core.shards.routes import Routes
from headrace.core.shards.stream_settings import StreamSettings
from headrace.core.worker import LEAVE_AT_ONCE, Worker
from headrace.journal.errors import JournalError, reason_of
from headrace.node.stores import OpenStores
from headrace.services.repeating import repeat
from headrace.services.watchdog import Watchdog
from headrace.sockets.poller import Poller
from headrace.storage.port import Recovered, ShardStorage, StorageEvents
from headrace.stores.sharing import StoreShare

HOUSEKEEPING_INTERVAL_S = 1.0
DRAIN_TIMEOUT_S = 10.0
WINDOW_BYTES_LEAST = 256 << 10  # of a stream: some milliseconds of a fast one
RESERVE_SHARE = 4
WAITS_FOR_OTHERS = "little space is left, and another shard's disk is full, or it is not there"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the shards of a worker share: `full_disk` is what publishers get while a disk is full, for the log; `failed`
    is told of each shard whose journal has failed; `stores` may have their queues."""

    worker: Worker
    watchdog: Watchdog
    full_disk: str
    failed: Callable[[int], None]
    logger: Any
    stores: OpenStores | None = None


class OwnedShard:
    """One shard of this worker. `failure` is why its journal takes nothing more; `trouble` is why it is not ready, ""
    when it is. `run` is another number each time that the shard is opened."""

    def __init__(self, number: int, storage: ShardStorage, around: Surroundings) -> None:
        """Own the shard of this number from now on; `close` gives its storage up."""
        self.number = number
        self.run = randbelow(1 << 32)
        self.storage = storage
        self._around = around
        self._is_one_of_many = around.worker.homes.shards > 1
        self.logger = around.logger.bind(shard=number) if self._is_one_of_many else around.logger
        self.failure: BaseException | None = None
        self._full = ""
        self._loop = asyncio.get_running_loop()
        self._housekeeping: asyncio.Task[None] | None = None
        self.broker = around.worker.prepare(number, storage.journal)
        if self._is_one_of_many:
            others = around.worker.homes.shards - 1
            self.broker.join(storage.journal, Routes(), _streams(others, storage.reserve_bytes))
        self.name = JournalName()
        self.broker.journal_failed = self._fail
        self._apply = around.watchdog.watched("apply", self.broker.commit.on_high_watermark)
        self._epoch = 0  # of its streams
        self._turn = asyncio.Lock()  # whoever has it keeps the journal small
        self._at_rest = False
        self._shares: list[StoreShare] = []

    @property
    def epoch(self) -> int:
        """Return the epoch of its streams, which is higher for each owner; 0 before `start`."""
        return self._epoch

    def lose(self, error: Exception) -> None:
        """Acknowledge nothing any more, unless that is so: another node owns the shard."""
        if self.failure is None:
            self._fail(error)

    @property
    def origin(self) -> Origin | None:
        """Return of which journal the oldest records are copies."""
        return self.broker.fold.origin

    def name_sources(self, names: Mapping[int, JournalName]) -> None:
        """Call copies what the messages are called in the shards they were published to. `names`: of the journals, by
        shard; this one is among them, since another shard may keep what was published here, and give it back."""
        for shard, name in names.items():
            self.name.add_source(shard, name)

    @property
    def trouble(self) -> str:
        if self.failure is not None:
            return self._named(f"journal failed: {self.failure}")
        if self._full:
            return self._named(self._full)
        return self._named(WAITS_FOR_OTHERS) if self.broker.gate.full else ""

    def _named(self, what: str) -> str:
        return f"shard {self.number}: {what}" if self._is_one_of_many else what

    # Start

    def recover(self, freeze: bool) -> None:
        """Make the state of the journal. `freeze`: what was recovered is there to stay, so the collector need not look
        at it. Raises JournalError, OSError."""
        started = time.monotonic()
        found = self.storage.recover(self.broker, self.logger.info)
        if freeze:
            gc.freeze()
        self._recovered(found, started)

    def _recovered(self, found: Recovered, started: float) -> None:
        self.name = found.name
        self.broker.devices.name_journal(self.name)
        self.logger.info(
            "recovered",
            snapshot=found.snapshot,
            replayed=found.replayed,
            sessions=len(self.broker.fold.by_incarnation),
            high_watermark=self.storage.high_watermark,
            seconds=round(time.monotonic() - started, 3),
        )

    async def adopt(self) -> None:
        """Make the state of the journal while other shards are served. Raises JournalError, OSError."""
        started = time.monotonic()
        slices = self.storage.recovering(self.broker, self.logger.info)
        while True:
            try:
                next(slices)
            except StopIteration as end:
                self._recovered(cast(Recovered, end.value), started)
                return
            await asyncio.sleep(0)

    def start(self, poller: Poller | None) -> None:
        """Begin to make records durable, and close the sessions that a crash left open. Raises ConfigError where a store
        that is named no more has something alone."""
        self._around.worker.tend(self.broker)
        events = StorageEvents(self._on_high_watermark, self._fail, self._set_full)
        self._epoch = self.storage.start(events, poller)
        self.broker.sessions.absences.start()
        self.broker.devices.consuming.start()
        if self._around.stores is not None:
            owner = self._epoch if self.storage.journal.is_contested else 0
            self._shares = self._around.stores.lend(self.broker, self.storage.uuid, owner)

    def begin(self) -> None:
        """Begin to speak to other shards, and let clients come: the record of this start is durable."""
        self.broker.neighbours.begin(self._epoch)
        self._around.worker.open(self.broker)

    def serve(self) -> None:
        """Begin to wait for the clients of before: they can come back from now on."""
        self.broker.sessions.absences.serve()

    def keep_small(self) -> None:
        """Keep the journal small from now on, until `rest`."""
        turns = repeat(self._around.worker.failures, self._keep, HOUSEKEEPING_INTERVAL_S, self._not_kept)
        self._housekeeping = self._loop.create_task(turns)

    async def _keep(self) -> None:
        """Take a turn of it, alone with the storage."""
        async with self._turn:
            if not self._at_rest:
                await self.storage.keep_small()

    def _not_kept(self, error: OSError) -> None:
        self.logger.error("housekeeping failed; the journal keeps what it needs", error=str(error))

    def _on_high_watermark(self, high_watermark: int) -> None:
        """Let what is durable take effect, as of now: the loop may have stood still since the clock was set, and what has
        expired meanwhile is not to be delivered."""
        worker = self._around.worker
        if worker.clock.stale:
            worker.clock.stale = False
            worker.request_tick()
            worker.clock.now_us = time.time_ns() // 1000
            worker.clock.mono_ms = time.monotonic_ns() // 1_000_000
        self._apply(high_watermark)

    def _set_full(self, reason: str, for_space: bool) -> None:
        """Note that nothing can be written for want of space, or of descriptors, or that it can again (reason "").
        Subscribers drain; publishers wait (decision 22)."""
        what = "the journal's disk is full" if for_space else "the journal cannot be written now"
        self._full = f"{what}: {reason}" if reason else ""
        self.broker.set_storage_full(bool(reason), for_space)
        if reason:
            publishers = self._around.full_disk
            self.logger.error("nothing new is acknowledged", reason=self._full, publishers=publishers)
        else:
            self.logger.warning("the journal is written again")

    def _fail(self, error: BaseException) -> None:
        """Acknowledge nothing: nothing can be made durable any more (decision 21)."""
        self.failure = error
        self.broker.commit.on_failure(error)
        if isinstance(error, JournalError) and error.is_ordinary:
            self.logger.info(
                "the shard is given up: nothing of it is acknowledged here any more", reason=str(error)
            )
        else:
            self.logger.error("journal failed: nothing is acknowledged any more", error=str(error))
        self._around.failed(self.number)

    # Stop

    @property
    def is_settled(self) -> bool:
        """Return whether the journal has everything, or takes nothing more."""
        return self.broker.idle or self.failure is not None

    def rest(self) -> None:
        """Keep the journal small no more."""
        if self._housekeeping is not None:
            self._housekeeping.cancel()

    async def come_to_rest(self) -> None:
        """Keep the journal small no more, once what is under way has come to its end: nothing else has to do with the
        storage then, on other threads neither."""
        self._at_rest = True
        async with self._turn:
            self.rest()

    async def end_connections(self) -> None:
        """End the connections of a shard that is given up, in slices, and note exactly what was sent on them."""
        while self.broker.leave(LEAVE_AT_ONCE):
            self._around.worker.request_tick()
            await asyncio.sleep(0)
        self._rest_stores()

    def _rest_stores(self) -> None:
        """Hear nothing of the stores any more, and ask them for nothing: else a long queue that is being put would keep
        the journal busy."""
        for share in self._shares:
            share.close()
        self._shares = []
        if self.broker.stored is not None:
            self.broker.stored.rest()

    def unwatch(self) -> None:
        """Hear nothing of the storage any more: it is about to be closed, which may be done on another thread."""
        self._rest_stores()
        if self.broker.stored is not None:
            self.broker.stored.let_go()
        self.storage.unwatch()

    def close_sessions(self) -> None:
        """Say goodbye to the clients, and note exactly what was sent to them."""
        if self.failure is None:
            self.broker.sessions.partings.stop()
            self.broker.devices.stop()
        self._rest_stores()

    async def snapshot(self) -> None:
        """Write the state down, so that the next start replays nothing."""
        if self.failure is not None:
            return
        try:
            await self.storage.snapshot()
        except (OSError, MemoryError) as error:
            self.logger.error(
                "no snapshot at the stop; the next start replays the journal", error=reason_of(error)
            )

    def close(self) -> None:
        """Give up the storage."""
        self.rest()
        self.storage.close()


def _streams(others: int, reserve_bytes: int) -> StreamSettings:
    """Return the settings of streams with so many other shards: together they may have as much on its way as one, and
    no more than a quarter of what is kept back for a full disk, from which it is written there."""
    settings = StreamSettings()
    on_the_way = settings.window_bytes
    if reserve_bytes:
        on_the_way = min(on_the_way, reserve_bytes // RESERVE_SHARE)
    settings.window_bytes = max(WINDOW_BYTES_LEAST, on_the_way // others)
    return settings


async def settle(worker: Worker, shards: Sequence[OwnedShard]) -> None:
    """Wait until the journals have everything."""
    worker.end_tick()
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    while not all(shard.is_settled for shard in shards) and time.monotonic() < deadline:
        await asyncio.sleep(0.001)
