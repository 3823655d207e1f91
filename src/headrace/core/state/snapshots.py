"""Snapshots: the fold written down in slices between ticks, each session with the position it stood at.

An entry is one MessagePack array; an unknown one is passed over:

    ["session", ...]    ["group", ...]    ["dissolved", ...]    ["retained", record bytes, offset]
    ["producers", tenant, [[key, sequence, time], ...]]
    ["devices", tenant, [[client id, user], ...], [[key, offset, content, time], ...]]    those of frames (`devices`)
    ["topic", tenant, topic, number, applied, fields of the index, clusters, [[time, user, client id], ...]]    a topic
                             queue (`topic_queues`); when it and each of its clusters was used, and who has begun it
    ["streams", [[shard, offset], ...], [[shard, offset], ...]]    as of the snapshot's position (`streams`)
    ["starts", [[offset, time], ...], [[shard, offset, time], ...]]    of the owners, as of that position (`streams`)
    ["origin", uuid, offset, [[offset, epoch], ...]]    the journal of whose records those below the offset are copies;
        from where on each of its epochs holds is missing in what an older version has written (`message_id`)
    ["epochs", [[offset, epoch], ...], 0]    of this journal, those of records that are gone too (`message_id`)
    ["recorded", time, 0]    when the journal was last written to before the snapshot
    ["owners", [[shard, epoch], ...], 0]    of other shards, as far as they were talked to (`streams`)
    ["loans", [[home, group, serial, incarnation, packet id, how far], ...], 0]    QoS 2 of groups elsewhere (`away`)
    ["gone", incarnations, [[tenant, topic], ...]]    sessions that ended, topics without a retained message

Recovery loads them and replays the journal from the snapshot's position; what `applied` says is already in one changes
nothing.

After a full snapshot the next ones hold what *changed* since the one before. Of several entries for the same session or
topic the newest counts, so recovery reads the newest file first. Groups, topic queues, producers, devices and streams
are few: they are in every file, and only those of the newest count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, cast

import msgspec
from librt.strings import BytesWriter

from headrace.core.commit import GroupCommit
from headrace.core.records.event import subscription_of, will_fields, will_from
from headrace.core.records.message import Message, decode_record
from headrace.core.records.message_id import Origin
from headrace.core.state.backlog import REF_OFFSET_SHIFT
from headrace.core.state.groups import Group, draws_of
from headrace.core.state.makers import NO_MAKER, Maker
from headrace.core.state.queue_replay import replay_bound
from headrace.core.state.session import Session, Subscription
from headrace.core.state.state import NONE_LISTED, Fold
from headrace.core.state.subscriptions import subscription_from
from headrace.core.state.tenant import Tenant
from headrace.core.state.topic_queues import TopicQueue
from headrace.errors import CorruptRecord
from headrace.mqtt.topics import split_share

# What a slice may do, in looks at something that did not change (decision 29: work in units): an entry is ten, and so on.
RESTORED_AT_ONCE: Final = 200  # entries, in a slice of a start
SLICE_WORK: Final = 2000
ENTRY_WORK: Final = 10
BYTES_WORK: Final = 500
GONE_ENTRIES: Final = 1000
LOAN_ENTRIES: Final = 1000
RETAINED_AT_ONCE: Final = 100
_AT_USED: Final = 7  # in the entry of a topic queue
_AT_ROWS: Final = 18  # in that of a session

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder()


def entry_of_session(session: Session, position: int) -> bytes:
    """Return the entry of a session as it stands when everything below `position` has been applied."""
    queue = session.queue
    queued: object = None
    if queue is not None:
        queued = [
            int(queue.next_serial),
            queue.inflight.items(),
            queue.inflight.received_serials(),
            int(queue.sent_limit),
            *queue.backlog.fields(),
        ]
    incoming = [[pid, offset] for pid, offset in (session.incoming or {}).items() if 0 <= offset < position]
    fields: list[object] = [
        "session",
        session.tenant.name,
        session.client_id,
        session.incarnation,
        position - 1,
        session.session_type,
        session.expiry_s,
        session.closed_at_us,
        session.opened_limit,
        [s.row() for s in (session.subscriptions or {}).values()],
        incoming,
        will_fields(session.will),
        session.id_sets or [],
        list((session.dropped or {}).items()),
        queued,
    ]
    return _encoder.encode(fields + _added_to_session(session))


def _added_to_session(session: Session) -> list[object]:
    """Return the fields of a session's entry that are left out where they say nothing: its owner, the packet ids that its
    queue has bound, the version of a will before MQTT 5, and what a store has of the queue."""
    queue, will = session.queue, session.will
    bound = [] if queue is None or queue.bound is None else queue.bound.rows()
    if queue is not None and queue.rows is not None:
        return [session.owner, bound, 5 if will is None else will.version, queue.rows.fields()]
    if will is not None and will.version != 5:
        return [session.owner, bound, will.version]
    return [session.owner, bound] if session.owner is not None or bound else []


def entry_of_retained(message: Message) -> bytes:
    out = BytesWriter()
    message.encode_into(out)
    return _encoder.encode(["retained", out.getvalue(), message.offset])


def entry_of_group(group: Group, position: int) -> bytes:
    """Return the entry of a shared subscription's queue; its members are in their sessions' entries, which come before,
    but for those whose end is on its way to the journal. One without members is `dissolved`: what is in flight of it
    completes."""
    drawn = [
        [d.serial, d.full_ref, d.session.incarnation, d.choice, d.received] for d in group.drawn.values()
    ]
    had = [[serial, members] for serial, members in sorted(group.had.items())]
    had += [[d.serial, d.had] for d in group.drawn.values() if d.had is not None]
    leaving = [session.incarnation for session in group.members if session.ended]
    return _encoder.encode(
        [
            "group" if group.members else "dissolved",
            group.tenant.name,
            group.carrier.client_id,
            group.incarnation,
            position - 1,
            int(group.next_serial),
            group.backlog.fields(),
            list(group.returned.items()),
            drawn,
            *([had] if had or leaving else []),
            *([leaving] if leaving else []),
        ]
    )


class Restoring:
    """Puts back a full snapshot and those with what changed after it, given newest first."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._sessions: set[int] = set()  # incarnations of which something newer was read
        self._topics: set[tuple[str, bytes]] = set()
        self._groups: list[list[object]] | None = None

    def taking(self, entries: Iterable[bytes], is_full: bool) -> Iterator[None]:
        """Restore the entries of one file in slices; the full one is the last. Raises CorruptRecord when one is not an
        entry."""
        groups: list[list[object]] = []
        for taken, entry in enumerate(entries, 1):
            value = _decoder.decode(entry)
            if not isinstance(value, list) or len(value) < 3:
                raise CorruptRecord("snapshot entry is not an array")
            self._take(value, is_full, groups)
            if taken % RESTORED_AT_ONCE == 0:
                yield
        if self._groups is None:
            self._groups = groups
        if is_full:  # every member is there
            for value in self._groups:
                _restore_group(self._fold, value)

    def _take(self, value: list[object], is_full: bool, groups: list[list[object]]) -> None:
        """Restore one entry; those of groups come behind all sessions, and are put into `groups`."""
        kind = value[0]
        if kind == "session":
            self._session(value, is_full)
        elif kind == "retained":
            self._retained(value, is_full)
        elif kind in ("group", "dissolved"):
            groups.append(value)
        elif kind == "gone":
            self._sessions.update(cast(list[int], value[1]))
            for row in cast(list[list[object]], value[2]):
                self._topics.add((cast(str, row[0]), cast(bytes, row[1])))
        elif self._groups is None:  # the newest file, whose entries of the other kinds count alone
            self._of_newest(value)

    def _session(self, value: list[object], is_full: bool) -> None:
        incarnation = cast(int, value[3])
        if incarnation not in self._sessions:
            if not is_full:
                self._sessions.add(incarnation)
            _restore_session(self._fold, value)

    def _of_newest(self, value: list[object]) -> None:
        if value[0] == "producers":
            self._producers(value)
        elif value[0] == "devices":
            self._devices(value)
        elif value[0] == "topic":
            _restore_topic(self._fold, value)
        elif value[0] == "streams":
            self._fold.streams.restore(cast(list[list[list[int]]], value[1:]))
        elif value[0] == "starts":
            self._fold.streams.restore_starts(cast(list[list[list[int]]], value[1:]))
        elif value[0] == "origin":
            self._fold.origin = Origin.from_entry(value)
        elif value[0] == "epochs":
            self._fold.epochs = _epochs(value[1])
        elif value[0] == "recorded":
            self._fold.recorded_us = cast(int, value[1])
        elif value[0] == "owners":
            self._fold.streams.restore_owners(cast(list[list[int]], value[1]))
        elif value[0] == "loans":
            self._fold.away.restore(cast(list[list[int]], value[1]))

    def _producers(self, value: list[object]) -> None:
        producers = self._fold.make(cast(str, value[1])).producers
        for row in cast(list[list[object]], value[2]):
            producers.restore(cast(bytes, row[0]), cast(int, row[1]), cast(int, row[2]))

    def _devices(self, value: list[object]) -> None:
        devices = self._fold.make(cast(str, value[1])).devices
        for client_id, user in cast(list[list[str]], value[2]):
            devices.own(client_id, user)
        for row in cast(list[list[object]], value[3]):
            numbers = [cast(int, number) for number in row[1:]]
            devices.restore(cast(bytes, row[0]), numbers[0], numbers[1], numbers[2])

    def _retained(self, value: list[object], is_full: bool) -> None:
        message, _ = decode_record(cast(bytes, value[1]), 0)
        message.offset = cast(int, value[2])
        if not isinstance(message, Message) or (message.tenant, message.topic) in self._topics:
            return
        if not is_full:
            self._topics.add((message.tenant, message.topic))
        self._fold.make(message.tenant).retained.apply(message)


