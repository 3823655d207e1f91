"""Packet ids towards subscribers: which number an entry is sent under, and which numbers are free.

A direct entry usually has an id computed from its serial number, 1 to 49151. Above are the ids that a record gives: to
the draws of shared subscriptions, and to a direct entry whose computed id an older one still has (docs/adr/0003, 0011).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from headrace.core.records.record import DIRECT_IDS, UPPER_ID_FIRST, UPPER_ID_LAST, UPPER_IDS

if TYPE_CHECKING:
    from headrace.core.state.session import Session


class PacketIds:
    """How many ids there are: fixed for every journal, since they are in it. A model makes them few, to use them up."""

    def __init__(self, direct: i64 = DIRECT_IDS, upper: i64 = UPPER_IDS) -> None:
        self.direct: i64 = direct
        self.upper: i64 = upper  # of them in use at a time


class Bound:
    """The ids that records gave to direct entries of a session, and the other way round."""

    def __init__(self) -> None:
        self.ids: dict[int, int] = {}
        self.serials: dict[int, int] = {}
        self.next_id: int = UPPER_ID_LAST

    def bind(self, serial: int, packet_id: int) -> None:
        self.release(serial)
        before = self.serials.get(packet_id)
        if before is not None:
            del self.ids[before]
        self.ids[serial] = packet_id
        self.serials[packet_id] = serial

    def release(self, serial: int) -> None:
        """The entry is finished, or will never be sent: its id is free. Nothing happens if it has none."""
        packet_id = self.ids.pop(serial, 0)
        if packet_id:
            del self.serials[packet_id]

    def release_between(self, first: int, end: int) -> None:
        """Those of the serial numbers from `first` up to `end`."""
        if end - first < len(self.ids):
            for serial in range(first, end):
                self.release(serial)
        else:
            for serial in [held for held in self.ids if first <= held < end]:
                self.release(serial)

    def rows(self) -> list[int]:
        """Serial number and id of each, flat, as they stand in a snapshot."""
        return [number for serial in sorted(self.ids) for number in (serial, self.ids[serial])]


def has_free_id(session: Session) -> bool:
    """Whether one more entry can get an id above the direct ones."""
    return _used(session) < session.tenant.ids.upper


def has_id_to_spare(session: Session) -> bool:
    """Whether an entry that does not exist yet may have one: not more than half of them are used so, and no draw waits
    for what does not come."""
    return 2 * (_used(session) + 1) <= session.tenant.ids.upper


def _used(session: Session) -> int:
    used = 0
    if session.draws is not None:
        used = len(session.draws)
    queue = session.queue
    if queue is not None and queue.bound is not None:
        used += len(queue.bound.ids)
    return used


def free_draw_id(session: Session) -> int:
    """An id for a draw, 0 when all are taken. They are used in turn, so that one is not soon seen again."""
    packet_id = _free_id(session, session.next_shared_id, 1)
    if packet_id:
        session.next_shared_id = _beside(packet_id, 1)
    return packet_id


def free_bound_id(session: Session, bound: Bound) -> int:
    """An id for a direct entry, 0 when all are taken; from the other end than draws."""
    packet_id = _free_id(session, bound.next_id, -1)
    if packet_id:
        bound.next_id = _beside(packet_id, -1)
    return packet_id


def _free_id(session: Session, start: int, step: int) -> int:
    """The search is one look in the mean: each turn through the range passes every taken one once."""
    if not has_free_id(session):
        return 0
    draws = session.draws
    queue = session.queue
    bound = None if queue is None else queue.bound
    packet_id = start if start >= UPPER_ID_FIRST else UPPER_ID_FIRST
    while (draws is not None and packet_id in draws) or (bound is not None and packet_id in bound.serials):
        packet_id = _beside(packet_id, step)
    return packet_id


def _beside(packet_id: int, step: int) -> int:
    """The next id of the range in this direction; behind its end comes the other end."""
    beside = packet_id + step
    if beside > UPPER_ID_LAST:
        return UPPER_ID_FIRST
    return UPPER_ID_LAST if beside < UPPER_ID_FIRST else beside
