"""A shard whose journal is a partition of Kafka, behind `storage.port.ShardStorage`: the owner's state machine with its
clients, and the local cache that records are read from.

Runs on the loop; Kafka's threads are behind the mailbox. Whoever makes one waits until the partition is read to its end
and the shard is owned: the next record offset is known then. What the cache has need not come from Kafka.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

from headrace.core.broker import Broker
from headrace.core.ports.journal import JournalPort
from headrace.core.records.message_id import JournalName
from headrace.errors import HeadraceError
from headrace.journal.disk import DISK
from headrace.journal.epochs import joined
from headrace.journal.errors import CorruptFile, JournalError, OffsetOutOfRange
from headrace.journal.lock import lock_data_dir
from headrace.journal.segment import Batch, pack_batch_header, seed_of
from headrace.services.journal_metrics import JournalFigures
from headrace.services.metrics import Reads
from headrace.services.watchdog import Watchdog
from headrace.sockets.poller import Poller
from headrace.storage.embedded.local import LocalJournal
from headrace.storage.embedded.recovery import load, loading
from headrace.storage.embedded.snapshotting import Snapshotting
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
from headrace.storage.kafka.cache import DIRECTORY, Cache, CacheDamaged
from headrace.storage.kafka.cluster_state import RECORD_BYTES_MAX
from headrace.storage.kafka.entry import BatchEntry, Entry, FloorEntry, MarkEntry
from headrace.storage.kafka.envelope import BITS, uuid_of
from headrace.storage.kafka.keeping import BEGINNING, Keeping, place_to_begin
from headrace.storage.kafka.log_fold import LogFold, Standing
from headrace.storage.kafka.mailbox import Clients, Hearer, Mailbox, Records
from headrace.storage.kafka.owner import Owner
from headrace.storage.kafka.snapshot_place import KafkaPlace
from headrace.storage.kafka.snapshot_topic import LoadedSnapshot, SnapshotTopic
from headrace.storage.port import Recovered, StorageEvents

TICK_S: Final = 0.1
MIB: Final = 1 << 20
MARK_BYTES: Final = 64 * MIB  # of the journal from one MARK to the next, at most: up to one it is deleted
CONFIRMED_WITHIN_S: Final = 30.0
START_WITHIN_S: Final = 60.0  # without anything heard of Kafka a start fails; a service manager tries again
NAMED_WITHIN_S: Final = 10.0  # by the group, of a shard that is read to its end
OVERHEAD_BYTES: Final = 64 << 10  # of a record beside its value, and of a copy beside its message
ROOM_BYTES: Final = (
    1 << 40
)  # Kafka's disks are Kafka's: what is full there shows as an append that is not answered


class ShardElsewhere(JournalError):
    """Another worker owns the shard."""

    is_ordinary = True


class NotNamed(JournalError):
    """The group does not name this worker for the shard, by now."""

    retry_helps = True


class KafkaLost(JournalError):
    """Kafka lacks what it had acknowledged, or somebody has deleted it: a person has to say what is to be."""


class KafkaSilent(JournalError):
    """Kafka does not answer, or does not take the record by which a worker owns a shard."""

    retry_helps = True


@dataclass(frozen=True, slots=True)
class SnapshotIntervals:
    """When a snapshot is due: after so many bytes of records, or so many seconds."""

    records_bytes: int = 64 * MIB
    seconds: float = 300.0


def _nobody() -> int | None:
    """Return None: there is no registered consumer."""
    return None


def _at_once(tell: Callable[[], None]) -> None:
    """Say that the shard is this worker's, which owns all by its configuration."""
    tell()


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """What a shard's storage is told: the id of the topic and its partition, which name the journal; what the worker is
    called in the partition; how clients are made that tell a hearer, of the journal's partition and of that of
    snapshots; when a snapshot is due; who watches what is done in slices; how the group is asked whether the shard is
    this worker's, which calls back if it is, on any thread; how long the owner of before has to be quiet (`Owner`);
    whether the worker is about to end, and wants no shard any more; and up to where the registered consumers of the shard
    have read it, which waits for Kafka and may raise KafkaUnusable.
    """

    topic_id: str
    partition: int
    worker: str
    connect: Callable[[Hearer], Clients]
    connect_snapshots: Callable[[Hearer], Clients]
    intervals: SnapshotIntervals = SnapshotIntervals()
    watchdog: Watchdog = field(default_factory=Watchdog)
    ask: Callable[[Callable[[], None]], None] = _at_once
    quiet_s: float = 0.0
    is_over: Callable[[], bool] = bool
    consumed: Callable[[], int | None] = _nobody