def entry_of_producers(tenant: str, rows: list[list[object]]) -> bytes:
    """Return the entry of some producers, in rows of `Producers.entries`."""
    return _encoder.encode(["producers", tenant, rows])


def entry_of_devices(tenant: str, owners: list[list[object]], seen: list[list[object]]) -> bytes:
    """Return the entry of some devices and their messages, in rows of `DeviceRoster.entries`."""
    return _encoder.encode(["devices", tenant, owners, seen])


def entries_of_loans(rows: list[list[int]]) -> Iterator[bytes]:
    """Yield the entries of what groups at home elsewhere have lent, in rows of `Away.rows`."""
    for at in range(0, len(rows), LOAN_ENTRIES):
        yield _encoder.encode(["loans", rows[at : at + LOAN_ENTRIES], 0])


def entry_of_streams(fields: list[list[list[int]]]) -> bytes:
    """Return the entry of the positions of streams, as `Streams.fields` gives them."""
    return _encoder.encode(["streams", *fields])


def _epochs(rows: object) -> list[tuple[int, int]]:
    return [(row[0], row[1]) for row in cast(list[list[int]], rows)]


def entry_of_topic(queue: TopicQueue, position: int) -> bytes:
    """Return the entry of a topic queue as it stands when everything below `position` has been applied."""
    queue.settle()
    clusters = [cluster.fields() for cluster in queue.clusters.values()]
    of_all = [(queue.used_us, queue.maker)]
    of_all += [(cluster.used_us, cluster.maker) for cluster in queue.clusters.values()]
    used = [[used_us, *_maker_fields(maker)] for used_us, maker in of_all]
    fields = [queue.tenant, queue.topic, queue.queue_id, position - 1, queue.fields(), clusters, used]
    return _encoder.encode(["topic", *fields])


