"""The storage of a shard in memory, which ships with the package for tests: nothing outlives the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator

from headrace.core.broker import Broker
from headrace.core.ports.journal import JournalPort
from headrace.core.records.message_id import JournalName
from headrace.core.state.replay import Replay
from headrace.services.journal_metrics import JournalFigures
from headrace.services.metrics import Reads
from headrace.sockets.poller import Poller
from headrace.storage.memory import MemoryJournal
from headrace.storage.port import Recovered, StorageEvents


class MemoryStorage:
    """`ShardStorage` in memory: what is appended is durable in the next pass of the loop, and everything is kept."""

    def __init__(self, batches: list[bytes] | None = None, uuid: str = "memory") -> None:
        """Begin with the bodies of these batches, which are durable: those of an earlier one, which `batches` returns."""
        self._kept = MemoryJournal(batches)
        self.journal: JournalPort = self._kept
        self.reads: Reads = self._kept
        self.figures: JournalFigures | None = None
        self.reserve_bytes = 0
        self.uuid = uuid
        self._events: StorageEvents | None = None
        self._scheduled = False
        self._durable_batches = len(self._kept.bodies)

    @property
    def batches(self) -> list[bytes]:
        """Return the bodies of what is durable."""
        return self._kept.bodies[: self._durable_batches]

    @property
    def high_watermark(self) -> int:
        return self._kept.durable

    def behind(self, offset: int) -> tuple[int, int]:
        return max(0, self._kept.durable - offset), 0

    def recover(self, broker: Broker, report: Callable[[str], None]) -> Recovered:
        replay = Replay(broker.fold)
        for body in self._kept.bodies:
            replay.batch(body, replay.count, 0)
        return self._found(broker, replay)

    def recovering(self, broker: Broker, report: Callable[[str], None]) -> Generator[None, None, Recovered]:
        replay = Replay(broker.fold)
        for body in self._kept.bodies:
            replay.batch(body, replay.count, 0)
            yield
        return self._found(broker, replay)

    def _found(self, broker: Broker, replay: Replay) -> Recovered:
        fold = broker.fold
        return Recovered(JournalName(self.uuid, fold.epochs, fold.origin), None, replay.count)

    def start(self, events: StorageEvents, poller: Poller | None) -> int:
        self._events = events
        self._kept.appended = self._on_append
        return self._kept.next_offset()

    def _on_append(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._make_durable)

    def _make_durable(self) -> None:
        self._scheduled = False
        if self._events is not None:
            self._kept.durable = self._kept.next_offset()
            self._durable_batches = len(self._kept.bodies)
            self._events.durable(self._kept.durable)

    async def keep_small(self) -> None:
        """Return at once: everything is kept."""

    async def snapshot(self) -> None:
        """Return at once: a start replays everything."""

    def unwatch(self) -> None:
        """Return at once: no poller waits for it."""

    def close(self) -> None:
        self._events = None
        self._kept.appended = None
