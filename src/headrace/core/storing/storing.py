"""The policy of a queue store: what is put when, what the journal lets go of, and what is made anew.

A pure state machine. Requests go out through the store's port, answers come back as calls, `run` is called with every
tick that has something for it; it knows no time but the clock's.

- One put or look of a session is unanswered at a time. What was put is followed by a *window*, during which the journal
  keeps it too (`windows`); then LET_GO is written. Only when that is durable the journal's floor moves, and only what is
  durably finished is trimmed or deleted.
- Whatever is not certain is looked at: after an answer that did not come, from another primary, after an error, after a
  start. A stream that is dense and reaches far enough is filled up; every other one is made anew under the next
  generation, with all that the journal still has.
- A queue that the store does not take now waits, for longer each time, and costs no other one anything.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final

from mypy_extensions import i64, mypyc_attr

from headrace.core.ports.clock import Clock
from headrace.core.ports.queue_store import (
    ABSENT,
    ANOTHER,
    DONE,
    IN_JOURNAL,
    REFUSED,
    SAME,
    THERE,
    UNSURE,
    Context,
    Found,
    Primary,
    QueueName,
    QueueStore,
    StoreListener,
)
from headrace.core.storing.requests import (
    CONTEXT,
    DELETE,
    LOOK,
    PUT,
    READ,
    SCAN,
    SIGHT,
    TRIM,
    Request,
    Requests,
)
from headrace.core.storing.rows import Extent
from headrace.core.storing.stored_queue import StoredQueue
from headrace.core.storing.windows import RIPE, TO_COMPARE, Windows

PATIENCE_MS: Final = 30_000  # without an answer: it will not come
REQUESTS_MAX: Final = 256  # under way
RIPE_AT_ONCE: Final = 500  # windows that are looked at in one pass
RETRY_MS: Final = 100
RETRY_MAX_MS: Final = 30_000
DELETES_MAX: Final = 100_000  # streams that wait to be deleted; a scan finds the others
ALWAYS: Final = -1  # a window that never ends
CONTEXT_GENERATION: Final = 0  # in the name of a context, which has none; streams begin with 1


class StoringSettings:
    """What the policy is told. `journal`: the uuid of the shard's journal. `base`: generations up to it belong to a
    history that was cut off; a restore, an accepted shard and a division of the directory raise it. `trim_step`: so many
    finished entries are worth a request."""

    def __init__(self, journal: str, window_ms: int, base: int = 0, trim_step: int = 64) -> None:
        self.journal = journal
        self.window_ms = window_ms
        self.base = base
        self.trim_step = trim_step


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

    def queue_of(self, incarnation: int) -> StoredQueue | None:
        """Return the queue of a session of this shard that has a store behind it."""
        raise NotImplementedError

    def lives(self, incarnation: int) -> bool:
        """Return whether there is a session of this incarnation."""
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


class Storing(StoreListener):
    """What a shard's sessions have in one store."""

    def __init__(self, store: QueueStore, notes: StoreNotes, clock: Clock, settings: StoringSettings) -> None:
        self.counters = StoreCounters()
        self._store = store
        self._notes = notes
        self._clock = clock
        self._journal = settings.journal
        self._base: i64 = settings.base
        self._trim_step: i64 = settings.trim_step
        capabilities = store.capabilities
        window_ms: i64 = settings.window_ms
        if window_ms != ALWAYS:
            window_ms = max(window_ms, capabilities.forgets_ms)
        self._windows = Windows(window_ms, capabilities.tells_primary)
        self._requests = Requests()
        self._ready: deque[StoredQueue] = deque()
        self._later: list[tuple[int, int, StoredQueue]] = []
        self._turn = 0
        self._deletes: deque[QueueName] = deque()
        store.listener = self

    # What core says

    def adopt(self, queue: StoredQueue) -> None:
        """Take over a queue of which the journal says that it has something in this store."""
        queue.adopt(self._base)
        self._make_ready(queue)

    def begin(self, queue: StoredQueue) -> None:
        """Put what waits in a queue into the store, and what will: its client is away, or it is long."""
        self._make_ready(queue)

    def consumed(self, queue: StoredQueue, floor: i64) -> None:
        """Note that everything below a serial number is finished, and that this is durable."""
        queue.floor = max(queue.floor, floor)
        if not queue.pending:
            self._settle(queue)

    def let_go_is_durable(self, queue: StoredQueue, up_to: i64) -> None:
        """Note that LET_GO is durable: from now on the journal may be without these entries."""
        if queue.ended:
            return
        self.counters.let_go += max(0, up_to - queue.rows.let_go)
        queue.rows.note_let_go(up_to)
        self._keep_context(queue, queue.waiting.context())

    def end(self, queue: StoredQueue) -> None:
        """Delete all that a session has in the store: its end is durable."""
        queue.ended = True
        self._windows.void(queue)
        for extent in queue.rows.extents:
            self._delete(queue, extent.generation)
        if queue.stream is not None and queue.rows.generation < queue.stream.generation:
            self._delete(queue, queue.stream.generation)
        self._delete(queue, CONTEXT_GENERATION)

    def read(self, queue: StoredQueue, first: i64, count: i64) -> bool:
        """Read entries back that the journal need not have any more. Returns False, and asks for nothing, if it still
        has the first of them, no stream has it, or something is read; else `Waiting.loaded` or `Waiting.not_now` is
        called once."""
        extent = queue.rows.at(first)
        if extent is None or first > queue.asked or queue.reading:
            return False
        request = self._requests.make(READ, self._clock.mono_ms, queue)
        request.first = first
        request.up_to = min(first + count - 1, extent.up_to, queue.asked)
        queue.reading = request.number
        name = queue.name(self._journal, extent.generation)
        self._store.read(request.number, name, first, request.up_to - first + 1)
        return True

    def sweep(self) -> None:
        """Look for streams of sessions that are no more, and delete them."""
        self._store.scan(self._requests.make(SCAN, self._clock.mono_ms).number, "")

    def has_work(self) -> bool:
        """Return whether `run` would do something now, whatever the time."""
        return bool(self._ready or self._deletes) and self._store.room() > 0

    def run(self) -> None:
        """Do what is due: give up what is not answered, look at primaries, put."""
        now_ms: i64 = self._clock.mono_ms
        self._give_up(now_ms)
        self._ripen(now_ms)
        while self._later and self._later[0][0] <= now_ms:
            self._make_ready(heapq.heappop(self._later)[2])
        turns = len(self._ready)
        while turns and len(self._requests) < REQUESTS_MAX and self._store.room() > 0:
            turns -= 1
            queue = self._ready.popleft()
            queue.is_ready = False
            if not queue.ended:
                self._trim(queue)
                self._step(queue)
        while self._deletes and len(self._requests) < REQUESTS_MAX and self._store.room() > 0:
            request = self._requests.make(DELETE, now_ms)
            request.name = name = self._deletes.popleft()
            if name.generation == CONTEXT_GENERATION:
                self._store.keep_context(request.number, name, None)
            else:
                self._store.delete(request.number, name)

    # One queue

    def _step(self, queue: StoredQueue) -> None:
        """Ask for what comes next, unless something is unanswered."""
        if queue.pending:
            return
        stream = queue.stream
        if stream is not None and queue.compares:
            request = self._ask(LOOK, queue, stream)
            request.up_to, queue.compared_for = queue.compared_for, 0
            self.counters.compared += 1
            self._store.look(request.number, queue.name(self._journal, stream.generation))
            return
        queue.compares = False
        if stream is not None and stream.up_to + 1 < queue.floor:
            self._make_anew(queue)  # between what is there and what comes next something is finished
            stream = None
        if stream is None:
            if queue.rows.is_full() or max(queue.asked + 1, queue.floor) > queue.waiting.newest():
                return
            stream = queue.begin(self._base)
        self._put(queue, stream)

    def _put(self, queue: StoredQueue, stream: Extent) -> None:
        """Put what comes next into a stream, as much as one put takes."""
        capabilities = self._store.capabilities
        first = stream.up_to + 1
        count = min(queue.waiting.newest() - first + 1, capabilities.put_entries_max)
        if count <= 0:
            return
        found = queue.waiting.entries(first, count, capabilities.put_bytes_max)
        if not found:
            self._try_later(queue)
            return
        entry_bytes_max = capabilities.entry_bytes_max
        entries = [entry if len(entry) <= entry_bytes_max else IN_JOURNAL for entry in found]
        request = self._ask(PUT, queue, stream)
        request.first = first
        request.up_to = first + len(entries) - 1
        name = queue.name(self._journal, stream.generation)
        self._store.put(request.number, name, first, entries, stream.is_empty())
        self.counters.put += len(entries)
        self.counters.put_bytes += sum([len(entry) for entry in entries])

    def _ask(self, kind: int, queue: StoredQueue, stream: Extent) -> Request:
        """Make the one request of a queue that is unanswered."""
        request = self._requests.make(kind, self._clock.mono_ms, queue)
        request.stream = stream
        queue.pending = request.number
        return request

    def took(self, number: i64, outcome: int, primary: Primary | None) -> None:
        request = self._requests.take(number, PUT)
        if request is None or request.queue is None or request.queue.ended:
            return
        queue = request.queue
        queue.pending = 0
        if outcome == DONE and primary is not None:
            self._took(queue, request, primary)
        elif outcome == ABSENT:
            self._make_anew(queue)
            self._try_soon(queue)
        elif outcome == REFUSED:
            self.counters.refused += 1
            self._try_later(queue)
        else:
            if outcome != THERE:
                self.counters.unsure += 1
            self._windows.void(queue)
            queue.compares = True
            self._try_soon(queue)
        self._settle(queue)

    def _took(self, queue: StoredQueue, request: Request, primary: Primary) -> None:
        """Handle a put that was done: what was there before is known to be there only if the same primary has it."""
        stream = request.stream
        assert stream is not None
        queue.failures = 0
        self._make_ready(queue)
        if not stream.is_empty() and primary is not queue.primary:
            self._windows.void(queue)
            queue.compares = True
            return
        self._note_stored(queue, stream, request.up_to, primary)

    def _note_stored(self, queue: StoredQueue, stream: Extent, up_to: i64, primary: Primary) -> None:
        """Note what is in the newest stream, and begin the window of it."""
        queue.primary = primary
        stream.up_to = up_to
        generation, first = stream.generation, stream.first
        for extent in queue.rows.stored(generation, first, up_to):
            self._delete(queue, extent.generation)
        self._notes.stored(queue, generation, first, up_to)
        if up_to > queue.asked:
            self._windows.begin(queue, primary, up_to, self._clock.mono_ms)

    def looked(self, number: i64, outcome: int, found: Found | None, primary: Primary | None) -> None:
        request = self._requests.take(number, LOOK)
        if request is None or request.queue is None or request.queue.ended:
            return
        queue = request.queue
        queue.pending = 0
        stream = request.stream
        if stream is None or outcome in (UNSURE, REFUSED):
            self._try_later(queue)
        else:
            self._windows.void(queue)
            queue.compares = False
            self._compare(queue, stream, found, primary, request.up_to)
            self._try_soon(queue)
        self._settle(queue)

    def _compare(
        self, queue: StoredQueue, stream: Extent, found: Found | None, primary: Primary | None, aged: i64
    ) -> None:
        """Go on with a stream as far as it is there and whole, or make it anew. What had outlasted its window when the
        look was begun, up to the serial number `aged`, is let go of if the same connection still has it."""
        if found is not None and primary is not None and self._is_whole(queue, stream, found):
            same = primary is queue.primary
            if found.last > stream.up_to or (aged and same):
                queue.failures = 0
            self._note_stored(queue, stream, found.last, primary)
            if aged and same:
                self._let_go(queue, min(aged, found.last))
        elif not stream.is_empty() or (found is not None and max(found.count, found.last) > 0):
            self._make_anew(queue)

    def _is_whole(self, queue: StoredQueue, stream: Extent, found: Found) -> bool:
        """Return whether a stream holds without a gap what the journal has let go of, ends where the next entry can
        follow, and holds nothing that we have not."""
        return (
            found.is_dense()
            and found.first <= max(stream.first, queue.floor)
            and max(queue.asked, queue.floor - 1) <= found.last <= queue.waiting.newest()
        )

    def _make_anew(self, queue: StoredQueue) -> None:
        """Leave the newest stream: what the journal still has goes into the next one. What it has let go of is read
        from the old one, as far as it is there."""
        stream = queue.stream
        self._windows.void(queue)
        queue.stream = None
        queue.compares = False
        self.counters.made_anew += 1
        if stream is not None and all(
            extent.generation != stream.generation for extent in queue.rows.extents
        ):
            self._delete(queue, stream.generation)

    # Windows

    def _ripen(self, now_ms: i64) -> None:
        """Look at primaries where windows are over, and handle those of which it is known what became of them."""
        for lane in self._windows.due(now_ms):
            request = self._requests.make(SIGHT, now_ms)
            request.lane = lane
            self._store.sight(request.number, lane.primary)
        for outcome in self._windows.take(now_ms, RIPE_AT_ONCE):
            queue = outcome.queue
            if outcome.what == RIPE:
                self._let_go(queue, outcome.up_to)
                continue
            if outcome.what == TO_COMPARE:
                queue.compared_for = outcome.up_to
            else:
                self._windows.void(queue)
            queue.compares = True
            self._make_ready(queue)

    def _let_go(self, queue: StoredQueue, up_to: i64) -> None:
        """Let the journal let go of what is ripe. What is too large for the store stays, and so does what is behind it
        until that is finished."""
        queue.ripe = max(queue.ripe, up_to)
        first = max(queue.asked + 1, queue.floor)
        large = queue.waiting.large_between(first, queue.ripe, self._store.capabilities.entry_bytes_max)
        end = large - 1 if large else queue.ripe
        if end > queue.asked:
            queue.asked = end
            self._notes.let_go(queue, end)

    def seen(self, number: i64, outcome: int) -> None:
        request = self._requests.take(number, SIGHT)
        if request is None or request.lane is None:
            return
        if outcome == SAME:
            self._windows.saw_same(request.lane)
        elif outcome == ANOTHER:
            self._windows.saw_another(request.lane)
        else:
            self._windows.saw_nothing(request.lane, self._clock.mono_ms)

    def lost(self, primary: Primary) -> None:
        self._windows.lost(primary)

    def has_room(self) -> None:
        """Do nothing: whoever has work is asked with the next tick."""

    # What is finished

    def _settle(self, queue: StoredQueue) -> None:
        """Delete streams in which nothing waits, trim the oldest, and let go of what only waited for what is finished."""
        if queue.ended:
            return
        for extent in queue.rows.consumed(queue.floor):
            self._delete(queue, extent.generation)
            stream = queue.stream
            if stream is not None and stream.generation == extent.generation:
                self._windows.void(queue)
                queue.stream = None
                queue.compares = False
        if queue.ripe > queue.asked:
            self._let_go(queue, queue.ripe)
        self._trim(queue)

    def _trim(self, queue: StoredQueue) -> None:
        """Delete what is finished of the oldest stream, where it is enough."""
        extents = queue.rows.extents
        if not extents or queue.trimming or self._store.room() == 0:
            return
        oldest = extents[0]
        if queue.floor - max(queue.trimmed, oldest.first) < self._trim_step:
            return
        request = self._requests.make(TRIM, self._clock.mono_ms, queue)
        request.up_to = queue.floor
        queue.trimming = request.number
        self._store.trim(request.number, queue.name(self._journal, oldest.generation), queue.floor)

    def _delete(self, queue: StoredQueue, generation: i64) -> None:
        """Delete a stream of which nothing is needed, as soon as the store takes it."""
        self._delete_name(queue.name(self._journal, generation))

    def _delete_name(self, name: QueueName) -> None:
        """Delete what has a name, as soon as the store takes it."""
        if len(self._deletes) < DELETES_MAX:
            self._deletes.append(name)
        else:
            self.counters.deletes_dropped += 1

    def _keep_context(self, queue: StoredQueue, context: Context) -> None:
        """Keep what is known of a client beside its queue; whoever reads it knows that it may be old."""
        if self._store.room() > 0:
            request = self._requests.make(CONTEXT, self._clock.mono_ms)
            name = queue.name(self._journal, CONTEXT_GENERATION)
            self._store.keep_context(request.number, name, context)

    def finished(self, number: i64, outcome: int) -> None:
        request = self._requests.take(number, TRIM)
        if request is not None and request.queue is not None:
            queue = request.queue
            queue.trimming = 0
            if outcome == DONE:
                queue.trimmed = max(queue.trimmed, request.up_to)
            else:
                self._try_later(queue)
            return
        request = self._requests.take(number, DELETE)
        if request is not None and request.name is not None and outcome in (UNSURE, REFUSED):
            self._delete_name(request.name)
            return
        self._requests.take(number, CONTEXT)

    # Reads and orphans

    def read_back(
        self, number: i64, outcome: int, up_to: i64, serials: list[int], entries: list[bytes]
    ) -> None:
        request = self._requests.take(number, READ)
        if request is None or request.queue is None or request.queue.ended:
            return
        queue = request.queue
        queue.reading = 0
        first = max(request.first, queue.floor)  # what was finished meanwhile is not read
        end = min(up_to, request.up_to) if outcome == DONE else request.up_to
        if outcome not in (DONE, ABSENT) or end < first:
            queue.waiting.not_now()
            return
        there = dict(zip(serials, entries, strict=True)) if outcome == DONE else {}
        found: list[bytes | None] = [there.get(serial) for serial in range(first, end + 1)]
        forgotten = found.count(None)
        self.counters.read += len(found) - forgotten
        self.counters.forgotten += forgotten
        queue.waiting.loaded(first, found)

    def scanned(self, number: i64, outcome: int, names: list[QueueName], cursor: str) -> None:
        if self._requests.take(number, SCAN) is None or outcome != DONE:
            return
        for name in names:
            if name.journal == self._journal and self._is_orphan(name):
                self.counters.orphans += 1
                self._delete_name(name)
        if cursor:
            self._store.scan(self._requests.make(SCAN, self._clock.mono_ms).number, cursor)

    def _is_orphan(self, name: QueueName) -> bool:
        """Return whether a stream of this journal is of no session, or of a generation that its session has left."""
        queue = self._notes.queue_of(name.incarnation)
        if queue is None:
            return not self._notes.lives(name.incarnation)
        return not queue.uses(name.generation)

    # Turns

    def _make_ready(self, queue: StoredQueue) -> None:
        """Give a queue its turn, after those that have it."""
        if not queue.is_ready and not queue.ended:
            queue.is_ready = True
            self._ready.append(queue)

    def _try_soon(self, queue: StoredQueue) -> None:
        """Go on with a queue at once after the first surprise, later after another one without success between."""
        if queue.failures:
            self._try_later(queue)
        else:
            queue.failures = 1
            self._make_ready(queue)

    def _try_later(self, queue: StoredQueue) -> None:
        """Try a queue again, later each time that it fails."""
        wait_ms: i64 = min(RETRY_MS << min(queue.failures, 20), RETRY_MAX_MS)
        queue.failures += 1
        self._turn += 1
        heapq.heappush(self._later, (int(self._clock.mono_ms + wait_ms), self._turn, queue))

    def _give_up(self, now_ms: i64) -> None:
        """Handle requests without an answer as if it were not known what became of them."""
        for request in self._requests.overdue(now_ms - PATIENCE_MS):
            kind, number = request.kind, request.number
            if kind == PUT:
                self.took(number, UNSURE, None)
            elif kind == LOOK:
                self.looked(number, UNSURE, None, None)
            elif kind == READ:
                self.read_back(number, UNSURE, 0, [], [])
            elif kind == SIGHT:
                self.seen(number, -1)
            elif kind == SCAN:
                self.scanned(number, UNSURE, [], "")
            else:
                self.finished(number, UNSURE)
