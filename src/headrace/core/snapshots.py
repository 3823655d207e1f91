"""Snapshots: the fold written down in slices between ticks, each session with the position it stood at.

An entry is one MessagePack array: `["session", ...]`, `["group", ...]`, `["retained", record bytes, offset]` or
`["producers", tenant, [[key, sequence, time], ...]]`; an unknown one is passed over. Recovery
loads them and replays the journal from the snapshot's position; what `applied` says is already in one changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

import msgspec
from librt.strings import BytesWriter

from headrace.core.commit import GroupCommit
from headrace.core.fold import Fold, subscription_from, subscription_row, will_fields, will_from
from headrace.core.message import Message, decode_record
from headrace.core.session import Session
from headrace.core.shared import Group
from headrace.core.tenant import Tenant
from headrace.errors import CorruptRecord

SLICE_ENTRIES: Final = 200

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder()


def entry_of_session(session: Session, position: int) -> bytes:
    """A session as it stands when everything below `position` has been applied."""
    queue = session.queue
    queued: object = None
    if queue is not None:
        queued = [
            int(queue.next_serial),
            list(queue.inflight.items()),
            sorted(queue.received),
            int(queue.sent_limit),
            *queue.backlog.fields(),
        ]
    incoming = [[pid, offset] for pid, offset in (session.incoming or {}).items() if 0 <= offset < position]
    return _encoder.encode(
        [
            "session",
            session.tenant.name,
            session.client_id,
            session.incarnation,
            position - 1,
            session.session_type,
            session.expiry_s,
            session.closed_at_us,
            session.opened_limit,
            [subscription_row(s) for s in (session.subscriptions or {}).values()],
            incoming,
            will_fields(session.will),
            session.id_sets or [],
            list((session.dropped or {}).items()),
            queued,
        ]
    )


def entry_of_retained(message: Message) -> bytes:
    out = BytesWriter()
    message.encode_into(out)
    return _encoder.encode(["retained", out.getvalue(), message.offset])


def entry_of_group(group: Group, position: int) -> bytes:
    """A shared subscription's queue; its members are in their sessions' entries, which come before."""
    drawn = [
        [d.serial, d.full_ref, d.session.incarnation, d.choice, d.received] for d in group.drawn.values()
    ]
    return _encoder.encode(
        [
            "group",
            group.tenant.name,
            group.carrier.client_id,
            group.incarnation,
            position - 1,
            int(group.next_serial),
            group.backlog.fields(),
            list(group.returned.items()),
            drawn,
        ]
    )


def entries_of_producers(tenant: Tenant) -> Iterator[bytes]:
    for rows in tenant.producers.entries():
        yield _encoder.encode(["producers", tenant.name, rows])


def restore(fold: Fold, entry: bytes) -> None:
    """Put one snapshot entry back. Raises `CorruptRecord` when it is not one."""
    value = _decoder.decode(entry)
    if not isinstance(value, list) or len(value) < 3:
        raise CorruptRecord("snapshot entry is not an array")
    if value[0] == "retained":
        record, _ = decode_record(cast(bytes, value[1]), 0)
        record.offset = int(value[2])
        if isinstance(record, Message):
            fold.tenant(record.tenant).retained.apply(record)
    elif value[0] == "session":
        _restore_session(fold, value)
    elif value[0] == "group":
        _restore_group(fold, value)
    elif value[0] == "producers":
        producers = fold.tenant(cast(str, value[1])).producers
        for row in cast(list[list[object]], value[2]):
            producers.restore(cast(bytes, row[0]), cast(int, row[1]), cast(int, row[2]))


def _restore_session(fold: Fold, value: list[object]) -> None:
    tenant = fold.tenant(cast(str, value[1]))
    incarnation, applied, session_type, expiry_s = [cast(int, number) for number in value[3:7]]
    session = Session(tenant, cast(str, value[2]), incarnation, session_type, expiry_s)
    session.applied = applied
    session.closed_at_us = cast(int, value[7])
    session.opened_limit = cast(int, value[8])
    session.id_sets = cast(list[bytes], value[12]) or None
    for row in cast(list[list[object]], value[9]):
        subscription = subscription_from(session, row)
        fold.subscribe(session, subscription, 0)
    incoming = cast(list[list[int]], value[10])
    if incoming:
        session.incoming = {pair[0]: pair[1] for pair in incoming}
    session.will = will_from(value[11])
    for reason, count in cast(list[list[int]], value[13]):
        session.count_drop(reason, count)
    if value[14] is not None:
        _restore_queue(session, cast(list[object], value[14]))
    fold.add(session)


def _restore_group(fold: Fold, value: list[object]) -> None:
    tenant = fold.tenant(cast(str, value[1]))
    group = tenant.groups.get(cast(str, value[2]))
    if group is None:
        return  # every member is gone again, further on in the journal
    fold.groups.pop(group.incarnation, None)
    group.incarnation = cast(int, value[3])
    fold.groups[group.incarnation] = group
    group.applied = cast(int, value[4])
    group.next_serial = cast(int, value[5])
    group.backlog.load(cast(list[object], value[6]))
    group.returned = dict(cast(list[tuple[int, int]], value[7]))
    for serial, ref, incarnation, choice, received in cast(list[list[int]], value[8]):
        session = fold.by_incarnation.get(incarnation)
        group.returned[serial] = ref
        if session is not None:
            group.bind(serial, session, choice, bool(received))
        else:
            waiting = fold.unbound.setdefault(incarnation, [])
            waiting.append((group, serial, choice, bool(received)))


def _restore_queue(session: Session, value: list[object]) -> None:
    queue = session.outbound()
    queue.next_serial = cast(int, value[0])
    for serial, ref in cast(list[list[int]], value[1]):
        queue.inflight[serial] = ref
    queue.received = set(cast(list[int], value[2]))
    queue.sent_limit = cast(int, value[3])
    queue.reserving = queue.sent_limit
    queue.backlog.load(value[4:])
    queue.durable_floor = queue.floor()


class SnapshotPass:
    """One walk over the whole state. `lowest_offset` is the oldest journal offset that something still refers to."""

    def __init__(self, fold: Fold, commit: GroupCommit) -> None:
        self._fold = fold
        self._commit = commit
        self.position: int = commit.high_watermark
        self.lowest_offset: int = self.position
        self.entries = 0

    def slices(self, size: int = SLICE_ENTRIES) -> Iterator[list[bytes]]:
        """The entries, `size` at a time; the caller lets ticks pass in between, and sessions change meanwhile."""
        part: list[bytes] = []
        for tenant in list(self._fold.tenants.values()):
            for message in tenant.retained.messages():
                part.append(entry_of_retained(message))
                self._refers_to(message.offset)
                if len(part) >= size:
                    yield self._counted(part)
                    part = []
            for entry in entries_of_producers(tenant):
                yield self._counted([entry])
        for session in list(self._fold.by_incarnation.values()):
            applied: int = self._commit.high_watermark
            if not session.ended and session.incarnation < applied:
                part.append(entry_of_session(session, applied))
                if session.queue is not None:
                    session.queue.backlog.release(session.queue.floor())
                    self._refers_to(session.queue.lowest_offset())
            if len(part) >= size:
                yield self._counted(part)
                part = []
        for group in list(self._fold.groups.values()):
            part.append(entry_of_group(group, self._commit.high_watermark))
            group.backlog.release(group.floor())
            self._refers_to(group.lowest_offset())
        yield self._counted(part)

    def _counted(self, part: list[bytes]) -> list[bytes]:
        self.entries += len(part)
        return part

    def _refers_to(self, offset: int) -> None:
        if 0 <= offset < self.lowest_offset:
            self.lowest_offset = offset