def _maker_fields(maker: Maker) -> list[object]:
    return [] if maker is NO_MAKER else [maker.user, maker.device]


def _used_from(value: list[object], count: int) -> list[tuple[int, Maker]]:
    """Return when a queue and each of its clusters was used, and who has begun it; older entries do not say."""
    if len(value) <= _AT_USED:
        return [(0, NO_MAKER)] * count
    found: list[tuple[int, Maker]] = []
    for row in cast(list[list[object]], value[_AT_USED]):
        maker = Maker(cast(str, row[1]), cast(str, row[2])) if len(row) > 1 else NO_MAKER
        found.append((cast(int, row[0]), maker))
    return found


def _restore_topic(fold: Fold, value: list[object]) -> None:
    tenant, topic, number = cast(str, value[1]), cast(bytes, value[2]), cast(int, value[3])
    fold.make(tenant)
    rows = cast(list[list[object]], value[6])
    used = _used_from(value, len(rows) + 1)
    fold.queues.opened(tenant, topic, number, used[0][1])
    queue = fold.queues.by_id[number]
    index = cast(list[object], value[5])
    numbers = cast(list[int], index[:3])
    queue.load(
        numbers, cast(bytes, index[3]), cast(int, index[4]), cast(bytes, index[5]), cast(bytes, index[6])
    )
    queue.applied = cast(int, value[4])
    queue.used_us = used[0][0]
    for row, (used_us, maker) in zip(rows, used[1:], strict=True):
        cluster = fold.queues.made(queue, cast(bytes, row[0]), cast(int, row[1]), 0, maker)
        cluster.used_us = used_us
        cluster.next = cast(int, row[2])
        cluster.restore(cast(list[int], row[3]), cast(int, row[4]))


