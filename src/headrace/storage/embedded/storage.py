"""The embedded journal of one shard: segments in a directory of this machine, the threads that write and sync them, and
the upkeep that keeps them small. Stands behind `storage.port.ShardStorage`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.broker import Broker
from headrace.core.ports.journal import JournalPort
from headrace.core.records.message_id import JournalName, Origin
from headrace.journal.epochs import joined, published_epochs
from headrace.journal.errors import FULL_REASONS, JournalError, JournalLocked, OffsetOutOfRange
from headrace.journal.log import LogSettings, SegmentedLog
from headrace.journal.presence import Known, Watch
from headrace.journal.reader import JournalReader
from headrace.journal.snapshot import SnapshotFile, newest_chain
from headrace.services.journal_metrics import JournalFigures
from headrace.services.metrics import Reads
from headrace.services.watchdog import Watchdog
from headrace.sockets.poller import Poller
from headrace.storage.embedded.local import LocalJournal
from headrace.storage.embedded.recovery import load, loading
from headrace.storage.embedded.snapshotting import Folder, Snapshotting
from headrace.storage.embedded.upkeep import Upkeep
from headrace.storage.port import Recovered, StorageEvents
from headrace.syscalls import Syncer

LOCKED_S = 15.0  # for so long the worker of before may take to end
LOCKED_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """What an embedded journal is told. `snapshot_interval_*`: when a snapshot is due, in bytes of records and in
    seconds."""

    log: LogSettings
    snapshot_interval_bytes: int
    snapshot_interval_s: float


@dataclass(frozen=True, slots=True)
class Listening:
    """The functions that an embedded journal tells of its work: `report` lines for the log, `synced` how many seconds
    a write with its sync took (also on the thread of the journal), `watchdog` what is done in slices."""

    report: Callable[[str], None]
    synced: Callable[[float], None]
    watchdog: Watchdog


class EmbeddedStorage:
    """`ShardStorage` over a `SegmentedLog`."""

    def __init__(
        self,
        directory: Path,
        settings: EmbeddedSettings,
        listening: Listening,
        shard: str = "",
        patient: bool = False,
        loop: asyncio.AbstractEventLoop | None = None,
        known: Known | None = None,
    ) -> None:
        """Open the journal, with its lock, and repair its tail. `shard` is its number in metrics, "" where there is one.
        `patient`: wait for the lock, which another worker is about to leave. `loop`: that it is used on, where it is
        opened on another thread. `known`: which journal must be there, if any must; it is told of
        this one. Raises JournalError, OSError."""
        self._settings = settings
        self._listening = listening
        self._loop = asyncio.get_running_loop() if loop is None else loop
        self._watching: tuple[Poller, int] | None = None  # who waits for the syncer, by its descriptor
        self._upkeep: Upkeep | None = None
        self._watch: Watch | None = None
        self.log = _opened(directory, settings.log, listening.report, LOCKED_S if patient else 0.0, known)
        self._known = Known() if known is None else known
        self._known.is_begun, self._known.uuid = True, self.log.uuid
        local = LocalJournal(self.log, OffsetOutOfRange, listening.report)
        self.journal: JournalPort = local
        self.reads: Reads = local
        self.figures: JournalFigures | None = JournalFigures(self.log, shard)

    @property
    def uuid(self) -> str:
        return self.log.uuid

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def reserve_bytes(self) -> int:
        return self.log.reserve_bytes

    def behind(self, offset: int) -> tuple[int, int]:
        return self.log.behind(offset)

    def recover(self, broker: Broker, report: Callable[[str], None]) -> Recovered:
        chain = newest_chain(self.log.directory, self._listening.report)
        return self._found(
            broker, chain, load(broker.fold, chain, self.log.scan, self.log.start_offset, report)
        )

    def recovering(self, broker: Broker, report: Callable[[str], None]) -> Generator[None, None, Recovered]:
        chain = newest_chain(self.log.directory, self._listening.report)
        replayed = yield from loading(broker.fold, chain, self.log.scan, self.log.start_offset, report)
        return self._found(broker, chain, replayed)

    def _found(self, broker: Broker, chain: list[SnapshotFile], replayed: int) -> Recovered:
        """Begin to keep small what a state was made of."""
        fold = broker.fold
        fold.epochs = joined(fold.epochs, self.log.epochs(), self.log.start_offset)
        settings, watchdog = self._settings, self._listening.watchdog
        snapshots = Snapshotting(
            broker, Folder(self.log), settings.snapshot_interval_bytes, settings.snapshot_interval_s, watchdog
        )
        self._upkeep = Upkeep(broker, self.log, snapshots, watchdog)
        name = JournalName(self.log.uuid, fold.epochs, fold.origin)
        return Recovered(name, chain[-1].position if chain else None, replayed)

    def start(self, events: StorageEvents, poller: Poller | None) -> int:
        log, loop = self.log, self._loop

        def synced() -> None:
            log.finish_write()
            events.durable(log.high_watermark)

        # The journal's thread calls these; the loop does the work.
        def durable(high_watermark: int) -> None:
            loop.call_soon_threadsafe(events.durable, high_watermark)

        def failed(error: BaseException) -> None:
            loop.call_soon_threadsafe(events.failed, error)

        def full(reason: str) -> None:
            loop.call_soon_threadsafe(events.full, reason, reason in FULL_REASONS)

        syncer = None
        if poller is not None:
            syncer = Syncer()
            poller.watch_signal(syncer.fd, synced)
            self._watching = poller, syncer.fd
        log.start(durable, failed, full, syncer, self._listening.synced)
        self._watch = Watch(log.presence, log.fail, self._listening.report)
        self._watch.start()
        return log.next_offset

    # What keeps it small

    def _tended(self) -> Upkeep:
        assert self._upkeep is not None, "recovered"
        return self._upkeep

    async def keep_small(self) -> None:
        await self._tended().turn()

    async def snapshot(self) -> None:
        if self._watch is not None and await asyncio.to_thread(self._watch.look):
            return
        await self._tended().snapshot(compact=False)

    def unwatch(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            poller, fd = watching
            poller.unwatch_signal(fd)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.end()
        self._known.newest = self.log.finished_offset
        self.log.close()


def _opened(
    directory: Path,
    settings: LogSettings,
    report: Callable[[str], None],
    patience_s: float,
    known: Known | None,
) -> SegmentedLog:
    until = time.monotonic() + patience_s
    while True:
        try:
            return SegmentedLog.open(directory, settings, report, known=known)
        except JournalLocked:
            if time.monotonic() >= until:
                raise
            time.sleep(LOCKED_INTERVAL_S)


def name_of(directory: Path, logger: Any, origin: Origin | None = None) -> JournalName | None:
    """Return the name of a journal that another worker writes; None, which is logged, where it cannot be read. `origin`:
    of the shards of this data directory, which were all made of one journal, or none of any."""
    reader = JournalReader(directory)
    try:
        return JournalName(reader.uuid, published_epochs(reader), origin)
    except (JournalError, OSError) as error:
        logger.warning("the journal of another shard cannot be read now", detail=str(error))
        return None
