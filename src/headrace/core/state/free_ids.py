"""Which packet id above the direct ones is free in a session: for a draw of a shared subscription, or for a direct entry.

Draws and direct entries take them from opposite ends of the range, each in turn (docs/adr/0003, 0011).
"""

from __future__ import annotations

from headrace.core.records.record import UPPER_ID_FIRST, UPPER_ID_LAST
from headrace.core.state.groups import Membership, membership_in, membership_of
from headrace.core.state.packet_ids import Bound
from headrace.core.state.session import Session


def has_free_id(session: Session) -> bool:
    """Return whether one more entry can get an id above the direct ones."""
    return _used(session) < session.tenant.ids.upper


def has_id_to_spare(session: Session) -> bool:
    """Return whether an entry that does not exist yet may have one: not more than half of them are used so, and no
    draw waits for what does not come."""
    return 2 * (_used(session) + 1) <= session.tenant.ids.upper


def _used(session: Session) -> int:
    membership = membership_of(session)
    used = 0
    if membership is not None:
        used = len(membership.draws)
        if membership.borrower is not None:
            used += membership.borrower.ids_taken()
    queue = session.queue
    if queue is not None and queue.bound is not None:
        used += len(queue.bound.ids)
    return used


def free_draw_id(session: Session) -> int:
    """Return an id for a draw, 0 when all are taken. The ids are used in turn, so that one is not soon seen again."""
    membership = membership_in(session)
    packet_id = _free_id(session, membership.next_id, 1)
    if packet_id:
        membership.next_id = _beside(packet_id, 1)
    return packet_id


def free_bound_id(session: Session, bound: Bound) -> int:
    """Return an id for a direct entry, 0 when all are taken; from the other end than draws."""
    packet_id = _free_id(session, bound.next_id, -1)
    if packet_id:
        bound.next_id = _beside(packet_id, -1)
    return packet_id


def _free_id(session: Session, start: int, step: int) -> int:
    """Return a free id, 0 when all are taken. The search is one look in the mean: each turn through the range passes
    every taken one once."""
    if not has_free_id(session):
        return 0
    membership = membership_of(session)
    queue = session.queue
    bound = None if queue is None else queue.bound
    packet_id = start if start >= UPPER_ID_FIRST else UPPER_ID_FIRST
    while (membership is not None and _has_id(membership, packet_id)) or (
        bound is not None and packet_id in bound.serials
    ):
        packet_id = _beside(packet_id, step)
    return packet_id


def _has_id(membership: Membership, packet_id: int) -> bool:
    if packet_id in membership.draws:
        return True
    borrower = membership.borrower
    return borrower is not None and borrower.has_id(packet_id)


def _beside(packet_id: int, step: int) -> int:
    """Return the next id of the range in this direction; behind its end comes the other end."""
    beside = packet_id + step
    if beside > UPPER_ID_LAST:
        return UPPER_ID_FIRST
    return UPPER_ID_LAST if beside < UPPER_ID_FIRST else beside