def restore(fold: Fold, files: Iterable[Iterable[bytes]]) -> None:
    """Put back the entries of a full snapshot and of those behind it, oldest first. Raises CorruptRecord."""
    for _ in restoring(fold, files):
        pass


def restoring(fold: Fold, files: Iterable[Iterable[bytes]]) -> Iterator[None]:
    """Do as `restore`, in slices."""
    put_back = Restoring(fold)
    ordered = list(files)
    for at in range(len(ordered) - 1, -1, -1):
        yield from put_back.taking(ordered[at], at == 0)


def _restore_session(fold: Fold, value: list[object]) -> None:
    tenant = fold.make(cast(str, value[1]))
    incarnation, applied, session_type, expiry_s = [cast(int, number) for number in value[3:7]]
    session = Session(tenant, cast(str, value[2]), incarnation, session_type, expiry_s)
    session.applied = applied
    session.closed_at_us = cast(int, value[7])
    session.opened_limit = cast(int, value[8])
    session.id_sets = cast(list[bytes], value[12]) or None
    for row in cast(list[object], value[9]):
        fold.subscribe(session, subscription_from(session, subscription_of(row)), 0)
    incoming = cast(list[list[int]], value[10])
    if incoming:
        session.incoming = {pair[0]: pair[1] for pair in incoming}
    session.will = will_from(value[11])
    if session.will is not None and len(value) > 17:
        session.will.version = cast(int, value[17])
    for reason, count in cast(list[list[int]], value[13]):
        session.count_drop(reason, count)
    if len(value) > 15:
        owner = cast("str | None", value[15])
        if owner is not None:
            session.own(owner)
    if value[14] is not None:
        bound = cast(list[int], value[16]) if len(value) > 16 else []
        _restore_queue(session, cast(list[object], value[14]), bound)
        if len(value) > _AT_ROWS:
            session.outbound().stored_rows().load(cast(list[object], value[_AT_ROWS]))
            fold.in_stores[incarnation] = session
    fold.add(session)