@dataclass(frozen=True, slots=True)
class _Sought:
    """A record that is looked for at a start: the number of the reading that begins with it, its Kafka offset, and what
    is done with it."""

    reading: int
    offset: int
    found: Callable[[int, bytes], None]


class KafkaLog:
    """The journal as `LocalJournal` uses it: what is appended goes to the owner, what is read comes from the cache."""

    def __init__(
        self,
        seed: int,
        cache: Cache,
        append: Callable[[BatchEntry], None],
        damaged: Callable[[CacheDamaged], None],
    ) -> None:
        self.next_offset = 0
        self._damaged = damaged
        self.high_watermark = 0
        self._seed = seed
        self._cache = cache
        self._append = append

    def append(self, body: bytes, count: int, first_timestamp_us: int, max_timestamp_us: int) -> int:
        """Have the owner append a batch of `count` records; return the offset of the first one, at once."""
        base_offset = self.next_offset
        self.next_offset = base_offset + count
        head = pack_batch_header(
            self._seed,
            body,
            base_offset,
            count,
            0,
            self.high_watermark,
            first_timestamp_us,
            max_timestamp_us,
        )
        self._append(BatchEntry(head + body, base_offset, base_offset + count))
        return base_offset

    def room(self) -> int:
        """Return how many bytes there is room for: as much as anybody asks for."""
        return ROOM_BYTES

    def has_room(self) -> bool:
        """Return True: no disk of this machine holds the journal."""
        return True

    def read_batch(self, offset: int) -> Batch:
        """Return the batch that holds `offset`, which is below the high watermark. Raises OffsetOutOfRange, CacheDamaged,
        OSError."""
        try:
            return self._cache.read_batch(offset)
        except CacheDamaged as error:
            self._damaged(error)
            raise


