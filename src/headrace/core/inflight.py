"""The outbound queue of one session: what is in flight and what waits behind it.

Entries are numbered 1, 2, 3, ... in journal order (the serial number); the packet id is a pure function of the serial
number, so that after kill -9 the same message has the same packet id (decisions 6-9, docs/adr/0003). An entry is a
*reference*, a 64-bit number: the message itself stays in the journal::

    bits 63-20 journal offset | bits 19-3 index of the subscription identifiers | bit 2 retain | bits 1-0 QoS

`inflight` holds what may have been sent and is not finished, `backlog` what was not sent yet. The serial number of
the backlog's head is `next_serial - len(backlog)`; trims and expiry leave gaps in the numbers, never in the order.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from headrace.core.backlog import REF_OFFSET_SHIFT, Backlog, BacklogSpace
from headrace.core.window import NOT_IN_FLIGHT, Window

DIRECT_IDS: Final = 49_151
WINDOW_SERIALS_MAX: Final = DIRECT_IDS - 1

REF_RETAIN: Final = 0x4
REF_QOS: Final = 0x3
REF_IDS_MAX: Final = (1 << 17) - 1


def reference(offset: i64, ids_index: i64, retain: bool, qos: i64) -> i64:
    """Pack a reference to the message at `offset`."""
    return offset << REF_OFFSET_SHIFT | ids_index << 3 | (REF_RETAIN if retain else 0) | qos


def packet_id_of(serial: i64) -> i64:
    """The packet id of a direct entry: 1 to 49151 (decisions 9)."""
    return 1 + (serial - 1) % DIRECT_IDS


class OutboundQueue:
    """Serial numbers, in-flight window and backlog of a session. Holds no message."""

    def __init__(self, space: BacklogSpace) -> None:
        self.next_serial: i64 = 1
        self.backlog = Backlog(space)
        self.inflight = Window()
        self.resend: list[int] = []  # NOT-ACKED serials to send again on this connection, newest first
        self.sent_limit: i64 = 0  # durable: nothing beyond it may have been sent
        self.reserving: i64 = 0  # the sent_limit that is on its way to the journal
        self.durable_floor: i64 = 1
        self.floor_pending: bool = False
        self.written: i64 = -1  # the `stamp` that the newest snapshot has

    def floor(self) -> i64:
        """The lowest serial number that is not finished."""
        first = self.inflight.first()
        return first if first else self.next_serial - self.backlog.count

    def head_serial(self) -> i64:
        """The serial number of the backlog's head (= the next one to be sent)."""
        return self.next_serial - self.backlog.count

    def last_sent(self) -> int:
        """The highest serial number taken out of the backlog so far."""
        return self.next_serial - self.backlog.count - 1

    def stamp(self) -> i64:
        """Grows with every change but one: a `closed` session's `sent_limit` is taken back."""
        last_sent = self.next_serial - self.backlog.count - 1
        finished = last_sent - self.inflight.count
        return self.next_serial + last_sent + 2 * finished + self.inflight.received + self.sent_limit

    def push(self, ref: int, size: int) -> None:
        """Number a new entry and put it behind the backlog."""
        self.backlog.push(ref, size)
        self.next_serial += 1

    def take(self) -> int:
        """Move the head of the backlog into the window; returns its serial number."""
        serial = self.next_serial - self.backlog.count
        self.inflight.put(serial, self.backlog.peek())
        self.backlog.pop()
        return serial

    def serial_of(self, packet_id: i64) -> i64:
        """The serial number in flight under `packet_id`, 0 if there is none."""
        serial = self.latest_of(packet_id)
        if self.inflight.get(serial) == NOT_IN_FLIGHT:
            return 0
        return serial

    def latest_of(self, packet_id: i64) -> i64:
        """The highest serial number sent so far that has `packet_id`; what is in flight under it can be no other
        (decisions 8). 0 or less if none was."""
        if not 1 <= packet_id <= DIRECT_IDS:
            return 0
        last: i64 = self.next_serial - self.backlog.count - 1
        return last - (last - packet_id) % DIRECT_IDS

    def finish(self, serial: i64) -> bool:
        """Forget an entry in flight: acked, refused or dropped. Unknown serials are ignored (replays): False."""
        return self.inflight.remove(serial)

    def unfinished(self) -> i64:
        return self.inflight.count + self.backlog.count

    # The fold: the same changes when they come from journal records.

    def replay_sent_up_to(self, serial: int) -> None:
        """Everything up to `serial` may have been sent: move it into flight."""
        while self.backlog.count and self.next_serial - self.backlog.count <= serial:
            self.take()

    def replay_finished(self, serial: i64) -> None:
        backlog = self.backlog
        if backlog.count and serial == self.next_serial - backlog.count:
            backlog.skip()  # the usual one is the next of all: it need not go through the window
            return
        self.replay_sent_up_to(serial)
        self.finish(serial)

    def replay_received(self, serial: int) -> None:
        self.replay_sent_up_to(serial)
        self.inflight.receive(serial)

    def replay_dropped(self, first: int, count: int) -> int:
        """Serials first to first + count - 1 were dropped. Returns how many of them were still here.

        Fewer when a snapshot was taken between a drop and its record: then it has counted them too.
        """
        self.replay_sent_up_to(first - 1)
        removed = 0
        while self.backlog.count and self.next_serial - self.backlog.count < first + count:
            self.backlog.skip()
            removed += 1
        if removed < count and self.inflight.count:
            for serial in range(first, first + count):
                removed += self.finish(serial)  # given up when it was to be sent again
        return removed

    def lowest_offset(self) -> int:
        """The oldest journal offset that is still referred to, -1 if none."""
        lowest = self.backlog.lowest_offset()
        for ref in self.inflight.refs():
            offset = ref >> REF_OFFSET_SHIFT
            if lowest == -1 or offset < lowest:
                lowest = offset
        return lowest
