"""The queues of a shard's sessions that have a store behind them: which ones, what the policy is told of them, and what
it writes down (ADR 0034).

Runs on the loop. A queue gets a store when its client has been away for a second with something waiting, or is so far
behind that pages would be written: what is consumed soon never touches one. From then on the policy (`core.storing`)
puts what waits; records of it go through group commit as every progress does. Whoever is not known here is read from the
journal, at the cost of one look into a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from mypy_extensions import i64, mypyc_attr

from headrace.core.commit import GroupCommit
from headrace.core.outbound.delivery import Stores
from headrace.core.outbound.stored_session import NOBODY, StoredSession
from headrace.core.ports.journal import Absent
from headrace.core.ports.link import WorkerPort
from headrace.core.ports.queue_reader import QueueReader
from headrace.core.ports.queue_store import Found, Primary, QueueName, QueueStore, StoreListener
from headrace.core.ports.waiting import QueueOwner, Waiting
from headrace.core.records.message import Message
from headrace.core.state.session import Session
from headrace.core.state.state import Fold
from headrace.core.storing.notes import StoreNotes, StoringSettings
from headrace.core.storing.rows import StoredRows
from headrace.core.storing.stored_queue import StoredQueue
from headrace.core.storing.storing import Storing

AWAY_MS: Final = 1000  # with something waiting, before it is put
LOOKS_AT_ONCE: Final = 500  # queues that a call of the timer looks at
OF_START_AT_ONCE: Final = (
    5000  # sessions of before the start that it looks at, most of which have nothing waiting
)
SWEEP_MS: Final = 60_000  # behind the start: streams of sessions that ended in a crash are looked for


class Woken(StoreListener):
    """Passes the answers of a store on, and asks for a tick: what comes next is asked for in it."""

    def __init__(self, storing: Storing, worker: WorkerPort) -> None:
        self._storing = storing
        self._worker = worker

    def took(self, number: i64, outcome: int, primary: Primary | None) -> None:
        self._storing.took(number, outcome, primary)
        self._worker.request_tick()

    def looked(self, number: i64, outcome: int, found: Found | None, primary: Primary | None) -> None:
        self._storing.looked(number, outcome, found, primary)
        self._worker.request_tick()

    def read_back(
        self, number: i64, outcome: int, up_to: i64, serials: list[int], entries: list[bytes]
    ) -> None:
        self._storing.read_back(number, outcome, up_to, serials, entries)
        self._worker.request_tick()

    def finished(self, number: i64, outcome: int) -> None:
        self._storing.finished(number, outcome)

    def seen(self, number: i64, outcome: int) -> None:
        self._storing.seen(number, outcome)
        self._worker.request_tick()

    def scanned(self, number: i64, outcome: int, names: list[QueueName], cursor: str) -> None:
        self._storing.scanned(number, outcome, names, cursor)

    def lost(self, primary: Primary) -> None:
        self._storing.lost(primary)

    def has_room(self) -> None:
        self._storing.has_room()
        self._worker.request_tick()


class Placed:
    """A store that queues may be placed in. `digest` is that of its name, never 0; `name` is what it is called where
    people read it, without a password."""

    def __init__(self, digest: int, name: str, store: QueueStore) -> None:
        self.digest = digest
        self.name = name
        self.store = store


@mypyc_attr(allow_interpreted_subclasses=True)
class Choosing:
    """Says which store a session is to have. `types`: those of sessions of which some have one."""

    def __init__(self, types: list[int]) -> None:
        self.types = types

    def store_of(self, tenant: str, session_type: int, client_id: str) -> int:
        """Return the digest of the store that a session is to have, 0: none. Asked when a session has waited for long
        enough, at most once a second for each."""
        raise NotImplementedError


class StoredQueues(QueueReader, Stores):
    """The queues of one shard that have something in a store, or are about to."""

    def __init__(
        self,
        fold: Fold,
        commit: GroupCommit,
        journal: QueueReader,
        worker: WorkerPort,
        placed: list[Placed],
        choosing: Choosing,
        settings: StoringSettings,
    ) -> None:
        """Begin with the queues of which the journal says that a store has something. Those whose store is not here are
        for `homeless`."""
        self._fold = fold
        self._commit = commit
        self._journal = journal
        self._worker = worker
        self.waiting = journal.waiting
        self._long: i64 = 2 * worker.settings.backlog_page
        self.storings: list[tuple[str, Storing]] = []
        self._choosing = choosing
        self._of_digest: dict[int, Storing] = {}
        self._placed: dict[int, Placed] = {}
        self._known: dict[int, StoredSession] = {}  # by incarnation
        self._soon: dict[Session, int] = {}  # when they may be put, soonest first
        self._moving: dict[StoredSession, None] = {}  # their floors may rise
        self._sweep_at_ms: i64 = worker.clock.mono_ms + SWEEP_MS
        for one in placed:
            storing = Storing(one.store, _Notes(self), worker.clock, settings)
            one.store.listener = Woken(storing, worker)
            self.storings.append((one.name, storing))
            self._of_digest[one.digest] = storing
            self._placed[one.digest] = one
        for session in list(fold.in_stores.values()):
            self._adopt(session)
        self._of_start = list(fold.by_incarnation.values())  # those that are still to be looked at

    def _adopt(self, session: Session) -> None:
        """Go on with a queue of which a store has something, or had."""
        queue = session.queue
        if queue is None or queue.rows is None or not queue.rows.extents:
            self._fold.in_stores.pop(session.incarnation, None)
            return
        digest = digest_of(session, self._choosing)
        storing = self._of_digest.get(digest)
        if storing is None:
            return
        known = self._make(session, storing, digest)
        storing.adopt(known.queue)
        storing.consumed(known.queue, known.queue.floor)
        self._moving[known] = None

    def _make(self, session: Session, storing: Storing, digest: int) -> StoredSession:
        known = StoredSession(session, storing, self._journal, self._long)
        rows = known.queue.rows
        placed = self._placed[digest]
        rows.store = placed.store.place(placed.name, session.tenant.name, session.client_id)
        if rows.placed != digest:
            self._leave(session, rows)
            rows.place(digest)
            session.changed = True
            self._commit.progress.placed(session.incarnation, digest)
        self._known[session.incarnation] = known
        self._fold.in_stores[session.incarnation] = session
        return known

    def _leave(self, session: Session, rows: StoredRows) -> None:
        """Delete what the store of before has of a queue, where it is here: the journal has all of it."""
        storing = self._of_digest.get(rows.placed)
        if storing is not None:
            queue = StoredQueue(session.tenant.name, session.client_id, session.incarnation, NOBODY)
            queue.rows.load(rows.fields())
            storing.end(queue)

    # QueueReader

    def attach(self, waiting: Waiting) -> None:
        self.waiting = waiting
        self._journal.attach(waiting)

    def fetch(self, owner: QueueOwner, serial: i64, ref: int) -> Message | Absent:
        if self._known and isinstance(owner, Session):
            known = self._known.get(owner.incarnation)
            if known is not None:
                self._moving[known] = None
                return known.fetch(serial, ref)
        return self._journal.fetch(owner, serial, ref)

    def peek(self, owner: QueueOwner, serial: i64, ref: int) -> Message | Absent:
        return self._journal.peek(owner, serial, ref)

    # Stores: what delivery says

    def grown(self, session: Session) -> None:
        known = self._known.get(session.incarnation)
        if known is not None:
            self._moving[known] = None
            queue = session.queue
            if queue is not None and queue.floor() == known.noted and known.wants_put():
                known.storing.begin(known.queue)  # else once the policy knows how far the client is
        elif session not in self._soon and self._may_have_store(session):
            self._soon[session] = self._worker.clock.mono_ms + AWAY_MS

    def _may_have_store(self, session: Session) -> bool:
        return session.session_type in self._choosing.types and session.persistent and not session.stands_in

    # What takes effect

    def ended(self, incarnation: int) -> None:
        """Delete what a session has in its store: its end is durable."""
        known = self._known.pop(incarnation, None)
        if known is not None:
            self._moving.pop(known, None)
            known.storing.end(known.queue)
            known.part()

    def consumed(self, known: StoredSession, floor: i64) -> None:
        """Note that what is below the floor of a queue is durably finished."""
        if known.queue.ended:
            return
        known.storing.consumed(known.queue, floor)
        known.session.changed = True
        if known.wants_put():
            known.storing.begin(known.queue)

    def is_let_go(self, queue: StoredQueue, up_to: i64) -> None:
        """Note that LET_GO of a queue is durable."""
        known = self._known.get(queue.incarnation)
        if known is not None and known.queue is queue:
            known.storing.let_go_is_durable(queue, up_to)
            known.session.changed = True

    # What the policy says

    def note_stored(self, queue: StoredQueue, generation: i64, first: i64, up_to: i64) -> None:
        """Append STORED."""
        self._commit.progress.stored(queue.incarnation, generation, first, up_to)
        known = self._known.get(queue.incarnation)
        if known is not None:
            known.session.changed = True

    def note_let_go(self, queue: StoredQueue, up_to: i64) -> None:
        """Append LET_GO."""
        self._commit.progress.let_go(queue.incarnation, up_to)
        self._commit.then(None, partial(self.is_let_go, queue, up_to))

    def behind(self, call: Callable[[], None]) -> None:
        """Call this once all that was appended is durable. A journal that another process may own by now gets a record
        for it, which takes effect only while it is ours."""
        self._commit.then(None, call)

    def queue_of(self, incarnation: int) -> StoredQueue | None:
        """Return the queue of a session that has a store behind it."""
        known = self._known.get(incarnation)
        return None if known is None else known.queue

    def has_queue(self, tenant: str, client_id: str) -> bool:
        """Return whether a client has a queue here; True for an id that a store had to shorten, which names nobody."""
        found = self._fold.tenants.get(tenant)
        session = None if found is None else found.sessions.get(client_id)
        return "\0" in client_id or (session is not None and session.incarnation in self._known)

    def gives_up(self, incarnation: int, generation: i64) -> bool:
        """Return whether the stream of a session that is not known here may be deleted. A queue of the session that is
        begun later uses no generation up to it."""
        session = self._fold.by_incarnation.get(incarnation)
        if session is None:
            return incarnation not in self._fold.departing
        rows = session.outbound().stored_rows()
        if rows.extents:
            return False  # its store is not here
        rows.tried = max(rows.tried, generation)
        return True

    def rest(self) -> None:
        """Ask the stores for nothing more: nobody is connected, and the shard is given up, or the process stops. What was
        put and not answered is found out at the next start."""
        self.storings = []

    def let_go(self) -> None:
        """Refer to nothing any more, so that nothing of the shard stays."""
        self.rest()
        for known in self._known.values():
            known.queue.ended = True
            known.part()
        self._known, self._soon, self._moving = {}, {}, {}
        self._of_start = []
        self._of_digest = {}

    # Turns

    def ask_stores(self) -> bool:
        """Ask the stores for what comes next, at the end of a tick; return whether there is more."""
        more = False
        for _, storing in self.storings:
            if storing.has_work():
                storing.run()
                more = more or storing.has_work()
        return more

    def on_timer(self) -> None:
        """Do what time has decided: put what has waited for long enough, note what is finished, look at windows."""
        now_ms: i64 = self._worker.clock.mono_ms
        self._look_at_those_of_start(now_ms)
        self._begin_due(now_ms)
        self._note_floors()
        for _, storing in self.storings:
            storing.run()
        if now_ms >= self._sweep_at_ms:
            self._sweep_at_ms = 1 << 62
            for _, storing in self.storings:
                storing.removing.sweep()

    def _look_at_those_of_start(self, now_ms: i64) -> None:
        """Put what has been waiting since before the start, and since before there was a store: perhaps nothing more
        comes that would remind of it."""
        left: i64 = OF_START_AT_ONCE
        while self._of_start and left > 0:
            left -= 1
            session = self._of_start.pop()
            queue = session.queue
            if queue is None or queue.backlog.count == 0 or session.ended or session in self._soon:
                continue
            if session.incarnation not in self._known and self._may_have_store(session):
                self._soon[session] = now_ms + AWAY_MS

    def _begin_due(self, now_ms: i64) -> None:
        left: i64 = LOOKS_AT_ONCE
        while self._soon and left > 0:
            left -= 1
            session = next(iter(self._soon))
            if self._soon[session] > now_ms:
                break
            del self._soon[session]
            if not session.ended and session.incarnation not in self._known:
                self._begin(session)

    def _begin(self, session: Session) -> None:
        """Put what waits for a session into its store, if it has one and its client is away, or far behind."""
        queue = session.queue
        if queue is None or queue.backlog.count == 0:
            return
        if session.link is not None and queue.backlog.count < self._long:
            self._soon[session] = self._worker.clock.mono_ms + AWAY_MS  # it may go before anything more comes
            return
        digest = digest_of(session, self._choosing)
        storing = self._of_digest.get(digest)
        if storing is not None:
            storing.begin(self._make(session, storing, digest).queue)

    def _note_floors(self) -> None:
        """Tell the policy of what is finished, once that is durable. Queues whose clients are away move no further."""
        now_ms: i64 = self._worker.clock.mono_ms
        left: i64 = min(LOOKS_AT_ONCE, len(self._moving))
        while left > 0:
            left -= 1
            known = next(iter(self._moving))
            del self._moving[known]
            queue = known.session.queue
            if queue is None:
                continue
            floor = queue.floor()
            if floor > known.noted:
                known.noted = floor
                self._commit.then(None, partial(self.consumed, known, floor))
            if known.session.link is None:
                known.forget_read()
                if known.wants_put():
                    known.storing.begin(known.queue)
            elif queue.backlog.count or known.queue.floor < floor or not self._release(known):
                self._moving[known] = None
                if known.failed and known.storing.takes():
                    known.retry(now_ms)

    def _release(self, known: StoredSession) -> bool:
        """Forget a queue of which the store has nothing any more, and whose client has got everything. Returns False if
        something of it is under way."""
        if not known.storing.release(known.queue):
            return False
        session = known.session
        known.part()
        self._known.pop(session.incarnation, None)
        self._fold.in_stores.pop(session.incarnation, None)
        return True


class _Notes(StoreNotes):
    """Writes down what the policy decides, through the queues that it is about."""

    def __init__(self, stored: StoredQueues) -> None:
        self._stored = stored

    def stored(self, queue: StoredQueue, generation: i64, first: i64, up_to: i64) -> None:
        self._stored.note_stored(queue, generation, first, up_to)

    def let_go(self, queue: StoredQueue, up_to: i64) -> None:
        self._stored.note_let_go(queue, up_to)

    def behind(self, call: Callable[[], None]) -> None:
        self._stored.behind(call)

    def queue_of(self, incarnation: int) -> StoredQueue | None:
        return self._stored.queue_of(incarnation)

    def has_queue(self, tenant: str, client_id: str) -> bool:
        return self._stored.has_queue(tenant, client_id)

    def gives_up(self, incarnation: int, generation: i64) -> bool:
        return self._stored.gives_up(incarnation, generation)


def is_in_store_alone(session: Session) -> bool:
    """Return whether the journal need not have something that a session waits for."""
    queue = session.queue
    return queue is not None and queue.let_go() >= queue.floor()


def digest_of(session: Session, choosing: Choosing) -> int:
    """Return the digest of the store that a session's queue lies in, or is to lie in; 0: it has none. While a store alone
    has something of it, it stays there; else it is chosen again."""
    queue = session.queue
    if queue is not None and queue.rows is not None and queue.rows.placed and is_in_store_alone(session):
        return queue.rows.placed
    return choosing.store_of(session.tenant.name, session.session_type, session.client_id)


def homeless(fold: Fold, digests: list[int], choosing: Choosing) -> Session | None:
    """Return a session of which a store alone has something that is not among those with these digests; None if there is
    none."""
    for session in fold.in_stores.values():
        if is_in_store_alone(session) and digest_of(session, choosing) not in digests:
            return session
    return None
