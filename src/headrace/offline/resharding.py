"""`headrace reshard`: a data directory of several shards, made from one that is one shard. No broker runs meanwhile.

Each shard gets a snapshot with what is at home there, and a journal that is what compaction would have made of the old
one: the records that its sessions, retained messages and topic queues still refer to, at the offsets that they had. So
no reference changes, and each new journal goes on where the old one ends. It has a uuid of its own and is complete from
there on: what readers of the old one have read, they do not find again.

A shard is written, opened as a broker would open it, and compared with the old journal before the next one is begun.
Everything is made in `<target>/reshard.tmp`, and moved up when all of it is right (`data.building`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from uuid import uuid4

from headrace.core.homes import MEMBER_PREFIX, Homes
from headrace.core.records.event import BrokerStarted
from headrace.core.records.message_id import JournalName, Origin
from headrace.core.state.away import Away
from headrace.core.state.devices import client_of_device
from headrace.core.state.groups import Group, draws_of
from headrace.core.state.producers import client_of_producer
from headrace.core.state.session import DEVICE, NEVER_EXPIRES, Session
from headrace.core.state.snapshots import (
    entries_of_loans,
    entry_of_devices,
    entry_of_group,
    entry_of_producers,
    entry_of_retained,
    entry_of_session,
    entry_of_streams,
    entry_of_topic,
)
from headrace.core.state.state import Fold
from headrace.core.state.tenant import Tenant
from headrace.data.building import built
from headrace.data.layout import Layout, check_is_whole
from headrace.errors import HeadraceError
from headrace.journal.active import SegmentFile, create_segment
from headrace.journal.catalog import Segment
from headrace.journal.compaction import SparseWriter
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.copying import Likeness, clipped
from headrace.journal.disk import DISK
from headrace.journal.epochs import joined, raised
from headrace.journal.errors import OffsetOutOfRange
from headrace.journal.log import DIRECTORY, LogSettings, SegmentedLog
from headrace.journal.segment import Batch, SegmentHeader, seed_of, split_records
from headrace.journal.snapshot import SnapshotWriter, newest_chain
from headrace.journal.watermark import NAME as WATERMARK
from headrace.journal.watermark import STREAMS_VERSION, WatermarkState
from headrace.mqtt.topics import split_share
from headrace.storage.embedded.local import LocalJournal
from headrace.storage.embedded.recovery import load
from headrace.storage.embedded.references import References

MAKING = "reshard.tmp"
_AT_ONCE = 64 << 20  # offsets, at a byte each, whose references are looked for together
_PER_ENTRY = 1000

Report = Callable[[str], None]


class NotResharded(HeadraceError):
    """The directory cannot be divided, or what was made of it is not what it was: nothing is left of that."""


class Old:
    """The data directory as it is: its journal, and the state that the next start of its broker would begin with."""

    def __init__(self, log: SegmentedLog, report: Report) -> None:
        """Recover the state. Raises CorruptFile, CorruptBatch."""
        self.log = log
        self.end = log.high_watermark
        self.fold = folded(log, report)
        # Whoever was connected is not any more. In the new journals nothing says so again of these sessions.
        started = BrokerStarted.at(time.time_ns() // 1000)
        started.offset = self.end
        self.fold.started(started)
        epochs = joined(self.fold.epochs, log.epochs(), log.start_offset)
        self.name = JournalName(log.uuid, epochs)
        self.origin = Origin(log.uuid, self.end, epochs)


def entries(fold: Fold, homes: Homes, shard: int, end: int, origin: Origin) -> Iterator[bytes]:
    """Yield the snapshot entries of what is at home in a shard, as everything below `end` has made it."""
    yield origin.entry()
    # What was published before has reached every session: nobody looks for it in the records that are kept.
    ends = [[other, end] for other in range(homes.shards) if other != shard]
    yield entry_of_streams([ends, ends])
    for tenant in fold.tenants.values():
        for message in tenant.retained.messages():
            if homes.of_topic(tenant.name, message.topic.decode("utf-8")) == shard:
                yield entry_of_retained(message)
        yield from _producers(tenant, homes, shard)
        yield from _devices(tenant, homes, shard, end)
    at_home = [
        session for session in fold.by_incarnation.values() if _home_of(session, homes, shard) == shard
    ]
    groups = [group for group in fold.groups.all() if _home_of_group(group, homes) == shard]
    for session in (*at_home, *_stand_ins(groups, homes, shard)):
        session.settle()
        yield entry_of_session(session, end)
    for group in groups:
        group.carrier.settle()
        with _not_received_elsewhere(group, homes, shard):
            yield entry_of_group(group, end)
    yield from entries_of_loans(fold.away.rows())
    yield from entries_of_loans(_lent(at_home, homes, shard))
    for queue in fold.queues.by_id.values():
        if homes.of_topic(queue.tenant, queue.topic.decode("utf-8")) == shard:
            yield entry_of_topic(queue, end)


def _home_of(session: Session, homes: Homes, shard: int) -> int:
    """Return the home of a session. A stand-in is in `shard`, where it was found."""
    if session.stands_in:
        return shard
    return homes.of_client(session.tenant.name, session.client_id)


def _home_of_group(group: Group, homes: Homes) -> int:
    name, inner = split_share(group.carrier.client_id)
    return homes.of_group(group.tenant.name, name, inner)


def _stand_ins(groups: list[Group], homes: Homes, shard: int) -> list[Session]:
    """Return stand-ins, under the incarnations that they stand for, of the sessions that groups of a shard have
    elsewhere: their members, and whoever has something of them in flight."""
    found: dict[int, Session] = {}
    for group in groups:
        for session in (*group.members, *(draw.session for draw in group.drawn.values())):
            home = _home_of(session, homes, shard)
            if home == shard:
                continue
            stand = found.get(session.incarnation)
            if stand is None:
                name = f"{MEMBER_PREFIX}{home}/{session.incarnation}"
                stand = Session(session.tenant, name, session.incarnation, DEVICE, NEVER_EXPIRES)
                stand.closed_at_us = session.closed_at_us
                stand.subscriptions = {}
                found[session.incarnation] = stand
            subscription = (session.subscriptions or {}).get(group.carrier.client_id)
            if subscription is not None and stand.subscriptions is not None:
                stand.subscriptions[subscription.filter] = subscription
    return list(found.values())


@contextmanager
def _not_received_elsewhere(group: Group, homes: Homes, shard: int) -> Iterator[None]:
    """Let draws of sessions elsewhere be as the home of a group has them: how far one has come, the other shard knows."""
    draws = [
        draw
        for draw in group.drawn.values()
        if draw.received and _home_of(draw.session, homes, shard) != shard
    ]
    for draw in draws:
        draw.received = False
    try:
        yield
    finally:
        for draw in draws:
            draw.received = True


def _lent(sessions: list[Session], homes: Homes, shard: int) -> list[list[int]]:
    """Return what sessions of a shard have in flight of groups elsewhere, at QoS 2, as rows of `Away.rows`. The rest
    was given back."""
    rows = []
    for session in sessions:
        for draw in draws_of(session):
            home = _home_of_group(draw.group, homes)
            if home != shard:
                group = draw.group.incarnation
                rows.append(
                    [home, group, draw.serial, session.incarnation, draw.packet_id, int(draw.received)]
                )
    return rows


def _producers(tenant: Tenant, homes: Homes, shard: int) -> Iterator[bytes]:
    rows = [row for part in tenant.producers.entries() for row in part]
    own = [row for row in rows if homes.of_client(tenant.name, client_of_producer(tenant.name, row)) == shard]
    for at in range(0, len(own), _PER_ENTRY):
        yield entry_of_producers(tenant.name, own[at : at + _PER_ENTRY])


def _devices(tenant: Tenant, homes: Homes, shard: int, end: int) -> Iterator[bytes]:
    owners: list[list[object]] = []
    seen: list[list[object]] = []
    for some_owners, some_seen in tenant.devices.entries(end):
        owners += [row for row in some_owners if homes.of_client(tenant.name, str(row[0])) == shard]
        seen += [row for row in some_seen if homes.of_client(tenant.name, client_of_device(row)) == shard]
    for at in range(0, max(len(owners), len(seen)), _PER_ENTRY):
        yield entry_of_devices(tenant.name, owners[at : at + _PER_ENTRY], seen[at : at + _PER_ENTRY])


def reshard(data_dir: Path, target: Path, shards: int, report: Report) -> None:
    """Make `target`, which is empty or not there, with the state of `data_dir` in so many shards; `report` gets a line
    for each.

    Raises NotResharded, UnusableLayout, FileExistsError, JournalLocked where a broker runs, CorruptJournal, CorruptFile,
    OSError.
    """
    if shards < 2:
        raise NotResharded(f"{shards} shards: a data directory is divided into two or more")
    check_is_whole(data_dir)
    if Layout.open(data_dir).shards > 1:
        raise NotResharded(f"{data_dir} has several shards already, which cannot be divided again")
    if not DISK.names(data_dir / DIRECTORY):
        raise NotResharded(f"{data_dir} holds no journal")
    with closing(SegmentedLog.open(data_dir, LogSettings(), report)) as log:
        _check_consumers(log)
        old = Old(log, report)
        _check_stores(log, report)
        with built(target, MAKING, Likeness.of(data_dir), data_dir) as making:
            made = Layout.make(making, shards)
            for shard in range(shards):
                Division(old, made, shard, report).run()


def _check_consumers(log: SegmentedLog) -> None:
    """Refuse while somebody registered has not read all: what is left would be in no journal that is read on. Raises
    NotResharded."""
    behind = [
        f"{found.name} ({log.high_watermark - found.offset} records)"
        for found in ConsumerPosition.list(log.data_dir)
        if (found.uuid, found.epoch, found.offset) != (log.uuid, log.epoch, log.high_watermark)
    ]
    if behind:
        raise NotResharded(
            f"consumers have not read all of the journal: {', '.join(behind)}. Let them read on, without a broker, until "
            "they are at its end, or remove who will not (`headrace consumer remove`)"
        )


def _check_stores(log: SegmentedLog, report: Report) -> None:
    """Refuse while a store has what waits for sessions: the shards to come would not know of it. Raises NotResharded."""
    if log.version <= STREAMS_VERSION:
        return  # no store was ever configured
    named = [
        session.client_id
        for session in folded(log, report).in_stores.values()
        if session.queue is not None and session.queue.let_go() >= session.queue.floor()
    ]
    if named:
        raise NotResharded(
            f"a part of what waits for {len(named)} sessions lies in a store alone, that of {named[0]!r} for one: let "
            "their clients get it first, or drop these sessions (`headrace session drop`)"
        )


def folded(log: SegmentedLog, report: Report, part: tuple[Homes, int] | None = None) -> Fold:
    """Return the state of an open journal, of one shard of several if `part` says which. Raises CorruptFile,
    CorruptBatch."""
    fold = _empty(log, report, part)
    load(fold, newest_chain(log.directory, report), log.scan, log.start_offset, report)
    return fold


def _empty(log: SegmentedLog, report: Report, part: tuple[Homes, int] | None) -> Fold:
    fold = Fold(LocalJournal(log, OffsetOutOfRange, report))
    if part is not None:
        fold.spread(*part)
        fold.away = Away(*part)
    return fold


class Division:
    """Makes one shard of the old journal, and compares it."""

    def __init__(self, old: Old, made: Layout, shard: int, report: Report) -> None:
        self._old = old
        self._homes = Homes(made.shards)
        self._shard = shard
        self._part = (self._homes, shard)
        self._directory = made.directory(shard)
        self._journal = self._directory / DIRECTORY
        self._uuid = uuid4()
        self._epoch = raised(old.log.epoch)
        self._report = report

    def run(self) -> None:
        """Write the shard and compare it. Raises NotResharded, OSError."""
        DISK.make_directory(self._journal)
        self._write_state()
        records = self._write_records()
        self._compare(records)

    def _entries(self, fold: Fold) -> Iterator[bytes]:
        return entries(fold, self._homes, self._shard, self._old.end, self._old.origin)

    def _write_state(self) -> None:
        writer = SnapshotWriter(self._journal, self._old.end)
        for entry in self._entries(self._old.fold):
            writer.add(entry)
        writer.commit()

    def _write_records(self) -> _Records:
        """Copy what the shard refers to, by what was written of it; returns what was copied."""
        log, end, records = self._old.log, self._old.end, _Records()
        fold = _empty(log, self._report, self._part)
        load(fold, newest_chain(self._journal), partial(log.scan, end=end), end, _quietly)
        files = _Segments(self._journal, self._uuid.bytes, self._epoch, log.settings.segment_bytes_max)
        for batch, live in referred(log, fold, end):
            files.add(batch, live)
            records.add(batch, live)
        files.close()
        header = SegmentHeader(self._uuid.bytes, self._epoch, end, time.time_ns() // 1000)
        create_segment(DISK, self._journal, header, 0).close()
        begins = end if files.begins < 0 else files.begins
        state = WatermarkState(
            self._uuid.bytes, self._epoch, end, end, start_offset=begins, complete_offset=end
        )
        DISK.replace(self._directory / WATERMARK, state.pack_page())
        return records

    def _compare(self, written: _Records) -> None:
        """Open the shard as its broker will, and compare state and records with the old ones. Raises NotResharded."""
        found = _Records()
        with closing(SegmentedLog.open(self._directory, LogSettings(reserve_bytes=0), self._report)) as log:
            fold = folded(log, _quietly, self._part)
            for old, new in zip_longest(self._entries(self._old.fold), self._entries(fold)):
                if old != new:
                    raise NotResharded(
                        f"shard {self._shard} does not hold what it should: {old!r}, but {new!r}"
                    )
            for batch, live in referred(log, fold, self._old.end):
                found.add(batch, live)
            self._compare_ids(log, fold)
        if found.value() != written.value():
            raise NotResharded(f"shard {self._shard} does not hold the records that were written into it")
        retained = sum(len(tenant.retained.messages()) for tenant in fold.tenants.values())
        self._report(
            f"shard {self._shard}: {len(fold.by_incarnation)} sessions, {retained} retained messages, "
            f"{found.count} records that they refer to"
        )

    def _compare_ids(self, log: SegmentedLog, fold: Fold) -> None:
        """Compare what the old messages are called, those too whose records are not kept: a device that repeats one is
        answered with its id. Raises NotResharded."""
        name = JournalName(log.uuid, joined(fold.epochs, log.epochs(), log.start_offset), fold.origin)
        offset = name.differs_from(self._old.name, self._old.end)
        if offset >= 0:
            raise NotResharded(f"shard {self._shard} gives the message at offset {offset} another id")


def referred(
    log: SegmentedLog, fold: Fold, end: int, at_once: int | None = None
) -> Iterator[tuple[Batch, set[int]]]:
    """Yield the batches up to `end` from the first record on that a state refers to, and of each the offsets of what is
    referred to. `at_once`: so many offsets are looked at together, at a byte each."""
    stretch, begun = at_once or _AT_ONCE, False
    for start in range(log.start_offset, end, stretch):
        last = min(start + stretch, end)
        found = References(fold, start, last)
        for walk in (found.retained(), found.owners()):
            for _ in walk:
                pass
        first = start if begun else found.first()
        begun = first < last
        for batch in clipped(log.scan(first, last), first, last) if begun else ():
            yield batch, found.between(batch.base_offset, batch.end_offset)


def _quietly(line: str) -> None:
    """Say nothing: the same was said of the old journal."""


class _Records:
    """Counts records and digests them."""

    def __init__(self) -> None:
        self.count = 0
        self._digest = sha256()

    def add(self, batch: Batch, live: set[int]) -> None:
        """Add the records of a batch that are referred to."""
        if not live:
            return
        records = split_records(batch.body)
        for offset in sorted(live):
            self._digest.update(offset.to_bytes(8, "little") + records[offset - batch.base_offset])
        self.count += len(live)

    def value(self) -> tuple[int, bytes]:
        """Return count and digest."""
        return self.count, self._digest.digest()


class _Segments:
    """The finished segments of a shard. `begins`: the offset of the first one, -1 as long as there is none."""

    def __init__(self, directory: Path, uuid: bytes, epoch: int, bytes_max: int) -> None:
        self.begins = -1
        self._directory = directory
        self._uuid = uuid
        self._epoch = epoch
        self._bytes_max = bytes_max
        self._file: SegmentFile | None = None
        self._writer: SparseWriter | None = None

    def add(self, batch: Batch, live: set[int]) -> None:
        """Add a batch, of which the records in `live` are kept. Raises OSError."""
        if self._file is not None and self._file.segment.size >= self._bytes_max:
            self.close()
        if self._writer is None:
            self._writer = self._opened(batch)
        self._writer.add(batch, live)

    def _opened(self, batch: Batch) -> SparseWriter:
        segment = Segment(self._directory, batch.base_offset)
        if self.begins < 0:
            self.begins = segment.base_offset
        header = SegmentHeader(self._uuid, self._epoch, segment.base_offset, time.time_ns() // 1000)
        self._file = SegmentFile(DISK, segment, DISK.create(segment.path), 0, 0)
        DISK.write_fully(self._file.fd, [header.pack()], 0)
        return SparseWriter(self._file, seed_of(self._uuid), batch.epoch)

    def close(self) -> None:
        """Finish the segment that was begun, if any. Raises OSError."""
        if self._file is None or self._writer is None:
            return
        self._writer.flush()
        self._file.seal(seed_of(self._uuid))
        self._file.close()
        self._file = self._writer = None
