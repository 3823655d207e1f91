"""The fewest records that lead to the state of a fold: sessions, subscriptions, retained messages and wills, whose
devices are, which topics have queues and which clusters read them.

What belongs to single messages stays behind, because it refers to records of the old journal: backlogs, the messages of
topic queues and the places of clusters, what is in flight, QoS 2 exchanges, sequences of idempotent producers, repeats of
devices, counts of drops. A session that was connected is left open, so
the next start closes it as after a crash (decision 15: sessions after a crash).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.core.records.event import Event, SessionClosed, SessionName, SessionOpened, Subscribed
from headrace.core.records.message import Carried
from headrace.core.records.queue_record import (
    CLUSTER_MADE,
    DEVICE_OWNED,
    QUEUE_OPENED,
    QueueRecord,
    queue_record,
)
from headrace.core.records.record import Record

if TYPE_CHECKING:
    from headrace.core.state.session import Session
    from headrace.core.state.state import Fold

_VERSION_5 = 5


def records(fold: Fold, now_us: int) -> Iterator[Record]:
    """Return the records in an order that queues nothing: retained messages before subscriptions. Their offsets are
    0, 1, 2, ..."""
    offset = 0
    for tenant in fold.tenants.values():
        for message in tenant.retained.messages():
            yield Carried(message)
            offset += 1
    for session in sorted(fold.by_incarnation.values(), key=_incarnation):
        for event in _session(session, offset, now_us):
            yield event
            offset += 1
    yield from _devices(fold, now_us)
    yield from _queues(fold, now_us)


def _devices(fold: Fold, now_us: int) -> Iterator[QueueRecord]:
    for tenant in fold.tenants.values():
        devices = tenant.devices
        for client_id, user in [*devices.owners.items(), *devices.strays.items()]:
            yield queue_record(DEVICE_OWNED, now_us, {"t": tenant.name, "c": client_id, "u": user})


def _queues(fold: Fold, now_us: int) -> Iterator[QueueRecord]:
    """Yield queues that are empty, and their clusters at the beginning."""
    for queue in fold.queues.by_id.values():
        about: dict[str, object] = {"t": queue.tenant, "topic": queue.topic}
        yield queue_record(QUEUE_OPENED, now_us, about)
        for name in queue.clusters:
            yield queue_record(CLUSTER_MADE, now_us, about | {"name": name, "at": 0})


def _incarnation(session: Session) -> int:
    return session.incarnation


def _session(session: Session, offset: int, now_us: int) -> list[Event]:
    """Return the events of a session: opened, subscribed, closed; `offset` becomes its incarnation."""
    tenant, client_id = session.tenant.name, session.client_id
    opened = SessionOpened.at(
        now_us,
        tenant,
        client_id,
        session_type=session.session_type,
        expiry_s=session.expiry_s,
        version=_VERSION_5,
        will=session.will,
        sent_limit=0,
        user=session.owner,
    )
    found: list[Event] = [opened]
    name = _Name(offset, tenant, client_id)
    if session.subscriptions:
        rows = [subscription.row() for subscription in session.subscriptions.values()]
        found.append(Subscribed.at(now_us, name, rows))
    if session.closed_at_us:
        will_set, reason = session.will is not None, "taken over from a snapshot"
        found.append(SessionClosed.at(session.closed_at_us, name, session.expiry_s, 0, will_set, reason))
    return found


class _Name(SessionName):
    """The name of a session with its keys in another order than live events have them: the one of every release, so
    that the same snapshot still makes the same journal to the byte."""

    def fields(self) -> dict[str, object]:
        return {"t": self.tenant, "c": self.client_id, "inc": self.incarnation}
