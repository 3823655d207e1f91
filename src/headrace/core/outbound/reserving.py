"""How far ahead a session may send, so that after any crash each entry in flight has one packet id of its own.

Runs on the loop. Two numbers of a session are durable before anything depends on them: `sent_limit`, up to which entries
may have been sent, and the *boundary*, below which all are finished but those that are `held`. Entries up to the
boundary plus the range of computed ids can only meet the id of a held one; then they get one of the upper range, by a
BOUND record in the batch of the `sent_limit` that covers them (docs/adr/0011).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from headrace.core.commit import Deferred, GroupCommit
from headrace.core.state.free_ids import free_bound_id, has_id_to_spare
from headrace.core.state.packet_ids import Bound

if TYPE_CHECKING:
    from headrace.core.ports.link import Link
    from headrace.core.state.queue import OutboundQueue
    from headrace.core.state.session import Session

_CHUNK_MIN: Final = 32
_CHUNK_MAX: Final = 1024


def reserve_chunk(window: int) -> int:
    """Return how far ahead of the last sent serial a session reserves its `sent_limit`."""
    return max(_CHUNK_MIN, min(_CHUNK_MAX, 2 * window))


class Pump:
    """Whoever sends a session what it has room for (`delivery`)."""

    def pump(self, session: Session) -> None:
        """Send what waits, as far as the window of its connection allows."""
        raise NotImplementedError


class Reserving:
    """Raises the limits of sessions, and gives ids to entries whose own may be taken."""

    def __init__(self, commit: GroupCommit, pump: Pump) -> None:
        self._commit = commit
        self._pump = pump

    def raise_limit(self, session: Session, link: Link, queue: OutboundQueue, serial: i64) -> None:
        """Ask the journal for a `sent_limit` a chunk beyond `serial`, the next one to be sent."""
        if queue.reserving > queue.sent_limit:
            return
        first = max(serial, queue.sent_limit + 1)
        limit = self._named_up_to(session, queue, first, serial + link.chunk, serial)
        if limit <= queue.sent_limit or limit < serial:
            return
        queue.reserving = limit
        if session.persistent:
            self._commit.progress.sent_limit(session.incarnation, limit)
        self._commit.defer(_LimitRaised(self._pump, session, limit))

    def move_boundary(self, session: Session, queue: OutboundQueue) -> None:
        """Move the boundary on, once the acknowledgements noted so far are durable. However long an entry is held, it
        moves: what is held is a list of its own."""
        if queue.boundary_moves:
            return
        boundary = queue.next_boundary()
        if boundary > queue.boundary:
            queue.boundary_moves = True
            self._commit.defer(_BoundaryMoved(self._pump, session, boundary, queue.held_below(boundary)))

    def limit_of_resumed(self, session: Session, chunk: i64) -> int:
        """Return the `sent_limit` of a session whose client is back: CONNACK waits for it and for the ids that go with
        it."""
        queue = session.queue
        if queue is None:
            return min(chunk, session.tenant.ids.direct)
        for serial in queue.nameless():
            self._bind(session, queue, serial)
        last_sent = queue.last_sent()
        return self._named_up_to(session, queue, last_sent + 1, last_sent + chunk, last_sent)

    def _named_up_to(self, session: Session, queue: OutboundQueue, first: i64, limit: i64, known: i64) -> i64:
        """See to it that every entry from `first` up to `limit` has an id that no other can have; returns the last that
        has, which is below `first` if none has. `known`: an entry that is there, as those in the backlog are."""
        known = max(known, queue.next_serial - 1)
        limit = min(limit, queue.boundary + queue.direct - 1)
        if queue.held is None:
            return max(limit, first - 1)
        serial = first
        while serial <= limit:
            if queue.collides(serial):
                if serial > known and not has_id_to_spare(session):
                    break
                if not self._bind(session, queue, serial):
                    break
            serial += 1
        return serial - 1

    def _bind(self, session: Session, queue: OutboundQueue, serial: int) -> bool:
        """Give an id of the upper range; False when none is free."""
        bound = queue.bound
        if bound is None:
            bound = Bound()
            queue.bound = bound
        packet_id = free_bound_id(session, bound)
        if packet_id == 0:
            return False
        bound.bind(serial, packet_id)
        session.changed = True
        if session.persistent:
            self._commit.progress.bound(session.incarnation, serial, packet_id)
        return True


class _LimitRaised(Deferred):
    """Goes on once a new `sent_limit` is durable."""

    def __init__(self, pump: Pump, session: Session, limit: int) -> None:
        super().__init__(session.link)
        self._pump = pump
        self._session = session
        self._limit = limit

    def run(self) -> None:
        queue = self._session.queue
        if queue is not None and queue.reserving == self._limit:
            queue.sent_limit = self._limit
            if queue.backlog.count:
                self._pump.pump(self._session)


class _BoundaryMoved(Deferred):
    """Goes on once the acknowledgements below the boundary are durable, but for those of the held entries."""

    def __init__(self, pump: Pump, session: Session, boundary: int, held: dict[int, int] | None) -> None:
        super().__init__(session.link)
        self._pump = pump
        self._session = session
        self._boundary = boundary
        self._held = held

    def run(self) -> None:
        queue = self._session.queue
        if queue is not None:
            queue.set_boundary(self._boundary, self._held)
            if queue.backlog.count:
                self._pump.pump(self._session)
