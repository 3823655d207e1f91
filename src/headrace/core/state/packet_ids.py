"""Packet ids towards subscribers: which number an entry is sent under, and which numbers are free.

A direct entry usually has an id computed from its serial number, 1 to 49151. Above are the ids that a record gives: to
the draws of shared subscriptions, and to a direct entry whose computed id an older one still has (docs/adr/0003, 0011).
"""

from __future__ import annotations

from mypy_extensions import i64

from headrace.core.records.record import DIRECT_IDS, UPPER_ID_LAST, UPPER_IDS


class PacketIds:
    """Says how many ids there are: fixed for every journal, since they are in it. A model makes them few, to use them
    up."""

    def __init__(self, direct: i64 = DIRECT_IDS, upper: i64 = UPPER_IDS) -> None:
        self.direct: i64 = direct
        self.upper: i64 = upper  # of them in use at a time


class Bound:
    """The packet ids that records gave to direct entries of a session, and the other way round."""

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
        """Release the id of an entry that is finished, or will never be sent. Nothing happens if it has none."""
        packet_id = self.ids.pop(serial, 0)
        if packet_id:
            del self.serials[packet_id]

    def release_between(self, first: int, end: int) -> None:
        """Release the ids of the serial numbers from `first` up to `end`."""
        if end - first < len(self.ids):
            for serial in range(first, end):
                self.release(serial)
        else:
            for serial in [held for held in self.ids if first <= held < end]:
                self.release(serial)

    def rows(self) -> list[int]:
        """Return serial number and id of each, flat, as they stand in a snapshot."""
        return [number for serial in sorted(self.ids) for number in (serial, self.ids[serial])]
