"""One session's queue with a store behind it: what is known of its stream, and what the policy asks of the session.

Runs on the loop. What the journal says of it is `rows`; all else is forgotten at a crash and found out again.
"""

from __future__ import annotations

from mypy_extensions import i64, mypyc_attr

from headrace.core.ports.queue_store import Context, Primary, QueueName
from headrace.core.storing.rows import Extent, StoredRows


@mypyc_attr(allow_interpreted_subclasses=True)
class Waiting:
    """The entries of a session that wait, as the journal has them, by serial number. All of them are durable."""

    def newest(self) -> i64:
        """Return the serial number of the last entry."""
        raise NotImplementedError

    def entries(self, first: i64, count: i64, bytes_max: i64) -> list[bytes]:
        """Return what a store keeps of the entries from `first` on: `count` at most, one at least whatever its size, of
        `bytes_max` together; none if they cannot be read now. `queue_store.NOTHING` stands for one that is gone."""
        raise NotImplementedError

    def large_between(self, first: i64, last: i64, bytes_max: i64) -> i64:
        """Return the serial number of the first entry between two, both included, that is larger; 0 if none is."""
        raise NotImplementedError

    def agrees(self, serial: i64, entry: bytes, bytes_max: i64) -> bool:
        """Return whether what a store has under a serial number is what waits under it, as far as the journal still has
        that; entries of more than `bytes_max` are there as IN_JOURNAL. False where that cannot be told now."""
        raise NotImplementedError

    def context(self) -> Context:
        """Return what is kept of the client beside its queue."""
        raise NotImplementedError

    def loaded(self, first: i64, entries: list[bytes | None]) -> None:
        """Take the entries from the serial number `first` on that were read back; None: the store has forgotten it."""
        raise NotImplementedError

    def not_now(self) -> None:
        """Note that what was asked for could not be read now."""
        raise NotImplementedError


class StoredQueue:
    """A queue and its place in a store. Serial numbers throughout."""

    def __init__(self, tenant: str, client_id: str, incarnation: int, waiting: Waiting) -> None:
        self.tenant = tenant
        self.client_id = client_id
        self.incarnation = incarnation
        self.waiting = waiting
        self.rows = StoredRows()
        self.floor: i64 = 1  # durable: what is below is finished
        self.asked: i64 = (
            0  # what the journal was asked to let go of; `rows` says up to where that is durable
        )
        self.ripe: i64 = 0  # what has outlasted its window
        self.stream: Extent | None = None  # what is put next goes there
        self.used: i64 = 0  # the highest generation that was tried
        self.primary: Primary | None = None  # who has taken all that is in the stream and not let go of
        self.compares = False  # it is to be looked at before anything else
        self.compared_for: i64 = 0  # what may be let go of if the look finds it
        self.pending: i64 = 0  # the put or the look that is not answered
        self.reading: i64 = 0  # the read that is not answered
        self.trimming: i64 = 0  # the trim that is not answered
        self.trimmed: i64 = 0
        self.is_ready = False  # it has its turn
        self.failures = 0  # in a row
        self.ended = False
        # The window: what ages, and what is put meanwhile and ages next.
        self.stamp: i64 = 0
        self.aging: i64 = 0
        self.fresh: i64 = 0
        self.fresh_due_ms: i64 = 0

    def name(self, journal: str, generation: i64) -> QueueName:
        """Return what its stream of a generation is called."""
        return QueueName(self.tenant, self.client_id, journal, int(generation), self.incarnation)

    def begin(self, least: i64) -> Extent:
        """Make the next stream, in which there is nothing yet: it begins with what the journal still has. Its generation
        is above `least`."""
        self.used = max(self.used, self.rows.generation, least) + 1
        first = max(self.asked + 1, self.floor)
        self.stream = Extent(self.used, first, first - 1)
        self.primary = None
        return self.stream

    def uses(self, generation: i64) -> bool:
        """Return whether a stream of this generation holds something, or is to be put into, or may be."""
        if generation > self.used or (self.stream is not None and self.stream.generation == generation):
            return True
        return any(extent.generation == generation for extent in self.rows.extents)

    def adopt(self, base: i64) -> None:
        """Go on from what the journal says, after a start: all windows begin anew. Streams up to the generation `base`
        are of a history that was cut off since, and are only read."""
        rows = self.rows
        self.asked = self.ripe = rows.let_go
        self.used = rows.generation
        newest = rows.extents[-1] if rows.extents else None
        if newest is not None and newest.generation > base:
            self.stream = Extent(newest.generation, newest.first, newest.up_to)
            self.compares = newest.up_to > self.asked

    def keeps_from(self) -> i64:
        """Return the lowest serial number that the journal has to keep on behalf of this queue."""
        return max(self.rows.let_go + 1, self.floor)
