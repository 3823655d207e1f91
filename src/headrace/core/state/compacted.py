"""The fewest records that lead to the state of a fold: sessions, subscriptions, retained messages and wills.

What belongs to single messages stays behind, because it refers to records of the old journal: backlogs, what is in
flight, QoS 2 exchanges, sequences of idempotent producers, counts of drops. A session that was connected is left open, so
the next start closes it as after a crash (decision 15: sessions after a crash).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.core.records.message import Message
from headrace.core.records.record import (
    FLAG_PRODUCER,
    SESSION_CLOSED,
    SESSION_OPENED,
    SUBSCRIBED,
    Event,
    Record,
)
from headrace.core.state.state import subscription_row, will_fields

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
            yield _retained(message)
            offset += 1
    for session in sorted(fold.by_incarnation.values(), key=_incarnation):
        for event in _session(session, offset, now_us):
            yield event
            offset += 1


def _incarnation(session: Session) -> int:
    return session.incarnation


def _retained(message: Message) -> Message:
    """Return a retained message without its publisher's session, packet id and producer, which belong to the old
    journal."""
    return message.of_nobody(message.topic, message.flags & ~FLAG_PRODUCER)


def _session(session: Session, offset: int, now_us: int) -> list[Event]:
    """Opened, subscribed, closed; `offset` becomes its incarnation."""
    name: dict[str, object] = {"t": session.tenant.name, "c": session.client_id}
    opened: dict[str, object] = {
        "ty": session.session_type,
        "ex": session.expiry_s,
        "v": _VERSION_5,
        "w": will_fields(session.will),
        "lim": 0,
    }
    if session.owner is not None:
        opened["u"] = session.owner
    found = [Event(SESSION_OPENED, now_us, name | opened)]
    name["inc"] = offset
    if session.subscriptions:
        rows = [subscription_row(subscription) for subscription in session.subscriptions.values()]
        found.append(Event(SUBSCRIBED, now_us, name | {"subs": rows}))
    if session.closed_at_us:
        closed: dict[str, object] = {
            "ex": session.expiry_s,
            "lim": 0,
            "will": int(session.will is not None),
            "reason": "taken over from a snapshot",
        }
        found.append(Event(SESSION_CLOSED, session.closed_at_us, name | closed))
    return found
