"""Whose packets are not read, and why: a set of reasons for each connection, and the order in which they are read again.

Runs on the loop. A connection whose set is not empty parses nothing and reads nothing; nothing that it has sent is lost.
`hold` adds a reason and `free` takes it away. When the last one is gone the connection waits for its turn, which is a
reason as any other, and some are read again in each pass: each parses what was read before it was held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from headrace.core.commit import (
    ENTRY_BYTES,
    SHARE_BYTES_LEAST,
    SHARE_BYTES_MAX,
    SHARES_BYTES_MAX,
    GroupCommit,
)
from headrace.core.outbound.routing import many
from headrace.core.ports.link import (
    HELD_FOR_DISK,
    HELD_FOR_SHARD,
    HELD_FOR_SHARE,
    HELD_FOR_TURN,
    Crowd,
    Crowds,
    Link,
    WorkerPort,
)

if TYPE_CHECKING:
    from headrace.core.state.session import Commons, Session

DELIVERIES_MAX: Final = (
    1000  # that may wait for the messages of one publisher to many: others wait behind them
)
FORESEEN_BYTES: Final = 32 << 10  # of what a client has waiting: so often it is looked up how many it is for
LET_GO_AT_ONCE: Final = 50  # of those who are read again: each parses what was read before


@mypyc_attr(allow_interpreted_subclasses=True)
class SpaceListener:
    """Hears that what had to wait for space on the disk can be taken."""

    def space_returned(self) -> None:
        """Take up what waits. On the loop."""
        raise NotImplementedError


def weight_of(payload: bytes) -> i64:
    """Return the bytes that a message counts against its client's share while it waits to be durable. A byte of its
    payload is written twice: into the batch and to the disk."""
    size: i64 = len(payload)
    return ENTRY_BYTES + 2 * size


class Gate(Crowds):
    """The connections of one shard that are not read. `full`: neither this shard nor, as far as it waits for them,
    another one has space for what is published. `crowded` counts those who wait for other shards."""

    def __init__(self, commit: GroupCommit, worker: WorkerPort) -> None:
        """Begin with nobody held."""
        self.full = False
        self.crowded = 0
        self.space: SpaceListener | None = None
        self._commit = commit
        self._worker = worker
        self._settings = worker.settings
        self._own_full = self._others_full = False
        self._over: list[Link] = []  # held for their share
        self._dispersing: list[Crowd] = []  # that are crowded no more, while some wait there
        self._turns: list[Link] = []  # held for their turn alone

    def hold(self, link: Link, reason: i64) -> None:
        """Parse nothing more of this client, and read nothing, as long as there is this reason or another one."""
        before: i64 = link.holds
        if before & reason:
            return
        link.holds = before | reason
        if reason == HELD_FOR_SHARE:
            self._over.append(link)
        if before == 0:
            link.hold()

    def free(self, link: Link, reason: i64) -> None:
        """Take a reason away; without one left the client is read again when it is its turn."""
        before: i64 = link.holds
        if not before & reason:
            return
        left: i64 = before & ~reason
        if left == 0 and not link.closed:
            left = HELD_FOR_TURN
            self._turns.append(link)
            self._worker.request_tick()
        link.holds = left

    # A client's share of what may wait

    def foresee(
        self, link: Link, session: Session | None, tenant: Commons, topic: bytes, weight: i64
    ) -> None:
        """Look up how many a message is for, whose `weight` is part of what its client has waiting: not for each message,
        but once in FORESEEN_BYTES. `link.fan` is known when the first message takes effect, and until then a client could
        send any number of messages for very many. `session`: the publisher's, None where frames are spoken."""
        if link.deferred // FORESEEN_BYTES != (link.deferred - weight) // FORESEEN_BYTES:
            link.fan = max(link.fan, many(session, tenant, topic))

    def keep_share(self, link: Link, waiting: i64) -> None:
        """Hold a client that has more waiting than its share, or anything much while memory is short."""
        commit = self._commit
        full = waiting > SHARE_BYTES_LEAST and commit.pending_memory > self._settings.commit_bytes_max
        if full or commit.exceeds(waiting, SHARE_BYTES_MAX):
            self.hold(link, HELD_FOR_SHARE)

    def keep_pace(self, link: Link) -> None:
        """Hold a client where too much waits for the disk, or behind its messages for many, until some of that has taken
        effect (decision 39: paused reads)."""
        if self._commit.pending_bytes > self._settings.commit_bytes_max or (
            link.fan > 0 and link.fan * (link.deferred // ENTRY_BYTES) > DELIVERIES_MAX
        ):
            self.hold(link, HELD_FOR_SHARE)

    def _is_over(self, link: Link) -> bool:
        """Return whether half of what a client may have waiting is still exceeded, for a client that is held for it."""
        if self._commit.pending_memory > self._settings.commit_bytes_max:
            return True
        if link.fan * (link.deferred // ENTRY_BYTES) > DELIVERIES_MAX // 2:
            return True
        return self._commit.exceeds(link.deferred, SHARE_BYTES_MAX // 2)

    def let_go(self) -> None:
        """Free those whose share has become small, now that something has taken effect."""
        if not self._over:
            return
        over = self._over
        self._over = []
        for link in over:
            if link.closed:
                link.holds = 0
            elif self._is_over(link):
                self._over.append(link)
            else:
                self.free(link, HELD_FOR_SHARE)

    def waiting(self) -> int:
        """Return how many connections are held until a batch is durable, and not for a full disk as well."""
        return sum([link.holds & HELD_FOR_DISK == 0 for link in self._over])

    # A disk that is full, here or where other shards lie

    def set_storage_full(self, full: bool) -> None:
        """Note that the journal's disk is full, or has space again."""
        self._own_full = full
        self._note_space()

    def set_others_full(self, full: bool) -> None:
        self._others_full = full
        self._note_space()

    def _note_space(self) -> None:
        before, self.full = self.full, self._own_full or self._others_full
        if before and not self.full and self.space is not None:
            self.space.space_returned()

    # Shards that take less than comes

    def join(self, link: Link, crowd: Crowd) -> None:
        if link.crowd is None and not link.closed:
            link.crowd = crowd
            crowd.waiting[link] = None
            self.crowded += 1
            self.hold(link, HELD_FOR_SHARD)

    def leave(self, link: Link) -> None:
        crowd, link.crowd = link.crowd, None
        if crowd is not None and link in crowd.waiting:
            del crowd.waiting[link]
            self.crowded -= 1
            self.free(link, HELD_FOR_SHARD)

    def disperse(self, crowd: Crowd) -> None:
        crowd.crowded = False
        if crowd.waiting:
            if crowd not in self._dispersing:
                self._dispersing.append(crowd)
            self._worker.request_tick()

    def _call_in(self) -> None:
        """Free the next of those who wait where it is not crowded any more, until it is again by what they publish; the
        others keep their places."""
        for crowd in self._dispersing:
            waiting = crowd.waiting
            called = 0
            while waiting and called < LET_GO_AT_ONCE and not crowd.crowded:
                link, _ = waiting.popitem(False)
                self.crowded -= 1
                self.free(link, HELD_FOR_SHARD)
                called += not link.closed
        self._dispersing = [crowd for crowd in self._dispersing if crowd.waiting and not crowd.crowded]
        if self._dispersing:
            self._worker.request_tick()

    # Turns

    def read_on(self) -> None:
        """Read again, at the end of a tick, from some of those whose turn it is, until as much waits as all of them may
        have waiting."""
        if self._dispersing and len(self._turns) < LET_GO_AT_ONCE:
            self._call_in()
        turns = self._turns
        if not turns:
            return
        self._turns = []
        gone = 0
        while gone < min(len(turns), LET_GO_AT_ONCE):
            if gone and self._commit.deferred_bytes > SHARES_BYTES_MAX:
                break
            link = turns[gone]
            gone += 1
            self._take_turn(link)
        self._turns = turns[gone:] + self._turns
        if self._turns:
            self._worker.request_tick()

    def _take_turn(self, link: Link) -> None:
        left: i64 = link.holds & ~HELD_FOR_TURN
        link.holds = left
        if left & HELD_FOR_SHARD == 0:
            link.crowd = None
        if left == 0 and not link.closed:
            try:
                link.release()
            except Exception as error:  # noqa: BLE001
                self._worker.contain("read", link, error)