def _restore_group(fold: Fold, value: list[object]) -> None:
    tenant = fold.make(cast(str, value[1]))
    if value[0] == "dissolved":
        name, inner = split_share(cast(str, value[2]))
        group = Group(tenant, name, inner, cast(int, value[3]))
    else:
        # Its members may have come after their entries were written: they join it again when that is replayed.
        group = fold.groups.make(tenant, cast(str, value[2]), cast(int, value[3]))
        fold.groups.by_id.pop(group.incarnation, None)
        group.incarnation = cast(int, value[3])
    fold.groups.by_id[group.incarnation] = group
    group.applied = cast(int, value[4])
    group.next_serial = cast(int, value[5])
    group.backlog.load(cast(list[object], value[6]))
    for serial, ref in cast(list[list[int]], value[7]):
        group.put_back(serial, ref)
    for row in cast(list[list[object]], value[9]) if len(value) > 9 else []:
        group.had[cast(int, row[0])] = cast(list[int], row[1])
    for incarnation in cast(list[int], value[10]) if len(value) > 10 else []:
        _restore_leaving(fold, group, incarnation)
    for serial, ref, incarnation, choice, received in cast(list[list[int]], value[8]):
        session = fold.by_incarnation.get(incarnation)
        group.put_back(serial, ref)
        if session is not None:
            group.bind(serial, session, choice, bool(received))
        else:
            waiting = fold.unbound.setdefault(incarnation, [])
            waiting.append((group, serial, choice, bool(received)))


def _restore_leaving(fold: Fold, group: Group, incarnation: int) -> None:
    """Restore a member that is in no entry of its own: the record of its end comes in the journal."""
    if incarnation in fold.by_incarnation:
        return
    session = fold.departing.get(incarnation)
    if session is None:
        session = Session(group.tenant, "", incarnation, 0, 0)
        session.ended = True
        fold.departing[incarnation] = session
    group.join(session, Subscription(session, group.carrier.client_id, 0, False, False, 2, 0, b""))


def _restore_queue(session: Session, value: list[object], bound: list[int]) -> None:
    queue = session.outbound()
    queue.next_serial = cast(int, value[0])
    for serial, ref in cast(list[list[int]], value[1]):
        queue.inflight.put(serial, ref)
    for serial in cast(list[int], value[2]):
        queue.inflight.receive(serial)
    queue.sent_limit = cast(int, value[3])
    queue.reserving = queue.sent_limit
    queue.backlog.load(value[4:])
    for at in range(0, len(bound), 2):
        replay_bound(queue, bound[at], bound[at + 1])


def has_changed(session: Session) -> bool:
    """Return whether a session has changed since it was written into a snapshot."""
    queue = session.queue
    return session.changed or (queue is not None and queue.stamp() != queue.written)


