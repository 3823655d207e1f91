"""What the policy of a store is told, what it counts, and who writes down what it decides."""

from __future__ import annotations

from collections.abc import Callable

from mypy_extensions import i64, mypyc_attr

from headrace.core.storing.stored_queue import StoredQueue


class StoringSettings:
    """What the policy is told. `journal`: the uuid of the shard's journal. `base`: generations up to it belong to a
    history that was cut off; a restore, an accepted shard and a division of the directory raise it. `trim_step`: so many
    finished entries are worth a request. `least`: the generations of streams that are begun are above it, so that no two
    owners of a journal begin one of the same name: what one of them deletes late, no other one has anything in."""

    def __init__(
        self, journal: str, window_ms: int, base: int = 0, trim_step: int = 64, least: int = 0
    ) -> None:
        self.journal = journal
        self.window_ms = window_ms
        self.base = base
        self.trim_step = trim_step
        self.least = least


@mypyc_attr(allow_interpreted_subclasses=True)
class StoreNotes:
    """Whoever writes records of what a store has, and knows the sessions of the shard."""

    def stored(self, queue: StoredQueue, generation: i64, first: i64, up_to: i64) -> None:
        """Append STORED: the stream of a generation holds what is between two serial numbers, without a gap."""
        raise NotImplementedError

    def let_go(self, queue: StoredQueue, up_to: i64) -> None:
        """Append LET_GO: the journal need not keep what is up to a serial number. `Storing.let_go_is_durable` is called
        once that is durable."""
        raise NotImplementedError

    def behind(self, call: Callable[[], None]) -> None:
        """Call this once all that was appended is durable, and the journal is known to be still this process's, if
        another one may own it by now; never, if one does."""
        call()

    def queue_of(self, incarnation: int) -> StoredQueue | None:
        """Return the queue of a session of this shard that has a store behind it."""
        raise NotImplementedError

    def has_queue(self, tenant: str, client_id: str) -> bool:
        """Return whether a client has a queue with a store behind it. True for a name that a store had to shorten."""
        raise NotImplementedError

    def gives_up(self, incarnation: int, generation: i64) -> bool:
        """Return whether the stream of a session of which the store has no queue may be deleted: the session has ended,
        or it lives and puts nothing into a stream of this generation from now on."""
        raise NotImplementedError


class StoreCounters:
    """What a store has done for the sessions of a shard, since the start."""

    def __init__(self) -> None:
        self.put: i64 = 0
        self.put_bytes: i64 = 0
        self.let_go: i64 = 0
        self.read: i64 = 0
        self.forgotten: i64 = 0  # entries that only the store had, and has no more
        self.compared: i64 = 0
        self.made_anew: i64 = 0
        self.refused: i64 = 0
        self.unsure: i64 = 0
        self.orphans: i64 = 0
        self.deletes_dropped: i64 = 0
