"""The outbound queue of one session: what is in flight and what waits behind it.

Entries are numbered 1, 2, 3, ... in journal order (the serial number); the packet id is a function of the serial number,
or, where an older entry still has that id, one that a record gives: so after kill -9 the same message has the same packet
id (decisions 6-9, docs/adr/0003 and 0011). An entry is a *reference*, a 64-bit number: the message itself stays in the
journal::

    bits 63-20 journal offset | bits 19-3 index of the subscription identifiers | bit 2 retain | bits 1-0 QoS

`inflight` holds what may have been sent and is not finished, `backlog` what was not sent yet. The serial number of
the backlog's head is `next_serial - len(backlog)`; trims and expiry leave gaps in the numbers, never in the order.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from headrace.core.records.record import DIRECT_IDS
from headrace.core.state.backlog import REF_OFFSET_SHIFT, Backlog, BacklogSpace
from headrace.core.state.inflight import NOT_IN_FLIGHT, Window
from headrace.core.state.packet_ids import Bound
from headrace.core.storing.rows import StoredRows

REF_RETAIN: Final = 0x4
REF_QOS: Final = 0x3
REF_IDS_MAX: Final = (1 << 17) - 1


def reference(offset: i64, ids_index: i64, retain: bool, qos: i64) -> i64:
    """Pack a reference to the message at `offset`."""
    return offset << REF_OFFSET_SHIFT | ids_index << 3 | (REF_RETAIN if retain else 0) | qos


class OutboundQueue:
    """Serial numbers, in-flight window and backlog of a session. Holds no message."""

    def __init__(self, space: BacklogSpace, direct: i64 = DIRECT_IDS) -> None:
        self.direct: i64 = direct  # packet ids that are computed from serial numbers: 1 to `direct`
        self.next_serial: i64 = 1
        self.backlog = Backlog(space)
        self.inflight = Window()
        self.resend: list[int] = []  # NOT-ACKED serials to send again on this connection, newest first
        self.resend_gone: i64 = 0  # of them, finished meanwhile
        self.sent_limit: i64 = 0  # durable: nothing beyond it may have been sent
        self.reserving: i64 = 0  # the sent_limit that is on its way to the journal
        self.boundary: i64 = 1  # durable: below it all are finished, but those that are held
        self.boundary_due: i64 = direct >> 1  # serials beyond it ask for a new one
        self.boundary_moves: bool = False
        self.held: dict[int, int] | None = None  # serials in flight below the boundary, by their computed ids
        self.bound: Bound | None = None  # ids that records gave
        self.written: i64 = -1  # the `stamp` that the newest snapshot has
        self.rows: StoredRows | None = None  # what of it a store has, once one has had something

    def floor(self) -> i64:
        """Return the lowest serial number that is not finished."""
        first = self.inflight.first()
        return first if first else self.next_serial - self.backlog.count

    def head_serial(self) -> i64:
        """Return the serial number of the backlog's head (= the next one to be sent)."""
        return self.next_serial - self.backlog.count

    def last_sent(self) -> int:
        """Return the highest serial number taken out of the backlog so far: sent, or dropped unsent."""
        return self.next_serial - self.backlog.count - 1

    def stamp(self) -> i64:
        """Return a number that grows with every change but one: a `closed` session's `sent_limit` is taken back."""
        last_sent = self.next_serial - self.backlog.count - 1
        finished = last_sent - self.inflight.count
        return self.next_serial + last_sent + 2 * finished + self.inflight.received + self.sent_limit

    def push(self, ref: int, size: int) -> None:
        """Give a new entry its number and put it behind the backlog."""
        self.backlog.push(ref, size)
        self.next_serial += 1

    def take(self) -> int:
        """Move the head of the backlog into the window; returns its serial number."""
        serial = self.next_serial - self.backlog.count
        self.inflight.put(serial, self.backlog.peek())
        self.backlog.pop()
        return serial

    def drop_head(self, count: i64) -> None:
        """Drop the oldest `count` unsent entries."""
        if self.bound is not None:
            first = self.next_serial - self.backlog.count
            self.bound.release_between(first, first + count)
        for _ in range(count):
            self.backlog.skip()

    def finish(self, serial: i64) -> bool:
        """Forget an entry in flight: acked, refused or dropped. Unknown serials are ignored (replays): False."""
        if self.bound is not None:
            self.bound.release(serial)
        resend = self.resend
        if resend and resend[-1] <= serial <= resend[0] and self.inflight.get(serial) != NOT_IN_FLIGHT:
            self.resend_gone += 1
        return self.inflight.remove(serial)

    def unfinished(self) -> i64:
        return self.inflight.count + self.backlog.count

    def start_resend(self) -> None:
        """Begin to send again all that is in flight, oldest first."""
        self.resend = self.inflight.serials()[::-1]
        self.resend_gone = 0
        nameless = self.nameless()
        if nameless:
            self.resend = [serial for serial in self.resend if serial not in nameless]

    def stop_resend(self) -> None:
        self.resend = []
        self.resend_gone = 0

    # Packet ids

    def packet_id(self, serial: i64) -> i64:
        """Return the id an entry is sent under."""
        if self.bound is not None:
            given = self.bound.ids.get(serial)
            if given is not None:
                return given
        return 1 + (serial - 1) % self.direct

    def serial_of(self, packet_id: i64) -> i64:
        """Return the serial number in flight under `packet_id`, 0 if there is none."""
        serial = self.latest_of(packet_id)
        if self.inflight.get(serial) == NOT_IN_FLIGHT:
            return 0
        return serial

    def latest_of(self, packet_id: i64) -> i64:
        """Return the only serial number that can be in flight under `packet_id`; 0 or less if none can.

        Of the entries with this computed id it is a held one, or else the highest that was sent: every one between the
        two would be below the boundary, and so finished or held.
        """
        if packet_id > self.direct or self.held is not None or self.bound is not None:
            return self._latest_named(packet_id)
        last = self.inflight.last()
        return last - (last - packet_id) % self.direct

    def _latest_named(self, packet_id: i64) -> i64:
        bound = self.bound
        if packet_id > self.direct:
            return 0 if bound is None else bound.serials.get(packet_id, 0)
        if self.held is not None:
            held = self.held.get(packet_id)
            if held is not None and self.inflight.get(held) != NOT_IN_FLIGHT:
                return held
        last = self.inflight.last()
        serial: i64 = last - (last - packet_id) % self.direct
        if bound is not None and serial in bound.ids:
            return 0
        return serial

    def collides(self, serial: i64) -> bool:
        """Return whether a held entry may still have the computed id of an unsent one."""
        held = self.held
        if held is None or 1 + (serial - 1) % self.direct not in held:
            return False
        return self.bound is None or serial not in self.bound.ids

    def nameless(self) -> set[int]:
        """Return the entries in flight whose id an older one has. They were never sent; older journals have some."""
        found: set[int] = set()
        inflight = self.inflight
        if inflight.last() - inflight.first() < self.direct:
            return found
        taken: set[int] = set()
        for serial in inflight.serials():
            packet_id: int = self.packet_id(serial)
            if packet_id in taken:
                found.add(serial)
            taken.add(packet_id)
        return found

    # The boundary

    def next_boundary(self) -> i64:
        """Return where the boundary can be once what is noted by now is durable: the floor, or a quarter of the range
        behind the next entry where one has been held for longer than that."""
        lag: i64 = self.next_serial - self.backlog.count - (self.direct >> 2)
        return max(self.floor(), lag)

    def held_below(self, boundary: i64) -> dict[int, int] | None:
        """Return the entries in flight below the boundary that have a computed id, by that id."""
        if self.inflight.count == 0 or self.inflight.first() >= boundary:
            return None
        bound = self.bound
        held: dict[int, int] = {}
        for serial in self.inflight.serials_below(boundary):
            if bound is None or serial not in bound.ids:
                held.setdefault(1 + (serial - 1) % self.direct, serial)
        return held or None

    def set_boundary(self, boundary: i64, held: dict[int, int] | None) -> None:
        self.boundary = boundary
        self.boundary_due = boundary + (self.direct >> 1)
        self.boundary_moves = False
        self.held = held
        if self.bound is not None and not self.bound.ids:
            self.bound = None

    def settle(self) -> None:
        """Take all that is known for durable: a broker has just started."""
        boundary = self.next_boundary()
        self.set_boundary(boundary, self.held_below(boundary))

    # The fold: changes that come from journal records; the others are in `queue_replay`.

    def close(self, limit: int) -> None:
        """Note that the connection has ended, and that nothing beyond `limit` was sent."""
        self.replay_sent_up_to(limit)
        self.sent_limit = limit
        self.reserving = limit
        if self.bound is not None:
            self.bound.release_between(limit + 1, 1 << 62)

    def replay_sent_up_to(self, serial: int) -> None:
        """Move everything up to `serial` into flight: it may have been sent."""
        while self.backlog.count and self.next_serial - self.backlog.count <= serial:
            self.take()

    # What lies in a store

    def stored_rows(self) -> StoredRows:
        """Return what a store has of the queue, made on first use."""
        rows = self.rows
        if rows is None:
            rows = self.rows = StoredRows()
        return rows

    def let_go(self) -> i64:
        """Return up to which serial number the journal need not keep messages, 0: it keeps all."""
        rows = self.rows
        return 0 if rows is None else rows.let_go

    def needed_in_flight(self) -> list[int]:
        """Return the references in flight whose messages the journal has to keep."""
        let_go = self.let_go()
        return [ref for serial, ref in self.inflight.items() if serial > let_go]

    def lowest_offset(self) -> int:
        """Return the oldest journal offset that is still referred to, -1 if none. What a store has alone is not read
        there any more."""
        let_go = self.let_go()
        lowest = self.backlog.lowest_offset(let_go + 1 - self.head_serial())
        for ref in self.inflight.refs() if let_go == 0 else self.needed_in_flight():
            offset = ref >> REF_OFFSET_SHIFT
            if lowest == -1 or offset < lowest:
                lowest = offset
        return lowest