class SnapshotPass:
    """One walk over the whole state, or over what changed since the walk before.

    `lowest_offset` is the oldest journal offset that something still refers to; known when the walk is over and all that
    was done during it has taken effect: a retained message that is replaced before the walk comes by may have been listed
    for a subscription, whose record is still on its way when its session is looked at.
    """

    def __init__(self, fold: Fold, commit: GroupCommit, full: bool = True) -> None:
        self._fold = fold
        self._commit = commit
        self._full = full
        self._part: list[bytes] = []
        self._work = 0
        self.position: int = commit.high_watermark
        self._streams = fold.streams.fields()  # a replay from here must know each copy for what it was
        self._starts = fold.streams.start_fields(self.position)
        self._recorded_us = commit.written_us or fold.recorded_us
        self._lowest: int = self.position
        fold.lowest_listed = NONE_LISTED
        self.entries = 0
        self._gone, fold.gone = fold.gone, []  # who ends from now on is gone in the next one; a replay knows

    def slices(self, work: int = SLICE_WORK) -> Iterator[list[bytes]]:
        """Yield the entries, some at a time; the caller lets ticks pass in between, and sessions change meanwhile."""
        steps = self._steps()
        while True:
            yield from self._boundary()
            if all(self._work < work for _ in steps):
                break
            yield self._taken()
        yield self._taken()

    def _boundary(self) -> Iterator[list[bytes]]:
        """Wait until no message has reached some of its sessions and not the others: none is written down that has what
        others of its age have not. The commit begins no other one in that pass."""
        if not self._commit.unfinished:
            return
        self._commit.boundary_wanted = True
        try:
            while self._commit.unfinished:
                yield []
        finally:
            self._commit.boundary_wanted = False

    def _steps(self) -> Iterator[None]:
        self._places()
        for tenant in list(self._fold.tenants.values()):
            yield from self._retained(tenant)
            for rows in tenant.producers.entries():
                self._add(entry_of_producers(tenant.name, rows))
                yield
            for owners, seen in tenant.devices.entries(self.position):
                self._add(entry_of_devices(tenant.name, owners, seen))
                yield
        for group in list(self._fold.groups.by_id.values()):
            self._refers_to(group.lowest_offset())  # draws may stay with a session when the group is gone
            yield
        for session in self._fold.roster.walk():
            self._work += 1
            if session is not None:
                self._session(session)
            yield
        for group in self._fold.groups.all():
            group.carrier.settle()
            self._add(entry_of_group(group, self._commit.high_watermark))
            group.backlog.release(group.floor())
            self._refers_to(group.lowest_offset())
            yield
        for queue in list(self._fold.queues.by_id.values()):
            self._add(entry_of_topic(queue, self._commit.high_watermark))
            self._refers_to(queue.lowest_offset())
            yield
        yield from self._loans()
        if not self._full:
            for at in range(0, len(self._gone), GONE_ENTRIES):
                self._add(_encoder.encode(["gone", self._gone[at : at + GONE_ENTRIES], []]))
                yield

    def _places(self) -> None:
        """Write down the places in this journal and in others."""
        if any(self._streams):
            self._add(entry_of_streams(self._streams))
        if any(self._starts):
            self._add(_encoder.encode(["starts", *self._starts]))
        if self._fold.origin is not None:
            self._add(self._fold.origin.entry())
        if self._fold.epochs:
            self._add(_encoder.encode(["epochs", self._fold.epochs, 0]))
        if self._recorded_us:
            self._add(_encoder.encode(["recorded", self._recorded_us, 0]))

    def _loans(self) -> Iterator[None]:
        if self._fold.streams.owners:
            self._add(_encoder.encode(["owners", self._fold.streams.owner_rows(), 0]))
        for entry in entries_of_loans(self._fold.away.rows()):
            self._add(entry)
            yield

    def _retained(self, tenant: Tenant) -> Iterator[None]:
        retained = tenant.retained
        touched, retained.touched = retained.touched, set()
        walk = retained.walk_all()
        while not walk.done:
            for message in walk.take(RETAINED_AT_ONCE):
                if self._full or message.topic in touched:
                    self._add(entry_of_retained(message))
                self._refers_to(message.offset)
                self._work += 1
            yield
        while touched:  # emptied bit by bit: to let go of a million at once takes its time too
            topic = touched.pop()
            self._work += 1
            if not self._full and retained.get(topic) is None:
                self._add(_encoder.encode(["gone", [], [[tenant.name, topic]]]))
            yield

    def _session(self, session: Session) -> None:
        applied: int = self._commit.high_watermark
        if session.ended or session.incarnation >= applied:
            return
        session.settle()
        queue = session.queue
        for draw in draws_of(session):  # they stay with the member when their group is gone
            self._refers_to(draw.ref >> REF_OFFSET_SHIFT)
        if self._full or has_changed(session):
            self._add(entry_of_session(session, applied))
            session.written = True
            session.changed = bool(session.incoming)  # those on their way to the journal are not in the entry
            if queue is not None:
                queue.written = queue.stamp()
        if queue is not None:
            queue.backlog.release(queue.floor())
            self._refers_to(queue.lowest_offset())

    def _add(self, entry: bytes) -> None:
        self._part.append(entry)
        self._work += ENTRY_WORK + len(entry) // BYTES_WORK

    def _taken(self) -> list[bytes]:
        part, self._part = self._part, []
        self.entries += len(part)
        self._work = 0
        return part

    def _refers_to(self, offset: int) -> None:
        if 0 <= offset < self._lowest:
            self._lowest = offset

    @property
    def lowest_offset(self) -> int:
        return min(self._lowest, self._fold.lowest_listed)
