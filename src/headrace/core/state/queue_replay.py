"""The fold of a session's queue: the changes of it that records of the journal tell of.

What happens live takes effect when it is appended, and is noted by the session; a replay makes the same of its records.
"""

from __future__ import annotations

from mypy_extensions import i64

from headrace.core.state.inflight import NOT_IN_FLIGHT
from headrace.core.state.packet_ids import Bound
from headrace.core.state.queue import OutboundQueue


def replay_bound(queue: OutboundQueue, serial: int, packet_id: int) -> None:
    """Apply a record that gives an entry an id. An entry that was dropped in the same batch, before it was sent,
    needs none."""
    if serial < queue.next_serial - queue.backlog.count and queue.inflight.get(serial) == NOT_IN_FLIGHT:
        return
    if queue.bound is None:
        queue.bound = Bound()
    queue.bound.bind(serial, packet_id)


def replay_finished(queue: OutboundQueue, serial: i64) -> None:
    backlog = queue.backlog
    if backlog.count and serial == queue.next_serial - backlog.count:
        if queue.bound is not None:
            queue.bound.release(serial)
        backlog.skip()  # the usual one is the next of all: it need not go through the window
        return
    queue.replay_sent_up_to(serial)
    queue.finish(serial)


def replay_received(queue: OutboundQueue, serial: int) -> None:
    queue.replay_sent_up_to(serial)
    queue.inflight.receive(serial)


def replay_dropped(queue: OutboundQueue, first: int, count: int) -> int:
    """Drop serials `first` to `first` + `count` - 1, as a record says. Returns how many of them were still here.

    Fewer when a snapshot was taken between a drop and its record: then it has counted them too.
    """
    queue.replay_sent_up_to(first - 1)
    waiting: i64 = min(queue.backlog.count, max(0, first + count - queue.head_serial()))
    queue.drop_head(waiting)
    removed: int = waiting
    if removed < count and queue.inflight.count:
        for serial in range(first, first + count):
            removed += queue.finish(serial)  # given up when it was to be sent again
    return removed