class KafkaStorage:
    """`ShardStorage` over a partition."""

    def __init__(
        self,
        settings: KafkaSettings,
        directory: Path,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the cache in `directory`, of which this process alone makes use; read the partition to its end, own the
        shard, and wait for that. Raises ShardElsewhere, KafkaLost, KafkaSilent, other JournalErrors, OSError."""
        self._settings = settings
        DISK.make_directory(directory)
        self._lock_fd = lock_data_dir(DISK, directory)
        self._report = report
        self._clock = clock
        self._uuid = uuid_of(settings.topic_id, settings.partition)
        self._cache = self._opened_cache(directory / DIRECTORY)
        self._log = KafkaLog(seed_of(self._uuid), self._cache, self._append, self._on_damage)
        local = LocalJournal(self._log, OffsetOutOfRange, report)
        local.is_contested = True
        self.journal: JournalPort = local
        self.reads: Reads = local
        self.figures: JournalFigures | None = None
        self.reserve_bytes = 0
        self._events: StorageEvents | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._mailbox = Mailbox(self)
        self._clients = settings.connect(self._mailbox)
        self._prepare_snapshots()
        self.away = ""
        self._owner = self._new_owner(LogFold(self._uuid))
        self._is_acting = False
        self._is_owned = False
        self._ended: JournalError | None = None  # why the owner's machine has
        self._stale = ""  # why the fold cannot be gone on with
        self._stale_at = -1  # where the partition was known to begin, when it was so without a cache
        self._heard_at = 0.0
        self._ways = self._ways_of_actions()
        try:
            self._own()
        except BaseException:
            self.close()
            raise

    def _opened_cache(self, directory: Path) -> Cache:
        """Open the cache; without one the directory is let go."""
        try:
            return Cache(directory, self._uuid)
        except BaseException:
            DISK.close(self._lock_fd)
            raise

    def _prepare_snapshots(self) -> None:
        """Begin to know of snapshots, with none."""
        directory, connect = self._cache.directory, self._settings.connect_snapshots
        self._snapshot_topic = SnapshotTopic(self._uuid, directory, connect, self._report, self._clock)
        self._start = 0  # the partition is known to begin there, at least
        self._chain: list[LoadedSnapshot] = []
        self._keeping = Keeping()
        self._is_from_cache = False
        self._sought: _Sought | None = None
        self._numbered_to = 0  # of readings, those of all owners
        self._unnamed_since = math.inf  # the group was asked then, and has not answered
        self._place = KafkaPlace(self, self._snapshot_topic, self._keeping)
        self._snapshotting: Snapshotting | None = None
        self._broker: Broker | None = None
        self._marked_bytes = 0
        self._confirming: tuple[Entry, asyncio.Future[Confirmed]] | None = None
        self._uncached: deque[tuple[BatchEntry, Standing]] = deque()  # confirmed, and not yet in the cache
        self._stuck = ""  # why not

    def _ways_of_actions(self) -> dict[type[Action], Callable[[Action], None]]:
        """Return what is done for each kind of action."""
        return {
            Read: self._do_read,
            Append: self._do_append,
            Purge: lambda _: self._clients.purge(),
            Ask: self._do_ask,
            Delete: lambda _: None,  # once consumers were looked for again (`snapshot_place`)
            Replay: self._do_replay,
            Passed: self._do_passed,
            Owns: self._do_owns,
            Confirmed: self._do_confirmed,
            Away: self._do_away,
            Back: self._do_back,
            Replaced: self._do_replaced,
            Stale: self._do_stale,
            Lost: self._do_lost,
        }

    @property
    def uuid(self) -> str:
        return str(UUID(bytes=self._uuid))

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark

    def behind(self, offset: int) -> tuple[int, int]:
        records = max(0, self.high_watermark - offset)
        return records, self._cache.bytes_from(offset) if records else 0

    # Start

    def recover(self, broker: Broker, report: Callable[[str], None]) -> Recovered:
        replayed = load(broker.fold, self._chain, self._scan, self._cache.start_offset, report)
        return self._found(broker, replayed)

    def recovering(self, broker: Broker, report: Callable[[str], None]) -> Generator[None, None, Recovered]:
        start = self._cache.start_offset
        replayed = yield from loading(broker.fold, self._chain, self._scan, start, report)
        return self._found(broker, replayed)

    def _scan(self, position: int) -> Iterable[Batch]:
        """Return the batches from a record offset on; none where it is the end."""
        return self._cache.scan(position) if position < self._cache.next_offset else ()

    def _found(self, broker: Broker, replayed: int) -> Recovered:
        fold, settings = broker.fold, self._settings
        fold.epochs = joined(fold.epochs, [(0, 0)], 0)
        self._broker = broker
        self._snapshotting = Snapshotting(
            broker,
            self._place,
            settings.intervals.records_bytes,
            settings.intervals.seconds,
            settings.watchdog,
            self._clock,
        )
        position = self._chain[-1].position if self._chain else None
        self._chain = []
        self._snapshot_topic.forget()
        return Recovered(JournalName(self.uuid, fold.epochs, fold.origin), position, replayed)

    @property
    def _name(self) -> str:
        return f"partition {self._settings.partition}"

    def _own(self) -> None:
        """Read to the end, and own the shard. Raises JournalError, OSError."""
        self._begin()
        while not self._is_owned:
            self._mailbox.wait(TICK_S)
            self._owner.on_time(self._clock())
            self._act()
            if self._stale:
                self._begin_anew()
            elif self._ended is not None:
                raise self._ended
            elif self._settings.is_over():
                raise NotNamed(f"{self._name}: the worker ends")
            elif self._clock() - self._unnamed_since > NAMED_WITHIN_S:
                raise NotNamed(f"{self._name}: the group does not name this worker for it")
            elif self._clock() - self._heard_at > START_WITHIN_S:
                raise self._silent()
        if not self._keeping.is_witnessed:
            raise KafkaLost(f"{self._name}: the MARK behind a snapshot was there, and is no more")
        self._log.next_offset = self._log.high_watermark = self._owner.fold.next_offset

    def _silent(self) -> KafkaSilent:
        return KafkaSilent(f"{self._name}: Kafka has given no answer for {START_WITHIN_S:.0f} s")

    def _begin(self) -> None:
        """Begin to read: from what the cache has; else from the oldest place that the newest snapshot knows; else from
        the beginning. Raises KafkaLost, KafkaSilent."""
        if not self._snapshot_topic.read(START_WITHIN_S):
            raise self._silent()
        self._heard_at = self._clock()
        self._chain = self._snapshot_topic.newest(self._start)
        self._keeping.begin_with(self._chain[-1].manifest.index if self._chain else [BEGINNING])
        if self._chain:  # is everything there that it has?
            self._seek(self._keeping.witness[1], self._on_witness)
        else:
            self._begin_to_read()

    def _on_witness(self, offset: int, value: bytes) -> None:
        """Look at the MARK behind all that the newest snapshot has."""
        fold = self._fold_at(offset, value)
        if (fold.next_offset, fold.owner) != (self._keeping.witness[0], self._chain[-1].place.epoch):
            raise KafkaLost(
                f"{self._name}: another MARK is at Kafka offset {offset} than the one behind a snapshot"
            )
        self._begin_to_read()

    def _begin_to_read(self) -> None:
        position = self._chain[-1].position if self._chain else 0
        if self._cache.start_offset > position:
            self._cache.clear()
        self._is_from_cache = self._cache.standing is not None
        if self._cache.standing is not None:
            fold = LogFold(self._uuid)
            fold.begin_behind(self._cache.standing)
            self._read_on(fold)
            return
        place = place_to_begin(self._keeping.places, self._start, position)
        if place is None:
            raise KafkaLost(
                f"{self._name}: its oldest records are deleted, up to Kafka offset {self._start}, and no snapshot has "
                "them all"
            )
        if place == BEGINNING:
            self._read_on(LogFold(self._uuid))
        else:
            self._seek(place[1], lambda offset, value: self._read_on(self._fold_at(offset, value)))

    def _fold_at(self, mark: int, value: bytes) -> LogFold:
        """Return a fold that begins at the MARK at a Kafka offset. Raises KafkaLost if it is none."""
        fold = LogFold(self._uuid)
        try:
            fold.begin_at_mark(mark, value)
        except CorruptFile as error:
            raise KafkaLost(f"{self._name}: {error}") from error
        return fold

    def _seek(self, offset: int, found: Callable[[int, bytes], None]) -> None:
        """Read the record at a Kafka offset, and give it to `found`."""
        self._numbered_to = max(self._numbered_to, self._owner.numbered_to) + 1
        self._sought = _Sought(self._numbered_to, offset, found)
        self._clients.read(self._numbered_to, offset)

    def _read_on(self, fold: LogFold) -> None:
        """Go on from where a fold stands, to own then."""
        self._keeping.read_from(max(1, fold.tail))
        self._numbered_to = max(self._numbered_to, self._owner.numbered_to)
        self._owner = self._new_owner(fold, self._numbered_to)
        self._owner.own(self._clock())
        self._act()

    def _begin_anew(self) -> None:
        """Read everything from Kafka: what the fold was to go on from is deleted there, or another journal's. Raises
        KafkaLost if it was read from there, and nothing was deleted meanwhile: records are missing in its midst."""
        reason, self._stale, self._ended, self._sought = self._stale, "", None, None
        if self._is_from_cache:
            self._report("the cache is of no use any more: everything is read from Kafka")
        elif self._start == self._stale_at:
            raise KafkaLost(f"{self._name}: {reason}")
        else:
            self._stale_at = self._start
        self._cache.clear()
        self._begin()

    def _on_sought(self, sought: _Sought, reading: int, records: Records) -> None:
        """Take the record that was sought, if it is among those that were read."""
        value = dict(records).get(sought.offset)
        if reading == sought.reading and value is not None:
            self._sought = None
            sought.found(sought.offset, value)

    def _new_owner(self, fold: LogFold, numbered_from: int = 0) -> Owner:
        """Return an owner that goes on from where a fold stands. What Kafka says of numbers up to `numbered_from` is said
        to an earlier one."""
        bytes_max = RECORD_BYTES_MAX - OVERHEAD_BYTES
        return Owner(
            fold,
            self._settings.worker,
            lambda: os.urandom(BITS),
            bytes_max,
            numbered_from=numbered_from,
            quiet_s=self._settings.quiet_s,
        )

    def start(self, events: StorageEvents, poller: Poller | None) -> int:
        self._events = events
        loop = asyncio.get_running_loop()
        self._mailbox.attach(loop)
        self._snapshot_topic.attach(loop)
        self._timer = loop.call_later(TICK_S, self._tick)
        return self._owner.since.offset

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        self._owner.on_time(self._clock())
        self._act()
        if self._uncached:
            self._fill_cache()

    # What keeps it small

    async def keep_small(self) -> None:
        assert self._snapshotting is not None, "recovered"
        assert self._broker is not None, "recovered"
        if self.away or self._stuck:
            return
        if self._snapshotting.due():
            await self._snapshotting.take()
        elif self._broker.commit.bytes - self._marked_bytes >= MARK_BYTES:
            self._append(self._place.mark_entry())

    async def snapshot(self) -> None:
        assert self._snapshotting is not None, "recovered"
        await self._snapshotting.take()

    async def confirmed(self, entry: Entry) -> Confirmed:
        """Append an entry, and return what is known of it once it is confirmed. Raises OSError; it may be confirmed later
        all the same. One call at a time."""
        future: asyncio.Future[Confirmed] = asyncio.get_running_loop().create_future()
        self._confirming = entry, future
        self._append(entry)
        try:
            return await asyncio.wait_for(future, CONFIRMED_WITHIN_S)
        except TimeoutError:
            raise OSError(f"Kafka has confirmed nothing for {CONFIRMED_WITHIN_S:.0f} s") from None

    async def consumed(self) -> int | None:
        try:
            return await asyncio.to_thread(self._settings.consumed)
        except (HeadraceError, OSError, RuntimeError) as error:
            self._report(
                f"nothing is deleted, since nobody knows what registered consumers have read: {error}"
            )
            return 0

    def delete(self, offset: int) -> None:
        self._clients.delete(offset)

    def unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._events = None
        self._settle(OSError("the shard is given up"))
        self._owner.give_up()
        self._owner.take_actions()

    def close(self) -> None:
        self.unwatch()
        self._clients.close()
        self._snapshot_topic.close()
        self._cache.close()
        if self._lock_fd >= 0:
            DISK.close(self._lock_fd)
            self._lock_fd = -1

    # What Kafka says

    def on_report(self, token: int, offset: int | None, error: str) -> None:
        self._heard(not error)
        self._owner.on_report(token, offset, error, self._clock())
        self._act()

    def on_records(self, reading: int, records: Records) -> None:
        self._heard(True)
        try:
            if self._sought is not None:
                self._on_sought(self._sought, reading, records)
                return
            for offset, value in records:
                self._owner.on_record(reading, offset, value, self._clock())
                self._act()  # at once: what is done with a batch asks where the fold stands behind it
        except JournalError as error:  # records that a newer headrace alone can read
            if self._events is None:
                raise  # to whoever waits for the start
            self._end(error)
        finally:
            self._clients.taken()

    def on_end(self, reading: int, end: int) -> None:
        if self._sought is not None and reading == self._sought.reading:
            raise KafkaLost(f"{self._name}: it ends at Kafka offset {end}, before a MARK that was confirmed")
        self._owner.on_end(reading, end, self._clock())
        self._act()

    def on_missing(self, reading: int, start: int) -> None:
        self._start = max(self._start, start)
        if self._sought is not None and reading == self._sought.reading:
            self._stale = f"it begins at Kafka offset {start} by now"
        self._owner.on_missing(reading, start)
        self._act()

    def on_trouble(self, what: str) -> None:
        self._report(what)

    def _heard(self, is_progress: bool) -> None:
        if is_progress:
            self._heard_at = self._clock()

    # What the owner wants done

    def _append(self, entry: Entry) -> None:
        self._owner.append(entry, self._clock())
        self._act()

    def _act(self) -> None:
        """Do what is to be done, and what comes of that. What is done may append in its turn: it is done here too."""
        if self._is_acting:
            return
        self._is_acting = True
        try:
            while actions := self._owner.take_actions():
                for action in actions:
                    self._ways[type(action)](action)
        finally:
            self._is_acting = False

    def _do_read(self, action: Action) -> None:
        assert isinstance(action, Read)
        self._clients.read(action.number, action.offset)

    def _do_append(self, action: Action) -> None:
        assert isinstance(action, Append)
        self._clients.append(action.token, action.value)

    def _do_ask(self, action: Action) -> None:
        self._unnamed_since = min(self._unnamed_since, self._clock())
        self._settings.ask(partial(self._mailbox.put, self._on_advice))

    def _on_advice(self) -> None:
        self._unnamed_since = math.inf
        self._owner.on_advice(self._clock())
        self._act()

    def _do_replay(self, action: Action) -> None:
        assert isinstance(action, Replay)
        self._cache.append(action.data, self._owner.fold.standing)

    def _do_passed(self, action: Action) -> None:
        assert isinstance(action, Passed)
        self._keeping.on_passed(action.offset, action.place)

    def _do_owns(self, action: Action) -> None:
        self._is_owned = True

    def _do_confirmed(self, action: Action) -> None:
        assert isinstance(action, Confirmed)
        entry = action.entry
        if isinstance(entry, BatchEntry):
            self._batch_is_confirmed(entry)
        elif isinstance(entry, MarkEntry):
            self._keeping.on_mark(action.next_offset, action.offset)
            self._marked_bytes = 0 if self._broker is None else self._broker.commit.bytes
        elif isinstance(entry, FloorEntry):
            self._drop_below(self._keeping.on_floor(entry.mark))
        if self._confirming is not None and self._confirming[0] is entry:
            self._settle(action)

    def _drop_below(self, offset: int) -> None:
        """Remove from the cache what lies before a record offset."""
        try:
            self._cache.drop_below(offset)
        except OSError as error:
            self._report(f"the cache keeps what nobody needs: {error}")

    def _batch_is_confirmed(self, entry: BatchEntry) -> None:
        self._uncached.append((entry, self._owner.fold.standing))
        self._fill_cache()

    def _fill_cache(self) -> None:
        """Put what is confirmed into the cache, from which it is read, and tell of it then. While the cache's disk takes
        nothing it waits there, and with it whoever waits for its acknowledgement: nothing of it is lost."""
        while self._uncached:
            entry, standing = self._uncached[0]
            try:
                self._cache.append(entry.data, standing)
            except OSError as error:
                self._tell_state(self.away, f"the cache cannot be written: {error.strerror or error}")
                return
            self._uncached.popleft()
            self._log.high_watermark = entry.end_offset
            if self._events is not None:
                self._events.durable(entry.end_offset)
        self._tell_state(self.away, "")

    def _tell_state(self, away: str, stuck: str) -> None:
        """Note why nothing becomes durable now, for want of Kafka or of the cache; tell of what has changed."""
        before = self.away or self._stuck
        self.away, self._stuck = away, stuck
        reason = away or stuck
        if reason == before:
            return
        if self._events is not None:
            self._events.full(reason, False)
        elif reason:
            self._report(reason)

    def _settle(self, outcome: Confirmed | OSError) -> None:
        """Tell whoever waits for an entry what became of it."""
        if self._confirming is None or self._confirming[1].done():
            return
        if isinstance(outcome, Confirmed):
            self._confirming[1].set_result(outcome)
        else:
            self._confirming[1].set_exception(outcome)

    def _do_away(self, action: Action) -> None:
        assert isinstance(action, Away)
        self._tell_state(action.reason, self._stuck)

    def _do_back(self, action: Action) -> None:
        self._tell_state("", self._stuck)

    def _do_replaced(self, action: Action) -> None:
        assert isinstance(action, Replaced)
        self._fail(ShardElsewhere(f"{self._name}: {action.worker or 'another worker'} owns it"))

    def _do_stale(self, action: Action) -> None:
        assert isinstance(action, Stale)
        if self._is_owned:
            self._fail(ShardElsewhere(f"{self._name}: {action.reason}: others have owned it"))
        self._stale = action.reason

    def _do_lost(self, action: Action) -> None:
        assert isinstance(action, Lost)
        self._fail(KafkaLost(f"{self._name}: {action.reason}"))

    def _on_damage(self, error: CacheDamaged) -> None:
        """End the shard, once whoever reads has heard that it is to wait: it is taken again with what Kafka has."""
        if self._events is not None:
            asyncio.get_running_loop().call_soon(self._end, error)

    def _end(self, error: JournalError) -> None:
        """Own the shard no more, and tell why."""
        self._owner.give_up()
        self._fail(error)
        self._act()

    def _fail(self, error: JournalError | OSError) -> None:
        """Tell, once and last, that nothing can be made durable any more."""
        if self._ended is None:
            self._ended = error if isinstance(error, JournalError) else JournalError(str(error))
            self._settle(OSError(str(error)))
            if self._events is not None:
                self._events.failed(error)
